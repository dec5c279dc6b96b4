"""The default partitioner of Kafka's producers."""

_POSITIVE = 0x7FFFFFFF


def default_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's producers choose for a key by default (murmur2)."""
    from kafka.partitioner.default import murmur2

    return int(murmur2(key) & _POSITIVE) % partitions
