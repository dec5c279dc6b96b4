"""``coopconsume exporter``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coopconsume.cli.exit_codes import example, reported
from coopconsume.cli.place import at_a_place
from coopconsume.cli.serving import serve, with_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PORT = 9808


@click.command(
    epilog=example(
        "coopconsume exporter --bootstrap-servers localhost:9092 --commit-table /data/commits"
    )
)
@click.option(
    "--group", "groups", multiple=True,
    help="A group; can be repeated [default: all groups of the commit table].",
)  # fmt: skip
@reported
@at_a_place
@with_address(_PORT, interval=15.0)
def exporter(
    *,
    groups: tuple[str, ...],
    options: dict[str, str],
    spark: SparkSession | None,
    host: str,
    port: int,
    interval: float,
) -> int:
    """Serve the metrics of groups to Prometheus, also of groups without a job.

    It reads the commit table and Kafka, joins no group, and runs until Ctrl-C or SIGTERM. If one of
    them does not answer, it serves what it knows, with its age. Metrics have no keys and no values
    of records; they are served without TLS and without a login.
    """
    from coopconsume.admin.exporter import Exporter

    with Exporter(options, groups, host=host, port=port, interval=interval, spark=spark) as running:
        return serve(running, f"metrics: {running.url}")
