"""Watches the holds of one replica on the clock of one consumer. Pure: the caller passes the time.

Watched time is summed over consumers that live for less than a hold, see `commits.watch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commits.watch import Watch
from coopconsume.queue.rows import ReplicaRow

if TYPE_CHECKING:
    from random import Random

    from coopconsume.queue.replica import ReplicaState


class HoldWatch:
    """Watches the holds of one replica.

    Args:
        holder: The id of this consumer, which does not note its own holds.
        random: The source of jitter.
        state: The state of the replica; it changes before `take` is called.
        now: The time at which it was read.
    """

    def __init__(self, holder: str, random: Random, state: ReplicaState, now: float) -> None:
        self._holder = holder
        self._holds = state.holds
        self._watch: Watch[int] = Watch(random)
        #: When to write once more that a hold has ended, if that was lost.
        self._again: dict[int, float] = {}
        for position in self._holds:
            self._saw(position, now)

    def take(self, position: int, row: ReplicaRow, now: float) -> None:
        """Take the next row of the log, which was read at a time."""
        for seen in (position, *row.watched):
            self._saw(seen, now)

    def rows(self, now: float, repeat_after: float) -> list[ReplicaRow]:
        """Return the row that ends or notes holds, if one is due.

        Args:
            now: The time.
            repeat_after: Seconds after which a row that was not read back is written again.
        """
        due = [position for position, at in self._ends().items() if now >= at]
        for position in due:
            self._again[position] = now + max(repeat_after, self._holds[position].seconds / 4)
        note_at = self._watch.next_note()
        return self._rows(due, now, is_noted=note_at is not None and now >= note_at)

    def last_rows(self, now: float) -> list[ReplicaRow]:
        """Return the row that notes all holds, if there is any, as this consumer leaves."""
        self._ends()
        return self._rows([], now, is_noted=True)

    def next_due(self) -> float | None:
        """Return when `rows` has something to do; None if nothing is watched."""
        times = [*self._ends().values()]
        note_at = self._watch.next_note()
        return min(times if note_at is None else [*times, note_at], default=None)

    def _saw(self, position: int, now: float) -> None:
        hold = self._holds.get(position)
        if hold is not None:
            notes = hold.holder != self._holder
            self._watch.saw(position, hold.seconds, hold.watched, now, notes=notes)

    def _ends(self) -> dict[int, float]:
        """Return when to write that each hold has ended."""
        self._watch.keep(self._holds)
        for position in [position for position in self._again if position not in self._holds]:
            del self._again[position]
        ends = self._watch.ends()
        return {position: max(at, self._again.get(position, at)) for position, at in ends.items()}

    def _rows(self, due: list[int], now: float, *, is_noted: bool) -> list[ReplicaRow]:
        notes = self._watch.notes(now) if is_noted else {}
        watched = {position: lasted for position, lasted in notes.items() if position not in due}
        if not due and not watched:
            return []
        return [ReplicaRow("expire", self._holder, positions=tuple(due), watched=watched)]
