"""``coopconsume topics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coopconsume.admin.client import Admin
from coopconsume.admin.overview.data import plain
from coopconsume.cli.outcome import EXIT_CODES, example, reported
from coopconsume.cli.place import as_json, at_a_place, echo_json
from coopconsume.cli.text import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _given(ctx: click.Context, param: click.Parameter, value: bool | None) -> bool:
    """A switch that has no default; click by itself takes its absence for None."""
    if value is None:
        raise click.UsageError(f"give {' or '.join([*param.opts, *param.secondary_opts])}", ctx)
    return value


@click.group(epilog=EXIT_CODES)
def topics() -> None:
    """Look at topics, and open them to be shared by the members of a group."""


@topics.command(
    epilog=example(
        "coopconsume topics alter orders --accept-range-fetch",
        "--bootstrap-servers localhost:9092 --commit-table /data/commits",
    )
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--accept-range-fetch/--no-accept-range-fetch", "accept", default=None, callback=_given,
    help="Whether members of a group may share its partitions by key range; needed.",
)  # fmt: skip
@reported
@at_a_place
def alter(
    *,
    names: tuple[str, ...],
    accept: bool,
    options: dict[str, str],
    spark: SparkSession | None,
) -> None:
    """Open topics to be shared by key range between members of a group, or close them again.

    The switch is kept in the commit table, which is made if there is none. It holds for all groups
    that use the table, from their next rebalance on.
    """
    Admin(options, spark=spark).accept_range_fetch(names, accept=accept)
    for name in dict.fromkeys(names):
        switched = "open to sharing" if accept else "not shared"
        click.echo(f"{name}: {switched}, from each group's next rebalance on")


@topics.command(epilog=EXIT_CODES)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@reported
@at_a_place
@as_json
def describe(
    *, names: tuple[str, ...], as_json: bool, options: dict[str, str], spark: SparkSession | None
) -> None:
    """Tell of topics how many partitions they have, and whether they are open to sharing."""
    found = Admin(options, spark=spark).topics(names or None)
    if as_json:
        echo_json(plain(found))
        return
    rows = [(t.name, t.partitions, "open" if t.accept_range_fetch else "no", t.id) for t in found]
    for line in table(("TOPIC", "PARTITIONS", "SHARING", "ID"), rows):
        click.echo(line)
