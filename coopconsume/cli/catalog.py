"""The session that a command needs where the commit table is in a catalog."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from commits import UnsupportedTarget
from commits.table import is_named
from coopconsume.testing.local.jars import pyspark_home
from coopconsume.testing.local.session import local_session, stop_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

__all__ = ["given_session", "session_for"]


def given_session() -> SparkSession | None:
    """The session that runs already, or that spark-submit has set up; None: there is none."""
    # spark-submit brings a PySpark of its own kind, which has no jars beside it.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        pyspark_home()
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate() if submitted else SparkSession.getActiveSession()


@contextmanager
def session_for(
    options: Mapping[str, str], conf: Mapping[str, str], into: str | None = None
) -> Iterator[SparkSession | None]:
    """The session for the commit table of some options: none is needed for a path.

    For a name it is the one that is there, or else a local one with the catalog that is given,
    which ends with the command.

    Args:
        options: Of a consumer.
        conf: Settings of Spark, which say where the catalog is.
        into: A second commit table that the command writes.

    Raises:
        click.UsageError: One was needed, there is none, and no catalog is given.
        CoopConsumeError: A local one cannot be started.
    """
    given = next((v for name, v in options.items() if name.lower() == "committable"), "")
    table = next((place for place in (given, into) if place and is_named(place)), None)
    if table is None:
        yield None
        return
    session = given_session()
    if session is not None:
        yield session
        return
    if not conf:
        try:
            yield None  # What else is wrong is told first.
        except UnsupportedTarget as error:
            raise click.UsageError(
                f"commit table {table!r} is a name in a catalog, which only Spark can open: say "
                "where the catalog is by --spark-conf KEY=VALUE, or run this through "
                f"spark-submit, as jobs.py; for a path write './{table}'"
            ) from error
        return
    session = local_session(conf=conf)
    try:
        yield session
    finally:
        stop_session(session)
