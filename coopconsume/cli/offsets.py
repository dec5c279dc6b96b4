"""``coopconsume offsets`` and ``coopconsume lag``."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commits import CommitTableNotFound
from coopconsume.cli.exit_codes import EXIT_CODES, example, reported
from coopconsume.cli.offset_options import ranges, some_topics, target_of, with_state
from coopconsume.cli.place import Shown, shown, with_admin
from coopconsume.errors import InvalidOption
from coopconsume.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coopconsume.admin.client import Admin
    from coopconsume.admin.offsets import Kept, Move, OffsetAdmin, PartitionStatus
    from coopconsume.state.resetting import StateAction

_PLACE = "--bootstrap-servers localhost:9092 --commit-table /data/commits"


@dataclass(frozen=True)
class Execution:
    """How the moves of a command are carried out, by its options."""

    execute: bool
    count: bool
    end_claims: bool
    action: StateAction | None
    state_path: str | None

    def carry_out(self, admin: OffsetAdmin, moves: list[Move], *, by_query: bool = False) -> Shown:
        """Shows moves, and writes them with ``--execute``.

        What is ``by_query`` was done by the query of a checkpoint: that may be whole topics, which
        are not read to count their records.
        """
        from coopconsume.admin.offsets.tables import move_parts, state_parts
        from coopconsume.cli.offset_documents import move_document

        state = admin.state_reset(moves, self.action, self.state_path)
        admin.check_idle(end_claims=self.end_claims)
        count = self.count and not by_query
        what = "records" if count else "offsets"
        counts = [
            admin.count_records(move) if count else (len(move.again), len(move.skipped))
            for move in moves
        ]
        if self.execute:
            admin.execute(moves, end_claims=self.end_claims, state=state)
        changes = None if state is None else [
            {"topic": tp[0], "partition": tp[1]} | one._asdict() for tp, one in state.moves.items()
        ]  # fmt: skip
        document = {
            "group": admin.group,
            "executed": self.execute,
            "counted": what,
            "partitions": [
                move_document(move, *both, by_query=by_query)
                for move, both in zip(moves, counts, strict=True)
            ],
            "state": changes,
        }
        parts = move_parts(moves, counts, what=what, executed=self.execute, by_query=by_query)
        before = () if state is None else state_parts(state.moves)
        return Shown(lambda: document, itertools.chain(before, parts))


def _moving(command: Callable[..., Shown]) -> Callable[..., Any]:
    """Adds ``admin``, and `Execution` as ``how``, to a command that moves offsets."""

    @with_state
    @click.option("--execute", is_flag=True, help="Apply the change (default: dry run).")
    @click.option(
        "--count/--no-count",
        default=True,
        show_default=True,
        help="Read the records to count them, or count offsets instead, as for a checkpoint.",
    )
    @click.option(
        "--end-claims", is_flag=True, help="End standalone claims whose processes have died."
    )
    @reported
    @with_admin
    @shown
    @functools.wraps(command)
    def moving(**given: Any) -> Shown:
        chosen = {field.name: given.pop(field.name) for field in fields(Execution)}
        return command(how=Execution(**chosen), **given)

    return moving


@click.group(epilog=EXIT_CODES)
def offsets() -> None:
    """Inspect, reset, export and import the offsets of a group."""


@offsets.command(epilog=example("coopconsume offsets show shop", _PLACE))
@click.argument("group")
@some_topics
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw done, pending, open and uncommitted offsets as SVG, PNG or PDF; with several "
    "partitions one file for each.",
)
@reported
@with_admin
@shown
def show(
    *, group: str, topics: Mapping[str, list[int]] | None, picture: Path | None, admin: Admin
) -> Shown:
    """Show the status of each partition: stable offset, offsets done above it, gaps, pending."""
    from coopconsume.admin.offsets.tables import offset_table
    from coopconsume.cli.offset_documents import status_document

    with admin.offsets(group) as of_group:
        found = of_group.statuses(topics, times=False)
    if picture is not None:
        _draw(found, group, picture)

    def document() -> dict[str, Any]:
        return {"group": group, "partitions": [status_document(one) for one in found]}

    return Shown(document, [offset_table(found)])


@offsets.command(epilog=example("coopconsume offsets gaps shop", _PLACE))
@click.argument("group")
@some_topics
@click.option(
    "--limit", type=click.IntRange(0), default=100, show_default=True,
    help="Maximum number of gaps to show per partition, 0 for all; JSON has all.",
)  # fmt: skip
@reported
@with_admin
@shown
def gaps(*, group: str, topics: Mapping[str, list[int]] | None, limit: int, admin: Admin) -> Shown:
    """List gaps: offsets that are not done below an offset that is done, with their age."""
    from coopconsume.admin.offsets.tables import gap_parts
    from coopconsume.cli.offset_documents import gap_documents

    found = admin.lag(group, topics)

    def document() -> list[dict[str, Any]]:
        return [gap for one in found for gap in gap_documents(one)]

    return Shown(document, gap_parts(found, datetime.now(UTC), limit))


@click.command(epilog=example("coopconsume lag shop", _PLACE))
@click.argument("group")
@some_topics
@reported
@with_admin
@shown
def lag(*, group: str, topics: Mapping[str, list[int]] | None, admin: Admin) -> Shown:
    """Show the lag of each partition and the record that blocks its stable offset.

    The first line is the verdict on the group; 'groups describe --json' has it as JSON.
    """
    from coopconsume.admin.overview.tables import lag_parts
    from coopconsume.cli.offset_documents import lag_document

    found = admin.describe(group, topics)
    document = [lag_document(one) for one in found.partitions]
    return Shown(lambda: document, lag_parts(found, datetime.now(UTC)))


offsets.add_command(lag)


@offsets.command(
    epilog=example("coopconsume offsets reset shop --topic orders:0 --to-earliest", _PLACE)
)
@click.argument("group")
@some_topics
@click.option("--all-topics", is_flag=True, help="All partitions of the group.")
@click.option("--create", is_flag=True, help="The group may be new: give its first offsets.")
@click.option("--to-earliest", is_flag=True, help="Move to the first record of the log.")
@click.option("--to-latest", is_flag=True, help="Move to the end of the log; skips the rest.")
@click.option("--to-offset", type=click.IntRange(0, 2**63 - 1), help="Move to an offset.")
@click.option(
    "--to-datetime", metavar="TIME", help="Move to the first record at or after an ISO 8601 time."
)
@click.option("--to-primary", is_flag=True, help="Move to the group's offset in Kafka.")
@click.option(
    "--to-log", is_flag=True, help="Set only Kafka's offset, to that of the commit table."
)
@click.option(
    "--undone", multiple=True, callback=ranges, metavar="OFFSETS",
    help="Process these offsets again, such as 17,20-29; other offsets do not change.",
)  # fmt: skip
@click.option(
    "--done", multiple=True, callback=ranges, metavar="OFFSETS",
    help="Mark these offsets as done; they are not processed.",
)  # fmt: skip
@_moving
def reset(
    *,
    group: str,
    topics: Mapping[str, list[int]] | None,
    all_topics: bool,
    create: bool,
    admin: Admin,
    how: Execution,
    **target: Any,
) -> Shown:
    """Move a group's offsets in the commit table and in Kafka (default: dry run).

    A move to an offset discards the state of all offsets above it. The command is refused while
    the group has members.
    """
    if (topics is None) != all_topics:
        raise click.UsageError("give --topic, or --all-topics")
    plan = target_of(target)
    with admin.offsets(group) as of_group:
        statuses = of_group.statuses(topics, times=False, may_be_new=create)
        return how.carry_out(of_group, plan(of_group, statuses))


@offsets.command(epilog=example("coopconsume offsets export shop shop.json", _PLACE))
@click.argument("group")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@some_topics
@reported
@with_admin
def export(*, group: str, file: str, topics: Mapping[str, list[int]] | None, admin: Admin) -> None:
    """Write the committed and pending offsets to a JSON FILE; - is standard output."""
    from coopconsume.admin.offsets import write_document

    with admin.offsets(group) as of_group:
        kept = of_group.kept(of_group.statuses(topics, times=False))
        document = write_document(group, of_group.cluster_id, kept)
    with click.open_file(file, "w", encoding="utf-8", atomic=file != "-") as out:
        out.write(document)
    if file != "-":
        click.echo(f"wrote {counted(len(kept), 'partition')} of group {group} to {file}")


@offsets.command("import", epilog=example("coopconsume offsets import shop.json", _PLACE))
@click.argument("file", type=click.Path(exists=True, allow_dash=True))
@click.option("--group", help="The group [default: that of the file].")
@some_topics
@_moving
def import_(
    *,
    file: str,
    group: str | None,
    topics: Mapping[str, list[int]] | None,
    admin: Admin,
    how: Execution,
) -> Shown:
    """Restore a group's offsets from a FILE of 'offsets export' (default: dry run).

    The file replaces the whole state of its partitions in the commit table. FILE may also be the
    folder of a checkpoint of Spark's streaming query: --group continues after its last committed
    batch.
    """
    named, everything = _imported(file, group)
    kept = _chosen(everything, topics, file)
    needs = {(one.topic, one.partition) for one in kept}
    try:
        of_group = admin.offsets(named, create=how.execute, needs=needs)
    except CommitTableNotFound as error:
        return _without_table(
            error, f"group {named} and {counted(len(kept), 'partition')} of {file}"
        )
    with of_group:
        return how.carry_out(of_group, of_group.restore(kept), by_query=Path(file).is_dir())


def _chosen(kept: list[Kept], topics: Mapping[str, list[int]] | None, file: str) -> list[Kept]:
    """Returns the partitions of a file that ``--topic`` has chosen."""
    for topic, partitions in (topics or {}).items():
        known = {one.partition for one in kept if one.topic == topic}
        missing = sorted(set(partitions) - known)
        if missing or not known:
            what = f"partition {missing[0]} of it" if known else "such topic"
            has = ", ".join(sorted({one.topic for one in kept})[:5]) or "no partitions"
            raise InvalidOption("topic", topic, f"{file} has no {what}; it has {has}")
    return [
        one
        for one in kept
        if topics is None
        or (one.topic in topics and one.partition in (topics[one.topic] or [one.partition]))
    ]


def _imported(file: str, group: str | None) -> tuple[str, list[Kept]]:
    """Returns the group and the partitions that a document or a checkpoint gives."""
    from coopconsume.admin.offsets import read_checkpoint, read_document

    if not Path(file).is_dir():
        with click.open_file(file, "rb") as source:
            named, kept = read_document(_text(source.read(), file), file)
        return group or named, kept
    if group is None:
        raise click.UsageError("give --group: the checkpoint of a query has no group")
    return group, read_checkpoint(Path(file))


def _text(found: bytes, file: str) -> str:
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        remedy = f"it is not UTF-8 at byte {error.start}; give a file of 'offsets export'"
        raise InvalidOption("FILE", file, remedy) from None


def _without_table(error: CommitTableNotFound, what: str) -> Shown:
    """Returns the result of a dry run without a commit table; as JSON it is the error."""

    def document() -> Any:
        raise error

    text = f"there is no commit table at {error.target}: --execute creates it, with {what}"
    return Shown(document, [text])


def _draw(found: list[PartitionStatus], group: str, file: Path) -> None:
    from coopconsume.admin.pictures import draw_status

    drawable = [one for one in found if one.end_offset and one.end_offset > (one.log_start or 0)]
    for one in drawable:
        target = file if len(drawable) == 1 else file.with_stem(f"{file.stem}-{one.name}")
        draw_status(one, group).savefig(target)
        click.echo(f"drawn: {target}", err=True)
