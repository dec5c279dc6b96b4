"""Handled records whose dead letters or output rows are written together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from commits import OffsetRanges
from coopconsume.sinks.base import divided_rows, hashes_of_rows
from coopconsume.worker.report import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import Pending
    from commits.model import TopicPartition
    from coopconsume.worker.report import DeadLetter

    Rows = tuple[tuple[TopicPartition, ...], bytes]


@dataclass(eq=False)
class Parcel:
    """Handled records whose dead letters or rows are written together, and then committed.

    Attributes:
        offsets: What is done once they are written.
        pending: What is parked once they are written.
        letters: Dead letters.
        rows: Rows that handlers returned, with their partitions by part.
        changes: Changes of the state, in the same form.
        slots: The slots that have handled its records.
        failures: Failed attempts to write it.
        is_split: Whether it is part of a parcel that failed; it is written alone.
        error: Why it is not written; empty before the first failure.
        is_refused: Whether the destination refuses it permanently.
        shown: The error and `is_refused` as the commit log has them.
    """

    offsets: dict[TopicPartition, OffsetRanges] = field(default_factory=dict)
    pending: dict[TopicPartition, list[Pending]] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    changes: list[Rows] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)
    failures: int = 0
    is_split: bool = False
    error: str = ""
    is_refused: bool = False
    shown: tuple[str, bool] = ("", False)

    def __bool__(self) -> bool:
        return bool(self.letters or self.rows or self.changes or any(self.offsets.values()))

    @property
    def is_fresh(self) -> bool:
        """Whether no attempt was made to write it."""
        return not (self.failures or self.is_split)

    def places(self) -> dict[TopicPartition, OffsetRanges]:
        """Returns the offsets of all its records."""
        found = dict(self.offsets)
        for tp, pending in self.pending.items():
            parked = OffsetRanges.from_offsets([one.offset for one in pending])
            found[tp] = found.get(tp, OffsetRanges()) | parked
        return found

    def add(self, other: Parcel) -> None:
        """Adds another parcel, whose records are later ones of their keys."""
        for tp, offsets in other.offsets.items():
            self.offsets[tp] = self.offsets.get(tp, OffsetRanges()) | offsets
        for tp, pending in other.pending.items():
            self.pending.setdefault(tp, []).extend(pending)
        self.letters += other.letters
        self.rows += other.rows
        self.changes += other.changes
        self.slots |= other.slots

    def divided(self, left: Mapping[TopicPartition, OffsetRanges]) -> tuple[Parcel, Parcel]:
        """Returns the parcel without some offsets, and a parcel of these offsets."""
        if not any(left.values()):
            return self, Parcel()
        nothing = OffsetRanges()
        now, later = Parcel(slots=self.slots), Parcel(slots=self.slots)
        for tp, offsets in self.offsets.items():
            waits = left.get(tp, nothing)
            now.offsets[tp], later.offsets[tp] = offsets - waits, offsets & waits
        for tp, pending in self.pending.items():
            for one in pending:
                parcel = later if one.offset in left.get(tp, nothing) else now
                parcel.pending.setdefault(tp, []).append(one)
        for letter in self.letters:
            waits = left.get((letter.topic, letter.partition), nothing)
            (later if letter.offset in waits else now).letters.append(letter)
        for name in ("rows", "changes"):
            for partitions, rows in getattr(self, name):
                for parcel, some in zip(
                    (now, later), divided_rows(partitions, rows, left), strict=True
                ):
                    if some is not None:
                        getattr(parcel, name).append((partitions, some))
        return now, later

    def halves(self) -> tuple[Parcel, ...]:
        """Returns its two halves, lower offsets first; itself if it has one record."""
        places = [(tp, o) for tp, r in sorted(self.places().items()) for o in r.offsets().tolist()]
        if len(places) < 2:  # noqa: PLR2004 - two halves
            return (self,)
        upper: dict[TopicPartition, list[int]] = {}
        for tp, offset in places[len(places) // 2 :]:
            upper.setdefault(tp, []).append(offset)
        parts = self.divided({tp: OffsetRanges.from_offsets(o) for tp, o in upper.items()})
        for part in parts:
            part.is_split, part.error, part.shown = True, self.error, self.shown
        return parts

    def records(self) -> dict[TopicPartition, list[Failure]]:
        """Returns its records with a dead letter, rows or a change, as if they had failed."""
        found: dict[TopicPartition, list[Failure]] = {}
        for letter in self.letters:
            found.setdefault((letter.topic, letter.partition), []).append(
                Failure(
                    letter.offset,
                    letter.key_hash,
                    key=letter.dealt_by,
                    attempts=letter.attempts,
                    delay=math.inf,
                    error=self.error,
                    headers=letter.added,
                )
            )
        for partitions, rows in (*self.rows, *self.changes):
            for tp, hashes in hashes_of_rows(partitions, rows).items():
                known = {one.offset for one in found.get(tp, ())}
                found.setdefault(tp, []).extend(
                    Failure(o, h, key=None, attempts=0, delay=math.inf, error=self.error)
                    for o, h in hashes.items()
                    if o not in known
                )
        return found


class Written(NamedTuple):
    """A parcel that is written, and is to be committed.

    Attributes:
        parcel: The parcel.
        commit_id: The commit that its letters and rows name.
        took: Seconds for writing it.
    """

    parcel: Parcel
    commit_id: str
    took: float
