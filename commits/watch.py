"""Watches what ends after a time, on the clock of one process. Pure: the caller passes the time.

A hold of a queue and a chunk of a partition end once somebody has watched them for their whole
time. Watched time is summed over processes that live for less than that, without any two clocks
being compared. A process notes in the log now and then, and as it leaves, for how long something
has lasted at least. The process that reads the note counts on from there. A note is true for ever,
so notes may be lost, late or repeated, and of several the largest counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Container
    from random import Random

Key = TypeVar("Key")

#: What is watched is noted about so often in its time, and at most so often in seconds.
_NOTES, _SHORTEST = 10, 0.5


@dataclass(slots=True)
class _Watched:
    #: The time on this clock at which it existed already.
    begun: float
    seconds: float
    noted: float
    #: When to note it next; None: never.
    note_at: float | None = None


class Watch(Generic[Key]):
    """Watches things by their keys.

    Args:
        random: The source of jitter: of all processes that watch something, about one notes it.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._things: dict[Key, _Watched] = {}

    def saw(
        self, key: Key, seconds: float, noted: float, now: float, *, notes: bool = True
    ) -> None:
        """Take something that exists at a time, which is as old as others have noted.

        Args:
            key: What it is.
            seconds: The time after which it ends.
            noted: For how long it has lasted at least, as others have noted.
            now: The time.
            notes: Whether this process notes it.
        """
        known = self._things.get(key)
        if known is not None and noted <= known.noted:
            return
        begun = now - noted if known is None else min(now - noted, known.begun)
        thing = self._things[key] = _Watched(begun, seconds, noted)
        if notes:
            self._note_later(thing, now)

    def keep(self, keys: Container[Key]) -> None:
        """Forget all others: they have ended."""
        for key in [key for key in self._things if key not in keys]:
            del self._things[key]

    def overdue(self, now: float) -> list[Key]:
        """Return what was watched for its whole time."""
        return [key for key, end in self.ends().items() if now >= end]

    def ends(self) -> dict[Key, float]:
        """Return when each will have been watched for its whole time."""
        return {key: thing.begun + thing.seconds for key, thing in self._things.items()}

    def next_note(self) -> float | None:
        """Return when `notes` are due; None: never."""
        times = [one.note_at for one in self._things.values() if one.note_at is not None]
        return min(times, default=None)

    def notes(self, now: float) -> dict[Key, float]:
        """Return for how many seconds each has lasted, unless that is noted; the next notes wait.

        They are rounded down to milliseconds.
        """
        found = {}
        for key, thing in self._things.items():
            if thing.note_at is None:
                continue
            lasted = int(1000 * (now - thing.begun)) / 1000
            if lasted > thing.noted:
                found[key] = lasted
            self._note_later(thing, now)
        return found

    def _note_later(self, thing: _Watched, now: float) -> None:
        pause = max(_SHORTEST, thing.seconds / _NOTES)
        thing.note_at = now + pause * (1 + self._random.random())
