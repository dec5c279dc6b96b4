"""What the legs of an aircraft hand on to each other, kept outside the processes that handle them.

Any Python worker may run a slot's next batch, and a restart brings new ones, so memory alone would
forget. A slot is in one task at a time and a key always in the same slot: one file a slot is
enough, to which each leg appends a line as it is done. A process that finds lines of others reads
them first. Task-side: the standard library alone.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import NamedTuple

Aircraft = tuple[str, int, str]
"""Topic, partition and tail number."""


class Leg(NamedTuple):
    """What the next leg of an aircraft needs to know of this one.

    Attributes:
        leg: Its number, from 1.
        flight: Its flight.
        arrival: Minutes since the epoch; None if it is not known.
        delay: Minutes late at the destination; None if it is not known.
    """

    leg: int
    flight: str
    arrival: int | None
    delay: int | None


class Logbook:
    """One slot's file of legs, with the last one of each aircraft in memory.

    Args:
        path: The file; its folder is made if need be.
    """

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)
        self._last: dict[Aircraft, Leg] = {}
        self._known = 0
        self._lock = threading.Lock()

    def leg(self, aircraft: Aircraft, number: int) -> Leg | None:
        """A leg that was noted, by whatever process; None if there is none of that number."""
        with self._lock:
            self._catch_up()
            last = self._last.get(aircraft)
            if last is None or last.leg == number:
                return last
            # Only legs that a kill made come again ask for an older one: rare enough to look it up.
            return self._search(aircraft, number) if last.leg > number else None

    def note(self, aircraft: Aircraft, leg: Leg) -> None:
        """Append a leg; noting it again after a kill is harmless."""
        topic, partition, tail = aircraft
        optional = ("" if value is None else str(value) for value in (leg.arrival, leg.delay))
        fields = (topic, str(partition), tail, str(leg.leg), leg.flight, *optional)
        line = ("\t".join(fields) + "\n").encode()
        with self._lock:
            self._catch_up()
            self._known += os.write(self._fd, line)
            self._last[aircraft] = leg

    def _catch_up(self) -> None:
        size = os.fstat(self._fd).st_size
        if size > self._known:
            for aircraft, leg in self._read(self._known, size):
                self._last[aircraft] = leg
            self._known = size

    def _search(self, aircraft: Aircraft, number: int) -> Leg | None:
        found = None
        for of, leg in self._read(0, self._known):
            if of == aircraft and leg.leg == number:
                found = leg
        return found

    def _read(self, start: int, end: int) -> list[tuple[Aircraft, Leg]]:
        legs = []
        for line in os.pread(self._fd, end - start, start).decode().split("\n"):
            match line.split("\t"):
                case topic, partition, tail, leg, flight, arrival, delay:
                    known = Leg(int(leg), flight, _number(arrival), _number(delay))
                    legs.append(((topic, int(partition), tail), known))
        return legs


@functools.cache
def open_logbook(folder: str, slot: int) -> Logbook:
    """The logbook of a slot in a folder; opened once a process."""
    return Logbook(os.path.join(folder, f"logbook-{slot}.tsv"))  # noqa: PTH118


def _number(text: str) -> int | None:
    return int(text) if text else None
