"""Checks of the driver's process and of its Spark session."""

from __future__ import annotations

import platform
import sys
import warnings
from typing import TYPE_CHECKING, Final

from coopconsume.classic import connector_version, is_classic, refuse_second_runs
from coopconsume.doctor.diagnosis import Check
from coopconsume.errors import SessionUnusable, SparkVersionUnsupported
from coopconsume.errors.base import sentence_of
from coopconsume.spark_versions import check_connector, minor_of
from coopconsume.worker.look import missing_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_OLDEST: Final = (3, 11)
_PACKAGES: Final = ("pyarrow", "deltalake", "obstore", "kafka", "confluent_kafka", "xxhash")
_CACHE: Final = "spark.kafka.consumer.fetchedData.cache.timeout"
_CACHED: Final = "5m"
_CONNECT: Final = (
    "use a classic session where slots are to report before a batch ends, and for real time"
)


def driver_checks() -> Iterator[Check]:
    """Yields what the process of the driver has."""
    version = platform.python_version()
    if sys.version_info[:2] < _OLDEST:
        yield Check("Python", "failed", version, "use Python 3.11 or newer")
    else:
        yield Check("Python", "ok", version)
    missing = missing_packages(_PACKAGES)
    if missing:
        why = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        yield Check(
            "packages of the driver", "failed", why, "install coopconsume with its dependencies"
        )
    else:
        yield Check("packages of the driver", "ok", ", ".join(_PACKAGES))


def session_checks(spark: SparkSession) -> Iterator[Check]:
    """Yields what a session is and how it is set up."""
    yield _version(spark.version)
    classic = is_classic(spark)
    if classic:
        yield Check("kind of session", "ok", f"classic, {spark.conf.get('spark.master', '?')}")
    else:
        limit = "Spark Connect: results come as a whole batch ends, without a channel"
        yield Check("kind of session", "warning", limit, _CONNECT)
    yield _once(spark, classic=classic)
    yield _kafka_source(spark, classic=classic)
    kept = str(spark.conf.get(_CACHE, _CACHED))
    if kept == _CACHED:
        found = "Spark's Kafka source keeps fetched records in the heap for 5 minutes"
        yield Check("fetched records", "warning", found, f"set {_CACHE}=5s as the session starts")
    else:
        yield Check("fetched records", "ok", f"kept for {kept}")


def _version(version: str) -> Check:
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            minor_of(version)
    except SparkVersionUnsupported as error:
        return Check("version of Spark", "failed", str(error))
    if said:
        remedy = "use a version that the tests use"
        return Check("version of Spark", "warning", str(said[0].message), remedy)
    return Check("version of Spark", "ok", version)


def _once(spark: SparkSession, *, classic: bool) -> Check:
    name = "handlers run once"
    try:
        refuse_second_runs(spark.conf.get, classic=classic)
    except SessionUnusable as error:
        return Check(name, "failed", str(error))
    if not classic:
        remedy = "see that spark.stage.maxConsecutiveAttempts is 1 on the server"
        return Check(name, "untried", "settings of the server are not known here", remedy)
    return Check(name, "ok", "no speculation, no second attempt of a stage")


def _kafka_source(spark: SparkSession, *, classic: bool) -> Check:
    name = "Spark's Kafka source"
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
    version = connector_version(spark) if classic else None
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", "localhost:1")
    try:
        check_connector(version, spark.version)
        _ = reader.option("subscribe", "none").load().columns
    except SessionUnusable as error:
        return Check(name, "failed", str(error))
    except Exception as error:  # noqa: BLE001 - of a class that is missing, too
        return Check(name, "failed", sentence_of(error), f"give spark.jars.packages={package}")
    return Check(name, "ok", version or "there, of an unknown version")
