"""``coopconsume offsets`` and ``coopconsume lag``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commits import CommitTableNotFound
from coopconsume.admin.client import Admin
from coopconsume.admin.offsets import read_document, write_document
from coopconsume.cli.exit_codes import EXIT_CODES, example, reported
from coopconsume.cli.offset_options import (
    counting,
    ending_claims,
    executing,
    ranges,
    some_topics,
    target_of,
    with_state,
)
from coopconsume.cli.offset_text import (
    gap_documents,
    gap_lines,
    lag_document,
    lag_lines,
    move_document,
    move_lines,
    show_lines,
    state_lines,
    status_document,
)
from coopconsume.cli.place import as_json, at_a_place, echo_json, echo_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from coopconsume.admin.offsets import Move, OffsetAdmin, PartitionStatus
    from coopconsume.state.resetting import StateAction, StateReset

_PLACE = "--bootstrap-servers localhost:9092 --commit-table /data/commits"


@click.group(epilog=EXIT_CODES)
def offsets() -> None:
    """Inspect, reset, export and import the offsets of a group."""


@offsets.command(epilog=example("coopconsume offsets show shop", _PLACE))
@click.argument("group")
@some_topics
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Draw done, pending, open and uncommitted offsets as SVG, PNG or PDF; with several "
    "partitions one file for each.",
)  # fmt: skip
@reported
@at_a_place
@as_json
def show(
    *,
    group: str,
    topics: Mapping[str, list[int]] | None,
    picture: Path | None,
    as_json: bool,
    options: dict[str, str],
    spark: SparkSession | None,
) -> None:
    """Show the status of each partition: stable offset, offsets done above it, gaps, pending."""
    with Admin(options, spark=spark).offsets(group) as admin:
        found = admin.statuses(topics, times=False)
    if as_json:
        echo_json({"group": group, "partitions": [status_document(one) for one in found]})
    else:
        echo_lines(show_lines(found))
    if picture is not None:
        _draw(found, group, picture)


@offsets.command(epilog=example("coopconsume offsets gaps shop", _PLACE))
@click.argument("group")
@some_topics
@click.option(
    "--limit", type=click.IntRange(0), default=100, show_default=True,
    help="Maximum number of gaps to show per partition, 0 for all; JSON has all.",
)  # fmt: skip
@reported
@at_a_place
@as_json
def gaps(
    *,
    group: str,
    topics: Mapping[str, list[int]] | None,
    limit: int,
    as_json: bool,
    options: dict[str, str],
    spark: SparkSession | None,
) -> None:
    """List gaps: offsets that are not done below an offset that is done, with their age."""
    found = Admin(options, spark=spark).lag(group, topics)
    if as_json:
        echo_json([gap for one in found for gap in gap_documents(one)])
    else:
        echo_lines(gap_lines(found, datetime.now(UTC), limit))


@click.command(epilog=example("coopconsume lag shop", _PLACE))
@click.argument("group")
@some_topics
@reported
@at_a_place
@as_json
def lag(
    *,
    group: str,
    topics: Mapping[str, list[int]] | None,
    as_json: bool,
    options: dict[str, str],
    spark: SparkSession | None,
) -> None:
    """Show the lag of each partition and the record that blocks its stable offset."""
    found = Admin(options, spark=spark).lag(group, topics)
    if as_json:
        echo_json([lag_document(one) for one in found])
    else:
        echo_lines(lag_lines(found, datetime.now(UTC)))


offsets.add_command(lag)


@offsets.command(
    epilog=example("coopconsume offsets reset shop --topic orders:0 --to-earliest", _PLACE)
)
@click.argument("group")
@some_topics
@click.option("--all-topics", is_flag=True, help="All partitions of the group.")
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
@with_state
@executing
@counting
@ending_claims
@reported
@at_a_place
@as_json
def reset(
    *,
    group: str,
    topics: Mapping[str, list[int]] | None,
    all_topics: bool,
    execute: bool,
    count: bool,
    end_claims: bool,
    action: StateAction | None,
    state_path: str | None,
    as_json: bool,
    options: dict[str, str],
    spark: SparkSession | None,
    **target: Any,
) -> None:
    """Move a group's offsets in the commit table and in Kafka (default: dry run).

    A move to an offset discards the state of all offsets above it. The command is refused while
    the group has members.
    """
    if (topics is None) != all_topics:
        raise click.UsageError("give --topic, or --all-topics")
    plan = target_of(target)
    with Admin(options, spark=spark).offsets(group) as admin:
        moves = plan(admin, admin.statuses(topics, times=False))
        _carry_out(
            admin, moves, admin.state_reset(moves, action, state_path),
            execute=execute, count=count, end_claims=end_claims, as_json=as_json,
        )  # fmt: skip


@offsets.command(epilog=example("coopconsume offsets export shop shop.json", _PLACE))
@click.argument("group")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@some_topics
@reported
@at_a_place
def export(
    *,
    group: str,
    file: str,
    topics: Mapping[str, list[int]] | None,
    options: dict[str, str],
    spark: SparkSession | None,
) -> None:
    """Write the committed and pending offsets to a JSON FILE; - is standard output."""
    with Admin(options, spark=spark).offsets(group) as admin:
        kept = admin.kept(admin.statuses(topics, times=False))
        document = write_document(group, admin.cluster_id, kept)
    with click.open_file(file, "w", encoding="utf-8", atomic=file != "-") as out:
        out.write(document)
    if file != "-":
        click.echo(f"wrote {len(kept)} partitions of group {group} to {file}")


@offsets.command("import", epilog=example("coopconsume offsets import shop.json", _PLACE))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--group", help="The group [default: that of the file].")
@with_state
@executing
@counting
@ending_claims
@reported
@at_a_place
@as_json
def import_(
    *,
    file: str,
    group: str | None,
    execute: bool,
    count: bool,
    end_claims: bool,
    action: StateAction | None,
    state_path: str | None,
    as_json: bool,
    options: dict[str, str],
    spark: SparkSession | None,
) -> None:
    """Restore a group's offsets from a FILE of 'offsets export' (default: dry run).

    The file replaces the whole state of its partitions in the commit table.
    """
    with click.open_file(file, encoding="utf-8") as source:
        named, kept = read_document(source.read(), file)
    try:
        admin = Admin(options, spark=spark).offsets(group or named, create=execute)
    except CommitTableNotFound as error:
        if as_json:
            raise
        click.echo(
            f"there is no commit table at {error.target}: --execute creates it, with group "
            f"{group or named} and the {len(kept)} partitions of {file}"
        )
        return
    with admin:
        moves = admin.restore(kept)
        _carry_out(
            admin, moves, admin.state_reset(moves, action, state_path),
            execute=execute, count=count, end_claims=end_claims, as_json=as_json,
        )  # fmt: skip


def _carry_out(
    admin: OffsetAdmin,
    moves: list[Move],
    state: StateReset | None,
    *,
    execute: bool,
    count: bool,
    end_claims: bool,
    as_json: bool,
) -> None:
    admin.check_idle(end_claims=end_claims)
    counts = [
        admin.count_records(move) if count else (len(move.again), len(move.skipped))
        for move in moves
    ]
    if execute:
        admin.execute(moves, end_claims=end_claims, state=state)
    if as_json:
        echo_json(
            {
                "group": admin.group, "executed": execute, "counted": "records" if count else
                "offsets", "partitions": [
                    move_document(move, *both) for move, both in zip(moves, counts, strict=True)
                ],
                "state": None if state is None else [
                    {"topic": tp[0], "partition": tp[1]} | one._asdict()
                    for tp, one in state.moves.items()
                ],
            }
        )  # fmt: skip
        return
    if state is not None:
        echo_lines(state_lines(state.moves))
    echo_lines(move_lines(moves, counts, what="records" if count else "offsets", executed=execute))


def _draw(found: list[PartitionStatus], group: str, file: Path) -> None:
    from coopconsume.admin.pictures import draw_status

    drawable = [one for one in found if one.end_offset and one.end_offset > (one.log_start or 0)]
    for one in drawable:
        target = file if len(drawable) == 1 else file.with_stem(f"{file.stem}-{one.name}")
        draw_status(one, group).savefig(target)
        click.echo(f"drawn: {target}", err=True)
