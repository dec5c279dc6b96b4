"""The fenced writer: one owner at a time of a Kafka log, and appends that know what they follow.

On unmodified Kafka (KIP-27, KAFKA-2260, Pulsar's PIP-68), and without Spark.
"""
