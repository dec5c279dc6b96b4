"""What of coopconsume works in a session and at the places of some options, found by trying.

    diagnosis ── the result
    driver ───── Python, packages and settings of Spark, in this process
    workers ──── what tasks find (`coopconsume.worker.look`), judged beside the driver
    places ───── Kafka's brokers and topics, and the places of tables

Each check says what was found, and which option or setting is to be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.classic import driver_address, is_classic
from coopconsume.doctor.diagnosis import Check, Diagnosis
from coopconsume.doctor.driver import driver_checks, session_checks
from coopconsume.doctor.places import kafka_checks, table_checks
from coopconsume.doctor.workers import worker_checks
from coopconsume.errors import SessionUnusable
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

__all__ = ["Check", "Diagnosis", "diagnose"]


def diagnose(
    options: Mapping[str, Any] | None = None, spark: SparkSession | None = None
) -> Diagnosis:
    """Tries what works in a session, and at the places that options name.

    It runs one Spark job, which looks at the Python of the workers, connects to a port of the
    driver and to the brokers. It creates a small file at the place of each table and removes it,
    and changes nothing else.

    Args:
        options: As for `CooperativeConsumer`; without any, Kafka and tables are not looked at, else
            ``kafka.bootstrap.servers`` is needed.
        spark: The session; the active one by default.

    Returns:
        The checks; in a notebook, a table.

    Raises:
        MissingOption: ``kafka.bootstrap.servers`` is missing.
        InvalidOption: A value is not valid, or two exclude each other.
        SessionUnusable: There is no session.
    """
    parsed = None
    if options:
        parsed = Options.parse(options, group=False, topics=False, table=False)
    session = spark or _active_session()
    return Diagnosis(tuple(_checks(parsed, session)))


def _active_session() -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession as Session

    try:
        return Session.active()
    except PySparkException:
        message = "there is no active Spark session: make one, or give spark=…"
        raise SessionUnusable(message) from None


def _checks(options: Options | None, spark: SparkSession) -> Iterator[Check]:
    yield from driver_checks()
    yield from session_checks(spark)
    brokers: tuple[tuple[str, int], ...] = ()
    found: list[Check] = []
    if options is not None:
        found, brokers = kafka_checks(options)
    port = 0 if options is None else options.channel_port
    yield from worker_checks(
        spark, driver_address(spark) if is_classic(spark) else None, port, brokers
    )
    yield from found
    if options is not None:
        yield from table_checks(options, spark)
