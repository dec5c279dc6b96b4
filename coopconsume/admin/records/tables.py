"""Failed records, and decisions on records, as tables (pure)."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from coopconsume.admin.tables import Table
from coopconsume.runtime.decided_by import DECIDE_EVERY
from coopconsume.texts import counted, due_in, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.admin.records.actions import FailedRecord, RecordSteps
    from coopconsume.runtime.decisions import Decision, RecordAction

#: The most characters of an error in a list.
_MOST: Final = 60
#: The fates of failed and of parked records.
_FATES: Final[dict[RecordAction, tuple[str, str]]] = {
    "retry": ("retried", "retried from its first attempt on"),
    "park": ("parked", "parked"),
    "skip": ("skipped", "marked as done; its key continues"),
}

#: Decisions on parked records as `coopconsume records` names them.
_SHOWN: Final[dict[str, str]] = {"replay": "retry", "discard": "skip"}


def shown_action(action: str) -> str:
    """Returns a decision in the words of ``coopconsume records``, whatever command made it."""
    return _SHOWN.get(action, action)


def record_table(
    records: Sequence[FailedRecord], now: datetime, *, is_worked_on: bool = True
) -> Table:
    """Returns a row for each failed record.

    Args:
        records: The records.
        now: The current time.
        is_worked_on: Whether their group has members or claims.
    """
    return Table(
        ("record", "key", "attempts", "state", "since", "due in", "error", "decision", "by"),
        [
            (
                one.name, one.key, one.attempts, one.state, one.since,
                None if one.due is None
                else due_in((one.due - now).total_seconds(), is_worked_on=is_worked_on),
                one_line(one.error, _MOST), one.decision and shown_action(one.decision.action),
                one.decision and one_line(str(one.decision.by), _MOST),
            )
            for one in records
        ],
    )  # fmt: skip


def decision_row(decision: Decision, group: str) -> dict[str, Any]:
    """Returns a decision as a row of the SQL view."""
    settled = decision.settled_ms
    return {
        "group": group, "topic": decision.topic, "partition": decision.partition,
        "offset": decision.offset, "action": decision.action, "decided_at": decision.by.at,
        "decided_by": decision.by.name, "reason": decision.by.reason, "status": decision.status,
        "settled_at": datetime.fromtimestamp(settled / 1000, UTC) if settled else None,
    }  # fmt: skip


def retry_command(
    group: str, place: tuple[str, int, int], options: str, words: str = "records retry"
) -> str:
    """Returns the command that has a record tried again; it is a dry run without ``--execute``.

    Args:
        group: The group id.
        place: The topic, the partition and the offset of the record.
        options: The options that name the cluster and the commit table.
        words: The words of the command.
    """
    return f"coopconsume {words} {record_arguments(group, place, options)}"


def record_arguments(group: str, place: tuple[str, int, int], options: str) -> str:
    """Returns what a command that decides on a record is given; see `retry_command`."""
    topic, partition, offset = place
    at = ["--topic", topic, "--partition", str(partition), "--offset", str(offset)]
    return f"{shlex.join([group, *at])} {options}".rstrip()


def next_decision(records: Sequence[FailedRecord], group: str, options: str) -> str:
    """Returns how to decide on the most urgent one of some failed records; empty without any.

    That is a parked record, which waits for nothing else; then the one that has failed most often.
    """
    undecided = [one for one in records if one.decision is None]
    if not undecided:
        return ""
    first = min(undecided, key=lambda one: (one.state != "parked", -one.attempts))
    command = retry_command(group, (first.topic, first.partition, first.offset), options)
    others = "skip" if first.state == "parked" else "skip or park"
    return f"next: {command}\n{others} in place of retry; --execute applies it"


def applied_by(*, is_worked_on: bool | None) -> str:
    """Returns who applies a decision that was written down, and when.

    Args:
        is_worked_on: Whether the group has members or claims; None: not known.
    """
    soon = f"job that runs applies it in about {DECIDE_EVERY:.0f} s"
    if is_worked_on is None:
        return f"a {soon}, otherwise the next one to start"
    return f"the {soon}" if is_worked_on else "no job runs, so the next one to start applies it"


def step_lines(
    steps: RecordSteps, *, executed: bool, is_worked_on: bool | None = None
) -> list[str]:
    """Returns the steps of a decision as text.

    Args:
        steps: The steps.
        executed: Whether the decision was written down.
        is_worked_on: Whether the group has members or claims, which apply it; None: not known.
    """
    if not (steps.failed or steps.parked or steps.unchanged):
        return ["no such record has failed, as far as the commit table has it"]
    verb = "will be " if executed else "would be "
    lines = [
        f"{one.name}: {verb}{fate}"
        for records, fate in zip((steps.failed, steps.parked), _FATES[steps.action], strict=True)
        for one in records
    ]
    lines += [f"{one.name}: is parked already" for one in steps.unchanged]
    number = len(steps.failed) + len(steps.parked)
    end = "; dry run, nothing was changed: add --execute to apply the change"
    if executed:
        end = f": the decision was written down; {applied_by(is_worked_on=is_worked_on)}"
    return [*lines, f"{counted(number, 'record')}{end if number or not executed else ''}"]
