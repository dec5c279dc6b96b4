"""The world of the loop's model: random logs, the planner and the slots' code, without Spark.

Everything is real but Kafka, Spark's shuffle and the commit log: rows are dealt to the slots' code
in this process exactly as the batch's DataFrame deals them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import replace

import pyarrow as pa
from hypothesis import strategies as st

from assignors import KeyRange, key_hash, merge
from assignors.ranges import difference, offset_hash
from commits import OffsetRanges, PartitionCommits, Pending
from commits.model import PARKED_MS
from coopconsume.group.owned import Failed
from coopconsume.record import Record, RetryPolicy
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.runtime.decisions import Decision, outcome_of
from coopconsume.runtime.plan import Limits, deal, plan_batch
from coopconsume.runtime.plan.gain import Gain
from coopconsume.worker.outcome import TaskOutcome
from coopconsume.worker.report import (
    BatchSpec,
    PartitionReport,
    pack_offsets,
    unpack_offsets,
)
from coopconsume.worker.slot import SlotRunner
from tests.odd import ODD_ERRORS
from tests.partitions import make_partition
from tests.unit.worker.slot_harness import reporters_of


def deal_hash(offset, key):
    """By what a record is dealt."""
    return offset_hash(offset) if key is None else key_hash(key)


class DecidedRunner(SlotRunner):
    """The slots' code, which notes in a world what it gives up without a call."""

    def __init__(self, world, spec):
        super().__init__(spec, world.handler, world.policy, None, dead_letters=True, send=None)
        self.world = world

    def _outcome(self, slot):
        outcome, gives_up = super()._outcome(slot), TaskOutcome._give_up

        def give_up(row, record, given_up):
            self.world.gave_up(record, given_up)
            return gives_up(outcome, row, record, given_up)

        outcome._give_up = give_up
        return outcome


