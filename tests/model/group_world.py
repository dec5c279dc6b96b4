"""The world of the group's model: Kafka's coordinator, the commit log of a group, its drivers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from assignors import Share, wire
from commits import Epoch, FencedMember
from commits.fold import GroupState
from commits.model import share_to_plain
from commits.partition_commits import Answer
from commits.rows import Event
from coopconsume.group.core import GroupCore
from coopconsume.group.dealing import Deal, Joined
from coopconsume.group.owned import EpochGrant

#: What a member of the next protocol version joins with.
NEWER = bytes((wire.MAGIC, ord("S"), wire.VERSION + 1))
LEASE, BATCH = 2, 6
LIFE = LEASE + BATCH
#: Ticks without a sign of life after which the coordinator removes a member.
SESSION = 5
TOPICS = {"t": 1, "u": 2}


class Log:
    """The commit log of one group: the fold, and rows as the store would write them."""

    def __init__(self) -> None:
        self.state = GroupState()
        self._ids = itertools.count()

    def write(self, kind: str, **fields: object) -> Answer:
        return self.state.fold(Event(kind, f"w-{next(self._ids)}", "", "g", **fields))  # type: ignore[arg-type]

    def in_force(self) -> Epoch | None:
        return self.state.in_force.epoch if self.state.in_force else None

    def open_epoch(self, deal: Deal) -> Epoch:
        detail = {
            "members": {m: list(map(share_to_plain, held)) for m, held in deal.shares.items()},
            "topic_ids": deal.topic_ids, "takeover": False, "life_ms": deal.life_ms,
            "continues": deal.continues, "lives": deal.lives,
        }  # fmt: skip
        epoch = Epoch(self.state.highest + 1, deal.nonce)
        answer = self.write("epoch", epoch=epoch, previous=deal.previous, detail=detail)
        assert answer.holder is None, "a leader that knows of a claim gives its shares away"
        if not answer.counted:
            raise FencedMember("g", "", epoch, self.in_force(), "conflict")
        return epoch

    @property
    def claimed(self) -> list[Share]:
        """Shares that are claimed beside the group."""
        claims = self.state.claims.values()
        return [share for claim in claims for held in claim.members.values() for share in held]


@dataclass
class Batch:
    """Work on the cluster: it goes on without its driver, but not for longer than its life."""

    process: int
    grant: EpochGrant
    shares: tuple[Share, ...]
    ends: int
    #: Kafka's ids of the topics that it reads.
    topic_ids: dict[str, str]


@dataclass
class Process:
    """A driver: a member of the group while it is not out."""

    number: int
    core: GroupCore
    instance: str | None
    id: str = ""
    state: str = "out"
    handed: bytes = b""
    heard: tuple[int, list[Joined], Epoch | None] = (0, [], None)
    grant: EpochGrant | None = None
    #: What it is to release, of what it has.
    moving: tuple[Share, ...] = ()
    waits: list[tuple[Share, int]] = field(default_factory=list)
    checked: int = -100
    paused: bool = False
    #: What is done, and was refused as the next epoch was not known yet.
    uncommitted: list[Batch] = field(default_factory=list)
    #: Whether it joins without a hand-over, if it may.
    keeps: bool = True
    #: The ids that it has had, which its host knows.
    ids: set[str] = field(default_factory=set)


class Coordinator:
    """Kafka's group coordinator, as far as members can see."""

    def __init__(self) -> None:
        self.members: dict[str, tuple[bytes, str | None]] = {}
        self.joined: set[str] = set()
        self.assigned: dict[str, bytes] = {}
        self.phase = "stable"
        self.generation = 0
        self.leader = ""
        self._ids = itertools.count(1)

    def join(self, member: str, data: bytes, instance: str | None) -> str:
        if instance is not None:
            old = next((m for m, (_, i) in self.members.items() if i == instance), None)
            if old is not None and member == old:
                pass
            elif old is not None and not member:
                new = f"{instance}-{next(self._ids)}"
                _, kept = self.members.pop(old)
                self.members[new] = (data, kept)
                self.joined = {new if m == old else m for m in self.joined}
                self.leader = new if self.leader == old else self.leader
                if self.phase == "stable" and old in self.assigned:
                    self.assigned[new] = self.assigned.pop(old)
                    return new  # No rebalance: the old assignment is handed on.
                member = new
            elif member:
                raise ValueError("fenced instance")
        if member not in self.members and member:
            raise KeyError(member)
        follows = self.phase == "stable" and member in self.assigned and member != self.leader
        if follows and self.members[member][0] == data:
            return member  # Unchanged data: the old assignment, without a rebalance.
        member = member or f"{instance or 'm'}-{next(self._ids)}"
        self.members[member] = (data, instance)
        if self.phase != "joining":
            self.phase, self.joined = "joining", set()
        self.joined.add(member)
        return member

    def complete(self) -> None:
        able = [member for member, (data, _) in self.members.items() if data != NEWER]
        if self.phase == "joining" and able and self.joined == set(self.members):
            self.phase = "syncing"
            self.generation += 1
            self.assigned = {}
            if self.leader not in self.members:
                self.leader = next(iter(able))

    def expire(self, member: str) -> None:
        self.members.pop(member, None)
        self.joined.discard(member)
        self.assigned.pop(member, None)
        if self.members:
            self.phase, self.joined = "joining", (
                self.joined if self.phase == "joining" else set()
            )  # fmt: skip
        else:
            self.phase, self.joined = "stable", set()
