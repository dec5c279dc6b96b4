"""``coopconsume groups``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from coopconsume.cli.exit_codes import EXIT_CODES, example, reported
from coopconsume.cli.place import Shown, shown, with_admin

if TYPE_CHECKING:
    from coopconsume.admin.client import Admin


@click.group(epilog=EXIT_CODES)
def groups() -> None:
    """Inspect groups: members, assignments and lag."""


@groups.command("list", epilog=EXIT_CODES)
@reported
@with_admin
@shown
def list_(*, admin: Admin) -> Shown:
    """List the groups in a commit table, each with its verdict."""
    from coopconsume.admin.overview.tables import summaries

    found = admin.groups()
    return Shown(lambda: [one.to_dict() for one in found], [summaries(found)])


@groups.command(
    epilog=example(
        "coopconsume groups describe shop",
        "--bootstrap-servers localhost:9092 --commit-table /data/commits",
    )
)
@click.argument("group")
@click.option(
    "--history",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Number of the last assignment changes to show; JSON has all.",
)
@reported
@with_admin
@shown
def describe(*, group: str, history: int, admin: Admin) -> Shown:
    """Describe a group: verdict, members, shares, epochs, and the status of each partition.

    The verdict is the most urgent thing that holds of the group, in one sentence.

    Each partition has a map of its hash space, from the first to the last key hash. Each place of
    the map shows the letter of the member that owns most of it; a dot has no owner.
    """
    from coopconsume.admin.overview.tables import group_parts

    found = admin.describe(group)
    return Shown(found.to_dict, group_parts(found, datetime.now(UTC), history=history))
