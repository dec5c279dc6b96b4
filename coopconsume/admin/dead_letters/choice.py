"""Selects dead letters, finds their status, and plans decisions on them (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from coopconsume.admin.dead_letters.stored import StoredLetter
    from coopconsume.runtime.decisions import Decision

    RecordId = tuple[str, int, int]

LetterStatus = Literal["parked", "replaying", "discarding", "open", "replayed", "discarded"]
#: The statuses of letters with a final decision.
SETTLED: frozenset[str] = frozenset({"replayed", "discarded"})
_ORDERED: Mapping[str, LetterStatus] = {"replay": "replaying", "discard": "discarding"}
_DONE: Mapping[str, LetterStatus] = {"replay": "replayed", "discard": "discarded"}


@dataclass(frozen=True)
class Letter:
    """A dead letter with its status.

    Attributes:
        stored: The letter.
        status: ``parked``: its key waits for a decision. ``replaying`` or ``discarding``: an
            operator decided, and the next poll of a job applies it. ``open``: later records of
            its key were processed, and there is no decision. ``replayed`` or ``discarded``: the
            decision was applied.
    """

    stored: StoredLetter
    status: LetterStatus


@dataclass(frozen=True)
class Choice:
    """A filter of dead letters; a condition that is None matches all.

    Attributes:
        topic, partition: The topic and partition of their records.
        first, last: The offsets, both included.
        key: The record's key.
        reason: Text that the reason contains, in any case.
        since, until: When they were given up, in milliseconds since the epoch; until is excluded.
        settled: Whether letters with a final decision match.
    """

    topic: str | None = None
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    key: bytes | None = None
    reason: str | None = None
    since: int | None = None
    until: int | None = None
    settled: bool = False

    def takes(self, letter: Letter) -> bool:
        """Returns whether a letter matches."""
        one = letter.stored
        return (
            (self.settled or letter.status not in SETTLED)
            and self.topic in (None, one.topic)
            and self.partition in (None, one.partition)
            and (self.first is None or one.offset >= self.first)
            and (self.last is None or one.offset <= self.last)
            and self.key in (None, one.key)
            and (self.reason is None or self.reason.lower() in one.reason.lower())
            and (self.since is None or one.rejected_at >= self.since)
            and (self.until is None or one.rejected_at < self.until)
        )


@dataclass(frozen=True)
class Steps:
    """The steps of a decision.

    Attributes:
        parked: Letters whose records a job retries, or marks as done, each key in order.
        passed: Letters whose keys have later processed records; a replay writes their records
            again.
    """

    parked: tuple[StoredLetter, ...]
    passed: tuple[StoredLetter, ...]

    @property
    def letters(self) -> tuple[StoredLetter, ...]:
        """All letters of the decision."""
        return (*self.parked, *self.passed)


def with_status(
    letters: Iterable[StoredLetter], parked: Collection[RecordId], decisions: Iterable[Decision]
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
    last: dict[RecordId, StoredLetter] = {}
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
        found.append(Letter(one, status))
    return sorted(found, key=lambda x: (x.stored.topic, x.stored.partition, x.stored.offset))


def _is_newer(later: StoredLetter, other: StoredLetter) -> bool:
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
        tuple(letter.stored for letter in chosen if letter.status in held),
        tuple(letter.stored for letter in chosen if letter.status == "open"),
    )
