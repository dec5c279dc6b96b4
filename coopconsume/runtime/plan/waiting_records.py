"""The records of a slot in a partition that wait: failed ones, and those behind them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from commits import OffsetRanges
from coopconsume.runtime.plan.waiting_record import EARLIER_OWNER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assignors import KeyRange
    from coopconsume.runtime.plan.waiting_record import Waiting


_NOTHING: Final = OffsetRanges()


class WaitingRecords:
    """Failed records by lane, each behind the lower ones of its lane, and what waits behind them.

    What no longer waits is released: methods return the offsets that are to be looked at again.

    Attributes:
        lowest: The lowest failed record of each lane; higher ones of the lane follow by
            `Waiting.next`.
    """

    def __init__(self) -> None:
        self.lowest: dict[int, Waiting] = {}

    def __len__(self) -> int:
        return len(self.lowest)

    # -- what waits

    def records(self, lane: int | None = None) -> Iterator[Waiting]:
        """Yields all failed records, or those of one lane; the lowest of each lane first."""
        for waiting in self.lowest.values() if lane is None else [self.lowest[lane]]:
            each: Waiting | None = waiting
            while each is not None:
                yield each
                each = each.next

    def offsets(self) -> OffsetRanges:
        """Returns the offsets that wait: failed ones and those behind them."""
        return OffsetRanges.from_offsets([o for w in self.records() for o in w.waiting_offsets])

    def stuck(self) -> list[int]:
        """Returns the offsets that wait for a decision about a parked record, itself included."""
        return [
            offset
            for lane, lowest in self.lowest.items()
            if lowest.is_parked
            for waiting in self.records(lane)
            for offset in (waiting.offset, *waiting.behind)
        ]

    def due_by(self, now: float) -> int:
        """Returns how many offsets wait no longer than until an instant."""
        # A lane that an earlier owner barred has no waiting offset of its own.
        return sum(len(w.waiting_offsets) or 1 for w in self.lowest.values() if w.due <= now)

    def next_due(self, barred_until: float) -> float | None:
        """Returns when the next record is due, or a bar ends; None if nothing waits.

        Args:
            barred_until: Until then nothing may start; 0: no bar.
        """
        dues = [max(w.due, barred_until) for w in self.lowest.values() if not w.is_trying]
        if barred_until:
            dues.append(barred_until)
        return min(dues, default=None)

    def may_run(self, now: float) -> list[Waiting]:
        """Returns records that handlers of slots that gave back all others may work on."""
        return [
            waiting
            for waiting in self.records()
            if waiting.offset != EARLIER_OWNER
            and (waiting.is_running or waiting.may_run_until > now)
        ]

    # -- what happens

    def add(self, lane: int, failed: Waiting) -> None:
        """Has a failed record wait behind lower failed records of its lane."""
        lower, higher = None, self.lowest.get(lane)
        while higher is not None and higher.offset < failed.offset:
            lower, higher = higher, higher.next
        if higher is not None and higher.offset == failed.offset:
            failed.behind, higher = higher.behind, higher.next
        failed.next = higher
        if lower is None:
            self.lowest[lane] = failed
        else:
            lower.next = failed

    def handlers_ended(self, offsets: OffsetRanges, due: float) -> None:
        """Handlers work on some records no longer; what is not done is tried at an instant."""
        for waiting in self.records():
            if waiting.is_running and waiting.offset in offsets:
                waiting.is_running, waiting.due, waiting.may_run_until = False, due, due

    def leave(self, ranges: Sequence[KeyRange]) -> None:
        """Forgets what waits of key ranges that are given back.

        Records that handlers may still work on wait until these have ended.
        """
        for lane, lowest in list(self.lowest.items()):
            if not any(one.contains(lowest.key_hash) for one in ranges):
                continue
            running = [waiting for waiting in self.records(lane) if waiting.is_running]
            del self.lowest[lane]
            for waiting in running:
                waiting.next, waiting.behind = None, []
                self.add(lane, waiting)

    def release_tried(
        self, tried: OffsetRanges, done: OffsetRanges, left: OffsetRanges
    ) -> OffsetRanges:
        """Releases lanes whose retried record is done, or is not in the log any more.

        Args:
            tried: The offsets that a slot has looked at.
            done: Those that are done.
            left: Those that have failed or may still be started.
        """
        released: list[int] = []
        for lane, waiting in list(self.lowest.items()):
            is_tried = waiting.is_trying and waiting.offset in tried
            if is_tried and (waiting.offset in done or waiting.offset not in left):
                self._release_lowest(lane, released)
        return _ranges(released)

    def release_due(self, now: float, stable: int, done: OffsetRanges) -> OffsetRanges:
        """Releases failed records that are due, or are done by now."""
        released: list[int] = []
        for lane, lowest in list(self.lowest.items()):
            waiting: Waiting | None = lowest
            while waiting is not None and waiting.due <= now:
                # Discarded, or done by another member, where it is not retried.
                is_done = waiting.offset < stable or waiting.offset in done
                if not is_done and waiting.is_trying:
                    break
                if not is_done:
                    released.append(waiting.offset)
                    if waiting.is_far:
                        # What waits behind it is not read again and again while it keeps failing.
                        waiting.is_trying = True
                        break
                waiting = self._release_lowest(lane, released)
        return _ranges(released)

    def release_below(self, stable: int) -> OffsetRanges:
        """Releases what waits for records below the stable offset, which are done or deleted."""
        released: list[int] = []
        for lane, lowest in list(self.lowest.items()):
            waiting: Waiting | None = lowest
            while waiting is not None and waiting.offset < stable:
                waiting.behind = [o for o in waiting.behind if o >= stable]
                if waiting.is_running:
                    break
                waiting = self._release_lowest(lane, released)
        return _ranges(released)

    def _release_lowest(self, lane: int, released: list[int]) -> Waiting | None:
        """Releases what is behind the lowest failed record of a lane; returns the next one."""
        first = self.lowest.pop(lane)
        released += first.behind
        if first.next is not None:
            self.lowest[lane] = first.next
        return first.next


def _ranges(offsets: list[int]) -> OffsetRanges:
    return OffsetRanges.from_offsets(offsets) if offsets else _NOTHING
