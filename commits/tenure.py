"""Who may commit what: an epoch or a claim, as its row in the log tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from commits.model import Assignment, Epoch, OwnedShare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commits.model import TopicPartition
    from commits.rows import Event, Part

__all__ = ["Holder", "Tenure", "holder_of"]


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
    """

    epoch: Epoch
    generation: int
    members: dict[str, tuple[OwnedShare, ...]]
    topic_ids: dict[str, str]
    fenced: dict[str, str] = field(default_factory=dict)
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
            return cls(event.epoch, event.generation, members, dict(detail["topic_ids"]))
        shares = tuple(
            OwnedShare(part.topic, part.partition, part.first or 0, part.last or 0)
            for part in event.parts
        )
        topic_ids = {part.topic: part.topic_id for part in event.parts if part.topic_id}
        return cls(event.epoch, event.generation, {event.member: shares}, topic_ids)

    def live_shares(self) -> Iterator[tuple[str, OwnedShare]]:
        """Members that may commit, with each of their shares, in the members' order."""
        for member, shares in sorted(self.members.items()):
            if member not in self.fenced:
                yield from ((member, share) for share in shares)

    def fence_of(self, member: str) -> str:
        """Why a member may not commit; empty if it may."""
        if member not in self.members:
            return "it is not a member of the epoch"
        return self.fenced.get(member, "")

    def refusal_of(self, member: str, part: Part) -> str:
        """Why a live member may not commit in a partition; empty if it may."""
        if member not in self._held:
            self._held[member] = frozenset(
                (share.topic, share.partition) for share in self.members[member]
            )
        if part.topic_partition not in self._held[member]:
            return "the member has no share of it"
        topic_id = self.topic_ids.get(part.topic, "")
        if part.topic_id != topic_id:
            return f"topic id {part.topic_id!r} is not {topic_id!r}, that of the epoch"
        return ""

    def assignment(self) -> Assignment:
        """A copy for users of the store."""
        return Assignment(
            self.epoch,
            self.generation,
            dict(self.members),
            dict(self.fenced),
            dict(self.topic_ids),
        )


def holder_of(wanted: Iterable[tuple[str, OwnedShare]], tenures: Iterable[Tenure]) -> Holder | None:
    """The first live share of the tenures that overlaps one of the wanted ones."""
    by_partition: dict[TopicPartition, list[OwnedShare]] = {}
    for _, share in wanted:
        by_partition.setdefault((share.topic, share.partition), []).append(share)
    for tenure in tenures:
        for member, held in tenure.live_shares():
            if any(held.overlaps(s) for s in by_partition.get((held.topic, held.partition), ())):
                return Holder(held, member, tenure.epoch)
    return None
