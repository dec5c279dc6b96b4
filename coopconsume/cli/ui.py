"""``coopconsume ui``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from coopconsume.cli.exit_codes import FAILED, OK, example, reported
from coopconsume.cli.place import at_a_place, dead_letter_option
from coopconsume.ui.page import LivePage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PORT = 8765


@click.command(
    epilog=example(
        "coopconsume ui shop --bootstrap-servers localhost:9092",
        "--commit-table /data/commits --dead-letter /data/dead",
    )
)
@click.argument("group", required=False)
@reported
@dead_letter_option
@at_a_place
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=_PORT, show_default=True,
    help="The port; 0 for any free one.",
)  # fmt: skip
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True,
    metavar="SECONDS", help="Time between two readings of a group.",
)  # fmt: skip
@click.option(
    "--allow-decisions", is_flag=True, help="Let people replay and discard dead letters there."
)
def ui(
    *,
    group: str | None,
    options: dict[str, str],
    spark: SparkSession | None,
    host: str,
    port: int,
    interval: float,
    allow_decisions: bool,
) -> int:
    """Show groups in a browser, live: members, key ranges, offsets, rates, dead letters.

    It prints the address, with a token that opens the page, and runs until Ctrl-C. It is served
    without TLS: at any other address than localhost, use it in a network that you trust, or behind
    a proxy with TLS. Everybody who has the address has the rights of the user that runs it.
    """
    page = LivePage(
        options, group, host=host, port=port, interval=interval, allow_decisions=allow_decisions,
        spark=spark,
    )  # fmt: skip
    with page:
        click.echo(f"live page: {page.url}")
        click.echo("Ctrl-C ends it.", err=True)
        try:
            while page.is_open:
                time.sleep(0.2)
        except KeyboardInterrupt:
            return OK
    return FAILED
