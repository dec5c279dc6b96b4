"""Selects dead letters, finds their status, and plans decisions on them (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coopconsume.admin.place_choice import PlaceChoice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from coopconsume.admin.dead_letters.stored import Letter, LetterStatus
    from coopconsume.runtime.decisions import Decision

    RecordId = tuple[str, int, int]

#: The statuses of letters with a final decision.
SETTLED: frozenset[str] = frozenset({"replayed", "discarded"})
_ORDERED: Mapping[str, LetterStatus] = {"replay": "replaying", "discard": "discarding"}
_DONE: Mapping[str, LetterStatus] = {"replay": "replayed", "discard": "discarded"}


@dataclass(frozen=True)
class Choice(PlaceChoice):
    """A filter of dead letters; a condition that is None matches all.

    Attributes:
        topic, partition, first, last: The positions of their records, as in `PlaceChoice`.
        key: The record's key.
        reason: Text that the reason contains, in any case.
        since, until: When they were given up, in milliseconds since the epoch; until is excluded.
        settled: Whether letters with a final decision match.
    """

    key: bytes | None = None
    reason: str | None = None
    since: int | None = None
    until: int | None = None
    settled: bool = False

    def takes(self, letter: Letter) -> bool:
        """Returns whether a letter matches."""
        return (
            (self.settled or letter.status not in SETTLED)
            and self.takes_place(letter.topic, letter.partition, letter.offset)
            and self.key in (None, letter.key)
            and (self.reason is None or self.reason.lower() in letter.reason.lower())
            and (self.since is None or letter.rejected_at >= self.since)
            and (self.until is None or letter.rejected_at < self.until)
        )


@dataclass(frozen=True)
class Steps:
    """The steps of a decision.

    Attributes:
        parked: Letters whose records a job retries, or marks as done, each key in order.
        passed: Letters whose keys have later processed records; a replay writes their records
            again.
    """

    parked: tuple[Letter, ...]
    passed: tuple[Letter, ...]

    @property
    def letters(self) -> tuple[Letter, ...]:
        """All letters of the decision."""
        return (*self.parked, *self.passed)


def with_status(
    letters: Iterable[Letter], parked: Collection[RecordId], decisions: Iterable[Decision]
) -> list[Letter]:
    """Returns letters with their status, sorted by partition and offset.

    If a record has several letters, only the newest one can be parked.

    Args:
        letters: The letters in the order in which they were written, as far as it is known.
        parked: The records that the commit log lists as parked.
        decisions: The decisions that no job has applied yet.
    """
    ordered = {(d.topic, d.partition, d.offset): d.action for d in decisions}
    letters = list(letters)
    last: dict[RecordId, Letter] = {}
    for one in letters:
        place = (one.topic, one.partition, one.offset)
        if place not in last or _is_newer(one, last[place]):
            last[place] = one
    newest = {place: one.id for place, one in last.items()}
    found = []
    for one in letters:
        place = (one.topic, one.partition, one.offset)
        status: LetterStatus = "open"
        if place in parked and newest[place] == one.id:
            status = _ORDERED[ordered[place]] if place in ordered else "parked"
        elif one.decision:
            status = _DONE[one.decision]
        elif newest[place] != one.id:
            status = "replayed"  # It was retried and given up again.
        found.append(replace(one, status=status))
    return sorted(found, key=lambda x: (x.topic, x.partition, x.offset))


def _is_newer(later: Letter, other: Letter) -> bool:
    """Whether a letter was written after another one of its record that is before it in order.

    The order may be that of clocks. A record is given up again after the decision on its earlier
    letters, and the commits of one run of a job are numbered.
    """
    if bool(later.decision) != bool(other.decision):
        return bool(other.decision)
    (run, number), (other_run, other_number) = _numbered(later.commit), _numbered(other.commit)
    return run != other_run or number >= other_number


def _numbered(commit: str) -> tuple[str, int]:
    run, _, number = commit.rpartition("-")
    return (run, int(number)) if number.isdecimal() else (commit, 0)


def steps(letters: Iterable[Letter]) -> Steps:
    """Plans a decision; letters with a final decision are left out."""
    chosen = [letter for letter in letters if letter.status not in SETTLED]
    held = ("parked", "replaying", "discarding")
    return Steps(
        tuple(letter for letter in chosen if letter.status in held),
        tuple(letter for letter in chosen if letter.status == "open"),
    )
