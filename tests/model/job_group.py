"""The records and shares of a job's model, and a member whose group's epochs a test opens."""

from __future__ import annotations

from assignors import KeyRange, Share, key_hash
from assignors.shares import common
from coopconsume.group import GroupMember
from coopconsume.group.owned import EpochGrant
from tests.model.job_world import TP

#: As long as work may go on by the options of these tests.
KEYS = {offset: b"k%d" % (offset % 5) for offset in range(20)}
LIFE_MS = 1_000_000
WHOLE = Share(*TP)
LOW, HIGH = (Share(*TP, half) for half in KeyRange().split(2))


def slot_mates(offset):
    """The offsets of the slot that has an offset."""
    halves = KeyRange().split(2)
    return {o for o in KEYS for h in halves if h.contains(key_hash(KEYS[offset]))
            and h.contains(key_hash(KEYS[o]))}  # fmt: skip


class Group:
    """The epochs of one member that joins without a hand-over, and of others."""

    def __init__(self, there):
        self.there = there
        self.member = there.member()
        self.number = 0
        self.epoch = None
        self.name = "a"

    def joins_a_group(self):
        """The member is in a group, but in none of a broker."""
        there, member = self.there, self.member
        member._group = GroupMember(
            there.options, member.store, there.kafka, 2, member.owner, LIFE_MS
        )

    def in_doubt(self, share):
        """What of a share the epoch in force has in doubt."""
        doubts = self.member.store.assignment("g").doubts
        return common([share], [d.share for d in doubts])

    def opens(self, mine, others=(), continues=None):
        """The next epoch is opened; the member does not know it yet."""
        self.number += 1
        self.epoch = self.member.store.open_epoch(
            "g", {self.name: mine, "b": others}, previous=self.epoch, generation=self.number,
            topic_ids={"t": "topic-id"}, life_ms=LIFE_MS, continues=continues,
        )  # fmt: skip
        self.mine = tuple(mine)

    def begins(self, *, continues=True, moving=(), waits=()):
        """The member gets its assignment of the epoch."""
        self.member.owner.assigned(
            EpochGrant(
                self.epoch, self.name, self.mine, {"t": "topic-id"}, waits, LIFE_MS, continues,
                moving,
            )
        )  # fmt: skip
