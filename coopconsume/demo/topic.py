"""Loads the demo's flights into a topic with Spark's Kafka sink, and computes its contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from coopconsume.demo.flights import flight_table
from coopconsume.errors import BrokerUnreachable
from coopconsume.kafka.partitioner import default_partition
from coopconsume.kafka.settings import client_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

_CHUNK = 70_000
_PREFIX = "kafka."
_SINK = {"kafka.linger.ms": "20", "kafka.batch.size": str(512 << 10)}


def load_topic(
    spark: SparkSession,
    options: Mapping[str, str],
    topic: str = "flights",
    *,
    partitions: int = 3,
    flights: pa.Table | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Appends flights to a topic, in time order within each partition.

    The partition of a record with a key is Kafka's default (murmur2 of the key). Records without a
    key are distributed round robin.

    Args:
        spark: A session with Spark's Kafka connector.
        options: ``kafka.bootstrap.servers`` and other ``kafka.*`` settings of the cluster; options
            without that prefix are ignored.
        topic: The topic, created with the cluster's default replication if it does not exist.
        partitions: The number of its partitions.
        flights: A result of `flight_table`; None for the whole year.
        progress: Called after each chunk with the number of records written and their total.

    Returns:
        The number of records written.

    Raises:
        ValueError: The topic exists with another number of partitions.
        BrokerUnreachable: No broker answered within 10 s.
        DemoDataMissing: The package with the data is not installed.
        kafka.errors.KafkaError: The cluster refused to create the topic.
    """
    table = flight_table() if flights is None else flights
    _create(options, topic, partitions)
    keyless = table["key"].is_null().to_numpy()
    turn = (np.cumsum(keyless) - 1) % partitions
    table = table.append_column("partition", pa.array(turn.astype(np.int32), mask=~keyless))
    for first in range(0, len(table), _CHUNK):
        part = table.slice(first, _CHUNK)
        # With one task only, as several tasks would break the order of a key.
        (
            spark.createDataFrame(part)
            .coalesce(1)
            .write.format("kafka")
            .options(**_SINK)
            .options(**_kafka_only(options))
            .option("topic", topic)
            .save()
        )
        if progress is not None:
            progress(first + len(part), len(table))
    return len(table)


def planned_records(
    tails: Iterable[str | None], topic: str = "flights", *, partitions: int = 3
) -> dict[tuple[str, int], dict[int, bytes | None]]:
    """Returns the key of each offset by (topic, partition) that `load_topic` puts in a new topic.

    The result is computed from the data, not read from the topic, so that the checks compare with
    what had to be produced. A different log shows as calls for other keys, or as another end.

    Args:
        tails: The tail number of each flight, in order.
        topic: The topic.
        partitions: The number of its partitions.
    """
    homes: dict[str, int] = {}
    places: list[list[bytes | None]] = [[] for _ in range(partitions)]
    turn = 0
    for tail in tails:
        if tail is None:
            places[turn % partitions].append(None)
            turn += 1
            continue
        if tail not in homes:
            homes[tail] = default_partition(tail.encode(), partitions)
        places[homes[tail]].append(tail.encode())
    return {(topic, number): dict(enumerate(keys)) for number, keys in enumerate(places)}


def _kafka_only(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name.startswith(_PREFIX)}


def _create(options: Mapping[str, str], topic: str, partitions: int) -> None:
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaConnectionError, KafkaTimeoutError

    config = client_config(
        {name.removeprefix(_PREFIX): value for name, value in _kafka_only(options).items()}
    )
    try:
        admin = KafkaAdminClient(**config, bootstrap_timeout_ms=10_000)
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        raise BrokerUnreachable(",".join(config["bootstrap_servers"]), str(error)) from error
    try:
        if topic not in admin.list_topics():
            admin.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)
        found = len(admin.describe_topics([topic])[0]["partitions"])
    finally:
        admin.close()
    if found != partitions:
        raise ValueError(
            f"topic {topic!r} exists with {found} partitions, not {partitions}: "
            "choose another topic, or delete it"
        )