class World:
    """A log of partitions, the calls that handlers made, and what was committed."""

    ranges: tuple[KeyRange, ...] = (KeyRange(),)

    #: The records that do not pass the filter: of each run of the process in turn.
    filters: tuple[frozenset[tuple[int, int]], ...] = ()

    #: Pending records of a partition at which nothing new is read of it.
    most_pending = 10_000

    def __init__(self, logs, failures, *, slots, ordering, concurrency, policy, park=False):
        self.logs = logs  # {partition: {offset: key}}
        self.ends = {p: max(log, default=-1) + 1 for p, log in logs.items()}
        self.seen = {p: end // 2 for p, end in self.ends.items()}  # Rises while the loop works.
        self.failures = dict(failures)  # {(partition, offset): calls that fail}
        self.slots, self.ordering, self.concurrency = slots, ordering, concurrency
        self.policy = policy
        self.park = park
        self.calls = Counter()
        self.succeeded = Counter()
        self.dead = set()
        self.filtered = set()  # Committed as such.
        self.attempts = defaultdict(list)
        self.breaks = []  # Gathered, as a slot takes whatever a handler raises for a failure.
        self.committed = {p: PartitionCommits() for p in logs}
        self.pending = {p: {} for p in logs}
        #: Open decisions on failed records, and those that have an outcome.
        self.decisions, self.outcomes = {}, []
        self.now = 1_000.0
        self.batch = self.early_plans = 0
        self.crashes, self.most_crashes = 0, 3
        self.start()

    def failed(self, index):
        """The pending records of a partition, as the commit log has them."""
        return [Failed(*one) for one in self.pending[index].values()]

    def start(self):
        """Start again from what was committed, as a process does after a kill."""
        self.partitions = []
        for index, commits in self.committed.items():
            self.forget(index, commits.uncommitted(0, self.ends[index]))
        for index in sorted(self.logs):
            commits = self.committed[index]
            p = make_partition(
                index, "t", index, stable=commits.stable_offset, committed=commits.ranges,
                slots=deal(self.ranges, self.slots, index, self.ordering), ordering=self.ordering,
                whole=self.ranges == (KeyRange(),),
            )  # fmt: skip
            p.restore(self.failed(index))
            p.ledger.end = max(self.seen[index], p.ledger.stable)
            self.partitions.append(p)
        self.busy = {}
        #: Slots that have given their records back: (slot, indexes, final report, kept by index).
        self.stuck = []
        #: Until when handlers may work on kept records.
        self.at_work = {}
        self.relieve = None
        #: Slots, indexes, reports and rows at work of slots that start none of some keys.
        self.acknowledged = []
        #: Key ranges that slots may start nothing more of, and what they had at work then.
        self.moved, self.withheld = (), None
        #: What is to be given up while a slot is at work.
        self.soon = ()
        #: Slots that get nothing that comes to others, as if their last task were in doubt.
        self.closed = frozenset()

    def forget(self, index, offsets, ranges=None):
        """Offsets are undone: whatever handlers made of them, they must be handled again."""
        for offset in offsets.offsets().tolist():
            if self.owns(index, offset, ranges):
                self.succeeded.pop((index, offset), None)
                self.dead.discard((index, offset))
                self.filtered.discard((index, offset))

    def owns(self, index, offset, ranges=None):
        """Whether a record is of some key ranges, by default ours; a hole is anybody's."""
        dealt_by = deal_hash(offset, self.logs[index].get(offset))
        return any(r.contains(dealt_by) for r in ranges or self.ranges)

    @property
    def dropped(self):
        """The records that the filter of this run of the process drops."""
        return self.filters[self.crashes % len(self.filters)] if self.filters else frozenset()

    def undo(self, index, first, last):
        """An operator makes some offsets undone, which ends the epoch; other failures stay."""
        commits, undone = self.committed[index], OffsetRanges([(first, last)])
        lowest = min(first, commits.stable_offset)
        below = (
            OffsetRanges([(lowest, commits.stable_offset - 1)])
            if lowest < (commits.stable_offset)
            else OffsetRanges()
        )
        done = (below | commits.ranges) - undone
        self.committed[index] = PartitionCommits(lowest, done, max_ranges=None)
        for offset in undone.offsets().tolist():
            self.pending[index].pop(offset, None)
        self.start()

    def handler(self, record: Record):
        """Note breaks of the order rule at every start, then fail or succeed as planned."""
        self.note_start(record)
        if self.relieve is not None:
            self.relieve()
        at = (record.partition, record.offset)
        self.calls[at] += 1
        self.attempts[at].append(record.attempt)
        if self.failures.get(at, 0) > 0:
            self.failures[at] -= 1
            if self.policy.gives_up(record.attempt, RuntimeError()) and not self.park:
                self.dead.add(at)
            make, _ = ODD_ERRORS[(record.offset + self.failures[at]) % len(ODD_ERRORS)]
            raise make()
        self.succeeded[at] += 1

    def note_start(self, record):
        """Note breaks of the order rule at the start of a record."""
        at = (record.partition, record.offset)
        if self.at_work.get(at, self.now) > self.now:
            self.breaks.append(f"{at} started while another handler works on it")
        may_start = self.withheld is None or at in self.withheld or not self.owns(*at, self.moved)
        if not may_start:
            self.breaks.append(f"{at} started although its slot was to start none of its key")
        if at in self.dead:
            self.breaks.append(f"{at} started though it was given up")
        if at in self.dropped:
            self.breaks.append(f"{at} started though the filter drops it")
        if self.ordering != "none":
            for offset, key in self.logs[record.partition].items():
                same = self.ordering == "partition" or (key is not None and key == record.key)
                if same and offset < record.offset:
                    lower = (record.partition, offset)
                    works = self.at_work.get(lower, self.now) > self.now
                    is_done = lower in self.dead | self.filtered | self.dropped
                    if works or not (self.succeeded[lower] or is_done):
                        self.breaks.append(f"{at} started while {lower} is not done")

    def gave_up(self, record, given_up):
        """A slot gives a record up without a call: in order, as a handler would be called."""
        at = (record.partition, record.offset)
        if at not in self.decisions:
            self.breaks.append(f"{at} was given up, and nobody had decided that")
        self.note_start(record)
        if not given_up.park:
            self.dead.add(at)

    def rows(self, plan, slot):
        """The rows that Spark would deal to a slot, in its order."""
        found = []
        for read in plan.reads:
            for offset in range(read.first, read.last + 1):
                if offset not in self.logs[read.index] or offset not in plan.wanted[read.index]:
                    continue
                if read.index not in plan.work[slot]:
                    continue
                key = self.logs[read.index][offset]
                dealt_by = deal_hash(offset, key)
                ranges = self.partitions[read.index].cursors[slot].staying
                if any(r.contains(dealt_by) for r in ranges):
                    is_dropped = (read.index, offset) in self.dropped
                    shown = (None, None) if is_dropped else (key, b"v")
                    found.append((read.index, offset, dealt_by, *shown, 0, is_dropped))
        return sorted(found, key=lambda row: (row[1], row[0]))

    def awake(self):
        """The partitions that a turn of the loop looks at; the others have nothing left to do."""
        for p in self.partitions:
            if not p.ledger.is_quiet:
                p.update_quiet(self.now)
            if p.ledger.is_quiet:
                assert p.is_drained
                assert not p.ledger.to_commit
                assert not p.ledger.holes_to_commit
                assert not p.supply.holes()
                assert not p.supply.parked
                assert not p.slots.backlog(range(self.slots), self.now)
                assert p.lanes.next_due() is None
                assert p.blocker(0.0) is None
        return [p for p in self.partitions if not p.ledger.is_quiet]

    def see_ends(self):
        """The loop sees the present ends of the logs."""
        self.seen = dict(self.ends)
        for p in self.partitions:
            p.ledger.end = self.ends[p.index]

    def launch(self, window, *, batch_time, relief=None):
        """Plan a batch for the free slots and run the slots' code; the reports come back later.

        Each slot gives its records back while its handler works on the record with that number, or
        those that are to be given up.
        """
        for p in self.partitions:
            if p.is_undealt:
                p.deal_again(self.slots, self.now, self.closed)
        free = [s for s in range(self.slots) if s not in self.busy]
        limits = Limits(window, self.most_pending)
        plan = plan_batch(self.awake(), free, self.now, limits) or self.early_plan(free, limits)
        if plan is None:
            return False
        indexes = plan.indexes
        spec = BatchSpec(
            batch=self.batch, partitions=tuple(("t", p) for p in indexes), slots=plan.slots,
            work={s: {plan.parts[p]: w for p, w in of.items()} for s, of in plan.work.items()},
            ordering=self.ordering, concurrency=self.concurrency, batch_time=batch_time,
            handler_timeout=60.0, headers=False, filters=bool(self.filters), park=self.park,
        )  # fmt: skip
        self.batch += 1
        runner = DecidedRunner(self, spec)
        types = [pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary(), pa.int64()]
        types += [pa.bool_()] if self.filters else []
        dealt = {slot: self.rows(plan, slot) for slot in plan.slots}
        for slot in plan.slots:
            rows = [(indexes.index(r[0]), *r[1:]) for r in dealt[slot]]
            batches = []
            for i in range(0, len(rows), 3):
                columns = list(zip(*rows[i : i + 3], strict=True))[: len(types)]
                arrays = [pa.array(c, t) for c, t in zip(columns, types, strict=True)]
                batches.append(
                    pa.RecordBatch.from_arrays(arrays, names=list("abcdefg")[: len(types)])
                )
            given = [] if relief is None else self.relieved_at(relief, runner, slot, indexes)
            report = runner.run(slot, batches)
            self.relieve = self.withheld = None
            decided = self.dead | self.decisions.keys()
            assert self.park or {(d.partition, d.offset) for d in report.dead} <= decided
            self.busy[slot] = (indexes, report, set(plan.work[slot]), given)
        return True

    def early_plan(self, free, limits):
        """The plan of a batch that waits for the end of a doubt; every third one is withdrawn."""
        doubts = [share.barred_until for p in self.partitions for share in p.cursors.values()]
        doubts += [gain.until for p in self.partitions for gain in p.dealer.gains]
        begins_at = min((end for end in doubts if end > self.now), default=None)
        if begins_at is None:
            return None
        for p in self.partitions:
            if p.is_undealt:
                p.deal_again(self.slots, begins_at, self.closed)
        plan = plan_batch(self.awake(), free, begins_at, limits)
        self.early_plans += plan is not None
        if plan is not None and self.early_plans % 3 == 0:
            for slot in plan.slots:
                for index in plan.work[slot]:
                    self.partitions[index].slots.unknown(slot)
            return None
        self.now = begins_at if plan is not None else self.now
        return plan

    def relieved_at(self, number, runner, slot, indexes):
        """Has a slot give its records back in a handler call; its report of that comes in a list.

        From then on the handlers of the records that it keeps take long.
        """
        reporters, given = reporters_of(runner), []
        calls = itertools.count()

        def relieve():
            if next(calls) != number:
                return
            if self.soon:
                self.leave(self.soon)
            if self.moved:
                some = [(one.first, one.last) for one in self.moved]
                reporters[0].withhold(1, dict.fromkeys(range(len(indexes)), some))
                report = reporters[0].take_report(1)
                self.withheld = {(indexes[i], offset) for i, offset, _ in report.leaving[1]}
                for index in indexes:
                    at_work = {o: key for i, o, key in report.leaving[1] if indexes[i] == index}
                    found = report.partitions.get(indexes.index(index), PartitionReport())
                    self.acknowledged.append((slot, index, found, at_work))
                return
            reporters[0].want_relief()
            report = reporters[0].take_report(1)
            given.append(report)
            self.at_work |= {(indexes[i], offset): math.inf for i, offset, _ in report.kept}

        self.relieve = relieve
        return given

    def take_back(self, slot):
        """The report of a slot that gives its records back reaches the driver."""
        indexes, final, planned, given = self.busy.pop(slot)
        report = given[0]
        kept = {index: [] for index in planned}
        for i, *record in report.kept:
            kept[indexes[i]].append(record)
        for index in planned:
            outcome = report.partitions.get(indexes.index(index), PartitionReport())
            slots = self.partitions[index].slots
            counted = slots.given_back(slot, outcome, kept[index], self.now)
            self.note_failures(index, counted)
        offsets = {
            index: OffsetRanges.from_offsets([o for o, _ in of]) for index, of in kept.items()
        }
        self.stuck.append((slot, indexes, final, offsets))

    def end_stuck(self, number, *, lost):
        """The handlers of the records that a slot kept have ended, or nobody knows of them."""
        _, indexes, final, kept = self.stuck.pop(number)
        due = self.now + 30 if lost else self.now
        for i, outcome in final.partitions.items():
            if not lost:
                slots = self.partitions[indexes[i]].slots
                counted = slots.kept_progressed(kept[indexes[i]], outcome, self.now)
                self.note_failures(indexes[i], counted)
        for index, offsets in kept.items():
            partition = self.partitions[index]
            self.at_work |= {(index, o): due for o in offsets.offsets().tolist()}
            if lost:
                self.forget(index, offsets - partition.ledger.done)
            partition.slots.kept_ended(offsets, due)

    def hear(self):
        """Slots have reported what is at work of the key ranges that are to be given up."""
        reported, self.acknowledged = self.acknowledged, []
        for slot, index, outcome, at_work in reported:
            counted = self.partitions[index].slots.progressed(slot, outcome, self.now)
            self.note_failures(index, counted)
            self.partitions[index].dealer.withheld(slot, at_work)

    def deliver(self, slot, *, lost):
        """A slot's report reaches the driver, or never does."""
        self.hear()
        indexes, report, planned, given = self.busy[slot]
        if given and not lost:  # It comes with the final report.
            self.take_back(slot)
            self.end_stuck(-1, lost=False)
            return
        del self.busy[slot]
        if lost:
            for index in planned:
                share = self.partitions[index].cursors[slot]
                lost = (share.dispatched or OffsetRanges()) - self.partitions[index].ledger.done
                self.forget(index, lost, share.ranges)
                self.partitions[index].slots.unknown(slot)
                for offset in lost.offsets().tolist():
                    self.at_work.pop((index, offset), None)
            return
        for i, outcome in report.partitions.items():
            index = indexes[i]
            counted = self.partitions[index].slots.reported(slot, outcome, self.now)
            self.note_failures(index, counted)

    def progress(self, slot, data):
        """A slot reports some of its records while it works: of a key none without lower ones."""
        self.hear()
        indexes, report, planned, given = self.busy[slot]
        if given:
            self.take_back(slot)
            return
        left = {}
        for i, outcome in report.partitions.items():
            index = indexes[i]
            done = unpack_offsets(outcome.done).to_pylist()
            failed = {f.offset: f for f in outcome.failed}
            some = sorted({*done, *failed})
            cut = data.draw(st.sampled_from(some)) if some else -1
            key = data.draw(st.sampled_from([None, *sorted({*self.logs[index].values()} - {None})]))

            def is_reported(offset, cut=cut, key=key, log=self.logs[index]):
                return offset <= cut and (self.ordering == "partition" or log[offset] != key)

            some_of_it = PartitionReport(
                pack_offsets(pa.array([o for o in done if is_reported(o)], pa.int64())), None,
                [f for o, f in failed.items() if is_reported(o)], filtered=outcome.filtered,
            )  # fmt: skip
            rest = [o for o in done if not is_reported(o)]
            left[i] = replace(
                outcome, done=pack_offsets(pa.array(rest, pa.int64())), filtered=b"",
                failed=[f for o, f in failed.items() if not is_reported(o)],
            )  # fmt: skip
            counted = self.partitions[index].slots.progressed(slot, some_of_it, self.now)
            self.note_failures(index, counted)
        self.busy[slot] = indexes, replace(report, partitions=left), planned, given

    def note_failures(self, index, outcome):
        """The commit log has the failed records as pending."""
        for f in outcome.failed:
            self.pending[index][f.offset] = (
                f.offset, f.key_hash, f.attempts, self.now + f.delay, f.error,
            )  # fmt: skip

    def decide(self, discard):
        """An operator decides on all parked records; the commit log knows it before the loop."""
        for p in self.partitions:
            for waiting in p.supply.parked:
                offset = waiting.offset
                if discard(p.index, offset):
                    self.dead.add((p.index, offset))
                    self.committed[p.index].amend([(offset, offset)])
                    self.pending[p.index].pop(offset)
                    p.discard(offset, self.now)
                    p.commit_answered(
                        OffsetRanges(), self.committed[p.index].stable_offset, OffsetRanges()
                    )
                else:
                    self.pending[p.index][offset] = (offset, waiting.key_hash, 0, 0.0, "")
                    p.replay(offset, self.now)

    def decide_on_failed(self, data):
        """An operator decides on a failed record as the commit log has it, wherever it is now."""
        known = [(i, one) for i, of in self.pending.items() for one in of.values()]
        known = [(i, one) for i, one in known if one[3] < math.inf]
        if known:
            index, (offset, _, attempts, *_) = data.draw(st.sampled_from(known))
            action = data.draw(st.sampled_from(["retry", "skip", "park"]))
            by = DecidedBy("op", at_ms=len(self.decisions) + len(self.outcomes) + 1)
            self.decisions[index, offset] = Decision("t", index, offset, action, "", by, attempts)

    def look_at_decisions(self):
        """The loop reads the open decisions, and finds the outcomes of the others."""
        for at, decision in list(self.decisions.items()):
            index, offset = at
            pending = {
                o: Pending(o, key, n, PARKED_MS if due == math.inf else 0)
                for o, key, n, due, _ in self.pending[index].values()
            }
            found = outcome_of(decision, self.committed[index], pending)
            if decision.action == "skip" and found == "open" and pending[offset].is_parked:
                continue  # `apply_decisions` discards it, as `decide` does here.
            if found != "open":
                self.outcomes.append((self.decisions.pop(at), found))
        for p in self.partitions:
            p.decide([one for (i, _), one in self.decisions.items() if i == p.index], self.now)

    def commit(self):
        """Commit all that came in, holes included."""
        for p in [p for p in self.partitions if not p.ledger.is_quiet]:
            holes = p.supply.holes()
            for hole in holes.offsets().tolist():
                assert hole not in self.logs[p.index], f"{hole} of partition {p.index} is no hole"
            if holes:
                p.slots.amend(holes)
            offsets, holes = p.ledger.to_commit, p.ledger.holes_to_commit
            filtered = (offsets & p.ledger.filtered_to_commit).offsets().tolist()
            self.filtered |= {(p.index, offset) for offset in filtered}
            assert {(p.index, offset) for offset in filtered} <= self.dropped, "it passes"
            if offsets or holes:
                self.committed[p.index].amend(offsets | holes)
                p.commit_answered(offsets, self.committed[p.index].stable_offset, holes)
                for offset in offsets.offsets().tolist():
                    self.pending[p.index].pop(offset, None)

    def step(self, what, data, *, rough, most=12, hasty=False):
        """Launch, deliver, commit, restart or wait: as drawn where it is rough, else smoothly."""
        if what == "l":
            quick = hasty and rough and data.draw(st.booleans())
            relief = data.draw(st.integers(0, 4)) if rough and data.draw(st.booleans()) else None
            self.launch(
                data.draw(st.integers(1, most)) if rough else 50, batch_time=0.0 if quick else 9.0,
                relief=relief,
            )  # fmt: skip
        elif what == "d" and self.busy:
            slots = sorted(self.busy)
            for slot in [data.draw(st.sampled_from(slots))] if rough else slots:
                self.deliver(slot, lost=rough and data.draw(st.integers(0, 5)) == 0)
        elif what == "d" and self.stuck:
            last = len(self.stuck) - 1
            number = data.draw(st.integers(0, last)) if rough else last
            self.end_stuck(number, lost=rough and data.draw(st.integers(0, 3)) == 0)
        elif what == "p" and self.busy:
            self.progress(data.draw(st.sampled_from(sorted(self.busy))), data)
        elif what == "c":
            self.commit()
        elif what == "r" and self.crashes < self.most_crashes:
            self.crashes += 1
            self.start()
        elif what == "u" and self.crashes < self.most_crashes:
            self.crashes += 1
            index = data.draw(st.sampled_from(sorted(self.logs)))
            first = data.draw(st.integers(0, max(0, self.ends[index] - 1)))
            self.undo(index, first, data.draw(st.integers(first, max(first, self.ends[index] - 1))))
        elif what == "f":
            self.decide_on_failed(data)
        elif what == "k":
            self.look_at_decisions()
        elif what == "m":
            for p in self.partitions:
                p.ledger.is_quiet, p.dealer.undealt_since = False, self.now
        elif what == "w":
            self.now += 30
            self.see_ends()
        for p in self.partitions:
            p.check()

    def leave(self, moved):
        """Key ranges are to be given back."""
        self.moved, self.soon = moved, ()
        for p in self.partitions:
            p.leave(moved)

    def leave_while_at_work(self, moved, data):
        """Key ranges are to be given back while a handler is at work, if there is any."""
        self.concurrency = 1  # With threads it would be another one each time.
        self.soon = moved
        self.launch(50, batch_time=9.0, relief=data.draw(st.integers(0, 4)))
        if self.soon:
            self.leave(moved)

    def has_left(self, moved, *, permanently=True):
        """Give key ranges back, if nothing of them is at work or uncommitted; whether it did.

        The other member does all that is left of them at once, and finds all holes, unless it does
        not keep them.
        """
        if any(p.dealer.leaves(self.now) or p.ledger.to_commit for p in self.partitions):
            return False
        self.moved, self.ranges = (), difference(self.ranges, moved)
        for p in self.partitions:
            p.has_left(self.now)
            for offset in range(self.ends[p.index]) if permanently else ():
                if offset in self.logs[p.index] and self.owns(p.index, offset):
                    continue
                if offset in self.logs[p.index] and not self.owns(p.index, offset, moved):
                    continue
                at = (p.index, offset)
                if offset in self.logs[p.index] and at not in self.dead | self.filtered:
                    self.succeeded[at] = 1
                self.committed[p.index].amend([(offset, offset)])
                self.pending[p.index].pop(offset, None)
            p.commit_answered(OffsetRanges(), self.committed[p.index].stable_offset, OffsetRanges())
        return True

    def shares(self, ranges, data):
        """Starts with some key ranges, while another member is somewhere in the others."""
        self.ranges = ranges
        self.others_work(data)
        self.start()

    def others_work(self, data):
        """The other member does some of each key, in its order; the next record may have failed."""
        for index, log in self.logs.items():
            cuts, done = {}, []
            for offset, key in log.items():
                at = (index, offset)
                if self.owns(index, offset) or self.succeeded[at]:
                    continue
                lane = offset if key is None or self.ordering == "none" else key
                if cuts.setdefault(lane, data.draw(st.integers(0, 3))) > 0:
                    cuts[lane] -= 1
                    done.append(offset)
                    self.succeeded[at] = 1
                    self.pending[index].pop(offset, None)
                elif cuts[lane] == 0 and data.draw(st.booleans()):
                    cuts[lane] = -1
                    self.pending[index][offset] = (offset, deal_hash(offset, key), 1, self.now, "")
            self.committed[index].amend([(offset, offset) for offset in done])

    def extend(self, ranges, data):
        """The other member is gone, and its key ranges are ours; its handlers may still be at work.

        Then either their keys wait, or all of what comes does.
        """
        self.others_work(data)
        until = self.now + 45
        for p in self.partitions:
            doubts, is_wide = [], self.ordering != "key" or data.draw(st.booleans())
            for offset, key in self.logs[p.index].items():
                at = (p.index, offset)
                is_open = self.owns(p.index, offset, ranges) and not self.succeeded[at]
                if is_open and data.draw(st.integers(0, 1 if is_wide else 4)) == 0:
                    self.at_work[at] = until
                    doubts += [(KeyRange(*[deal_hash(offset, key)] * 2), until)]
            commits = self.committed[p.index]
            p.extend(
                Gain(
                    ranges, commits.stable_offset, commits.ranges,
                    list(self.failed(p.index)), () if is_wide else doubts,
                    until if is_wide and doubts else 0.0,
                )
            )  # fmt: skip
        self.ranges = merge([*self.ranges, *ranges])

    def run(self, data, steps, *, most=12, hasty=False):
        """Some rough steps, as drawn, then smooth ones until it rests; how many were rough."""
        troubled = data.draw(st.integers(0, 25))
        for step in range(steps):
            rough = step < troubled
            what = data.draw(st.sampled_from("llddpcpcruwm")) if rough else "ldcw"[step % 4]
            self.step(what, data, rough=rough, most=most, hasty=hasty)
            if (
                not rough
                and self.seen == self.ends
                and all(
                    p.is_drained and not p.ledger.to_commit and not p.ledger.holes_to_commit
                    for p in self.partitions
                )
            ):
                return troubled
        raise AssertionError("the world did not come to rest")


keys = st.sampled_from([None, b"a", b"b", b"c", b"d"])


@st.composite
def worlds(draw):
    """A world of one or two partitions with holes, keys and planned failures."""
    logs = {}
    for index in range(draw(st.integers(1, 2))):
        offsets = draw(st.lists(st.integers(0, 40), max_size=25, unique=True))
        logs[index] = {offset: draw(keys) for offset in sorted(offsets)}
    every = [(p, o) for p, log in logs.items() for o in log]
    failing = draw(st.lists(st.sampled_from(every), max_size=6)) if every else []
    world = World(
        logs,
        {at: draw(st.integers(1, 4)) for at in failing},
        slots=draw(st.integers(1, 4)),
        ordering=draw(st.sampled_from(["key", "key", "partition", "none"])),
        concurrency=draw(st.sampled_from([1, 1, 1, 3])),
        policy=RetryPolicy(max_attempts=draw(st.sampled_from([None, 3])), backoff=1.0, jitter=0),
    )
    some = st.frozensets(st.integers(0, world.slots - 1), max_size=world.slots - 1)
    world.closed = draw(st.one_of(st.just(frozenset()), some))
    if every and draw(st.booleans()):
        dropped = st.frozensets(st.sampled_from(every), max_size=12)
        world.filters = tuple(draw(st.lists(dropped, min_size=1, max_size=2)))
    return world
