"""A member between Kafka and its tenant, with a real commit table and no broker."""

from __future__ import annotations

import types

from assignors import StickyKeyRangeAssignor
from commits import CommitStore
from coopconsume.group.core import Joined
from coopconsume.group.member import GroupMember
from coopconsume.options import Options


class Idle:
    """A tenant that has nothing."""

    def hand_over(self):
        """Nothing to hand over."""

    def lost(self, _why):
        """Nothing to lose."""


def a_member(path, tenant):
    """A member of group g that is not connected."""
    options = Options.parse(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g",
            "commitTable": str(path), "subscribe": "t",
        }
    )  # fmt: skip
    store = CommitStore.open(path, cluster="c")
    cluster = types.SimpleNamespace(cluster_id="c")
    return GroupMember(options, store, cluster, 1, tenant), store


def lead(member, store, generation):
    """Deal topic t's only partition to the member alone; returns what it is handed."""
    core = member._core
    told = core.subscription(store.current_epoch("g"), with_owned=False)
    deal = core.lead(
        "me", generation, [Joined("me", ("t",), told)], StickyKeyRangeAssignor(), {"t": 1}, {}, ()
    )
    epoch = store.open_epoch(
        "g", deal.shares, previous=deal.previous, generation=generation, nonce=deal.nonce,
        life_ms=deal.life_ms,
    )  # fmt: skip
    return deal.answers(epoch)["me"]


def test_nobody_waits_for_a_member_that_never_began(tmp_path):
    """The next rebalance comes before it looks at what it was handed: it gives that back."""
    member, store = a_member(tmp_path, Idle())
    member._handed = "me", lead(member, store, 1)
    member.revoke().result(60)
    lead(member, store, 2)
    assert store.assignment("g").doubts == ()
    # Without a word from it, its successor has to wait.
    lead(member, store, 3)
    assert len(store.assignment("g").doubts) == 1
    member.leave()


def test_a_member_that_is_out_joins_again_once(tmp_path):
    """What the log refused while it was thrown out is no reason to join a second time."""

    class Refused(Idle):
        def lost(self, why):
            member.rejoin(f"the log refused what was to be saved as {why}")

    member, _ = a_member(tmp_path, Refused())
    member.lose().result(60)
    assert member._again is None
    member.rejoin("refused later, under what it was given since")
    assert member._again is not None
    member.leave()
