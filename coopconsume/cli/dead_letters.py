"""``coopconsume dead-letters``."""

from __future__ import annotations

import base64
import functools
from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from coopconsume.admin.dead_letters.choice import Choice
from coopconsume.admin.dead_letters.tables import (
    decided_on,
    letter_table,
    moment,
    name_of,
    next_replay,
)
from coopconsume.admin.records.tables import applied_by
from coopconsume.admin.tables import cell, text_of
from coopconsume.cli.decision_options import deciding, with_place
from coopconsume.cli.exit_codes import EXIT_CODES, example, reported
from coopconsume.cli.place import Shown, dead_letter_option, shown, with_admin
from coopconsume.cli.times import time_of
from coopconsume.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coopconsume.admin.client import Admin
    from coopconsume.admin.dead_letters.actions import DeadLetters
    from coopconsume.admin.dead_letters.choice import Steps
    from coopconsume.admin.dead_letters.stored import Letter
    from coopconsume.runtime.decided_by import DecidedBy
    from coopconsume.runtime.decisions import Action


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parses an ISO 8601 time into milliseconds since the epoch; the default zone is UTC."""
    if value is None:
        return None
    try:
        return round(time_of(value, UTC).timestamp() * 1000)
    except ValueError:
        raise click.BadParameter(
            f"{value!r}: give a time such as 2026-11-21T10:00:00", ctx, param
        ) from None


def _chosen(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a `DeadLetters` and the `Choice` of letters to a command."""

    @click.argument("group")
    @dead_letter_option
    @with_admin
    @with_place(
        key="Only records with this key.",
        error="Only letters with this text in their reason.",
    )
    @click.option(
        "--since", metavar="TIME", callback=_moment, help="Only records given up at or after TIME."
    )
    @click.option(
        "--until", metavar="TIME", callback=_moment, help="Only records given up before TIME."
    )
    @functools.wraps(command)
    def with_choice(
        group: str,
        admin: Admin,
        place: dict[str, Any],
        error: str | None,
        since: int | None,
        until: int | None,
        **given: Any,
    ) -> Any:
        choice = Choice(**place, reason=error, since=since, until=until)
        return command(letters=admin.dead_letters(group), choice=choice, **given)

    return with_choice


_deciding = deciding(_chosen, "letters", "All letters without a decision.")


@click.group("dead-letters", epilog=EXIT_CODES)
def dead_letters() -> None:
    """List a group's dead letters, and replay or discard them, also while jobs run."""


@dead_letters.command(
    "list",
    epilog=example(
        "coopconsume dead-letters list shop --bootstrap-servers localhost:9092",
        "--commit-table /data/commits --dead-letter /data/dead --error timeout",
    ),
)
@reported
@_chosen
@click.option("--all", "settled", is_flag=True, help="Those, too, on which was decided.")
@shown
def list_(*, letters: DeadLetters, choice: Choice, settled: bool) -> Shown:
    """List dead letters.

    Letters whose commit does not count, such as those of a crashed job, are left out.
    """
    found = letters.letters(replace(choice, settled=settled), whole=False)
    table = letter_table(found) if found else "no dead letters"
    hint = next_replay(found, letters.group, letters.place)
    return Shown(lambda: [_plain(one, whole=False) for one in found], [table], hint=hint)


@dead_letters.command(epilog=EXIT_CODES)
@reported
@_chosen
@click.option("--all", "settled", is_flag=True, help="Those, too, on which was decided.")
@shown
def show(*, letters: DeadLetters, choice: Choice, settled: bool) -> Shown:
    """Show dead letters with headers, value and trace."""
    found = letters.letters(replace(choice, settled=settled))
    lines = (line for one in found for line in _whole(one))
    return Shown(lambda: [_plain(one, whole=True) for one in found], lines)


@dead_letters.command(epilog=EXIT_CODES)
@_deciding
def replay(*, letters: DeadLetters, choice: Choice, by: DecidedBy, execute: bool) -> Shown:
    """Process records again, in order.

    A parked record is retried, beginning with attempt 1, and unblocks its key when it is done: at
    once if a job runs, else when the next job starts. If later records of its key were processed,
    the record is written again, to the end of its partition.
    """
    return _decide("replay", letters, choice, by, execute=execute)


