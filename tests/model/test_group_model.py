"""The group's pure core under any order of joins, pauses, crashes, expiries and late commits.

A model of Kafka's coordinator (classic protocol, eager) and the real fold of the commit log carry
what real `GroupCore`s decide. Batches run on workers that go on when their driver crashes or
sleeps, for as long as a batch may live. Processes beside the group claim parts of partitions; they
end their claims, sleep or crash.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assignors import KeyRange, Share, StickyKeyRangeAssignor, coverage
from assignors.shares import by_partition, common, without
from commits import Epoch, FencedMember, OffsetRanges
from commits.model import share_to_plain
from commits.rows import Part
from coopconsume.errors import AssignmentConflict
from coopconsume.group.core import (
    GroupCore,
    MemberReplaced,
    Rejoin,
    TakeOver,
    left_by,
    waits_of,
)
from coopconsume.group.dealing import Deal, Joined, Rebalance
from coopconsume.group.owned import EpochGrant
from tests.examples import examples
from tests.model.group_world import (
    LEASE,
    LIFE,
    NEWER,
    SESSION,
    TOPICS,
    Batch,
    Coordinator,
    Log,
    Process,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

NUMBER = st.integers(0, 3)


class GroupMachine(RuleBasedStateMachine):
    """Up to four drivers of one group."""

    #: Whether a host sees that a worker lives whose driver is dead.
    sees_workers = True

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.kafka = Coordinator()
        self.processes: dict[int, Process] = {}
        self.claimants: dict[int, Process] = {}
        #: Whether a claim has ended: an epoch that was opened before leaves its shares out.
        self.ended = False
        self.has_claimed = False
        self.batches: list[Batch] = []
        self.now = 0
        self.offsets = itertools.count()
        self.topic_ids = {topic: f"{topic}-0" for topic in TOPICS}
        self.acknowledged: dict[int, tuple[str, str]] = {}
        self.refused: set[int] = set()
        #: Drivers that have handed over everything.
        self.stopped: set[int] = set()
        self.started = itertools.count()
        self.led = 0
        self.stalled: list[tuple[GroupCore, str, tuple[int, list[Joined], Epoch | None]]] = []

    @initialize()
    def two(self) -> None:
        """Two drivers that are settled."""
        self.start(0, slots=1)
        self.start(1, slots=2)
        self.settle(8, late=False, then=True)
        assert self.batches

    @rule(rounds=st.integers(1, 4))
    def restart(self, rounds: int) -> None:
        """A static driver crashes and its new process is there at once."""
        self.start(1, slots=2)
        self.settle(rounds, late=False, then=True)

    @rule(at=NUMBER, slots=st.integers(1, 3))
    def start(self, at: int, slots: int) -> None:
        """A driver starts; one that was there at this place has crashed, its batches go on."""
        static = at % 2 == 1
        # Batches of some go on for a shorter time, as under leases.
        life = LIFE if at % 4 < 2 else LEASE + 1
        core = GroupCore("g", {"store": "store", "cluster": "cluster"}, slots, True, life_ms=life)
        self.processes[at] = Process(next(self.started), core, f"i{at}" if static else None)

    @rule(at=NUMBER, all_of_it=st.booleans(), rounds=st.integers(1, 8))
    def kill_and_start(self, at: int, all_of_it: bool, rounds: int) -> None:
        """A driver is killed, alone or with its workers, and starts again on its host."""
        dead = self.processes.get(at)
        if dead is None:
            return
        if all_of_it:
            self.batches = [batch for batch in self.batches if batch.process != dead.number]
        self._leave_for(dead)
        self.start(at, dead.core.slots)
        self.settle(rounds, late=False, then=True)

    def _leave_for(self, dead: Process) -> None:
        """What the next driver on a host does for a dead one that runs nothing any more."""
        if self.sees_workers and any(batch.process == dead.number for batch in self.batches):
            return  # All wait as ever.
        row = self.log.state.in_force
        for member, waits in left_by(row and row.assignment(), sorted(dead.ids)):
            assert row is not None
            left: dict[Share, int] = {}
            for part, seconds in waits:
                left[part] = max(int(1000 * seconds), left.get(part, 0))
            detail = {"running": plain(left), "left_ms": [*left.values()]}
            self.log.write("release", epoch=row.epoch, member=member, detail=detail)
        if dead.instance is None and dead.id in self.kafka.members:
            self.kafka.expire(dead.id)

    @rule(at=NUMBER, late=st.booleans())
    def step(self, at: int, late: bool) -> None:
        """A driver that is awake does what is next for it."""
        process = self.processes.get(at)
        self.kafka.complete()
        if process is None or process.paused:
            return
        known = process.id in self.kafka.members
        if process.state == "out":
            self._join(process)
        elif process.state == "leading":
            self._lead(process)
        elif not known:
            self._lost(process)
        elif process.state == "stable":
            if process.moving:
                self._release_moving(process, late=late)
                self._join(process)
            elif self.kafka.phase == "joining":
                self._rejoin(process, late=late)
        elif process.state == "joining":
            if self.kafka.phase == "syncing" and self.kafka.leader == process.id:
                members = self.kafka.members.items()
                joined = [Joined(m, tuple(TOPICS), d, i) for m, (d, i) in members]
                process.heard = (self.kafka.generation, joined, process.core.noted)
                process.state = "leading"
            elif self.kafka.phase == "joining" and process.id not in self.kafka.joined:
                self._join(process)
            elif self.kafka.phase == "stable" and process.id in self.kafka.assigned:
                process.handed, process.state = self.kafka.assigned[process.id], "handed"
        elif process.state == "handed":
            self._take(process)

    @rule(rounds=st.integers(1, 6), late=st.booleans(), then=st.booleans(), freeze=st.booleans())
    def settle(self, rounds: int, late: bool, then: bool, freeze: bool = False) -> None:
        """All who are awake go on for a while, and may begin to work; a leader may fall asleep."""
        for _ in range(rounds):
            for at in sorted(self.processes):
                self.step(at, late=late)
                if freeze and self.processes[at].state == "leading":
                    self.processes[at].paused = True
        for at in sorted(self.processes) if then else ():
            self.launch(at)

    def _follow(self, process: Process) -> None:
        """Go on under an epoch whose assignment never came, if one is in force."""
        row, grant = self.log.state.in_force, process.grant
        unbegun = process.core.follow(process.id, row and row.assignment())
        if unbegun is None:
            return
        assert row is not None
        assert grant is not None
        process.grant = replace(
            grant, epoch=row.epoch, member=process.id, topic_ids=dict(row.topic_ids)
        )
        self._carry(process, grant)
        waits = waits_of(unbegun, row.assignment())
        process.waits += [(share, self.now + int(1000 * s)) for share, s in waits]
        doubts = {share for share, _ in waits}
        self.log.write(
            "release", epoch=row.epoch, member=process.id,
            detail={"running": plain(doubts), "shares": plain(unbegun)},
        )  # fmt: skip

    def _carry(self, process: Process, before: EpochGrant) -> None:
        """What was begun and what is done under the epoch before goes on under this one."""
        assert process.grant is not None
        for batch in [*self.batches, *process.uncommitted]:
            if batch.process == process.number and batch.grant is before:
                batch.grant = process.grant
        done, process.uncommitted = process.uncommitted, []
        for batch in done:
            self._commit(batch)

    def _join(self, process: Process) -> None:
        self._follow(process)
        data = process.core.subscription(self.log.in_force(), with_owned=True)
        try:
            process.id = self.kafka.join(process.id, data, process.instance)
        except ValueError:  # Another process has the instance id permanently.
            self._lost(process)
            process.paused = True
            return
        except KeyError:
            self._lost(process)
            return
        process.ids.add(process.id)
        process.state = "joining"

    def _rejoin(self, process: Process, *, late: bool) -> None:
        """Join again: with all that is worked on, or after a hand-over."""
        if process.keeps and process.grant is not None and process.core.may_continue:
            process.core.is_continuing = True
        else:
            self._hand_over(process, late=late)
        self._join(process)

    def _release_moving(self, process: Process, *, late: bool) -> None:
        """Nothing of it starts any more; it is released once it has ended, or as in doubt."""
        grant, moving, process.moving = process.grant, process.moving, ()
        assert grant is not None
        running: list[Share] = []
        for batch in [b for b in self.batches if b.process == process.number]:
            if common(batch.shares, moving):
                if late:
                    running += batch.shares
                else:
                    self._finish(batch)
        self.log.write(
            "release", epoch=grant.epoch, member=grant.member,
            detail=self._left(process, grant, running, moving) | {"shares": plain(moving)},
        )  # fmt: skip
        process.grant = replace(grant, shares=without(grant.shares, moving))
        self._carry(process, grant)
        process.core.released(moving)
        process.core.is_continuing = True

    def _lost(self, process: Process) -> None:
        process.core.lost()
        process.grant, process.moving, process.state, process.id = None, (), "out", ""
        self._forget_uncommitted(process)

    def _forget_uncommitted(self, process: Process) -> None:
        """What is done cannot be committed any more: it will be done again."""
        self.refused.update(next(self.offsets) for _ in process.uncommitted)
        process.uncommitted = []

    def _hand_over(self, process: Process, *, late: bool) -> None:
        """Drain: wait for the batches, or stop waiting and report what still runs."""
        grant, process.grant, process.moving = process.grant, None, ()
        process.core.is_continuing = False
        if grant is None:
            return
        self.stopped.add(process.number)
        mine = [b for b in self.batches if b.process == process.number]
        if not late:
            for batch in mine:
                self._finish(batch)
            mine = []
        running = [s for b in mine for s in b.shares]
        self.log.write(
            "release", epoch=grant.epoch, member=grant.member,
            detail=self._left(process, grant, running),
        )  # fmt: skip

    def _left(
        self,
        process: Process,
        grant: EpochGrant,
        running: list[Share],
        given: Iterable[Share] | None = None,
    ) -> dict[str, Any]:
        """What a release of some shares, or all, says of the work that may go on.

        Its member's own may go on for a whole life, an earlier owner's for the rest of the wait.
        """
        may_run = [(share, grant.life_ms) for share in running]
        may_run += [(share, until - self.now) for share, until in process.waits if until > self.now]
        left: dict[Share, int] = {}
        for share, ticks in may_run:
            for part in [share] if given is None else common([share], given):
                left[part] = max(ticks, left.get(part, 0))
        return {"running": plain(left), "left_ms": [*left.values()]}

    def _lead(self, process: Process) -> None:
        """Decide by what Kafka said, however long ago that is."""
        try:
            deal, epoch = self._decide(process.core, process.id, process.heard)
        except FencedMember:
            self._join(process)  # A rebalance that notes the epoch in force again.
            return
        generation = process.heard[0]
        process.state = "joining"
        if self.kafka.phase == "syncing" and self.kafka.generation == generation:
            self.kafka.assigned = deal.answers(epoch)
            self.kafka.phase = "stable"
            for refused in deal.refused:
                self.kafka.expire(refused)

    def _decide(
        self, core: GroupCore, me: str, heard: tuple[int, list[Joined], Epoch | None]
    ) -> tuple[Deal, Epoch]:
        generation, joined, noted = heard
        deal = core.lead(
            Rebalance(
                me=me,
                generation=generation,
                joined=joined,
                partitions=TOPICS,
                topic_ids=self.topic_ids,
                shareable=set(TOPICS),
                noted=noted,
                claimed=self.log.claimed,
                row=self.log.state.in_force and self.log.state.in_force.assignment(),
            ),
            StickyKeyRangeAssignor(),
        )
        assert set(deal.refused) == {m.id for m in joined if m.data == NEWER}
        epoch = self.log.open_epoch(deal)
        assert generation > self.led, "a leader that slept has fenced the live group"
        self.led = generation
        return deal, epoch

    @rule(before=st.integers(1, 4), at=NUMBER)
    def stall(self, before: int, at: int) -> None:
        """A leader's decision takes longer than it may: the member joins again meanwhile."""
        self.settle(before, late=False, then=True, freeze=True)
        process = self.processes.get(at)
        if process is not None and process.state == "leading":
            self.stalled.append((process.core, process.id, process.heard))
            process.paused = False
            self._join(process)

    @precondition(lambda self: self.stalled)
    @rule(pick=st.integers(0, 9))
    def decide_at_last(self, pick: int) -> None:
        """A stalled decision is made; nobody waits for it any more."""
        with suppress(FencedMember):
            self._decide(*self.stalled.pop(pick % len(self.stalled)))

    def _take(self, process: Process) -> None:
        row = self.log.state.in_force
        claimed = self.log.claimed
        try:
            decision = process.core.take(
                process.id, process.handed, row and row.assignment(), claimed
            )
        except AssignmentConflict:
            assert self.ended, "the group has given part of a partition to nobody"
            self._lost(process)
            return
        if isinstance(decision, TakeOver):
            answer = self.log.write(
                "takeover", epoch=decision.epoch, member=process.id,
                detail={"replaces": decision.replaces},
            )  # fmt: skip
            if not answer.counted:
                self._lost(process)
        elif isinstance(decision, MemberReplaced):
            self._lost(process)
            process.paused = True
        elif isinstance(decision, Rejoin):
            process.state = "stable"
            if self.kafka.phase == "stable":
                self._join(process)
        else:
            waits = [(share, self.now + int(1000 * s)) for share, s in decision.waits]
            process.core.taken(decision)
            before, process.grant = process.grant, decision
            if decision.continues:
                assert before is not None
                waits += process.waits
                self._carry(process, before)
            else:
                self._forget_uncommitted(process)
            process.state, process.checked = "stable", self.now
            process.waits = waits
            if decision.continues:
                process.moving = decision.moving
            elif decision.moving:
                process.core.ask_again()
                self._rejoin(process, late=False)

    # -- work

    @rule(at=NUMBER)
    def launch(self, at: int) -> None:
        """Start a batch on what no earlier owner can be at work on; the log must be fresh."""
        process = self.processes.get(at)
        if process is not None:
            self._launch(process)

    def _launch(self, process: Process) -> None:
        if process.paused or process.grant is None:
            return
        if self.now - process.checked > LEASE:
            if self.log.state.fenced(process.grant.epoch, process.grant.member):
                if not process.core.is_continuing:  # Else it is about to get the next epoch.
                    process.grant = None
                return
            process.checked = self.now
        if (
            process.state != "claim"
            and not process.core.allow_key_share
            and any(not share.key_range.is_full for share in process.grant.shares)
        ):
            if process.state == "stable" and process.id in self.kafka.members:
                self._hand_over(process, late=False)
                self._join(process)
            return
        barred = [share for share, until in process.waits if until > self.now]
        free = tuple(
            share for share in without(process.grant.shares, process.moving)
            if not any(_overlap(share, other) for other in barred)
        )  # fmt: skip
        busy = any(b.process == process.number for b in self.batches)
        if free and not busy:
            self.batches.append(
                Batch(
                    process.number, process.grant, free, self.now + process.core.life_ms - LEASE,
                    dict(process.grant.topic_ids),
                )
            )  # fmt: skip

    @precondition(lambda self: self.batches)
    @rule(pick=st.integers(0, 9))
    def finish(self, pick: int) -> None:
        """A batch ends, and its driver, if it is there, commits it."""
        self._finish(self.batches[pick % len(self.batches)])

    def _finish(self, batch: Batch) -> None:
        self.batches.remove(batch)
        alive = any(
            p.number == batch.process and not p.paused
            for p in [*self.processes.values(), *self.claimants.values()]
        )  # fmt: skip
        if not alive:
            return
        for process in self.processes.values():
            is_theirs = process.number == batch.process and process.grant is batch.grant
            fence = self.log.state.fenced(batch.grant.epoch, batch.grant.member)
            if is_theirs and process.core.is_continuing and fence:
                process.uncommitted.append(batch)
                return
        self._commit(batch)

    def _commit(self, batch: Batch) -> None:
        offset = next(self.offsets)
        share = batch.shares[0]
        topic_id = batch.grant.topic_ids[share.topic]
        held = self.log.state.fenced(batch.grant.epoch, batch.grant.member) == ""
        answer = self.log.write(
            "commit", epoch=batch.grant.epoch, member=batch.grant.member,
            parts=(
                Part(
                    share.topic, share.partition, topic_id, offsets=OffsetRanges([(offset, offset)])
                ),
            ),
        )  # fmt: skip
        assert answer.counted == held
        if answer.counted:
            assert topic_id == batch.topic_ids[share.topic], "it is done of a topic that is gone"
            self.acknowledged[offset] = share.topic, topic_id
        else:
            self.refused.add(offset)

    # -- topics that are recreated, members of a later version

    @rule(topic=st.sampled_from(sorted(TOPICS)), at=NUMBER, late=st.booleans())
    def recreate(self, topic: str, at: int, late: bool) -> None:
        """A topic is deleted and created again, and one driver notices."""
        self.topic_ids[topic] += "'"
        process = self.processes.get(at)
        if process is None or process.paused or process.grant is None:
            return
        if process.id not in self.kafka.members or process.grant.topic_ids == self.topic_ids:
            return
        self._hand_over(process, late=late)
        process.core.lost()
        if process.instance is None:
            self.kafka.expire(process.id)
            process.id = ""
        process.state = "out"
        self._wake_all()
        self.settle(12, late=False, then=False)
        assert process.grant is None or process.grant.topic_ids == {
            topic: self.topic_ids[topic] for topic in process.grant.topic_ids
        }

    def _wake_all(self) -> None:
        for at in self.processes:
            self.wake(at)
        here = {process.id for process in self.processes.values()}
        for member in set(self.kafka.members) - here:
            self.kafka.expire(member)

    @rule(at=NUMBER, rounds=st.integers(1, 8))
    def newer(self, at: int, rounds: int) -> None:
        """A member of a newer protocol version joins; a leader that can lead refuses it alone."""
        self.kafka.join("", NEWER, f"newer{at}" if at % 2 else None)
        self.settle(rounds, late=False, then=True)

    # -- claims beside the group

    @rule(
        at=st.integers(0, 1), topic=st.sampled_from(sorted(TOPICS)), partition=st.integers(0, 1),
        piece=st.integers(0, 2), pieces=st.integers(1, 3), rounds=st.integers(0, 12),
    )  # fmt: skip
    def claim(
        self, at: int, topic: str, partition: int, piece: int, pieces: int, rounds: int
    ) -> None:
        """A process claims part of a partition from its owner, and the group goes on."""
        number = next(self.started)
        share = Share(topic, partition % TOPICS[topic], KeyRange().split(pieces)[piece % pieces])
        member, epoch = f"claim-{number}", Epoch(self.log.state.highest + 1, f"claim-{number}")
        before = set(self.log.state.claims)
        part = Part(share.topic, share.partition, self.topic_ids[topic], *share.key_range)
        detail = {"takeover": True, "life_ms": LIFE, "session_ms": LEASE}
        answer = self.log.write("claim", epoch=epoch, member=member, detail=detail, parts=(part,))
        assert answer.counted
        self.has_claimed = True
        self.ended |= not before <= set(self.log.state.claims)
        row = self.log.state.claims[epoch.nonce].assignment()
        waits = [(share, self.now + life_ms) for share, life_ms in row.doubts]
        core = GroupCore("g", {"store": "store", "cluster": "cluster"}, 1, True, life_ms=LIFE)
        grant = EpochGrant(epoch, member, (share,), dict(self.topic_ids), (), LIFE)
        self.claimants[at] = Process(
            number, core, None, member, "claim", grant=grant, waits=waits, checked=self.now
        )
        self.settle(rounds, late=False, then=True)

    @precondition(lambda self: self.claimants)
    @rule(at=st.integers(0, 1))
    def work_on_claim(self, at: int) -> None:
        """The process of a claim starts a batch."""
        if at in self.claimants:
            self._launch(self.claimants[at])

    @precondition(lambda self: self.claimants)
    @rule(at=st.integers(0, 1), late=st.booleans(), rounds=st.integers(0, 12))
    def give_claim_back(self, at: int, late: bool, rounds: int) -> None:
        """The process of a claim ends."""
        if at in self.claimants and not self.claimants[at].paused:
            self._hand_over(self.claimants.pop(at), late=late)
            self.ended = True
            self._rebalance(rounds)

    @precondition(lambda self: self.claimants)
    @rule(at=st.integers(0, 1), sleeps=st.booleans(), rounds=st.integers(0, 12))
    def lose_claim(self, at: int, sleeps: bool, rounds: int) -> None:
        """The process of a claim is killed, or sleeps; a member without sign of it ends it."""
        process = self.claimants.get(at)
        if process is None or process.grant is None:
            return
        if sleeps:
            process.paused = True
        else:
            del self.claimants[at]
        self.log.write(
            "release", epoch=process.grant.epoch, member=process.id,
            detail={"running": plain(process.grant.shares)},
        )  # fmt: skip
        self.ended = True
        self._rebalance(rounds)

    @rule(at=st.integers(0, 1))
    def wake_claimant(self, at: int) -> None:
        """It goes on, and may find that its claim has ended."""
        if at in self.claimants:
            self.claimants[at].paused = False

    def _rebalance(self, rounds: int) -> None:
        """A member sees that a claim has ended, and the group assigns its shares."""
        if self.kafka.phase == "stable" and self.kafka.members:
            self.kafka.phase, self.kafka.joined = "joining", set()
        self.settle(rounds, late=False, then=True)

    # -- bad days

    @rule(at=NUMBER)
    def pause(self, at: int) -> None:
        """A driver stops running for a while."""
        if at in self.processes:
            self.processes[at].paused = True

    @rule(at=NUMBER)
    def wake(self, at: int) -> None:
        """It runs again."""
        if at in self.processes:
            self.processes[at].paused = False

    @rule(pick=st.integers(0, 9))
    def expire(self, pick: int) -> None:
        """The coordinator has not heard of a member for its session timeout."""
        awake = {p.id for p in self.processes.values() if not p.paused}
        silent = sorted(set(self.kafka.members) - awake)
        if silent:
            self.kafka.expire(silent[pick % len(silent)])

    @rule(at=NUMBER, rounds=st.integers(2, 8))
    def crash(self, at: int, rounds: int) -> None:
        """A driver ends, Kafka notices, the others go on."""
        process = self.processes.pop(at, None)
        if process is not None and process.id in self.kafka.members:
            self.kafka.expire(process.id)
        self.settle(rounds, late=False, then=True)

    @rule(at=NUMBER, rounds=st.integers(2, 8), before=st.integers(1, 4))
    def sleep_through(self, at: int, rounds: int, before: int) -> None:
        """A driver, a leader perhaps, sleeps while Kafka and the others go on without it."""
        self.settle(before, late=False, then=True, freeze=True)
        self.pause(at)
        for process in self.processes.values():
            if process.paused and process.id in self.kafka.members:
                self.kafka.expire(process.id)
        self.settle(rounds, late=False, then=True)
        for number in list(self.processes):
            self.wake(number)

    @rule(before=st.integers(1, 4), freeze=st.booleans())
    def sleep_all(self, before: int, freeze: bool) -> None:
        """All drivers sleep beyond their sessions, and wake together: one epoch wins."""
        self.settle(before, late=False, then=True, freeze=freeze)
        for member in list(self.kafka.members):
            self.kafka.expire(member)
        for at in list(self.processes):
            self.wake(at)
        self.settle(8, late=False, then=True)
        held = {p.grant.epoch for p in self.processes.values() if p.grant is not None}
        assert held == {self.log.in_force()} or not self.processes

    @rule(at=NUMBER, keeps=st.booleans())
    def keep(self, at: int, keeps: bool) -> None:
        """A driver hands over at each rebalance from now on, or only what moves."""
        if at in self.processes:
            self.processes[at].keeps = keeps

    @rule(at=NUMBER, allowed=st.booleans())
    def need_whole_partitions(self, at: int, allowed: bool) -> None:
        """A job starts whose ordering does not hold in parts of partitions, or ends."""
        if at in self.processes:
            self.processes[at].core.allow_key_share = allowed

    @rule(ticks=st.integers(1, 4))
    def pass_time(self, ticks: int) -> None:
        """The clock goes on; no batch outlives its life."""
        for _ in range(ticks):
            self.now += 1
            for batch in [b for b in self.batches if b.ends <= self.now]:
                self._finish(batch)

    # -- what must hold

    @invariant()
    def nobody_works_on_the_keys_of_another(self) -> None:
        """Batches of two drivers never have a key in common."""
        for one, other in itertools.combinations(self.batches, 2):
            if one.process != other.process:
                clash = [(a, b) for a in one.shares for b in other.shares if _overlap(a, b)]
                assert not clash, (one, other)

    @invariant()
    def what_was_acknowledged_is_committed(self) -> None:
        """Every acknowledged commit is in the log's state, no refused one is."""
        done: set[int] = set()
        for state in self.log.state.partitions.values():
            done |= set(range(state.commits.stable_offset))
            done |= set(state.commits.ranges.offsets().tolist())
        known = {(at[0], state.topic_id) for at, state in self.log.state.partitions.items()}
        assert {offset for offset, topic in self.acknowledged.items() if topic in known} <= done
        everywhere = [s.commits for s in self.log.state.partitions.values()]
        assert not any(
            any(o in c.ranges for o in self.refused) for c in everywhere
        )  # fmt: skip

    @invariant()
    def the_epoch_in_force_covers_everything_once(self) -> None:
        """Its live and released shares cover every key range once, but for claims."""
        grant = self.log.state.in_force
        if grant is None:
            return
        ranges: dict[tuple[str, int], list] = {}
        for member, shares in grant.members.items():
            if member not in grant.heirs:
                for share in shares:
                    ranges.setdefault(share[:2], []).append(share.key_range)
        for at, held in ranges.items():
            found = coverage(held)
            assert not found.holes or self.has_claimed, at
            assert not found.overlaps, at

    @invariant()
    def no_share_has_two_owners(self) -> None:
        """Neither two claims nor a claim and a member of the group have a key in common."""
        state = self.log.state
        owners = [*state.claims.values(), *([state.in_force] if state.in_force else [])]
        live = [(owner.epoch, share) for owner in owners for _, share in owner.live_shares()]
        for (one, share), (other, held) in itertools.combinations(live, 2):
            assert one == other or not _overlap(share, held), (share, held)


