"""Who may commit what: an epoch or a claim, as its row in the log tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from commits.model import Assignment, Doubt, Epoch, OwnedShare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commits.model import TopicPartition
    from commits.rows import Event, Part

__all__ = ["KEPT_UNCHANGED", "Holder", "Tenure", "cut", "holder_of"]

KEPT_UNCHANGED = 16
"""How many ids of commits that changed nothing are kept of a member."""


class Holder(NamedTuple):
    """Who holds a share: the share, the member and its epoch."""

    share: OwnedShare
    member: str
    epoch: Epoch


@dataclass(slots=True)
class Tenure:
    """An epoch or claim and what became of its members.

    Attributes:
        epoch: Its number and nonce.
        generation: Kafka's generation; -1 if there is none.
        members: The shares of each member.
        fenced: Members that may not commit any more, and why.
        topic_ids: The id of each topic where it was known.
        life_ms: How long a batch of its members may go on, at most.
        doubts: Shares that came to it although their old owner may still be at work.
        heirs: Members whose shares went to another id, and that id.
        settled: Members of which is already said on what they may still be at work.
        session_ms: Of a claim: after so long without a row of it its process is gone; 0: never.
        beats: Of a claim: how many of its rows were folded here.
        unchanged: The newest ids of each member's commits that changed nothing, at most
            `KEPT_UNCHANGED`: a repeat of them changes nothing either, whatever came in between.
    """

    epoch: Epoch
    generation: int
    members: dict[str, tuple[OwnedShare, ...]]
    topic_ids: dict[str, str]
    fenced: dict[str, str] = field(default_factory=dict)
    life_ms: int = 0
    doubts: tuple[Doubt, ...] = ()
    heirs: dict[str, str] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    session_ms: int = 0
    beats: int = field(default=0, compare=False)
    unchanged: dict[str, list[str]] = field(default_factory=dict)
    _held: dict[str, frozenset[TopicPartition]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def of(cls, event: Event) -> Tenure:
        """The tenure that the row of an epoch or of a claim begins."""
        assert event.epoch is not None
        if event.kind == "epoch":
            detail = event.detail
            members = {
                member: tuple(OwnedShare(*share) for share in shares)
                for member, shares in detail["members"].items()
            }
            topic_ids = dict(detail["topic_ids"])
            return cls(
                event.epoch, event.generation, members, topic_ids, life_ms=detail.get("life_ms", 0)
            )
        shares = tuple(
            OwnedShare(part.topic, part.partition, part.first or 0, part.last or 0)
            for part in event.parts
        )
        topic_ids = {part.topic: part.topic_id for part in event.parts if part.topic_id}
        life_ms = event.detail.get("life_ms", 0)
        session_ms = event.detail.get("session_ms", 0)
        return cls(
            event.epoch, event.generation, {event.member: shares}, topic_ids, life_ms=life_ms,
            session_ms=session_ms,
        )  # fmt: skip

    def live_shares(self) -> Iterator[tuple[str, OwnedShare]]:
        """Members that may commit, with each of their shares, in the members' order."""
        for member, shares in sorted(self.members.items()):
            if member not in self.fenced:
                yield from ((member, share) for share in shares)

    def all_shares(self) -> list[OwnedShare]:
        """The shares of all members."""
        return [share for shares in self.members.values() for share in shares]

    def fence_of(self, member: str) -> str:
        """Why a member may not commit; empty if it may."""
        if member not in self.members:
            return "it is not a member of the epoch"
        return self.fenced.get(member, "")

    def refusal_of(self, member: str, part: Part) -> str:
        """Why a live member may not commit in a partition; empty if it may.

        Args:
            member: The member; empty for what any member may say of a partition of another one.
            part: What it says.
        """
        if member not in self._held:
            shares = self.members[member] if member else self.all_shares()
            self._held[member] = frozenset((share.topic, share.partition) for share in shares)
        if part.topic_partition not in self._held[member]:
            return "the member has no share of it"
        topic_id = self.topic_ids.get(part.topic, "")
        if part.topic_id != topic_id:
            return f"topic id {part.topic_id!r} is not {topic_id!r}, that of the epoch"
        return ""

    def note_unchanged(self, member: str, commit_id: str) -> None:
        """A commit of a member counts and has changed nothing."""
        ids = self.unchanged.setdefault(member, [])
        ids.append(commit_id)
        del ids[:-KEPT_UNCHANGED]

    def left_behind(self) -> list[Doubt]:
        """Shares on which members may still be at work when the tenure ends."""
        return [
            Doubt(share, self.longest_life_ms)
            for member, shares in self.members.items()
            if member not in self.settled
            for share in shares
        ]

    @property
    def longest_life_ms(self) -> int:
        """How long batches that it has to do with may go on, its own and those it waits for."""
        return max([self.life_ms, *(doubt.life_ms for doubt in self.doubts)])

    def assignment(self) -> Assignment:
        """A copy for users of the store."""
        return Assignment(
            self.epoch,
            self.generation,
            dict(self.members),
            dict(self.fenced),
            dict(self.topic_ids),
            self.life_ms,
            self.doubts,
            dict(self.heirs),
            self.session_ms,
            self.beats,
        )


def holder_of(wanted: Iterable[tuple[str, OwnedShare]], tenures: Iterable[Tenure]) -> Holder | None:
    """The first live share of the tenures that overlaps one of the wanted ones."""
    places = by_partition(share for _, share in wanted)
    for tenure in tenures:
        for member, held in tenure.live_shares():
            if any(held.overlaps(s) for s in places.get(held[:2], ())):
                return Holder(held, member, tenure.epoch)
    return None


def cut(doubts: Iterable[Doubt], shares: Iterable[OwnedShare]) -> tuple[list[Doubt], list[Doubt]]:
    """The parts of doubts inside and outside of some shares."""
    cuts = by_partition(shares)
    inside: list[Doubt] = []
    outside: list[Doubt] = []
    for doubt in doubts:
        left = [doubt.share]
        for share in cuts.get(doubt.share[:2], ()):
            inside += [
                doubt._replace(share=piece.common(share)) for piece in left if piece.overlaps(share)
            ]
            left = [rest for piece in left for rest in piece.without(share)]
        outside += [doubt._replace(share=piece) for piece in left]
    return inside, outside


def by_partition(shares: Iterable[OwnedShare]) -> dict[TopicPartition, list[OwnedShare]]:
    """Shares by their topic and partition."""
    found: dict[TopicPartition, list[OwnedShare]] = {}
    for share in shares:
        found.setdefault(share[:2], []).append(share)
    return found
