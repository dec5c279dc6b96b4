"""The options of commands that decide: which offsets, who decides and why."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from coopconsume.runtime.decided_by import MOST_NAME, MOST_REASON, DecidedBy

if TYPE_CHECKING:
    from collections.abc import Callable


def first_and_last(
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


def with_decided_by(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``by``, a `DecidedBy`, to a command; apply it below `reported`."""

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
