"""What the benchmarks stand on: a broker, a warm session of two cores, topics of known records."""

from __future__ import annotations

import itertools
import os
import platform
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from coopconsume import CooperativeConsumer, LocalKafka, Options, local_session
from coopconsume.testing.local.session import stop_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

CORES = 2
SLOTS = 2


@dataclass
class Harness:
    """Broker, session and a folder of one run.

    Attributes:
        quick: Whether sizes are small, to see that everything works.
        turns: How many turns count.
    """

    broker: LocalKafka
    spark: SparkSession
    folder: Path
    turns: int
    quick: bool
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def size(self, full: int, quick: int) -> int:
        """The full size or the small one."""
        return quick if self.quick else full

    def options(self, topic: str, **more: object) -> dict[str, object]:
        """Options of a consumer of a new group with an empty commit table."""
        number = next(self._numbers)
        return {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "kafka.group.id": f"bench-{number}",
            "subscribe": topic,
            "commitTable": str(self.folder / f"commits-{number}"),
            "slots": SLOTS,
            **more,
        }

    def consumer(self, topic: str, **more: object) -> CooperativeConsumer:
        """A consumer of a new group with an empty commit table."""
        return CooperativeConsumer(self.options(topic, **more), self.spark)

    def parsed(self, topic: str) -> Options:
        """The same options, checked."""
        return Options.parse(self.options(topic))

    def path(self, name: str) -> Path:
        """A new path in the run's folder."""
        return self.folder / f"{name}-{next(self._numbers)}"

    def load(
        self, topic: str, records: int, keys: int, value_bytes: int, *, zipf: bool = False,
        partitions: int = 1,
    ) -> None:  # fmt: skip
        """Create a topic, of one partition if not said otherwise, and fill it by Spark, in order.

        Keys come in turn, or by Zipf's law of exponent 1, the same in every run.
        """
        from pyspark.sql import functions as F

        self.broker.create_topic(topic, partitions)
        number = F.col("id").cast("string")
        # The inverse of Zipf's distribution, with the sum of 1/k replaced by a logarithm.
        rank = F.floor(F.pow(F.lit(float(keys)), F.rand(7))) if zipf else F.col("id") % keys
        (
            self.spark.range(0, records, 1, 1)
            .select(
                F.concat(F.lit("key-"), rank).cast("binary").alias("key"),
                F.rpad(number, value_bytes, ".").cast("binary").alias("value"),
            )
            .write.format("kafka")
            .option("kafka.bootstrap.servers", self.broker.bootstrap_servers)
            .option("kafka.linger.ms", "20")
            .option("kafka.batch.size", str(max(16 << 10, (512 << 10) // partitions)))
            .option("topic", topic)
            .save()
        )


@contextmanager
def prepared(turns: int, *, quick: bool) -> Iterator[Harness]:
    """Start a broker and a session of two cores, and end both."""
    from pyspark import cloudpickle

    from tests.bench import handlers

    # Workers need not find this package.
    cloudpickle.register_pickle_by_value(handlers)
    # A broker that stands still for want of a processor stays in its cluster.
    settings = {"broker.session.timeout.ms": 60_000}
    with (
        tempfile.TemporaryDirectory(prefix="coopconsume-bench-") as folder,
        LocalKafka(config=settings) as broker,
    ):
        spark = local_session("coopconsume-bench", cores=CORES)
        try:
            yield Harness(broker, spark, Path(folder), turns, quick)
        finally:
            stop_session(spark)


def surroundings() -> str:
    """The machine and the versions, in a sentence."""
    return (
        f"{os.cpu_count()} processors ({platform.machine()}), {_memory()} GiB, "
        f"Python {platform.python_version()}, PySpark {version('pyspark')}, "
        f"deltalake {version('deltalake')}, local[{CORES}], the broker on the same machine"
    )


def _memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
