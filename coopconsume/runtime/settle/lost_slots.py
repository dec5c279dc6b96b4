"""Logs lost slots: what such a slot had not reported is processed again.

Each line has the facts as ``lostSlot``, for programs that explain why a record was repeated.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

_SHOWN = 4


def log_ended_worker(report: SlotReport, names: Sequence[tuple[str, int]]) -> None:
    """Logs that the worker of a slot has ended before the slot did.

    Args:
        report: Of the second attempt of the slot's task.
        names: Topic and partition, by part.
    """
    reason = _why(report, names)
    log.warning(
        "slot %d: its worker, process %d, has ended: %s; what the slot had not reported is "
        "processed again", report.slot, report.pid, reason,
        extra=_facts(report.slot, report.pid, reason, may_run_for=0.0),
    )  # fmt: skip


def log_lost_slot(slot: int, pid: int, may_run_for: float) -> None:
    """Logs that nothing is known of a slot since its last progressive report.

    Args:
        slot: The slot.
        pid: The process id of its worker; 0: it is not known.
        may_run_for: Seconds for which handlers of it may still run.
    """
    log.warning(
        "slot %d is lost: what it had not reported is processed again in %.0f s",
        slot,
        may_run_for,
        extra=_facts(slot, pid, "it is lost", may_run_for),
    )


def _why(report: SlotReport, names: Sequence[tuple[str, int]]) -> str:
    at_work = [(*names[part], at) for part, at in report.end.culprits or report.end.suspects]
    deserted = "it has not heard of its driver, or of its epoch, within lease and leaseGrace"
    if not at_work:
        return deserted if report.end.deserted else "no handler was running"
    shown = ", ".join(f"{t}-{partition}@{offset}" for t, partition, offset in at_work[:_SHOWN])
    shown += ", …" if len(at_work) > _SHOWN else ""
    if report.end.deserted:
        return f"{deserted}; the handler of {shown} may have kept Python's interpreter lock"
    if report.end.overdue:
        return f"the handler of {shown} did not end in time"
    return f"the handler of {shown} was running"


def _facts(slot: int, pid: int, reason: str, may_run_for: float) -> dict[str, object]:
    facts = {"slot": slot, "pid": pid, "reason": reason, "mayRunFor": may_run_for}
    return {"lostSlot": facts}
