"""``coopconsume store``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from coopconsume.admin.tables import Table
from coopconsume.cli.exit_codes import DATA_LOSS, EXIT_CODES, OK, example, reported
from coopconsume.cli.place import Shown, shown, with_admin

if TYPE_CHECKING:
    from commits import TableCheck, TableRepair
    from coopconsume.admin.client import Admin


@click.group(epilog=EXIT_CODES)
def store() -> None:
    """Check commit tables, and repair damaged ones."""


@store.command(epilog=example("coopconsume store check", "--commit-table /data/commits"))
@reported
@with_admin
@shown
def check(*, admin: Admin) -> Shown:
    """Check that a commit table can be read; exit code 4 if it is damaged."""
    found = admin.check()
    document = asdict(found) | {"is_sound": found.is_sound}
    return Shown(lambda: document, _check_lines(found), OK if found.is_sound else DATA_LOSS)


def _source(ctx: click.Context, param: click.Parameter, value: str) -> int | str:
    if value in {"snapshot", "kafka"}:
        return value
    name, _, number = value.partition("=")
    if name != "version" or not number.isdigit():
        raise click.BadParameter("give version=NUMBER, snapshot or kafka", ctx, param)
    return int(number)


@store.command(
    epilog=example(
        "coopconsume store repair --from snapshot --execute",
        "--bootstrap-servers localhost:9092 --commit-table /data/commits",
    )
)
@click.option(
    "--from", "source", required=True, callback=_source, metavar="SOURCE",
    help="version=NUMBER: the table as it was at a version. snapshot: its newest readable "
    "snapshot. kafka: the groups' stable offsets in Kafka; records above are processed again.",
)  # fmt: skip
@click.option(
    "--group",
    "groups",
    multiple=True,
    help="With --from kafka: a group; can be repeated [default: all groups still in the table].",
)
@click.option("--into", metavar="PATH|NAME", help="Write a new table; this one does not change.")
@click.option("--execute", is_flag=True, help="Apply the change (default: dry run).")
@reported
@with_admin
@shown
def repair(
    *, source: int | str, groups: tuple[str, ...], into: str | None, execute: bool, admin: Admin
) -> Shown:
    """Replace a damaged commit table by a readable state (default: dry run).

    The table is not restored to an old version. The state becomes a new snapshot with a new store
    id and with epochs above all earlier ones. The command is refused while the groups have
    members, and within a minute of the last append.
    """
    done = admin.repair(source, groups=groups, into=into, dry_run=not execute)
    return Shown(lambda: _repair_json(done), _repair_parts(done))


def _check_lines(found: TableCheck) -> list[str]:
    condition = "sound" if found.is_sound else "damaged"
    lines = [f"commit table {found.target}: {'missing' if found.is_missing else condition}"]
    if found.version >= 0:
        lines.append(f"version {found.version}, store {found.store}")
    if found.snapshot_version >= 0:
        lines.append(f"its newest snapshot has the state of version {found.snapshot_version}")
    if found.groups:
        lines.append(f"groups: {', '.join(group for _, group in found.groups)}")
    if found.is_sound:
        return lines
    lines += [f"problem: {found.problem}", "repair it with coopconsume store repair and one of:"]
    if found.readable_version >= 0:
        version = found.readable_version
        lines.append(f"  --from version={version}  the state of the last readable version")
    if found.snapshot_version >= 0:
        version = found.snapshot_version
        lines.append(f"  --from snapshot  the state of version {version}")
    lines.append("  --from kafka  the stable offsets; records above them are processed again")
    return lines


def _repair_json(done: TableRepair) -> dict[str, object]:
    return {
        "target": done.target,
        "source": done.source,
        "executed": done.version is not None,
        "version": done.version,
        "store": done.store or None,
        "partitions": [asdict(partition) for partition in done.partitions()],
    }


def _repair_parts(done: TableRepair) -> list[str | Table]:
    rows = [
        (p.cluster or None, p.group, f"{p.topic}-{p.partition}", p.stable_offset,
         p.committed_above, p.pending)
        for p in done.partitions()
    ]  # fmt: skip
    titles = ("cluster", "group", "partition", "stable", "done above", "pending")
    groups = Table(titles, rows) if rows else "the table has no groups"
    if done.version is None:
        return [groups, f"dry run, nothing was changed: add --execute to write {done.target}"]
    return [groups, f"written to {done.target} as version {done.version}, store {done.store}"]
