"""Members that share a partition by chunks: their plans against the fold of the commit log.

Everything is real but Kafka, Spark and the handlers: what slots report is drawn.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa

from assignors import KeyRange
from commits import AcquisitionId, Epoch, OffsetRanges, Pending
from commits.rows import Event, Part
from commits.validation import request_events
from coopconsume.group.chunks import GroupChunks, PartitionChunks, failures_in
from coopconsume.runtime.plan import Limits, plan_batch
from coopconsume.runtime.plan.acquiring import Acquirer
from coopconsume.runtime.plan.slices import deal_stock
from coopconsume.worker.report import Failure, PartitionReport, pack_offsets
from tests.examples import examples
from tests.model.acquisition_world import AT, Log
from tests.partitions import make_partition

SLOTS = 2


class Member:
    """What the loop of one process does."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.numbers = itertools.count()
        self.partition = make_partition(
            0, *AT, stable=0, committed=OffsetRanges(),
            slots=[(slot, (KeyRange(),)) for slot in range(SLOTS)], ordering="none", whole=False,
            leads=False,
        )  # fmt: skip
        self.acquirer = Acquirer({AT: self.partition}, 1_000)
        self.failed = {}
        self.running = {}

    @property
    def state(self):
        return self.world.log.state.group("", "g").partitions[AT]

    def look(self):
        """Reads the log."""
        state, p = self.state, self.partition
        p.ledger.end = self.world.end
        chunks = state.acquisitions.chunks.values()
        ours = held = OffsetRanges()
        for chunk in chunks:
            held |= chunk.offsets
            if chunk.member == self.name:
                ours |= chunk.offsets
        found = PartitionChunks(
            state.commits.stable_offset, state.commits.ranges, dict(state.pending), ours, held,
        )  # fmt: skip
        gone = tuple(
            AcquisitionId(*AT, chunk.id, chunk.renewals)
            for chunk in chunks
            if chunk.member not in self.world.members
        )
        p.commit_answered(OffsetRanges(), state.commits.stable_offset, OffsetRanges())
        self.acquirer.looked(GroupChunks({AT: found}, gone, tuple(self.world.members), 0))

    def commit(self, demand):
        """Commits what came in, and asks for more in the same append."""
        p = self.partition
        holes = p.supply.holes()
        for hole in holes.offsets().tolist():
            assert hole in self.world.holes, f"{hole} is no hole"
        if holes:
            p.slots.amend(holes)
        request = self.acquirer.request(demand)
        offsets, found, failed = (
            p.ledger.to_commit,
            p.ledger.holes_to_commit,
            list(self.failed.values()),
        )
        if not (offsets or found or failed or request):
            return
        name = f"{self.name}-{next(self.numbers)}"
        base = Event("commit", name, "", "g", self.world.epoch, member=self.name)
        part = Part(*AT, offsets=offsets, holes=found, pending=tuple(failed))
        events = [] if part.is_empty else [replace(base, parts=(part,))]
        if request is not None:
            request = replace(request, id=name)
            self.acquirer.began(request)
            events += request_events(base, request)
        not_held = OffsetRanges()
        group = self.world.log.state.group("", "g")
        before = set(group.not_held)
        self.world.log.append(events)
        for one in group.not_held.keys() - before:
            not_held |= group.not_held[one].get(AT, OffsetRanges())
        self.failed = {}
        p.commit_answered(offsets, self.state.commits.stable_offset, found)
        p.supply.failures_noted(OffsetRanges.from_offsets([one.offset for one in failed]))
        p.ledger.not_held(not_held)
        if request is not None:
            got = group.acquired(f"{name}/request")
            p.chunks.acquire(
                got.get(AT, OffsetRanges()),
                failures_in(got, {AT: self.state.pending}, 0.0, 0).get(AT, ()),
            )

    def launch(self, size):
        """Gives free slots a batch."""
        free = [slot for slot in range(SLOTS) if slot not in self.running]
        deal_stock([self.partition], free, dict.fromkeys(free, size), 0.0)
        plan = plan_batch([self.partition], free, 1e18, Limits(10_000, 1_000))
        if plan is None:
            return
        for slot in plan.slots:
            given = OffsetRanges(plan.work[slot][0].ranges)
            read = OffsetRanges()
            for one in plan.reads:
                read |= OffsetRanges([(one.first, one.last)])
            assert not given - read, "a wanted offset is not read"
            for offset in given.offsets().tolist():
                assert offset not in self.world.at_work, f"{offset} is started twice at a time"
                self.world.at_work.add(offset)
            self.running[slot] = given

    def end(self, slot, draw, *, lost):
        """A slot reports: some is done, some has failed, some was not looked at; or it is lost."""
        given = self.running.pop(slot)
        self.world.at_work -= set(given.offsets().tolist())
        if lost:
            self.partition.slots.unknown(slot)
            return
        records = [o for o in given.offsets().tolist() if o not in self.world.holes]
        cut = draw.randint(0, len(records))
        looked, resume = records[:cut], None
        if cut < len(records):
            resume = records[cut]
        failed = [
            o for o in looked
            if self.world.failures.get(o, 0) > 0 and not self.world.failures.subtract([o])
        ]  # fmt: skip
        done = [o for o in looked if o not in failed]
        self.world.handled.update(done)
        report = PartitionReport(
            pack_offsets(pa.array(done, pa.int64())), resume,
            [Failure(o, 0, None, 1, 0.0, "no") for o in failed],
        )  # fmt: skip
        self.partition.slots.reported(slot, report, 0.0)
        self.failed |= {o: Pending(o, attempts=1) for o in failed}