@dead_letters.command(epilog=EXIT_CODES)
@_deciding
def discard(*, letters: DeadLetters, choice: Choice, by: DecidedBy, execute: bool) -> Shown:
    """Mark records as done without processing them; this unblocks the key of a parked record."""
    return _decide("discard", letters, choice, by, execute=execute)


def _decide(
    action: Action, letters: DeadLetters, choice: Choice, by: DecidedBy, *, execute: bool
) -> Shown:
    plan = letters.plan(choice)
    if execute:
        letters.carry_out(action, plan, by)
    document = {
        "action": action,
        "executed": execute,
        "by": by.name,
        "reason": by.reason,
        "parked": [_record(one) for one in plan.parked],
        "passed": [_record(one) for one in plan.passed],
    }

    def parts() -> Iterator[str]:
        is_worked_on = letters.is_worked_on() if execute and plan.parked else None
        yield from decision_lines(action, plan, executed=execute, is_worked_on=is_worked_on)

    return Shown(lambda: document, parts())


def decision_lines(
    action: Action, plan: Steps, *, executed: bool, is_worked_on: bool | None = None
) -> list[str]:
    """Returns the steps of a decision as text.

    Args:
        action: The decision.
        plan: The steps.
        executed: Whether letters that have passed were handled, and the decision on parked ones
            was written down.
        is_worked_on: Whether the group has members or claims, which apply it; None: not known.
    """
    if not plan.letters:
        return ["no such dead letter is open"]
    fates = {
        "replay": ("retried before its key continues", "written again to the end of its partition"),
        "discard": ("marked as done; its key continues", "discarded"),
    }[action]
    verbs = ("will be ", "") if executed else ("would be ", "would be ")
    lines = [
        f"{name_of(one)}: {verb}{fate}"
        for group, fate, verb in zip((plan.parked, plan.passed), fates, verbs, strict=True)
        for one in group
    ]
    found = {"parked": len(plan.parked), "passed": len(plan.passed)}
    count = ", ".join(f"{number:,} {kind}" for kind, number in found.items() if number)
    end = "; dry run, nothing was changed: add --execute to apply the change"
    if executed:
        who = applied_by(is_worked_on=is_worked_on)
        end = f": the decision on parked ones was written down; {who}" if plan.parked else ""
    return [*lines, f"{count}{end}"]


def _whole(one: Letter) -> list[str]:
    given_up = f"given up {cell(moment(one.rejected_at))} after {counted(one.attempts, 'attempt')}"
    lines = [
        f"{name_of(one)}, {one.status}, {given_up}",
        f"reason: {one.reason}",
        *([f"decision: {one.decision}, {decided_on(one)}"] if one.decision else []),
        f"written: {cell(moment(one.timestamp))}, topic id {one.topic_id or '-'}",
        f"key: {text_of(one.key)}",
    ]
    lines += [f"header {name}: {text_of(value)}" for name, value in one.headers]
    return [*lines, f"value: {text_of(one.value)}", *one.trace.rstrip().splitlines(), ""]


def _plain(one: Letter, *, whole: bool) -> dict[str, Any]:
    found: dict[str, Any] = _record(one) | {
        "status": one.status, "attempts": one.attempts, "reason": one.reason,
        "rejected_at_ms": one.rejected_at, "commit": one.commit, "decision": one.decision or None,
        "decided_by": one.by.name or None, "decision_reason": one.by.reason or None,
        "decided_at_ms": one.by.at_ms or None,
    }  # fmt: skip
    if whole:
        found |= {
            "timestamp_ms": one.timestamp,
            "trace": one.trace,
            "value": text_of(one.value),
            "value_base64": _base64(one.value),
            "headers": [
                {"name": name, "value": text_of(value), "value_base64": _base64(value)}
                for name, value in one.headers
            ],
        }
    return found


def _record(one: Any) -> dict[str, Any]:
    return {
        "topic": one.topic, "topic_id": one.topic_id, "partition": one.partition,
        "offset": one.offset, "key": text_of(one.key), "key_base64": _base64(one.key),
    }  # fmt: skip


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
