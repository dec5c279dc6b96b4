"""Grants of shares to members, by an epoch or a claim."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

from assignors.ranges import KeyRange
from assignors.shares import Share, by_partition, outside
from commits.model import Assignment, Doubt, Epoch, share_from_plain
from commits.sharing import COOPERATIVE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from commits.model import TopicPartition
    from commits.rows import Event, Part


KEPT_UNCHANGED = 16
"""The number of ids of commits without a change that are kept for each member."""


class ShareOwner(NamedTuple):
    """A share with its member and epoch."""

    share: Share
    member: str
    epoch: Epoch


@dataclass(slots=True)
class GrantState:
    """An epoch or claim and the state of its members.

    Attributes:
        epoch: Its number and nonce.
        generation: Kafka's generation; -1 without one.
        members: The shares of each member.
        fenced: Members that may no longer commit, with the reason.
        topic_ids: The ids of topics, as far as they are known.
        life_ms: The longest time that a batch of its members may run.
        doubts: Its shares whose previous owners may still work on them.
        heirs: Members whose shares went to another id, with that id.
        settled: Members whose remaining work is recorded already.
        handed: Shares that members released while they kept the others.
        previous: The epoch that an epoch follows.
        session_ms: For a claim, the time without a row after which its process counts as dead; 0
            for never.
        beats: For a claim, the number of its rows that were folded.
        unchanged: The newest ids of each member's commits that changed nothing, at most
            `KEPT_UNCHANGED`. A repeated commit with such an id changes nothing either.
        record_filter: Which records its members process, as text; empty for all.
        continues: Members whose work never paused, with the number of the epoch that they work
            under.
        sharing: `COOPERATIVE` if all members have all partitions and acquire chunks; empty if each
            has key ranges of its own.
        lives: The longest time that a batch of a member may run, where it is not `life_ms`.
    """

    epoch: Epoch
    generation: int
    members: dict[str, tuple[Share, ...]]
    topic_ids: dict[str, str]
    fenced: dict[str, str] = field(default_factory=dict)
    life_ms: int = 0
    doubts: tuple[Doubt, ...] = ()
    heirs: dict[str, str] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    session_ms: int = 0
    beats: int = field(default=0, compare=False)
    unchanged: dict[str, list[str]] = field(default_factory=dict)
    handed: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    previous: Epoch | None = None
    record_filter: str = ""
    continues: dict[str, int] = field(default_factory=dict)
    sharing: str = ""
    lives: dict[str, int] = field(default_factory=dict)
    _held: dict[str, frozenset[TopicPartition]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def of(cls, event: Event) -> GrantState:
        """Create the grant from the row of an epoch or claim."""
        assert event.epoch is not None
        record_filter = event.detail.get("filter", "")
        if event.kind == "epoch":
            detail = event.detail
            members = {
                member: tuple(map(share_from_plain, shares))
                for member, shares in detail["members"].items()
            }
            topic_ids = dict(detail["topic_ids"])
            return cls(
                event.epoch,
                event.generation,
                members,
                topic_ids,
                life_ms=detail.get("life_ms", 0),
                previous=event.previous,
                record_filter=record_filter,
                continues=dict(detail.get("continues", {})),
                sharing=detail.get("sharing", ""),
                lives=dict(detail.get("lives", {})),
            )
        shares = tuple(
            Share(part.topic, part.partition, KeyRange(part.first or 0, part.last or 0))
            for part in event.parts
        )
        topic_ids = {part.topic: part.topic_id for part in event.parts if part.topic_id}
        life_ms = event.detail.get("life_ms", 0)
        session_ms = event.detail.get("session_ms", 0)
        return cls(
            event.epoch,
            event.generation,
            {event.member: shares},
            topic_ids,
            life_ms=life_ms,
            session_ms=session_ms,
            record_filter=record_filter,
        )

    @property
    def uses_chunks(self) -> bool:
        """Whether its members acquire chunks of whole partitions."""
        return self.sharing == COOPERATIVE

    def live_shares(self) -> Iterator[tuple[str, Share]]:
        """Yield members that may commit with each of their shares, sorted by member."""
        for member, shares in sorted(self.members.items()):
            if member not in self.fenced:
                yield from ((member, share) for share in shares)

    def all_shares(self) -> list[Share]:
        """Return the shares of all members."""
        return [share for shares in self.members.values() for share in shares]

    def fence_of(self, member: str) -> str:
        """Return why a member may not commit; empty if it may."""
        if member not in self.members:
            return "it is not a member of the epoch"
        return self.fenced.get(member, "")

    def refusal_of(self, member: str, part: Part) -> str:
        """Return why a live member may not commit in a partition; empty if it may.

        Args:
            member: The member; empty for events that any member may write about a partition.
            part: The partition's part of the event.
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
        """Record the id of a commit that counts and changed nothing."""
        ids = self.unchanged.setdefault(member, [])
        ids.append(commit_id)
        del ids[:-KEPT_UNCHANGED]

    def left_behind(self) -> list[Doubt]:
        """Return the shares on which members may still work when the grant ends."""
        members = [member for member in self.members if member not in self.settled]
        return [doubt for member in members for doubt in self.left_by(member)]

    def left_by(self, member: str) -> list[Doubt]:
        """Return the shares of a member on which it may still work: it has not released them."""
        doubts = self.doubts_of(member, self.members[member])
        return list(starmap(Doubt, outside(doubts, self.handed.get(member, ()))))

    def life_of(self, member: str) -> int:
        """Return the longest time that a batch of a member may run."""
        return self.lives.get(member, self.life_ms)

    def longest_life_of(self, member: str) -> int:
        """Return the longest time that its batches and those in doubt may run."""
        return max([self.life_of(member), *(doubt.life_ms for doubt in self.doubts)])

    def doubts_of(self, member: str, shares: Iterable[Share]) -> list[Doubt]:
        """Return doubts about shares of a member: it, or an earlier owner, may work on them."""
        life_ms = self.life_of(member)
        earlier: dict[TopicPartition, list[Doubt]] = {}
        for doubt in self.doubts:
            earlier.setdefault(doubt.share[:2], []).append(doubt)
        return [
            Doubt(
                share,
                max(
                    [
                        life_ms,
                        *(
                            doubt.life_ms
                            for doubt in earlier.get(share[:2], ())
                            if doubt.share.key_range.overlaps(share.key_range)
                        ),
                    ]
                ),
            )
            for share in shares
        ]

    def assignment(self) -> Assignment:
        """Return a copy for users of the store."""
        return Assignment(
            self.epoch,
            self.generation,
            members=dict(self.members),
            fenced=dict(self.fenced),
            topic_ids=dict(self.topic_ids),
            life_ms=self.life_ms,
            doubts=self.doubts,
            heirs=dict(self.heirs),
            session_ms=self.session_ms,
            beats=self.beats,
            handed=dict(self.handed),
            previous=self.previous,
            record_filter=self.record_filter,
            continues=dict(self.continues),
            sharing=self.sharing,
            lives=dict(self.lives),
        )


def holder_of(
    wanted: Iterable[tuple[str, Share]], grants: Collection[GrantState]
) -> ShareOwner | None:
    """Return the first live share of the grants that overlaps a wanted share."""
    places = by_partition(share for _, share in wanted) if grants else {}
    for grant in grants:
        for member, held in grant.live_shares():
            if any(held.key_range.overlaps(place) for place in places.get(held[:2], ())):
                return ShareOwner(held, member, grant.epoch)
    return None
