"""The options of ``coopconsume offsets``: partitions, offsets and targets."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from coopconsume.cli.times import time_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commits import OffsetRanges
    from coopconsume.admin.offsets import Move, OffsetAdmin, PartitionStatus


def _topics(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> dict[str, list[int]] | None:
    found: dict[str, list[int]] = {}
    for value in values:
        topic, _, partitions = value.partition(":")
        try:
            numbers = [int(number) for number in partitions.split(",") if number]
        except ValueError:
            raise click.BadParameter(f"{value!r}: write it as topic or topic:0,1") from None
        found.setdefault(topic, []).extend(numbers)
    return found or None


def ranges(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> OffsetRanges | None:
    """Parses offsets and ranges of offsets; returns None without a value."""
    if not values:
        return None
    from commits import OffsetRanges

    pairs = []
    for word in (word for value in values for word in value.split(",")):
        first, dash, last = word.partition("-")
        try:
            pairs.append((int(first), int(last) if dash else int(first)))
            OffsetRanges(pairs[-1:])
        except ValueError:
            raise click.BadParameter(f"{word!r}: write it as 17 or 20-29") from None
    return OffsetRanges(pairs)


some_topics = click.option(
    "--topic", "topics", multiple=True, callback=_topics, metavar="TOPIC[:0,1]",
    help="Only these partitions; can be repeated.",
)  # fmt: skip


def with_state(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``action`` and ``state_path``: what becomes of the state of a group, and its place."""
    helps = {
        "restore": "Set the state back to that of the records below the new offset.",
        "clear": "Remove the state of these partitions.",
        "keep": "Do not change the state.",
    }

    @functools.wraps(command)
    def chosen(*args: Any, **given: Any) -> Any:
        actions = [action for action in helps if given.pop(f"{action}_state")]
        if len(actions) > 1:
            raise click.UsageError("give one of --restore-state, --clear-state and --keep-state")
        return command(*args, action=actions[0] if actions else None, **given)

    place = click.option(
        "--state",
        "state_path",
        metavar="PATH",
        help="The state of the group [default: that of its last job].",
    )
    wrapped = place(chosen)
    for action, text in reversed(helps.items()):
        wrapped = click.option(f"--{action}-state", is_flag=True, help=text)(wrapped)
    return wrapped


def target_of(
    given: Mapping[str, Any],
) -> Callable[[OffsetAdmin, list[PartitionStatus]], list[Move]]:
    """Returns the function that plans the moves of the one given target option."""
    words = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    kinds = {"marks" if name in ("undone", "done") else name for name in words}
    if len(kinds) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime, --to-primary, "
            "--to-log, or --undone and --done"
        )
    kind = kinds.pop()
    if kind == "marks":
        from commits import OffsetRanges

        nothing = OffsetRanges()
        undone, done = words.get("undone", nothing), words.get("done", nothing)
        return lambda admin, found: admin.mark(found, undone=undone, done=done)
    if kind == "to_log":
        return lambda admin, found: admin.to_log(found)
    where = words[kind] if kind == "to_offset" else kind.removeprefix("to_")
    if kind == "to_datetime":
        try:
            where = time_of(words[kind])
        except ValueError:
            raise click.UsageError(
                f"--to-datetime {words[kind]!r}: write it as 2026-11-21T09:00:00+01:00"
            ) from None
    return lambda admin, found: admin.to_offsets(found, where)
