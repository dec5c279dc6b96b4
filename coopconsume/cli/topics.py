"""``coopconsume topics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coopconsume.admin.tables import Table
from coopconsume.cli.exit_codes import EXIT_CODES, example, reported
from coopconsume.cli.place import Shown, shown, with_admin

if TYPE_CHECKING:
    from coopconsume.admin.client import Admin


def _given(ctx: click.Context, param: click.Parameter, value: bool | None) -> bool:
    """Requires a switch that has no default; click alone would pass None."""
    if value is None:
        raise click.UsageError(f"give {' or '.join([*param.opts, *param.secondary_opts])}", ctx)
    return value


@click.group(epilog=EXIT_CODES)
def topics() -> None:
    """Inspect topics, and allow or forbid sharing their partitions by key range."""


@topics.command(
    epilog=example(
        "coopconsume topics alter orders --accept-range-fetch",
        "--bootstrap-servers localhost:9092 --commit-table /data/commits",
    )
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--accept-range-fetch/--no-accept-range-fetch", "accept", default=None, callback=_given,
    help="Whether members of a group may share its partitions by key range [required].",
)  # fmt: skip
@reported
@with_admin
def alter(*, names: tuple[str, ...], accept: bool, admin: Admin) -> None:
    """Allow or forbid the members of a group to share partitions of topics by key range.

    The switch is stored in the commit table, which is created if it does not exist. It applies to
    all groups that use the table, from their next rebalance on.
    """
    admin.set_shareable(names, shareable=accept)
    for name in dict.fromkeys(names):
        switched = "open to sharing" if accept else "not shared"
        click.echo(f"{name}: {switched}, from each group's next rebalance on")


@topics.command(epilog=EXIT_CODES)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@reported
@with_admin
@shown
def describe(*, names: tuple[str, ...], admin: Admin) -> Shown:
    """Show the partition count, the id and the sharing switch of topics."""
    from coopconsume.admin.overview.data import plain

    found = admin.topics(names or None)
    rows = [(t.name, t.partitions, "open" if t.is_shareable else "no", t.id) for t in found]
    return Shown(lambda: plain(found), [Table(("topic", "partitions", "sharing", "id"), rows)])
