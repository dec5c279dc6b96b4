"""What the leader of a group decides: who is accepted, who has which shares. Pure.

The leader knows what Kafka's coordinator hands it, what it sees of topics, and the epoch in force.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assignors import Member, ProtocolMismatch, Share
from assignors.shares import common, without
from assignors.wire import MemberAssignment, Refusal, Subscription, version_of
from commits import Epoch
from commits.sharing import COOPERATIVE
from coopconsume.errors import GroupRefused
from coopconsume.group.agreement import refusals
from coopconsume.group.shares import leave_with_owners

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from assignors import KeyRangeAssignor
    from commits import Assignment as EpochRow


#: How many partitions each topic has, and Kafka's ids of the topics.
_Topics = tuple[dict[str, int], dict[str, str]]


@dataclass(frozen=True)
class Joined:
    """A member as the leader sees it: what Kafka's coordinator hands it.

    Attributes:
        id: Kafka's member id.
        topics: What it subscribes to.
        data: Its `user_data`.
        instance_id: Its ``group.instance.id``, if it is static.
    """

    id: str
    topics: tuple[str, ...]
    data: bytes
    instance_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rebalance:
    """What the leader knows as Kafka asks it for an assignment.

    Attributes:
        me: The leader's member id.
        generation: Kafka's generation.
        joined: All members.
        partitions: How many each topic has that exists.
        topic_ids: Kafka's ids of the topics.
        shareable: Topics that may be split between members.
        hidden: Topics that the leader may not see; members report them.
        noted: The epoch in force as the leader noted it when it joined. It may join again, and note
            a later one, while a decision that is stalled still comes.
        claimed: Shares that are claimed by hand: nobody of the group gets them.
        row: The epoch in force, as the log says now. What its members still work on stays theirs
            for now, see `coopconsume.group.shares`.
    """

    me: str
    generation: int
    joined: Sequence[Joined]
    partitions: Mapping[str, int]
    topic_ids: Mapping[str, str]
    shareable: Collection[str]
    hidden: Collection[str] = ()
    noted: Epoch | None
    claimed: Sequence[Share] = ()
    row: EpochRow | None = None


@dataclass(frozen=True)
class Deal:
    """The decision of the leader: the epoch to open, and the members to refuse.

    Attributes:
        shares: Of each member that is accepted.
        previous: The epoch that must be in force.
        nonce: Of the new epoch; the same if the same decision is made again.
        life_ms: How long a batch of any of the members may go on.
        topic_ids: Kafka's ids of the topics.
        refused: Why members are refused, by id.
        versions: The protocol version of each member that is accepted.
        initial: How many partitions of each topic begin by ``startingOffsets``, if the group deals
            the topic for the first time.
        moving: What members that did not hand over their shares are to release, by id.
        continues: Members that go on with their work, with the number of the epoch that they work
            under.
        lives: How long a batch of each member may go on.
    """

    shares: dict[str, tuple[Share, ...]]
    previous: Epoch | None
    nonce: str
    life_ms: int
    topic_ids: dict[str, str]
    refused: dict[str, str]
    versions: dict[str, int]
    initial: dict[str, int]
    moving: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    continues: dict[str, int] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)

    def answers(self, epoch: Epoch) -> dict[str, bytes]:
        """What to hand each member once the epoch is open."""
        given = {}
        for member, shares in self.shares.items():
            topics = {share.topic for share in shares}
            ids = {t: topic_id for t, topic_id in self.topic_ids.items() if t in topics}
            moving = self.moving.get(member, ())
            answer = MemberAssignment(
                member, shares, epoch=epoch.number, nonce=epoch.nonce, topic_ids=ids, moving=moving
            )
            given[member] = answer.to_bytes(self.versions[member])
        return given | {m: Refusal(reason).to_bytes() for m, reason in self.refused.items()}


def deal(
    rebalance: Rebalance,
    assignor: KeyRangeAssignor,
    *,
    group: str,
    terms: Mapping[str, str],
    life_ms: int,
    by_pattern: bool,
) -> Deal:
    """Gives every member its shares.

    A member whose data this version of the library cannot read is refused, nobody else.

    Args:
        rebalance: What the leader knows.
        assignor: On which the members agreed.
        group: The group's id.
        terms: What the leader agrees on with others, see `coopconsume.group.agreement`.
        life_ms: How long the leader's work may go on after its death.
        by_pattern: Whether it subscribes to a pattern.

    Raises:
        GroupRefused: The leader itself does not agree with most members. Members that work under
            an epoch are counted before others, so that who joins a group at work is refused and
            not the group.
    """
    row, noted = rebalance.row, rebalance.noted
    accepted, refused = _accepted(rebalance, group)
    continues = {
        id_: said.epoch for id_, said in accepted.items() if _continues_under(id_, said, row, noted)
    }
    members = [
        _member(member, accepted[member.id], noted, is_continuing=member.id in continues)
        for member in rebalance.joined
        if member.id in accepted
    ]
    topics = _with_reports(accepted.values(), rebalance)
    shares, moving = _shares(
        rebalance, topics, assignor, members, {id_: accepted[id_] for id_ in continues},
        has_chunks=terms.get("sharing") == COOPERATIVE,
    )  # fmt: skip
    partitions, topic_ids = topics
    lives = {member.id: accepted[member.id].life_ms for member in members}
    # A topic that is created while the group waits for it or watches its pattern: none.
    names = {topic for member in members for topic in member.topics} - {*rebalance.hidden}
    known = {} if by_pattern and noted is not None else partitions
    return Deal(
        shares,
        noted,
        nonce=_nonce(group, rebalance, shares, moving),
        life_ms=max(lives.values(), default=life_ms),
        topic_ids={topic: topic_ids.get(topic, "") for topic in partitions},
        refused=refused,
        versions={one.id: version_of(one.data) for one in rebalance.joined if one.id in accepted},
        initial=dict.fromkeys(names, 0) | known,
        moving=moving,
        continues=continues,
        lives=lives,
    )


def _accepted(rebalance: Rebalance, group: str) -> tuple[dict[str, Subscription], dict[str, str]]:
    """Returns what accepted members said, and why others are refused."""
    me, row = rebalance.me, rebalance.row
    subscriptions, refused = _read(rebalance.joined)
    words = {member: said.terms for member, said in subscriptions.items()}
    refused |= refusals(group, words, () if row is None else row.members, me)
    if me in refused:
        raise GroupRefused(group, refused[me])
    return {id_: said for id_, said in subscriptions.items() if id_ not in refused}, refused


def _read(joined: Iterable[Joined]) -> tuple[dict[str, Subscription], dict[str, str]]:
    """Returns what each member says, and why members are refused whose data cannot be read."""
    subscriptions: dict[str, Subscription] = {}
    refused: dict[str, str] = {}
    for member in joined:
        try:
            subscriptions[member.id] = Subscription.from_bytes(member.data)
        except ProtocolMismatch as error:
            refused[member.id] = str(error)
    return subscriptions, refused


def _member(
    member: Joined, said: Subscription, noted: Epoch | None, *, is_continuing: bool
) -> Member:
    """Returns a member as assignors see it."""
    # Of another epoch, other members may have got its shares since.
    fresh = noted is not None and (said.epoch == noted.number or is_continuing)
    return Member(
        member.id,
        member.topics,
        slots=said.slots,
        allow_key_share=said.allow_key_share,
        instance_id=member.instance_id,
        owned=said.owned if fresh else (),
    )


def _shares(
    rebalance: Rebalance,
    topics: _Topics,
    assignor: KeyRangeAssignor,
    members: Sequence[Member],
    continuing: Mapping[str, Subscription],
    *,
    has_chunks: bool,
) -> tuple[dict[str, tuple[Share, ...]], dict[str, tuple[Share, ...]]]:
    """Returns the shares of each member, and what members that continue are to release."""
    partitions, _ = topics
    # Who acquires chunks of a partition needs all of it.
    splits = () if has_chunks else rebalance.shareable
    shares: dict[str, tuple[Share, ...]]
    if has_chunks:
        shares = {member.id: _all_of(member, partitions) for member in members}
    else:
        shares = assignor.assign(partitions, members, shareable_topics=rebalance.shareable)
    if rebalance.claimed:
        shares = {
            member.id: _around(shares[member.id], rebalance.claimed, member, splits)
            for member in members
        }
    if has_chunks:
        return shares, {}
    owned = {
        member.id: _left_to(member, continuing[member.id], rebalance.row, topics)
        for member in members
        if member.id in continuing
    }
    takes_parts = {member.id for member in members if member.allow_key_share}
    return leave_with_owners(
        shares, owned, lambda member, topic: member in takes_parts and topic in splits
    )


def _with_reports(subscriptions: Iterable[Subscription], rebalance: Rebalance) -> _Topics:
    """Returns what the leader sees of topics, with what members report of hidden and grown ones."""
    counts, ids = dict(rebalance.partitions), dict(rebalance.topic_ids)
    for said in subscriptions:
        for topic, (count, topic_id) in said.seen.items():
            is_same = topic in counts and ids.get(topic, "") == topic_id
            if is_same or (topic in rebalance.hidden and topic not in counts):
                counts[topic], ids[topic] = max(count, counts.get(topic, 0)), topic_id
    return counts, ids


def _all_of(member: Member, partitions: Mapping[str, int]) -> tuple[Share, ...]:
    """Returns all partitions of a member's topics, as a cooperative epoch gives them to it."""
    return tuple(
        Share(topic, partition)
        for topic in sorted(set(member.topics))
        for partition in range(partitions.get(topic, 0))
    )