def plain(shares: Iterable[Share]) -> list[tuple[str, int, int, int]]:
    """Shares as a row has them."""
    return list(map(share_to_plain, shares))


def _overlap(one: Share, other: Share) -> bool:
    return one[:2] == other[:2] and one.key_range.overlaps(other.key_range)


@given(
    slots=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    others=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.integers(0, 14),
            st.integers(0, 14),
            st.none() | st.integers(3, 5),
        ),
        max_size=3,
    ),
)
@settings(max_examples=examples(60), deadline=None)
def test_keys_that_do_not_move_keep_running(
    slots: list[int], others: list[tuple[int, int, int, int | None]]
) -> None:
    """Members come and go: who stays hands over nothing but what moves, and all of it counts."""
    group = GroupMachine()
    for at, count in enumerate(slots):
        group.start(2 * at, slots=count)
    group.settle(12, late=False, then=True)
    for count, until_work, until_leave, until_next in others:
        group.start(6, slots=count)
        if until_next is not None:
            # Another one joins while the leader deals; the others join again at once.
            group.settle(until_next, late=False, then=False, freeze=True)
            group.start(8 + len(group.processes), slots=1)
            group.settle(2, late=False, then=False)
            for process in group.processes.values():
                process.paused = False
        group.settle(until_work, late=False, then=False)
        group.settle(until_leave, late=False, then=True)
        group.nobody_works_on_the_keys_of_another()
        leaving = group.processes[6]
        group._hand_over(leaving, late=False)
        del group.processes[6]
        group.kafka.expire(leaving.id)
        group.settle(20, late=False, then=True)
        everything = [s for p in group.processes.values() for s in p.grant.shares]
        assert by_partition(everything) == {
            (topic, partition): (KeyRange(),)
            for topic, count in TOPICS.items() for partition in range(count)
        }  # fmt: skip
        assert not any(process.moving for process in group.processes.values())
    group.start(6, slots=1)
    group.settle(60, late=False, then=True)
    assert all(process.grant.shares for process in group.processes.values())
    for batch in list(group.batches):
        group._finish(batch)
    assert not group.refused
    assert not group.stopped & {process.number for process in group.processes.values()}


