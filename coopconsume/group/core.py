"""What a member of a group decides: the pure core. Bytes and facts in, instructions out.

Kafka's coordinator carries the bytes; the commit log has the last word. A member notes the epoch
in force before it joins. The leader gives every member its shares and opens the next epoch, which
counts only if the noted one is still in force: so a leader that slept fences nobody. Every member
checks what it is handed against the epoch's row before it starts.

No socket, no clock, no log: those are in `coopconsume.group.member`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assignors import AssignmentConflict, KeyRange, Share, coverage
from assignors.shares import inside, without
from assignors.wire import Refusal, Subscription, read_answer
from commits import Epoch
from commits.sharing import COOPERATIVE
from coopconsume.errors import ConsumerRangeFetchNotAccepted, GroupRefused
from coopconsume.group.dealing import Deal, Rebalance, deal
from coopconsume.group.owned import EpochGrant

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assignors import KeyRangeAssignor
    from commits import Assignment as EpochRow


@dataclass(frozen=True)
class TakeOver:
    """First have the commit log give us the shares of another id, then look again."""

    epoch: Epoch
    replaces: str


@dataclass(frozen=True)
class Rejoin:
    """The assignment is out of date: join once more."""

    reason: str


@dataclass(frozen=True)
class MemberReplaced:
    """Another process has our place, under the same ``group.instance.id``."""

    by: str


@dataclass
class GroupCore:
    """One member's part in its group.

    Args:
        group: The group's id.
        terms: What it agrees on with the other members, see `coopconsume.group.agreement`.
        slots: Tasks side by side.
        allow_key_share: Whether parts of partitions are accepted; a change counts from the next
            join on.
        life_ms: How long our work may go on after our death; a change counts from the next join on.
        by_pattern: Whether it subscribes to a pattern.
    """

    group: str
    terms: dict[str, str]
    slots: int
    allow_key_share: bool
    life_ms: int
    by_pattern: bool = False
    noted: Epoch | None = None
    joined_to_share: bool = True
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)
    joined_with_seen: dict[str, tuple[int, str]] = field(default_factory=dict)
    around: set[tuple[str, int]] = field(default_factory=set)
    freed: bool = False
    owned: tuple[Share, ...] = ()
    owned_under: Epoch | None = None
    owned_topic_ids: dict[str, str] = field(default_factory=dict)
    begun_under: Epoch | None = None
    #: The epoch in which the shares are owned now, and Kafka's generation of it.
    generation_of: tuple[Epoch | None, int] = (None, -1)
    #: Whether the shares owned until now are still worked on while the member joins.
    is_continuing: bool = False
    attempt: int = 0

    # -- joining

    def subscription(self, in_force: Epoch | None, *, with_owned: bool) -> bytes:
        """Returns the subscription for the leader; notes the epoch in force.

        Args:
            in_force: The epoch, as the log says just before the request goes out.
            with_owned: Whether to name the shares owned until now, also if they are handed over.
        """
        self.noted, self.joined_to_share = in_force, self.allow_key_share
        self.joined_with_seen = dict(self.seen)
        return Subscription(
            dict(self.terms),
            self.slots,
            allow_key_share=self.allow_key_share,
            owned=self.owned if with_owned or self.is_continuing else (),
            epoch=self.owned_under.number if self.owned_under else 0,
            nonce=self.owned_under.nonce if self.owned_under else "",
            life_ms=self.life_ms,
            attempt=self.attempt,
            seen=self.joined_with_seen,
            continues=self.is_continuing,
        ).to_bytes()

    @property
    def may_continue(self) -> bool:
        """Whether the next join may go without a hand-over."""
        takes_all = self.allow_key_share or all(share.key_range.is_full for share in self.owned)
        return self.owned_under is not None and takes_all

    def released(self, shares: Iterable[Share]) -> None:
        """Notes that part of the shares is given back; the next join gives it to others."""
        self.owned = without(self.owned, shares)
        self.ask_again()

    def ask_again(self) -> None:
        """Has the next join ask for another assignment.

        Kafka hands a follower that joins with unchanged data its old assignment, without a
        rebalance.
        """
        self.attempt += 1

    def unassigned(
        self,
        row: EpochRow,
        topics: Mapping[str, tuple[int, str]],
        claimed: Sequence[Share] = (),
    ) -> list[str]:
        """Returns partitions that an epoch assigns to nobody; the next join reports their topics.

        A leader may have no right to a topic, or old metadata.

        Args:
            row: The epoch in force.
            topics: The partitions and id of each topic that we subscribe to and that exists.
            claimed: Shares that are claimed by hand.
        """
        given = _given(row)
        incomplete = [
            (topic, partition)
            for topic, (count, _) in sorted(topics.items())
            for partition in range(count)
            if coverage(given.get((topic, partition), ())).holes
        ]
        before, held = self.around, {share[:2] for share in claimed}
        self.around = {tp for tp in incomplete if tp in held}
        left = [tp for tp in incomplete if tp not in held]
        self.freed = not before.isdisjoint(left)
        # What was reported once is reported as long as we are here: the leader is as blind as then.
        some = {topic for topic, _ in left} | self.seen.keys()
        self.seen = {topic: found for topic, found in topics.items() if topic in some}
        return [f"{topic}-{partition}" for topic, partition in left]

    @property
    def has_news(self) -> bool:
        """Whether a rebalance would help: there is more to report, or a claim has ended."""
        return self.freed or self.seen != self.joined_with_seen

    # -- the leader

    def lead(self, rebalance: Rebalance, assignor: KeyRangeAssignor) -> Deal:
        """Gives every member its shares, see `coopconsume.group.dealing.deal`.

        Raises:
            GroupRefused: The leader itself does not agree with most members.
        """
        return deal(
            rebalance, assignor, group=self.group, terms=self.terms, life_ms=self.life_ms,
            by_pattern=self.by_pattern,
        )  # fmt: skip

    # -- what comes of it

    def take(
        self, me: str, data: bytes, row: EpochRow | None, claimed: Sequence[Share] = ()
    ) -> EpochGrant | TakeOver | Rejoin | MemberReplaced:
        """Checks what the leader handed us against the row of its epoch.

        Args:
            me: Our member id.
            data: The assignment's `user_data`.
            row: The epoch in force, as the log says now.
            claimed: Shares that are claimed by hand.

        Raises:
            AssignmentConflict: The row gives a key range to nobody or to several.
            ConsumerRangeFetchNotAccepted: We are given part of a partition, and joined without
                allowing that.
            GroupRefused: The leader does not want us.
            ProtocolMismatch: The data is not the library's.
        """
        answer = read_answer(data)
        if isinstance(answer, Refusal):
            raise GroupRefused(self.group, answer.reason)
        epoch = Epoch(answer.epoch, answer.nonce)
        if row is None or row.epoch != epoch:
            now = row.epoch.number if row else 0
            return Rejoin(f"epoch {epoch.number} was assigned, but {now} is in force")
        if me in row.heirs:
            return MemberReplaced(row.heir(me))
        # Kafka may hand on the assignment that we have, without a rebalance.
        again = self.is_continuing and self.owned_under == epoch
        holder = row.heir(answer.member)
        if holder != me or me in row.fenced or (me in row.handed and not again):
            # Kafka hands a static member's new process, or a member that asked again, the old
            # assignment without a word to the leader.
            return TakeOver(epoch, holder)
        if row.members.get(me) != answer.shares:
            return Rejoin(f"epoch {epoch.number} has other shares for us in the log")
        _check_whole(row, claimed)
        continues = again or self._continues(me, row)
        kept = self.owned if continues else ()
        shares = self.owned if again else answer.shares
        moving = () if again else answer.moving
        part = None if self.joined_to_share else _gained_part(shares, kept)
        if part is not None:
            if answer.member != me:
                return Rejoin("an earlier process of ours shared partitions, we do not")
            raise ConsumerRangeFetchNotAccepted(part.topic, part.partition, str(part.key_range))
        # What it went on with is its own work: it has waited for earlier owners already, or does.
        waits = waits_of(without(shares, kept), row)
        return EpochGrant(
            epoch,
            me,
            shares=shares,
            topic_ids=dict(answer.topic_ids),
            waits=waits,
            life_ms=row.life_of(me),
            continues=continues,
            moving=moving,
            generation=row.generation,
        )

    def _continues(self, me: str, row: EpochRow) -> bool:
        """Whether all that we work on was ours without a pause up to an epoch, and is under it.

        The leader has looked at every epoch in between, also at those whose assignment never came.
        """
        under = self.owned_under
        is_next = under is not None and row.continues.get(me) == under.number
        # What is done of a topic that was deleted must not count for the new one.
        is_same = all(
            row.topic_ids.get(share.topic, "") == self.owned_topic_ids.get(share.topic, "")
            for share in self.owned
        )
        return (
            self.is_continuing and is_next and is_same
            and not without(self.owned, row.members.get(me, ()))
        )  # fmt: skip

    def follow(self, me: str, row: EpochRow | None) -> tuple[Share, ...] | None:
        """Goes on under an epoch that another rebalance ends before its assignment is here.

        Args:
            me: Our member id.
            row: The epoch in force, as the log says now.

        Returns:
            The shares that the epoch adds and no member has started; None: the member does not
            continue under this epoch.
        """
        if row is None or me in row.fenced or me in row.heirs or not self._continues(me, row):
            return None
        self.owned_under = self.begun_under = row.epoch
        self.generation_of = row.epoch, row.generation
        return without(row.members.get(me, ()), self.owned)

    def unbegun(
        self, me: str, row: EpochRow | None
    ) -> tuple[Epoch, tuple[tuple[Share, float], ...]] | None:
        """Returns an epoch that gives us shares that we did not begin with, if one is in force.

        Args:
            me: Our member id.
            row: The epoch in force.

        Returns:
            The epoch, and the parts of our shares on which an earlier owner may be at work, and
            for how many seconds.
        """
        if row is None or row.epoch == self.begun_under or me in row.fenced:
            return None
        shares = row.members.get(me, ())
        return (row.epoch, waits_of(shares, row)) if shares else None

    def taken(self, grant: EpochGrant) -> None:
        """Notes that the shares are ours now."""
        self.owned, self.owned_under = grant.shares, grant.epoch
        self.owned_topic_ids = dict(grant.topic_ids)
        self.begun_under = grant.epoch
        self.generation_of = grant.epoch, grant.generation
        self.is_continuing = False

    def lost(self) -> None:
        """Forgets the shares: the next join asks for others."""
        self.owned, self.owned_under, self.is_continuing = (), None, False
        self.ask_again()


def _given(row: EpochRow) -> dict[tuple[str, int], list[KeyRange]]:
    """Returns the key ranges of each partition that a row gives to its members."""
    given: dict[tuple[str, int], list[KeyRange]] = {}
    for member, shares in row.members.items():
        if member not in row.heirs:
            for share in shares:
                ranges = given.setdefault(share[:2], [])
                # Members of a cooperative epoch have the same ones.
                if row.sharing != COOPERATIVE or share.key_range not in ranges:
                    ranges.append(share.key_range)
    return given


def _gained_part(shares: Iterable[Share], kept: Iterable[Share]) -> Share | None:
    """Returns a share of only part of a partition that is not all among those that are kept."""
    parts = (share for share in shares if not share.key_range.is_full)
    return next((share for share in parts if without([share], kept)), None)


def _check_whole(row: EpochRow, claimed: Sequence[Share]) -> None:
    """Makes sure that a row gives all that is not claimed to its members, each part once."""
    given, held = _given(row), {share[:2] for share in claimed}
    counts: dict[str, int] = {}
    for topic, partition in given:
        counts[topic] = max(partition + 1, counts.get(topic, 0))
    for topic, partition in [(t, p) for t, count in counts.items() for p in range(count)]:
        found = coverage(given.get((topic, partition), ()))
        if found.overlaps or (found.holes and (topic, partition) not in held):
            raise AssignmentConflict(topic, partition, found.holes, found.overlaps)


def left_by(
    row: EpochRow | None, members: Iterable[str]
) -> list[tuple[str, tuple[tuple[Share, float], ...]]]:
    """Returns members that may commit under an epoch, and what they still waited for in it.

    Args:
        row: The epoch in force.
        members: Members that nothing runs of.

    Returns:
        Of each, the parts of its shares on which an earlier owner may be at work, and for how many
        seconds, as a release names them.
    """
    return [
        (member, waits_of(row.members[member], row))
        for member in members
        if row is not None and member in row.members and member not in row.fenced
    ]


def waits_of(shares: Iterable[Share], row: EpochRow) -> tuple[tuple[Share, float], ...]:
    """Returns parts of shares that a row has in doubt, and for how many seconds."""
    return tuple((part, life_ms / 1000) for part, life_ms in inside(row.doubts, shares))
