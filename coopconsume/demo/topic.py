"""Loads the demo's flights into a topic, and computes its contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.kafka.creation import create_topic
from coopconsume.kafka.partitioner import default_partition
from coopconsume.kafka.producer import Message, Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from coopconsume.options import Options

_WHAT = "flight"


def load_topic(
    options: Options, topic: str, flights: Sequence[tuple[bytes | None, bytes]], *, partitions: int
) -> None:
    """Writes flights to a new topic, in time order within each partition.

    The partition of a record with a key is Kafka's default (murmur2 of the key). Records without a
    key are distributed round robin.

    Args:
        options: The options of the cluster.
        topic: The topic, created with the cluster's default replication.
        flights: Their keys and values.
        partitions: The number of partitions.

    Raises:
        OutputNotWritten: The cluster did not take the flights.
    """
    create_topic(options, topic, partitions, {}, _WHAT)
    producer = Producer(options, _WHAT)
    try:
        places = _partitions((key for key, _ in flights), partitions)
        producer.write(
            Message(topic, key, value, partition=partition)
            for (key, value), partition in zip(flights, places, strict=True)
        )
    finally:
        producer.close()


def planned_records(
    keys: Iterable[bytes | None], topic: str = "flights", *, partitions: int = 3
) -> dict[tuple[str, int], dict[int, bytes | None]]:
    """Returns the key of each offset by (topic, partition) that `load_topic` puts in a new topic.

    The result is computed from the data, not read from the topic, so that the checks compare with
    what had to be produced. A different log shows as calls for other keys, or as another end.

    Args:
        keys: The key of each record, in order.
        topic: The topic.
        partitions: The number of its partitions.
    """
    keys = list(keys)
    planned: list[list[bytes | None]] = [[] for _ in range(partitions)]
    for key, partition in zip(keys, _partitions(keys, partitions), strict=True):
        planned[partition].append(key)
    return {(topic, number): dict(enumerate(found)) for number, found in enumerate(planned)}


def _partitions(keys: Iterable[bytes | None], partitions: int) -> Iterator[int]:
    """Yields the partition of each key."""
    homes: dict[bytes, int] = {}
    turn = 0
    for key in keys:
        if key is None:
            yield turn % partitions
            turn += 1
        else:
            if key not in homes:
                homes[key] = default_partition(key, partitions)
            yield homes[key]