@given(
    slots=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=3),
    killed=st.integers(0, 2),
    restarted=st.integers(1, SESSION),
    changes=st.dictionaries(st.integers(1, SESSION + LIFE), st.sampled_from(["join", "leave"])),
)
@settings(max_examples=examples(100), deadline=None)
def test_after_a_kill_its_keys_are_worked_on_within_session_lease_and_handler_timeout(
    slots: list[tuple[int, bool]], killed: int, restarted: int, changes: dict[int, str]
) -> None:
    """However members come and go meanwhile, and whichever of them gets its keys.

    All have the same options. An epoch that another one ends before its members know it may have
    begun the wait once more, at that moment.
    """
    group = GroupMachine()
    for at, (count, keeps) in enumerate(slots):
        group.start(4 * at, slots=count)
        group.processes[4 * at].keeps = keeps
    group.settle(40, late=False, then=True)
    dead = group.processes.pop(4 * (killed % len(slots)))
    assert dead.grant is not None
    keys, worked_on = dead.grant.shares, list[Share]()
    assert keys
    for tick in range(1, SESSION + LIFE + 1):
        group.pass_time(1)
        for batch in [b for b in group.batches if b.process != dead.number]:
            group._finish(batch)  # Handlers of the living are short.
        if tick == SESSION:
            group.kafka.expire(dead.id)
        if tick == restarted or changes.get(tick) == "join":
            group.start(100 + 4 * tick, slots=1)
        elif changes.get(tick) == "leave" and len(group.processes) > 1:
            leaving = group.processes.pop(min(group.processes))
            group._hand_over(leaving, late=False)
            group.kafka.expire(leaving.id)
        group.settle(40, late=False, then=True)
        group.nobody_works_on_the_keys_of_another()
        living = [batch for batch in group.batches if batch.process != dead.number]
        worked_on += [part for one in living for part in common(one.shares, keys)]
    assert not without(keys, worked_on)


