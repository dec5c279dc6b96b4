"""The options of commands that decide on records: which ones, who decides and why."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from coopconsume.cli.exit_codes import reported
from coopconsume.cli.place import shown
from coopconsume.runtime.decided_by import MOST_NAME, MOST_REASON, DecidedBy

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.admin.place_choice import PlaceChoice


def _first_and_last(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int | None, int | None]:
    """Parses FIRST-LAST, or a single offset."""
    if value is None:
        return None, None
    first, dash, last = value.partition("-")
    try:
        found = int(first), int(last if dash else first)
    except ValueError:
        found = 1, 0
    if not 0 <= found[0] <= found[1]:
        raise click.BadParameter(f"{value!r}: write it as 17 or as 17-25", ctx, param)
    return found


def with_place(*, key: str, error: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds the options which choose records.

    The command gets ``place``, the arguments of a `PlaceChoice` with a key, and ``error``.

    Args:
        key: The help of ``--key``.
        error: The help of ``--error``.
    """

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--topic", help="Only records of this topic.")
        @click.option("--partition", type=click.IntRange(0), help="Only records of this partition.")
        @click.option(
            "--offset", metavar="FIRST[-LAST]", callback=_first_and_last, help="Only these offsets."
        )
        @click.option("--key", help=key)
        @click.option("--error", metavar="TEXT", help=error)
        @functools.wraps(command)
        def placed(
            *args: Any,
            topic: str | None,
            partition: int | None,
            offset: tuple[int | None, int | None],
            key: str | None,
            **given: Any,
        ) -> Any:
            first, last = offset
            place = {
                "topic": topic, "partition": partition, "first": first, "last": last,
                "key": None if key is None else key.encode(),
            }  # fmt: skip
            return command(*args, place=place, **given)

        return placed

    return added


def deciding(
    chosen: Callable[[Callable[..., Any]], Callable[..., Any]], what: str, all_help: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator of commands that decide: they choose, and only plan without --execute.

    Args:
        chosen: Adds ``choice`` to a command.
        what: What is chosen, for messages.
        all_help: The help of ``--all``.
    """

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        @reported
        @chosen
        @click.option("--all", "everything", is_flag=True, help=all_help)
        @_with_decided_by
        @click.option("--execute", is_flag=True, help="Apply the change (default: dry run).")
        @shown
        @functools.wraps(command)
        def with_decision(choice: PlaceChoice, *, everything: bool, **given: Any) -> Any:
            if choice == type(choice)() and not everything:
                raise click.UsageError(
                    f"no {what} chosen: give --offset, --key, --error …, or --all"
                )
            return command(choice=choice, **given)

        return with_decision

    return added


def _with_decided_by(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``by``, a `DecidedBy`, to a command."""

    @click.option(
        "--reason", default="", metavar="TEXT",
        help=f"Why, in at most {MOST_REASON} characters; it is kept and shown.",
    )  # fmt: skip
    @click.option(
        "--by", metavar="NAME",
        help=f"Who decides, in at most {MOST_NAME} characters [default: this user and host].",
    )  # fmt: skip
    @functools.wraps(command)
    def decided_by(*args: Any, by: str | None, reason: str, **given: Any) -> Any:
        return command(*args, by=DecidedBy.now(by, reason), **given)

    return decided_by
