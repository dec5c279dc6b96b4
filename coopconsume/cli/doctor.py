"""``coopconsume doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coopconsume.cli.catalog import given_session
from coopconsume.cli.exit_codes import FAILED, OK, example, reported
from coopconsume.cli.place import (
    CONSUMER_OPTIONS,
    Shown,
    dead_letter_option,
    pairs,
    shown,
    with_options,
)

if TYPE_CHECKING:
    from coopconsume.cli.command_config import GivenOptions


@click.command(
    epilog=example(
        "coopconsume doctor --bootstrap-servers localhost:9092 --commit-table /data/commits"
    )
)
@reported
@dead_letter_option
@with_options(CONSUMER_OPTIONS)
@click.option("--bootstrap-servers", help="Short for -o kafka.bootstrap.servers=…")
@click.option("--commit-table", metavar="PATH|NAME", help="Short for -o commitTable=…")
@click.option("--master", help="Spark master of a new session [default: local].")
@click.option(
    "--spark-conf", multiple=True, callback=pairs, metavar="KEY=VALUE",
    help="A setting of a new Spark session; can be repeated.",
)  # fmt: skip
@shown
def doctor(*, options: GivenOptions, master: str | None, spark_conf: dict[str, str]) -> Shown:
    """Try what works here: Spark, workers, Kafka and the places of tables.

    It runs a Spark job, and creates a small file at the place of each table, which it removes. Each
    check that fails names the option or setting to change. With spark-submit (jobs.py doctor) it
    looks at that cluster. The exit code is 1 if a check fails.
    """
    from coopconsume.doctor import diagnose
    from coopconsume.testing.local.session import local_session, stop_session

    session = given_session()
    if session is not None:
        found = diagnose(options, session)
    else:
        conf = {**spark_conf, **({"spark.master": master} if master else {})}
        own = local_session(conf.get("spark.app.name", "coopconsume"), conf=conf)
        try:
            found = diagnose(options, own)
        finally:
            stop_session(own)
    return Shown(found.to_dict, found.parts(), OK if found.is_ok else FAILED)