class BlindMachine(GroupMachine):
    """A planted fault: a driver goes on while workers of the dead one before it live."""

    sees_workers = False


def _killed_at_work(machine: type[GroupMachine]) -> GroupMachine:
    """One driver that was killed alone, at work on all keys."""
    group = machine()
    group.start(0, slots=2)
    group.settle(12, late=False, then=True)
    assert group.batches
    return group


def test_a_successor_that_does_not_see_workers_of_the_dead_runs_beside_them() -> None:
    """The model finds the planted fault, and nothing without it."""
    group = _killed_at_work(GroupMachine)
    group.kill_and_start(0, all_of_it=False, rounds=4)
    group.expire(0)
    group.settle(12, late=False, then=True)
    group.nobody_works_on_the_keys_of_another()
    blind = _killed_at_work(BlindMachine)
    blind.kill_and_start(0, all_of_it=False, rounds=12)
    with pytest.raises(AssertionError, match="Batch"):
        blind.nobody_works_on_the_keys_of_another()


@pytest.mark.parametrize("at", [0, 1], ids=["dynamic", "static"])
def test_after_a_kill_of_all_of_it_the_next_one_on_its_host_waits_for_nothing(at: int) -> None:
    """Neither for Kafka's session nor for handlers: it works before any time has passed."""
    group = GroupMachine()
    group.start(at, slots=2)
    group.settle(12, late=False, then=True)
    dead = group.processes[at]
    assert group.batches
    group.kill_and_start(at, all_of_it=True, rounds=12)
    assert {batch.process for batch in group.batches} == {group.processes[at].number}
    assert group.processes[at].number != dead.number
    assert group.now == 0


def test_what_a_dead_member_still_waited_for_is_waited_for_by_the_next_one() -> None:
    """Its host knows of its own processes alone."""
    group = _killed_at_work(GroupMachine)
    group.start(0, slots=2)  # Elsewhere: nothing is known of the first one.
    group.settle(2, late=False, then=False)
    group.expire(0)
    group.settle(12, late=False, then=True)
    assert group.processes[0].waits
    group.kill_and_start(0, all_of_it=True, rounds=12)
    group.nobody_works_on_the_keys_of_another()
    assert group.processes[0].waits


GroupMachine.TestCase.settings = settings(
    max_examples=examples(400), stateful_step_count=60, deadline=None
)
TestGroup = GroupMachine.TestCase