class World:
    """Members of an epoch, and the log."""

    def __init__(self, end, holes, failures):
        self.log, self.end, self.holes = Log(), end, holes
        self.failures, self.handled = Counter(failures), Counter()
        self.at_work, self.names = set(), itertools.count()
        self.members = {}
        for _ in range(2):
            self.join()
        self.open_epoch()
        start = Event("start", "s", "", "g", self.epoch, member="m0", parts=(Part(*AT, first=0),))
        self.log.append([start])

    @property
    def epoch(self):
        return self.log.state.group("", "g").in_force.epoch

    def join(self):
        name = f"m{next(self.names)}"
        self.members[name] = Member(self, name)

    def open_epoch(self):
        group = self.log.state.group("", "g")
        before = group.in_force.epoch if group.in_force else None
        members = {name: [[*AT, 0, 2**63 - 1]] for name in self.members}
        detail = {"members": members, "topic_ids": {}, "sharing": "cooperative"}
        number = group.highest + 1
        event = Event("epoch", f"e{number}", "", "g", Epoch(number, "n"), before, detail=detail)
        self.log.append([event])

    def kill(self, name):
        """A member dies, and another one takes its place."""
        member = self.members.pop(name)
        for given in member.running.values():
            self.at_work -= set(given.offsets().tolist())
        self.join()
        self.open_epoch()


def run(seed):
    """Some rough steps, then smooth ones until all is done."""
    draw = random.Random(seed)
    end = draw.randint(1, 60)
    holes = {hole for hole in draw.choices(range(60), k=draw.randint(0, 8)) if hole < end}
    failures = [o for o in draw.choices(range(60), k=draw.randint(0, 6)) if o < end]
    world = World(end, holes, failures)
    rough = draw.randint(0, 40)
    kills = losses = 0
    for step in range(2_000):
        is_rough = step < rough
        names = sorted(world.members)
        name = draw.choice(names) if is_rough else names[step % len(names)]
        member = world.members[name]
        whats = "lsednk" if is_rough else "lsdn"
        what = draw.choice(whats) if is_rough else whats[step // 2 % 4]
        size = draw.randint(1, 20) if is_rough else 10
        if what == "l":
            member.look()
        elif what == "s":
            member.commit(2 * size)
        elif what == "n":
            member.launch(size)
        elif what in "ed" and member.running:
            slot = draw.choice(sorted(member.running))
            losses += what == "e"
            member.end(slot, draw, lost=what == "e")
        elif what == "k":
            kills += 1
            world.kill(name)
        for one in world.members.values():
            one.partition.check()
        state = world.log.state.group("", "g").partitions[AT]
        if not is_rough and state.commits.stable_offset >= end:
            break
    else:
        raise AssertionError("it did not come to rest")
    assert not world.log.wrong
    records = {offset for offset in range(end) if offset not in world.holes}
    assert set(world.handled) == records
    if not kills and not losses:
        assert set(world.handled.values()) <= {1}


def test_members_together_settle_every_record_once():
    """Members are slow, die and lose slots: nothing is lost, and no record is at work twice."""
    for seed in range(examples(900)):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
