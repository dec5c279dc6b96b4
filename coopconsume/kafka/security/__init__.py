"""How `kafka.*` security settings serve Spark's Kafka source and kafka-python alike."""
