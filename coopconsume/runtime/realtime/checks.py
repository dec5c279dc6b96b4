"""What `start()` makes sure of before a job runs in real time."""

from __future__ import annotations

import logging
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from coopconsume.classic import cores, is_classic
from coopconsume.errors import InvalidOption, RealTimeUnavailable
from coopconsume.kafka.librdkafka import client_config
from coopconsume.sinks.others import OutputFunction
from coopconsume.sinks.transactional import TransactionalTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from coopconsume.options import Options
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.worker.channel.spec import ChannelSpec

log = logging.getLogger(__name__)

_TRIGGER: Final = "trigger(realTime=…)"
_PACKAGES: Final = ("confluent_kafka", "xxhash")
#: Seconds for a worker to connect to the driver.
_CONNECT: Final = 10.0


def check_settings(spark: SparkSession, options: Options, job_spec: JobSpec, slots: int) -> None:
    """Makes sure that a job can run in real time, as far as this process knows.

    Args:
        spark: The session.
        options: Of the consumer.
        job_spec: Of the job.
        slots: Of the job.

    Raises:
        InvalidOption: A setting that real-time slots cannot follow.
        RealTimeUnavailable: A package is missing here, or the session is one of Spark Connect.
    """
    if not is_classic(spark):
        raise RealTimeUnavailable(
            "slots cannot reach the driver on Spark Connect", "use a classic session, or batches"
        )
    if job_spec.state is not None:
        raise InvalidOption(_TRIGGER, "with state", "leave it out: state needs batches")
    if isinstance(job_spec.outputs, TransactionalTopic):
        raise InvalidOption(
            _TRIGGER, "output_mode='transactional'", "leave it out, or append to the topic"
        )
    for name, expression, remedy in (
        ("where", options.record_filter.where, "filter by keys, sizes or headers"),
        ("orderingKey", options.ordering_key, "leave it out, or use batches"),
    ):
        if expression is not None:
            raise InvalidOption(
                name, f"with {_TRIGGER}", f"{remedy}: only Spark evaluates an expression"
            )
    missing = _missing(_PACKAGES)
    if missing:
        raise RealTimeUnavailable(f"the driver has no {missing}", _install())
    client_config(options.kafka)
    _check_cores(spark, options, job_spec, slots)


def _check_cores(spark: SparkSession, options: Options, job_spec: JobSpec, slots: int) -> None:
    """Long tasks keep their cores: what else needs Spark needs one as well."""
    from commits.table import is_named

    most = cores(spark)
    if most is None or slots < most:
        return
    remedy = f"give slots={max(1, most - 1)}, or the session more cores"
    if slots > most:
        raise InvalidOption("slots", f"{slots} on {most} cores", f"{remedy}: slots keep their core")
    others = [
        name
        for name, is_so in (
            (f"the commit table {options.commit_table}", is_named(options.commit_table)),
            ("the output function", isinstance(job_spec.outputs, OutputFunction)),
        )
        if is_so
    ]
    if others:
        raise InvalidOption(
            "slots",
            f"{slots} on {most} cores",
            f"{remedy}: slots keep their core, and {' and '.join(others)} needs one",
        )
    log.warning(
        "real-time slots keep all %d cores of the session: nothing else runs in it meanwhile; %s",
        most,
        remedy,
    )


def check_workers(
    spark: SparkSession,
    slots: int,
    channel: ChannelSpec | None,
    error: str,
    packages: tuple[str, ...] = _PACKAGES,
) -> None:
    """Makes sure that workers can run real-time slots, by a Spark job.

    Args:
        spark: The session.
        slots: Of the job.
        channel: Where slots reach the driver.
        error: Why there is no channel.
        packages: What workers need.

    Raises:
        RealTimeUnavailable: A package is missing on a worker, or it cannot reach the driver.
    """
    network = (
        "let workers connect to the driver: see spark.driver.host, spark.driver.bindAddress and "
        "the option channelPort"
    )
    if channel is None:
        raise RealTimeUnavailable(error or "there is no channel to the slots", network)
    looks = _Look(channel.host, channel.port, packages)
    tasks = spark.range(0, slots, 1, slots)
    rows = tasks.mapInArrow(looks, "missing string, unreachable string").collect()
    for row in rows:
        if row.missing:
            raise RealTimeUnavailable(f"a worker has no {row.missing}", _install())
    for row in rows:
        if row.unreachable:
            raise RealTimeUnavailable(row.unreachable, network)


def _install() -> str:
    return "pip install coopconsume on the driver and on all workers"


def _missing(packages: tuple[str, ...]) -> str:
    """Returns the first package that cannot be imported here, and why; empty if all can be."""
    for name in packages:
        try:
            import_module(name)
        except ImportError as error:
            return f"{name} ({error})"
    return ""


class _Look:
    """The function of a task that looks what its worker has."""

    def __init__(self, host: str, port: int, packages: tuple[str, ...]) -> None:
        self._host = host
        self._port = port
        self._packages = packages

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:

        for _ in batches:
            pass
        missing, unreachable = _missing(self._packages), ""
        try:
            socket.create_connection((self._host, self._port), timeout=_CONNECT).close()
        except OSError as error:
            unreachable = (
                f"the worker {socket.gethostname()} cannot reach the driver at "
                f"{self._host}:{self._port} ({error})"
            )
        columns: dict[str, Any] = {"missing": [missing], "unreachable": [unreachable]}
        yield pa.RecordBatch.from_pydict(columns)
