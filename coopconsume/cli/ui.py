"""``coopconsume ui``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coopconsume.cli.exit_codes import example, reported
from coopconsume.cli.place import at_a_place, dead_letter_option
from coopconsume.cli.serving import serve, with_address

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
@with_address(_PORT, interval=2.0)
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
    from coopconsume.ui.page import LivePage

    page = LivePage(
        options, group, host=host, port=port, interval=interval, allow_decisions=allow_decisions,
        spark=spark,
    )  # fmt: skip
    with page:
        return serve(page, f"live page: {page.url}")