def _nonce(
    group: str,
    rebalance: Rebalance,
    shares: Mapping[str, tuple[Share, ...]],
    moving: Mapping[str, tuple[Share, ...]],
) -> str:
    """A word that comes out the same when the same decision is made again."""
    asked = f"{group}|{rebalance.me}|{rebalance.generation}|{rebalance.noted}"
    text = f"{asked}|{sorted(shares.items())}|{sorted(moving.items())}"
    return uuid.uuid5(uuid.NAMESPACE_URL, text).hex


def _continues_under(
    member: str, said: Subscription, row: EpochRow | None, noted: Epoch | None
) -> bool:
    """Whether what a member works on while it joins is its own without a pause up to a row.

    The row may be of an epoch that was opened while the member joined, and that it knows nothing
    of. Kafka may have given it another id since.
    """
    if row is None or row.epoch != noted or not said.continues or member in row.fenced:
        return False
    owner = member
    if Epoch(said.epoch, said.nonce) == row.epoch:
        if member not in row.members:
            owns = (m for m, shares in row.members.items() if not without(said.owned, shares))
            owner = next(owns, member)
    elif row.continues.get(member) != said.epoch:
        return False
    left = without(row.members.get(owner, ()), row.handed.get(owner, ()))
    return owner not in row.fenced and not without(said.owned, left)


def _left_to(
    member: Member, said: Subscription, row: EpochRow | None, topics: _Topics
) -> tuple[Share, ...]:
    """Returns what the group leaves for now with a member that continues its work."""
    assert row is not None
    partitions, topic_ids = topics
    return tuple(
        share
        for share in common(said.owned, row.members.get(member.id, ()))
        if share.topic in member.topics
        and share.partition < partitions.get(share.topic, 0)
        and topic_ids.get(share.topic, "") == row.topic_ids.get(share.topic, "")
        and (member.allow_key_share or share.key_range.is_full)
    )


def _around(
    shares: Sequence[Share],
    claimed: Sequence[Share],
    member: Member,
    shareable: Collection[str],
) -> tuple[Share, ...]:
    """Returns what of a member's shares is not claimed by hand, and may be its share."""
    return tuple(
        share
        for share in without(shares, claimed)
        if share.key_range.is_full or (member.allow_key_share and share.topic in shareable)
    )
