"""What runs on one machine: a real Kafka broker, a Spark session, and the jars and Java of both.

Its face, `LocalKafka` and `local_session`, is in `coopconsume`. Nothing is imported here, as
``python -m coopconsume.testing.local.jars`` runs before there is a Spark.
"""
