"""Slots that read Kafka themselves. Task-side code; it needs confluent-kafka and xxhash.

`source` reads, `reader` keeps what is the slot's own, `slot` runs the handlers of a batch over it.
"""
