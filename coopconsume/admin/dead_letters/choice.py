"""Which dead letters are meant, how each stands, and what a decision on them comes to: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from coopconsume.admin.dead_letters.stored import StoredLetter
    from coopconsume.runtime.decisions import Decision

    Place = tuple[str, int, int]

Standing = Literal["parked", "replaying", "discarding", "open", "replayed", "discarded"]
#: Nothing more is to be decided on these.
SETTLED: frozenset[str] = frozenset({"replayed", "discarded"})
_ORDERED: Mapping[str, Standing] = {"replay": "replaying", "discard": "discarding"}
_DONE: Mapping[str, Standing] = {"replay": "replayed", "discard": "discarded"}


@dataclass(frozen=True)
class Letter:
    """A dead letter and how it stands.

    Attributes:
        stored: The letter.
        standing: ``parked``: its key waits for a decision; ``replaying`` and ``discarding``: one
            was made, and the next look of a job takes it; ``open``: its key has gone on, and
            nobody has decided; ``replayed`` and ``discarded``: that is what was decided.
    """

    stored: StoredLetter
    standing: Standing


@dataclass(frozen=True)
class Choice:
    """Which letters are meant; what is None does not matter.

    Attributes:
        topic, partition: Where their records lie.
        first, last: Offsets, both included.
        key: The record's key.
        reason: Text that the reason contains, whatever the case.
        since, until: When they were given up, in milliseconds since the epoch; until is excluded.
        settled: Whether those count in on which was decided already.
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
        """Whether a letter is one of those that are meant."""
        one = letter.stored
        return (
            (self.settled or letter.standing not in SETTLED)
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
    """What a decision comes to.

    Attributes:
        parked: Letters whose records a job takes up again, or counts as done, each key in order.
        passed: Letters whose keys have gone on; a replay writes their records anew.
    """

    parked: tuple[StoredLetter, ...]
    passed: tuple[StoredLetter, ...]

    @property
    def letters(self) -> tuple[StoredLetter, ...]:
        """All of them."""
        return (*self.parked, *self.passed)


def standings(
    letters: Iterable[StoredLetter], parked: Collection[Place], decisions: Iterable[Decision]
) -> list[Letter]:
    """How letters stand, by partition and offset; of a record's letters the newest is parked.

    Args:
        letters: In the order in which they were written.
        parked: Records that the commit log holds as parked.
        decisions: Those that nobody has taken yet.
    """
    ordered = {(d.topic, d.partition, d.offset): d.action for d in decisions}
    letters = list(letters)
    newest = {(one.topic, one.partition, one.offset): one.id for one in letters}
    found = []
    for one in letters:
        place = (one.topic, one.partition, one.offset)
        standing: Standing = "open"
        if place in parked and newest[place] == one.id:
            standing = _ORDERED[ordered[place]] if place in ordered else "parked"
        elif one.decision:
            standing = _DONE[one.decision]
        elif newest[place] != one.id:
            standing = "replayed"  # It was tried again, and given up again.
        found.append(Letter(one, standing))
    return sorted(found, key=lambda x: (x.stored.topic, x.stored.partition, x.stored.offset))


def steps(letters: Iterable[Letter]) -> Steps:
    """What is to be done about letters; those on which was decided are left out."""
    chosen = [letter for letter in letters if letter.standing not in SETTLED]
    held = ("parked", "replaying", "discarding")
    return Steps(
        tuple(letter.stored for letter in chosen if letter.standing in held),
        tuple(letter.stored for letter in chosen if letter.standing == "open"),
    )
