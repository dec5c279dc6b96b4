"""Slots that read Kafka themselves. Task-side code; it needs confluent-kafka and xxhash.

`source` reads, `reader` keeps what is the slot's own, `slot` runs the handlers of a batch over it.

The slots of a host share a `fetch_server`: `record_cache` decides what it keeps and answers,
`fetch_messages` is what both sides send, `host_link` connects, `fetch_state` decides what a slot
asks for and what it reads itself, `host_source` does both.
"""
