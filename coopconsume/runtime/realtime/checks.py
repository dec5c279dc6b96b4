"""What `start()` makes sure of before a job runs in real time."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from coopconsume.classic import cores, is_classic
from coopconsume.errors import InvalidOption, RealTimeUnavailable
from coopconsume.kafka.librdkafka import client_config
from coopconsume.sinks.others import OutputFunction
from coopconsume.sinks.transactional import TransactionalTopic
from coopconsume.worker.look import Look, missing_packages

if TYPE_CHECKING:
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
    for name, why in missing_packages(_PACKAGES).items():
        raise RealTimeUnavailable(f"the driver has no {name} ({why})", _install())
    client_config(options.kafka)
    _check_cores(spark, options, job_spec, slots)


def _check_cores(spark: SparkSession, options: Options, job_spec: JobSpec, slots: int) -> None:
    """Long tasks keep their cores: what else needs Spark needs one as well."""
    from commits.places import is_named

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
    looks = Look(packages, (), (channel.host, channel.port, b""), (), _CONNECT)
    rows = spark.range(0, slots, 1, slots).mapInArrow(looks, "found string").collect()
    found = [json.loads(row.found) for row in rows]
    for one in found:
        for name, why in one["missing"].items():
            raise RealTimeUnavailable(f"a worker has no {name} ({why})", _install())
    for one in found:
        if one["driver"]["why"]:
            raise RealTimeUnavailable(
                f"the worker {one['host']} cannot reach the driver at "
                f"{channel.host}:{channel.port} ({one['driver']['why']})",
                network,
            )


def _install() -> str:
    return "pip install coopconsume on the driver and on all workers"
