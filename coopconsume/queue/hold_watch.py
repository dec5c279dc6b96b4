"""Watches the holds of one replica on the clock of one consumer. Pure: the caller passes the time.

Watched time is summed over consumers that live for less than a hold, without any two clocks being
compared. A consumer that watches a hold notes now and then, and as it leaves, how long the hold has
lasted at least. Who reads the note has a hold that is at least as old, and counts on from there. A
note is true for ever, so notes may be lost, late or repeated, and of several the largest counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.queue.rows import ReplicaRow

if TYPE_CHECKING:
    from random import Random

    from coopconsume.queue.replica import ReplicaState


#: A hold is noted about so often in its time, and at most so often in seconds.
_NOTES, _SHORTEST = 10, 0.5


class HoldWatch:
    """Watches the holds of one replica.

    Args:
        holder: The id of this consumer.
        random: The source of jitter: of all consumers that watch a hold, about one notes it.
        state: The state of the replica; it changes before `take` is called.
        now: The time at which it was read.
    """

    def __init__(self, holder: str, random: Random, state: ReplicaState, now: float) -> None:
        self._holder = holder
        self._random = random
        self._holds = state.holds
        #: By position: the time on this clock at which the hold existed already.
        self._begun: dict[int, float] = {}
        #: When to note it next; own holds are not noted.
        self._note_at: dict[int, float] = {}
        #: When to write once more that it has ended, if that was lost.
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
        self._forget_ended()
        due = [position for position in self._begun if now >= self._due(position)]
        for position in due:
            self._again[position] = now + max(repeat_after, self._holds[position].seconds / 4)
        return self._rows(due, now, is_noted=any(now >= at for at in self._note_at.values()))

    def last_rows(self, now: float) -> list[ReplicaRow]:
        """Return the row that notes all holds, if there is any, as this consumer leaves."""
        self._forget_ended()
        return self._rows([], now, is_noted=True)

    def next_due(self) -> float | None:
        """Return when `rows` has something to do; None if nothing is watched."""
        self._forget_ended()
        times = [self._due(position) for position in self._begun]
        return min((*times, *self._note_at.values()), default=None)

    def _saw(self, position: int, now: float) -> None:
        """Note that a hold was seen, which is as old as others have noted."""
        hold = self._holds.get(position)
        if hold is None:
            return
        begun = now - hold.watched
        self._begun[position] = min(begun, self._begun.get(position, begun))
        if hold.holder != self._holder:
            self._note_later(position, now)

    def _due(self, position: int) -> float:
        ended = self._begun[position] + self._holds[position].seconds
        return max(ended, self._again.get(position, ended))

    def _note_later(self, position: int, now: float) -> None:
        pause = max(_SHORTEST, self._holds[position].seconds / _NOTES)
        self._note_at[position] = now + pause * (1 + self._random.random())

    def _rows(self, due: list[int], now: float, *, is_noted: bool) -> list[ReplicaRow]:
        watched: dict[int, float] = {}
        for position in self._note_at if is_noted else ():
            lasted = int(1000 * (now - self._begun[position])) / 1000
            if position not in due and lasted > self._holds[position].watched:
                watched[position] = lasted
            self._note_later(position, now)
        if not due and not watched:
            return []
        return [ReplicaRow("expire", self._holder, positions=tuple(due), watched=watched)]

    def _forget_ended(self) -> None:
        for position in [position for position in self._begun if position not in self._holds]:
            for known in (self._begun, self._note_at, self._again):
                known.pop(position, None)
