"""Where Kafka's producers put a key."""

_POSITIVE = 0x7FFFFFFF


def default_partition(key: bytes, partitions: int) -> int:
    """The partition that Kafka's producers choose for a key by default: by its murmur2."""
    from kafka.partitioner.default import murmur2

    return int(murmur2(key) & _POSITIVE) % partitions
