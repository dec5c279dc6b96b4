"""The calls that `tests.upgrade.app` has noted, and what is wrong with them."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path


class Note(NamedTuple):
    """The begin or the end of a call, or its failure."""

    what: str
    at_ns: int
    application: str
    partition: int
    offset: int
    key: str
    attempt: int
    state: list[int] | None


def read_notes(folder: Path) -> list[Note]:
    """Return all notes in the order of their times."""
    lines = [line for file in folder.glob("calls-*") for line in file.read_text().splitlines()]
    return sorted((Note(*json.loads(line)) for line in lines), key=lambda note: note.at_ns)


def longest_pause(notes: Iterable[Note], begin_ns: int, end_ns: int) -> float:
    """Return for how many seconds no call has ended at most."""
    inside = (n.at_ns for n in notes if n.what == "end" and begin_ns < n.at_ns < end_ns)
    times = [begin_ns, *inside, end_ns]
    return max(b - a for a, b in pairwise(times)) / 1e9


def problems(notes: list[Note], killed: Collection[str], *, in_order: bool) -> Iterator[str]:
    """Yield what is wrong: repeats, an order, lost attempts, a state that is not that of the key.

    Args:
        notes: All notes, in the order of their times.
        killed: Applications that were killed: what they had in flight may be repeated.
        in_order: Whether keys have an order.
    """
    ended: dict[tuple[int, int], Note] = {}
    done: dict[tuple[int, str], list[int]] = defaultdict(list)
    attempts: dict[tuple[int, int], int] = defaultdict(int)
    # Records of the key do not wait for a parked one.
    parked = {(n.partition, n.offset) for n in notes if n.what == "fail" and n.key != "fails"}
    for note in notes:
        place, key = (note.partition, note.offset), (note.partition, note.key)
        if note.what == "begin" and place not in ended:
            is_lost = note.key == "fails" and note.attempt < attempts[place]
            if is_lost or note.attempt > attempts[place] + 1:
                yield f"{note}: {attempts[place]} attempts were made before"
            attempts[place] = note.attempt
            above = [offset for offset in done[key] if offset > note.offset]
            if above and in_order and place not in parked:
                yield f"{note}: {above[0]} of its key was handled before"
            if note.state is not None and note.state != done[key]:
                yield f"{note}: the records of its key were {done[key]}"
        elif note.what == "end":
            before = ended.setdefault(place, note)
            if before is note:
                done[key].append(note.offset)
            elif before.application not in killed:
                yield f"{note}: it was handled before, {before}"
