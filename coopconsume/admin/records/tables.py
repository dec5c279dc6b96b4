"""Failed records, and decisions on records, as tables (pure)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from coopconsume.admin.tables import Table
from coopconsume.texts import counted, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.admin.records.actions import FailedRecord, RecordSteps
    from coopconsume.runtime.decisions import Decision, RecordAction

#: The most characters of an error in a list.
_MOST: Final = 60
#: The fates of failed and of parked records.
_FATES: Final[dict[RecordAction, tuple[str, str]]] = {
    "retry": ("retried now", "retried from its first attempt on"),
    "park": ("parked", "parked"),
    "skip": ("skipped", "marked as done; its key continues"),
}

#: Decisions on parked records as `coopconsume records` names them.
_SHOWN: Final[dict[str, str]] = {"replay": "retry", "discard": "skip"}


def shown_action(action: str) -> str:
    """Returns a decision in the words of ``coopconsume records``, whatever command made it."""
    return _SHOWN.get(action, action)


def record_table(records: Sequence[FailedRecord], now: datetime) -> Table:
    """Returns a row for each failed record."""
    return Table(
        ("record", "key", "attempts", "state", "since", "due in", "error", "decision", "by"),
        [
            (
                one.name, one.key, one.attempts, one.state, one.since, _due_in(one, now),
                one_line(one.error, _MOST), one.decision and shown_action(one.decision.action),
                one.decision and one_line(str(one.decision.by), _MOST),
            )
            for one in records
        ],
    )  # fmt: skip


def decided_at(decision: Decision) -> datetime | None:
    """Returns when a decision was made, by the clock of who decided; None: not known."""
    at_ms = decision.by.at_ms
    return datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms else None


def decision_row(decision: Decision, group: str) -> dict[str, Any]:
    """Returns a decision as a row of the SQL view."""
    settled = decision.settled_ms
    return {
        "group": group, "topic": decision.topic, "partition": decision.partition,
        "offset": decision.offset, "action": decision.action, "decided_at": decided_at(decision),
        "decided_by": decision.by.name, "reason": decision.by.reason, "status": decision.status,
        "settled_at": datetime.fromtimestamp(settled / 1000, UTC) if settled else None,
    }  # fmt: skip


def step_lines(steps: RecordSteps, *, executed: bool) -> list[str]:
    """Returns the steps of a decision as text."""
    if not (steps.failed or steps.parked or steps.unchanged):
        return ["no such record has failed, as far as the commit table has it"]
    verb = "" if executed else "would be "
    lines = [
        f"{one.name}: {verb}{fate}"
        for records, fate in zip((steps.failed, steps.parked), _FATES[steps.action], strict=True)
        for one in records
    ]
    lines += [f"{one.name}: is parked already" for one in steps.unchanged]
    count = counted(len(steps.failed) + len(steps.parked), "record")
    dry_run = "; dry run, nothing was changed: add --execute to apply the change"
    return [*lines, f"{count}{'' if executed else dry_run}"]


def _due_in(one: FailedRecord, now: datetime) -> str | None:
    if one.due is None:
        return None
    return f"{max(0.0, (one.due - now).total_seconds()):,.0f} s"
