"""``coopconsume state``."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from coopconsume.admin.tables import Table, text_of
from coopconsume.cli.catalog import session_for
from coopconsume.cli.command_config import used_by_state
from coopconsume.cli.exit_codes import EXIT_CODES, FAILED, example, reported
from coopconsume.cli.place import Shown, shown, spark_conf_option, with_admin, with_options
from coopconsume.cli.times import time_of
from coopconsume.errors import MissingOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.admin.client import Admin
    from coopconsume.state.reading import CommittedState, Place

_TITLES = ("topic", "partition", "key", "offset", "value")
_DIFF_TITLES = ("topic", "partition", "key", "offset", "before", "after")
_STATS_TITLES = (
    "partition", "keys", "bytes", "snapshot", "snapshot keys", "snapshot bytes", "changes", "files",
)  # fmt: skip
_RANGE_TITLES = ("partition", "first hash", "last hash", "keys", "bytes")


@click.group(epilog=EXIT_CODES)
def state() -> None:
    """Show the state per key of a group, or let the group begin with another one."""


def _of_a_group(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a `CommittedState` to a command."""

    @click.argument("group")
    @click.option("--state", "path", metavar="PATH", required=True, help="The state of the job.")
    @with_options(None, uses=used_by_state)
    @click.option("--commit-table", metavar="PATH|NAME", help="The commit table of the job.")
    @spark_conf_option
    @functools.wraps(command)
    def with_state(
        group: str, path: str, options: dict[str, str], spark_conf: dict[str, str], **kwargs: Any
    ) -> Any:
        table = options.get("commitTable")
        if table is None:
            raise MissingOption("commitTable")
        from coopconsume.state.reading import CommittedState

        with session_for(options, spark_conf, None) as spark:
            return command(CommittedState(path, table, group, spark=spark), **kwargs)

    return with_state


def _place(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Place | None:
    """Parses a place in the commit log: a version, a time, or the id of a commit."""
    if value is None:
        return None
    if value.isdecimal():
        return int(value)
    try:
        return time_of(value)
    except ValueError:
        return value


@state.command(
    epilog=example(
        "coopconsume state get billing --state /data/totals --commit-table /data/commits "
        "--topic payments --key customer-7"
    )
)
@reported
@_of_a_group
@click.option("--topic", required=True, help="The topic of the key.")
@click.option("--key", required=True, help="The key, as text.")
@shown
def get(committed: CommittedState, *, topic: str, key: str) -> Shown:
    """Show the value of one key; exit code 1 if it has none."""
    value = committed.get(topic, key.encode())
    found = _plain(value)
    if value is None:
        return Shown(lambda: found, [], FAILED)
    return Shown(lambda: found, [_text(value)])


@state.command(epilog=EXIT_CODES)
@reported
@_of_a_group
@click.option("--topic", help="Only the keys of this topic.")
@click.option(
    "--at",
    callback=_place,
    metavar="WHEN",
    help="The state as of an ISO 8601 time, a version of the commit table, or the id of a commit.",
)
@shown
def dump(committed: CommittedState, *, topic: str | None, at: Place | None) -> Shown:
    """Show the values of all keys."""
    rows = committed.rows(topic, at=at).to_pylist()
    rows = [row | {"value": committed.schema.value(row["value"])} for row in rows]
    cells = [
        (row["topic"], str(row["partition"]), text_of(row["key"]), str(row["offset"]),
         _text(row["value"])) for row in rows
    ]  # fmt: skip
    return Shown(lambda: [_plain(row) for row in rows], [Table(_TITLES, cells)])


@state.command(
    epilog=example(
        "coopconsume state stats billing --state /data/totals --commit-table /data/commits"
    )
)
@reported
@_of_a_group
@click.option("--topic", help="Only the partitions of this topic.")
@click.option(
    "--ranges", type=click.IntRange(1, 1000), default=4, show_default=True,
    help="The number of equal key ranges to divide each partition into.",
)  # fmt: skip
@shown
def stats(committed: CommittedState, *, topic: str | None, ranges: int) -> Shown:
    """Show keys and bytes by partition and key range, the last snapshot and the changes since."""
    found = committed.stats(topic, ranges=ranges)
    cells = [
        (
            f"{one.topic}-{one.partition}", one.keys, one.size,
            one.snapshot.made_at if one.snapshot else None,
            one.snapshot.keys if one.snapshot else None,
            one.snapshot.size if one.snapshot else None, one.tail_rows, one.tail_files,
        )
        for one in found
    ]  # fmt: skip
    parts = [
        (f"{one.topic}-{one.partition}", part.first, part.last, part.keys, part.size)
        for one in found
        for part in one.ranges
    ]
    shown: list[str | Table] = [Table(_STATS_TITLES, cells), "", Table(_RANGE_TITLES, parts)]
    return Shown(lambda: [_plain(asdict(one)) for one in found], shown)


@state.command(
    epilog=example(
        "coopconsume state diff billing --state /data/totals --commit-table /data/commits "
        "--from 2026-11-21T09:00:00Z"
    )
)
@reported
@_of_a_group
@click.option("--topic", help="Only the keys of this topic.")
@click.option(
    "--from", "start", required=True, callback=_place, metavar="WHEN",
    help="An ISO 8601 time, a version of the commit table, or the id of a commit.",
)  # fmt: skip
@click.option("--to", "end", callback=_place, metavar="WHEN", help="The same [default: now].")
@shown
def diff(committed: CommittedState, *, topic: str | None, start: Place, end: Place | None) -> Shown:
    """Show the keys whose values differ between two commits or times, with both values."""
    rows = [
        row | {when: committed.schema.value(row[when]) for when in ("before", "after")}
        for row in committed.diff(start, end, topic=topic).to_pylist()
    ]
    cells = [
        (row["topic"], str(row["partition"]), text_of(row["key"]), row["offset"],
         *(None if row[when] is None else _text(row[when]) for when in ("before", "after")))
        for row in rows
    ]  # fmt: skip
    return Shown(lambda: [_plain(row) for row in rows], [Table(_DIFF_TITLES, cells)])


@state.command(
    epilog=example(
        "coopconsume state switch billing --bootstrap-servers localhost:9092 "
        "--commit-table /data/commits"
    )
)
@click.argument("group")
@click.option("--execute", is_flag=True, help="Apply the change (default: dry run).")
@reported
@with_admin
@shown
def switch(*, group: str, execute: bool, admin: Admin) -> Shown:
    """Let a group begin with another state, with an empty one, or without one (default: dry run).

    The next job or poll of the group begins with the state that it has, and the commit table notes
    that. The offsets do not change. The command is refused while the group has members.
    """
    with admin.offsets(group) as of_group:
        note = of_group.switch_state(execute=execute)
    document = {"group": group, "executed": execute, "state": note.path, "table": note.id}
    before = "no state is noted" if note.path is None else f"the state at {note.path} is noted"
    then = "the next job begins with the state that it has, or without one"
    lines = [f"group {group}: {before}", then if execute else f"with --execute {then}"]
    return Shown(lambda: document, lines)


def _text(value: Any) -> str:
    """Returns a value as people read it: texts as they are, everything else as JSON has it."""
    found = _plain(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it."""
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return text_of(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)
