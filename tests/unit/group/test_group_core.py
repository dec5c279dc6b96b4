"""What a member decides about topics that its leader does not see, and about incomplete rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assignors import AssignmentConflict, KeyRange, RoundRobinKeyRangeAssignor, Share, merge, wire
from assignors.shares import by_partition
from assignors.wire import Subscription
from commits import Epoch
from commits.model import Assignment, Doubt
from coopconsume.errors import ConsumerRangeFetchNotAccepted, GroupRefused
from coopconsume.group.core import GroupCore
from coopconsume.group.dealing import Joined, Rebalance
from coopconsume.group.owned import EpochGrant
from coopconsume.group.shares import leave_with_owners


def a_core():
    """A member with one slot that shares partitions."""
    return GroupCore("g", {"store": "store", "cluster": "cluster"}, 1, True, life_ms=1)


def deal(leader, members, partitions, hidden=()):
    """What the member `a` deals to members, given as cores by id, with their topics."""
    joined = [
        Joined(name, topics, core.subscription(None, with_owned=False))
        for name, (core, topics) in members.items()
    ]
    ids = {topic: f"id of {topic}" for topic in partitions}
    return leader.lead(
        Rebalance(
            me="a",
            generation=1,
            joined=joined,
            partitions=partitions,
            topic_ids=ids,
            shareable=(),
            hidden=hidden,
            noted=None,
        ),
        RoundRobinKeyRangeAssignor(),
    )


def row_of(dealt):
    """The row of the epoch that opens with what was dealt."""
    return Assignment(Epoch(1, dealt.nonce), 1, dealt.shares, {}, dealt.topic_ids)


def test_members_report_topics_that_their_leader_may_not_see():
    """One epoch leaves the topic out, the next one has it, and so have all that follow."""
    a, b = a_core(), a_core()
    members = {"a": (a, ("t",)), "b": (b, ("u",))}
    sees = {"u": (2, "id of u")}
    first = deal(a, members, {"t": 1}, hidden=["u"])
    assert first.shares["b"] == ()
    assert b.unassigned(row_of(first), sees) == ["u-0", "u-1"]
    assert b.has_news
    for _ in range(2):
        dealt = deal(a, members, {"t": 1}, hidden=["u"])
        assert dealt.shares["b"] == (Share("u", 0), Share("u", 1))
        assert dealt.topic_ids["u"] == "id of u"
        assert b.unassigned(row_of(dealt), sees) == []
        assert not b.has_news
    # A leader that sees the topic knows better whether it is there.
    assert deal(a, members, {"t": 1}).shares["b"] == ()


def test_a_leader_with_old_metadata_takes_the_members_word_for_grown_topics():
    """A report counts for the topic that the leader sees, not for an earlier one of that name."""
    a, b = a_core(), a_core()
    members = {"a": (a, ("t",)), "b": (b, ("t",))}
    stale = deal(a, members, {"t": 1})
    assert b.unassigned(row_of(stale), {"t": (3, "id of t")}) == ["t-1", "t-2"]
    assert {s.partition for held in deal(a, members, {"t": 1}).shares.values() for s in held} == {
        0, 1, 2,
    }  # fmt: skip
    assert b.unassigned(row_of(stale), {"t": (3, "id of an earlier t")})
    assert {s.partition for held in deal(a, members, {"t": 1}).shares.values() for s in held} == {0}


def test_a_refused_member_reports_no_topics():
    """It may be of another cluster, where a topic of that name has other partitions."""
    a, b, stranger = (
        a_core(),
        a_core(),
        GroupCore(
            "g", {"store": "store", "cluster": "cluster"} | {"store": "other"}, 1, True, life_ms=1
        ),
    )
    members = {"a": (a, ("t",)), "b": (b, ("t",)), "c": (stranger, ("t",))}
    row = row_of(deal(a, {"a": members["a"], "b": members["b"]}, {"t": 1}))
    assert stranger.unassigned(row, {"t": (3, "id of t")}) == ["t-1", "t-2"]
    dealt = deal(a, members, {"t": 1})
    assert set(dealt.refused) == {"c"}
    assert {s.partition for held in dealt.shares.values() for s in held} == {0}


def test_a_stalled_leader_decides_by_what_it_noted_when_it_was_asked():
    """It has joined again meanwhile: its epoch must not follow on the one that it knows now."""
    a = a_core()
    asked = Epoch(1, "old")
    joined = [Joined("a", ("t",), a.subscription(asked, with_owned=False))]
    a.subscription(Epoch(2, "of the live group"), with_owned=False)
    dealt = a.lead(
        Rebalance(
            me="a",
            generation=1,
            joined=joined,
            partitions={"t": 1},
            topic_ids={"t": "id"},
            shareable=(),
            noted=asked,
        ),
        RoundRobinKeyRangeAssignor(),
    )
    assert dealt.previous == asked


def test_a_row_without_a_whole_partition_is_a_conflict():
    """No member starts under an epoch that leaves a partition between others to nobody."""
    core = a_core()
    dealt = deal(core, {"a": (core, ("t",))}, {"t": 3})
    data = dealt.answers(Epoch(1, dealt.nonce))["a"]
    assert isinstance(core.take("a", data, row_of(dealt)), EpochGrant)
    dealt.shares["a"] = (Share("t", 0), Share("t", 2))
    data = dealt.answers(Epoch(1, dealt.nonce))["a"]
    with pytest.raises(AssignmentConflict) as caught:
        core.take("a", data, row_of(dealt))
    assert (caught.value.topic, caught.value.partition) == ("t", 1)
    assert caught.value.holes == (KeyRange(),)


def test_subscriptions_of_members_that_report_nothing_are_read():
    """Members of earlier versions do not know the field."""
    subscription = Subscription({"store": "s", "cluster": "c"}, seen={"t": (2, "id")})
    assert Subscription.from_bytes(subscription.to_bytes()) == subscription

    fields = wire._unpack(
        "subscription", "S", Subscription({"store": "s", "cluster": "c"}).to_bytes()
    )
    old = {name: value for name, value in fields.items() if name != "seen"}
    assert Subscription.from_bytes(wire._pack("S", old)) == Subscription(
        {"store": "s", "cluster": "c"}
    )


def test_a_leader_deals_around_claims():
    """What is claimed goes to nobody; who takes whole partitions alone gets no rest of one."""
    low, high = KeyRange().split(2)
    claimed = [Share("t", 0, low)]
    ids = {"t": (2, "id of t")}
    core = a_core()
    for shareable, allowed, rest in ((("t",), True, (high,)), (("t",), False, ()), ((), True, ())):
        core.allow_key_share = allowed
        joined = [Joined("a", ("t",), core.subscription(None, with_owned=False))]
        dealt = core.lead(
            Rebalance(
                me="a",
                generation=1,
                joined=joined,
                partitions={"t": 2},
                topic_ids={"t": "id of t"},
                shareable=shareable,
                noted=None,
                claimed=claimed,
            ),
            RoundRobinKeyRangeAssignor(),
        )
        assert dealt.shares["a"] == (*(Share("t", 0, part) for part in rest), Share("t", 1))
        row, data = row_of(dealt), dealt.answers(Epoch(1, dealt.nonce))["a"]
        assert isinstance(core.take("a", data, row, claimed), EpochGrant)
        assert core.unassigned(row, ids, claimed) == []
        assert not core.has_news
        # When the claim ends the rest is asked for.
        with pytest.raises(AssignmentConflict):
            core.take("a", data, row)
        assert core.unassigned(row, ids) == ["t-0"]
        assert core.has_news
        core.seen = {}


LOW, HIGH = (Share("t", 0, half) for half in KeyRange().split(2))


def row(number, members, **fields):
    """The row of an epoch that follows on the one before it."""
    shares = {member: tuple(held) for member, held in members.items()}
    ids, previous = {"t": "id"}, Epoch(number - 1, f"n{number - 1}")
    fields = {"continues": {"a": number - 1}} | fields
    return Assignment(Epoch(number, f"n{number}"), 1, shares, {}, ids, previous=previous, **fields)


def handed(number, member, shares):
    """What the leader hands a member under an epoch."""
    return wire.MemberAssignment(member, shares, number, f"n{number}", {"t": "id"}).to_bytes()


def a_holder(shares):
    """A member that joins while it works on some shares under the first epoch."""
    core = a_core()
    core.taken(EpochGrant(Epoch(1, "n1"), "a", shares, {"t": "id"}))
    core.is_continuing = True
    return core


def test_a_member_goes_on_with_what_was_its_own_without_a_pause():
    """Of doubts those about what it gains concern it; about its own it knows better."""
    doubts = tuple(Doubt(one, 5000) for one in (LOW, HIGH))
    gains = row(2, {"a": [LOW, HIGH]}, doubts=doubts)
    grant = a_holder((LOW,)).take("a", handed(2, "a", (LOW, HIGH)), gains)
    assert isinstance(grant, EpochGrant)
    assert grant.continues
    assert grant.waits == ((HIGH, 5.0),)

    # The epoch before was another one: somebody else may have had the share under it.
    gap = row(3, {"a": [LOW, HIGH]}, doubts=doubts)
    grant = a_holder((LOW,)).take("a", handed(3, "a", (LOW, HIGH)), gap)
    assert isinstance(grant, EpochGrant)
    assert not grant.continues
    assert grant.waits == ((LOW, 5.0), (HIGH, 5.0))

    # Its topic was deleted and created again: what it did is about other records.
    renewed = replace(
        row(2, {"a": [LOW], "b": [HIGH]}, doubts=doubts), topic_ids={"t": "of a new topic"}
    )
    core = a_holder((LOW,))
    assert core.follow("a", renewed) is None
    grant = core.take("a", handed(2, "a", (LOW,)), renewed)
    assert isinstance(grant, EpochGrant)
    assert not grant.continues
    assert grant.waits == ((LOW, 5.0),)

    # Part of it is another member's.
    loses = row(2, {"a": [LOW], "b": [HIGH]}, doubts=doubts)
    grant = a_holder((LOW, HIGH)).take("a", handed(2, "a", (LOW,)), loses)
    assert isinstance(grant, EpochGrant)
    assert not grant.continues
    assert grant.waits == ((LOW, 5.0),)


def test_a_member_that_goes_on_with_a_part_may_get_the_whole_partition():
    """Also if it takes no parts any more; a part that it did not work on is refused."""
    whole = Share("t", 0)
    core = a_holder((LOW,))
    core.allow_key_share = False
    core.subscription(Epoch(1, "n1"), with_owned=True)
    grant = core.take("a", handed(2, "a", (whole,)), row(2, {"a": [whole]}))
    assert isinstance(grant, EpochGrant)
    assert grant.continues
    with pytest.raises(ConsumerRangeFetchNotAccepted):
        core.take("a", handed(2, "a", (LOW, HIGH)), row(2, {"a": [LOW, HIGH]}))


def test_a_member_follows_an_epoch_whose_assignment_never_came():
    """Another rebalance ended it. What it gave besides was not begun."""
    core = a_holder((LOW,))
    assert core.follow("a", row(2, {"a": [LOW, HIGH]})) == (HIGH,)
    assert core.owned_under == Epoch(2, "n2")
    assert core.owned == (LOW,)
    for other in (None, row(3, {"a": [LOW]}), row(2, {"a": [HIGH]}), row(2, {"b": [LOW]})):
        core = a_holder((LOW,))
        assert core.follow("a", other) is None
        assert core.owned_under == Epoch(1, "n1")


def test_a_member_goes_on_over_an_epoch_that_it_does_not_know():
    """Another one joined while the leader dealt: the next epoch says since when it works."""

    def dealt(name="a", claims=(LOW,), **fields):
        in_force = replace(row(2, {"a": [LOW], "b": [HIGH]}), **fields)
        core = a_holder(claims)
        joined = [
            Joined(name, ("t",), core.subscription(Epoch(1, "n1"), with_owned=True)),
            Joined("b", ("t",), a_core().subscription(in_force.epoch, with_owned=True)),
        ]
        found = a_core().lead(
            Rebalance(
                me="b",
                generation=3,
                joined=joined,
                partitions={"t": 1},
                topic_ids={"t": "id"},
                shareable=("t",),
                noted=in_force.epoch,
                row=in_force,
            ),
            RoundRobinKeyRangeAssignor(),
        )
        return core, found

    core, found = dealt()
    assert found.continues == {"a": 1}
    after = row(3, found.shares, continues=found.continues)
    grant = core.take("a", handed(3, "a", found.shares["a"]), after)
    assert isinstance(grant, EpochGrant)
    assert grant.continues
    # It could not have gone on under the epoch in between.
    for fields in (
        {"continues": {}},
        {"continues": {"a": 0}},
        {"fenced": {"a": "taken over by a claim"}},
        {"handed": {"a": (LOW,)}},
        {"claims": (LOW, HIGH)},
        {"name": "other"},
    ):
        assert not dealt(**fields)[1].continues


def test_a_member_that_was_fenced_while_it_joined_begins_again():
    """A claim had its shares, and gave them back: what it does not know of is done by now."""
    in_force = row(1, {"a": [LOW, HIGH]})

    def dealt(name="a", **fields):
        found_in_log = replace(in_force, **fields)
        core = a_holder((LOW, HIGH))
        joined = [Joined(name, ("t",), core.subscription(in_force.epoch, with_owned=True))]
        return (
            a_core()
            .lead(
                Rebalance(
                    me=name,
                    generation=2,
                    joined=joined,
                    partitions={"t": 1},
                    topic_ids={"t": "id"},
                    shareable=("t",),
                    noted=in_force.epoch,
                    row=found_in_log,
                ),
                RoundRobinKeyRangeAssignor(),
            )
            .continues
        )

    assert dealt() == {"a": 1}
    assert dealt("a2") == {"a2": 1}
    assert dealt(fenced={"a": "taken over"}) == dealt("a2", fenced={"a": "taken over"}) == {}


def test_a_leader_leaves_with_a_member_what_the_row_in_force_gives_it():
    """Not what it had under an earlier epoch, what it has released, or what others have."""
    whole = Share("t", 0)
    in_force = row(1, {"a": [LOW], "c": [HIGH]})

    def dealt(claims, **fields):
        core, newcomer = a_holder(claims), a_core()
        noted = fields.pop("noted", in_force.epoch)
        joined = [
            Joined("a", ("t",), core.subscription(noted, with_owned=True)),
            Joined("b", ("t",), newcomer.subscription(noted, with_owned=True)),
        ]
        found = core.lead(
            Rebalance(
                me="a",
                generation=2,
                joined=joined,
                partitions={"t": 1},
                topic_ids={"t": fields.pop("id", "id")},
                shareable=("t",),
                noted=noted,
                row=replace(in_force, **fields),
            ),
            RoundRobinKeyRangeAssignor(),
        )
        assert merge(s.key_range for s in (*found.shares["a"], *found.shares["b"])) == (KeyRange(),)
        return found.shares, found.moving

    goal = {"a": (LOW,), "b": (HIGH,)}
    assert dealt((LOW,)) == (goal, {})
    assert dealt((whole,)) == (goal, {})
    in_force = row(1, {"a": [LOW, HIGH]})
    assert dealt((LOW, HIGH)) == ({"a": (whole,), "b": ()}, {"a": (HIGH,)})
    assert dealt((HIGH,)) == ({"a": (whole,), "b": ()}, {"a": (HIGH,)})
    assert dealt((LOW, HIGH), handed={"a": (HIGH,)}) == (goal, {})
    assert dealt((LOW, HIGH), fenced={"a": "released"}) == (goal, {})
    assert dealt((LOW, HIGH), epoch=Epoch(2, "n2")) == (goal, {})
    assert dealt((LOW, HIGH), noted=Epoch(2, "n2"), epoch=Epoch(2, "n2")) == (goal, {})
    assert dealt((LOW, HIGH), id="of a new topic") == (goal, {})


def test_who_takes_whole_partitions_gets_them_once_they_are_released():
    """Until then a holder has the rest, too, so that nothing is left to nobody."""
    first, second, third = (Share("t", 0, part) for part in KeyRange().split(3))
    shares, moving = leave_with_owners(
        {"a": (), "b": (), "c": (Share("t", 0),)}, {"a": (first,), "b": (third,)}, lambda *_: False
    )
    assert by_partition(shares["a"]) == by_partition((first, second))
    assert by_partition(moving["a"]) == by_partition((first, second))
    assert (shares["b"], shares["c"], moving["b"]) == ((third,), (), (third,))


def cooperative(slots=1):
    """A member that shares partitions by chunks."""
    return GroupCore(
        "g",
        {"store": "store", "cluster": "cluster", "sharing": "cooperative"},
        slots,
        True,
        life_ms=1,
    )


def test_members_of_a_cooperative_epoch_have_all_partitions():
    """No topic accepts key ranges, and need not. One that joins or leaves moves nothing.

    A partition is left out if part of it is claimed.
    """
    a, b = cooperative(), cooperative(3)
    members = {"a": (a, ("t", "u")), "b": (b, ("t",))}
    dealt = deal(a, members, {"t": 2, "u": 1})
    assert dealt.shares == {
        "a": (Share("t", 0), Share("t", 1), Share("u", 0)), "b": (Share("t", 0), Share("t", 1)),
    }  # fmt: skip
    assert not dealt.moving
    row = replace(row_of(dealt), sharing="cooperative")
    data = dealt.answers(row.epoch)
    grant = b.take("b", data["b"], row)
    assert isinstance(grant, EpochGrant)
    assert grant.shares == dealt.shares["b"]
    with pytest.raises(AssignmentConflict):
        b.take("b", data["b"], replace(row, sharing=""))
    joined = [
        Joined(name, topics, core.subscription(None, with_owned=False))
        for name, (core, topics) in members.items()
    ]
    around = a.lead(
        Rebalance(
            me="a",
            generation=1,
            joined=joined,
            partitions={"t": 2, "u": 1},
            topic_ids={},
            shareable=("t",),
            noted=None,
            claimed=[Share("t", 1, KeyRange(0, 5))],
        ),
        RoundRobinKeyRangeAssignor(),
    )
    assert around.shares == {"a": (Share("t", 0), Share("u", 0)), "b": (Share("t", 0),)}


def test_only_the_newcomer_is_refused_if_it_shares_in_another_way():
    """Also if it leads the group, or if there are more of its kind."""
    old, new, other = cooperative(), a_core(), a_core()
    in_force = replace(row_of(deal(old, {"a": (old, ("t",))}, {"t": 1})), sharing="cooperative")
    joined = [
        Joined(name, ("t",), core.subscription(in_force.epoch, with_owned=False))
        for name, core in {"a": old, "b": new, "c": other}.items()
    ]
    rebalance = Rebalance(
        me="a", generation=2, joined=joined, partitions={"t": 1}, topic_ids={}, shareable=(),
        noted=in_force.epoch, row=in_force,
    )  # fmt: skip
    dealt = old.lead(rebalance, RoundRobinKeyRangeAssignor())
    assert set(dealt.refused) == {"b", "c"}
    assert "sharing keyRanges" in dealt.refused["b"]
    assert set(dealt.shares) == {"a"}
    with pytest.raises(GroupRefused, match="sharing keyRanges"):
        new.lead(replace(rebalance, me="b"), RoundRobinKeyRangeAssignor())
