"""Security settings (`kafka.*`) for both Spark's Kafka source and kafka-python."""
