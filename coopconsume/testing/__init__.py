"""Tools for tests: a local Kafka broker and Spark session, and a checker of recorded histories."""
