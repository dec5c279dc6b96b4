"""Decisions of operators on the failed records of a partition, as its member applies them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.worker.report import GivenUp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commits import OffsetRanges
    from coopconsume.group.owned import Failed
    from coopconsume.runtime.decisions import Decision
    from coopconsume.runtime.plan.failed_records import FailedRecords
    from coopconsume.runtime.plan.waiting_record import Waiting


class DecidedRecords:
    """The open decisions on failed records of a partition.

    A decision makes its record due. The next slot that gets the record calls the handler (`retry`),
    or gives the record up without a call (`skip`, `park`). So a decision has no effect on a handler
    that runs, and what the slot reports is settled and committed as the outcome of an attempt.
    """

    def __init__(self) -> None:
        self._open: dict[int, Decision] = {}
        #: The offsets and times of decisions that have made their records due: each does it once,
        #: as a destination may refuse a letter again and again.
        self._hastened: set[tuple[int, int]] = set()

    @property
    def has_any(self) -> bool:
        """Whether a decision is open, as of the last read of the commit log."""
        return bool(self._open)

    def take(self, decisions: Iterable[Decision]) -> None:
        """Takes the open decisions, as the commit log has them."""
        self._open = {decision.offset: decision for decision in decisions}
        self._hastened &= {(one.offset, one.by.at_ms) for one in self._open.values()}

    def forget(self, offset: int) -> None:
        """Forgets the decision on a record: a later one has replaced it."""
        self._open.pop(offset, None)

    def makes_due(self, record: Failed) -> bool:
        """Returns whether a decision has a failed record start now, whatever its back-off."""
        decision = self._open.get(record.offset)
        if decision is None or record.is_parked:
            return False
        return decision.action != "retry" or not decision.is_retried(record.attempts, record.due_ms)

    def hasten(self, records: Iterable[Waiting], now: float = 0.0) -> None:
        """Makes waiting records due on which is decided.

        A record waits on while a handler may be at work on it, or its letter is not written.

        Args:
            records: Failed records.
            now: The time, on the monotonic clock.
        """
        for record in records if self._open else ():
            is_held = record.is_running or record.is_undelivered or record.may_run_until > now
            if is_held or record.is_trying or not self.makes_due(record):
                continue
            known = record.offset, self._open[record.offset].by.at_ms
            if known not in self._hastened:
                self._hastened.add(known)
                record.due = min(record.due, now)

    def given_up(self, offsets: OffsetRanges, failed: FailedRecords) -> dict[int, GivenUp]:
        """Returns those of some offsets that a slot gives up without a call."""
        return {
            offset: GivenUp(_reason(decision, failed.last(offset)), park=decision.action == "park")
            for offset, decision in self._open.items()
            if decision.action != "retry" and offset in offsets
        }


def _reason(decision: Decision, failed: Failed | None) -> str:
    """Returns why a record is given up, for its letter and for displays."""
    words = {"skip": "skipped", "park": "parked"}[decision.action]
    text = f"{words} by {decision.by}"
    return f"{text}; last error: {failed.error}" if failed is not None and failed.error else text
