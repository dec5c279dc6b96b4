"""The Spark session of a command whose commit table is in a catalog."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from commits import UnsupportedTarget
from commits.places import is_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession


def given_session() -> SparkSession | None:
    """Returns the active session or that of spark-submit; None without such a session."""
    # The PySpark of spark-submit has no jars beside it.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        from coopconsume.testing.local.jars import pyspark_home

        pyspark_home()
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate() if submitted else SparkSession.getActiveSession()


def no_catalog(table: str) -> click.UsageError:
    """Returns the error of a command that has no session, and no catalog for a local one."""
    return click.UsageError(
        f"commit table {table!r} is in a catalog, which only Spark can open: configure the catalog "
        "by --spark-conf KEY=VALUE, or run this command with spark-submit, as jobs.py; for a path "
        f"write './{table}'"
    )


@contextmanager
def session_for(
    options: Mapping[str, str], conf: Mapping[str, str], into: str | None = None
) -> Iterator[SparkSession | None]:
    """Yields the session for the commit table of some options; None if the table is a path.

    For a table in a catalog it is the existing session, or a local session with the given catalog,
    which ends with the command.

    Args:
        options: The options of a consumer.
        conf: The settings of Spark that configure the catalog.
        into: A second commit table that the command writes.

    Raises:
        click.UsageError: A session is needed, but no session exists and no catalog is given.
        CoopConsumeError: A local session cannot be started.
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
            yield None  # Other errors are reported first.
        except UnsupportedTarget as error:
            raise no_catalog(table) from error
        return
    from coopconsume.testing.local.session import local_session, stop_session

    session = local_session(conf=conf)
    try:
        yield session
    finally:
        stop_session(session)
