"""Files with the legs of each aircraft, which pass state from one flight to the next.

Any Python worker may run the next batch of a slot, so the state cannot be in memory only. A slot is
in one task at a time and a key is always in the same slot, so one file per slot is enough. Each leg
appends a line; a process first reads the lines that other processes have appended. This module runs
in Spark tasks and needs only the standard library.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import NamedTuple

Aircraft = tuple[str, int, str]
"""An aircraft: topic, partition and tail number."""


class Leg(NamedTuple):
    """The data of a leg that the next leg of the aircraft needs.

    Attributes:
        leg: The number of the leg, from 1.
        flight: The flight.
        arrival: The arrival in minutes since the epoch; None if it is not known.
        delay: The delay at the destination in minutes; None if it is not known.
    """

    leg: int
    flight: str
    arrival: int | None
    delay: int | None


class LegFile:
    """The file of legs of one slot, with the last leg of each aircraft in memory.

    Args:
        path: The file; a missing folder is created.
    """

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)
        self._last: dict[Aircraft, Leg] = {}
        self._known = 0
        self._lock = threading.Lock()

    def leg(self, aircraft: Aircraft, number: int) -> Leg | None:
        """Returns a leg that any process has appended; None if no leg has that number."""
        with self._lock:
            self._catch_up()
            last = self._last.get(aircraft)
            if last is None or last.leg == number:
                return last
            # Only legs that are repeated after a kill need an older one: rare enough for a search.
            return self._search(aircraft, number) if last.leg > number else None

    def append(self, aircraft: Aircraft, leg: Leg) -> None:
        """Appends a leg; appending it again after a kill has no effect."""
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
def open_leg_file(folder: str, slot: int) -> LegFile:
    """Returns the leg file of a slot in a folder; it is opened once per process."""
    return LegFile(os.path.join(folder, f"legs-{slot}.tsv"))  # noqa: PTH118


def _number(text: str) -> int | None:
    return int(text) if text else None
