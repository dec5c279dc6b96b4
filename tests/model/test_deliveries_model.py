"""Dead letters and rows whose destination is away or refuses some of them, in random worlds."""

from __future__ import annotations

import contextlib
import math

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from assignors import KeyRange, key_hash
from assignors.ranges import offset_hash
from commits import OffsetRanges, Pending
from coopconsume import RetryPolicy
from coopconsume.runtime.commit.deliveries import FIRST_PAUSE, LONGEST_PAUSE, TOGETHER, Deliveries
from coopconsume.runtime.commit.parcels import Parcel
from coopconsume.runtime.plan import Limits, Waiting, plan_batch
from coopconsume.worker.report import DeadLetter, Failure, PartitionReport, pack_offsets
from tests.examples import examples
from tests.model.loop_world import World, keys
from tests.partitions import make_partition

TP = ("t", 0)


def rows_of(part: int, hashes: dict[int, int]) -> Parcel:
    """A row for each of some offsets of a partition, as a slot reports them."""
    offsets = list(hashes)
    columns = {
        "v": offsets, "_part": [0] * len(offsets), "_offset": offsets,
        "_key_hash": list(hashes.values()),
    }  # fmt: skip
    types = [pa.int64(), pa.int32(), pa.int64(), pa.int64()]
    schema = pa.schema(list(zip(columns, types, strict=True)))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_table(pa.table(columns, schema))
    tp = ("t", part)
    return Parcel({tp: OffsetRanges.from_offsets(offsets)}, rows=[((tp,), bytes(out.getvalue()))])


def letters_of(offsets: list[int]) -> Parcel:
    """A dead letter for each of some offsets."""
    letters = [DeadLetter(*TP, o, b"k%d" % o, b"", 0, (), 2, "no", "") for o in offsets]
    return Parcel({TP: OffsetRanges.from_offsets(offsets)}, letters=letters)


def offsets_in(parcel: Parcel) -> list[int]:
    """The offsets of partition 0 in a parcel; its letters and rows are of these and no others."""
    found = parcel.places().get(TP, OffsetRanges()).offsets().tolist()
    assert sorted(r.offset for r in parcel.records().get(TP, ())) == found
    return found


@given(
    st.lists(st.integers(0, 12), max_size=12),
    st.sets(st.integers(0, 60), max_size=4),
    st.lists(st.integers(0, 5), max_size=60),
    st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_only_what_is_never_taken_stays(sizes, bad, outages, of_letters):
    """Each record is delivered exactly once or refused; bad ones alone; pauses grow, then end."""
    deliveries, now, made = Deliveries("letters", 5.0), 0.0, 0
    delivered: list[int] = []
    attempts: list[float] = []
    steps = [*[("add", size) for size in sizes], *[("wait", o) for o in outages]]
    for kind, number in [step for pair in zip(steps, steps[::-1], strict=True) for step in pair]:
        if kind == "add" and made < 60:
            offsets = list(range(made, made + number))
            made += number
            if offsets:
                hashes = {o: offset_hash(o) for o in offsets}
                deliveries.add(letters_of(offsets) if of_letters else rows_of(0, hashes))
        now += 0.3
        parcel = deliveries.begin(now)
        if parcel is None:
            continue
        attempts.append(now)
        assert deliveries.begin(now) is None, "one at a time"
        if kind == "wait" and number:  # The destination is away.
            now += number / 2
            is_denied = number == 5
            deliveries.failed("away", now, is_final=False, is_denied=is_denied)
            assert deliveries.is_in_trouble(now)
            pause = LONGEST_PAUSE if is_denied else FIRST_PAUSE
            assert deliveries.begin(now + pause - 0.01) is None
        else:
            end(deliveries, parcel, bad, now, delivered)
    rounds = 0
    while (parcel := deliveries.begin(now)) is not None or deliveries.is_in_trouble(now):
        rounds += 1
        assert rounds < 400
        if parcel is None:
            now += LONGEST_PAUSE
        else:
            end(deliveries, parcel, bad, now, delivered)
    assert sorted(delivered) == sorted(set(range(made)) - bad)
    refused = [offset for parcel in deliveries.refused for offset in offsets_in(parcel)]
    assert sorted(refused) == sorted(bad & set(range(made)))
    assert not deliveries.is_moving(now)
    assert deliveries.has_any == bool(refused)
    shown = [offset for parcel in deliveries.to_show(now) for offset in offsets_in(parcel)]
    assert sorted(shown) == sorted(refused)
    assert not list(deliveries.to_show(now)), "each error is shown once"


def end(deliveries, parcel, bad, now, delivered):
    """The destination is there: it takes the parcel, unless something in it is bad."""
    offsets = offsets_in(parcel)
    if bad.intersection(offsets):
        deliveries.failed("too large", now, is_final=True)
    else:
        assert deliveries.delivered() is parcel
        delivered += offsets


def test_a_destination_without_an_answer_is_in_trouble():
    """What is being written, and what came behind it, is shown once; it may still be taken."""
    deliveries = Deliveries("dead letters", 5.0)
    deliveries.add(letters_of([1]))
    parcel = deliveries.begin(100.0)
    assert deliveries.is_young(100.0)
    assert not deliveries.is_young(100.0 + TOGETHER)
    deliveries.add(letters_of([2]))
    assert not list(deliveries.to_show(105.0))
    assert [offsets_in(one) for one in deliveries.to_show(105.1)] == [[2], [1]]
    assert parcel.error == "dead letters have not been written for 5 s"
    assert not deliveries.is_moving(105.1)
    deliveries.delivered()
    assert offsets_in(deliveries.begin(106.0)) == [2]


def test_a_job_that_is_to_end_gives_up():
    """After enough failures in a row, for long enough; a success in between starts it again."""
    deliveries, now = Deliveries("outputs", 5.0, gives_up=True), 0.0
    deliveries.add(letters_of([1, 2, 3, 4]))
    for _ in range(2):
        while deliveries.begin(now) is None:
            now += 0.5
        deliveries.failed("away", now, is_final=False)
    assert not deliveries.refused
    while deliveries.begin(now) is None:
        now += 0.5
    deliveries.delivered()
    while deliveries.has_any and not deliveries.refused:
        if deliveries.begin(now) is None:
            now += 0.5
        else:
            deliveries.failed("away again", now, is_final=False)
    assert sorted(o for parcel in deliveries.refused for o in offsets_in(parcel)) == [3, 4]
    assert {parcel.error for parcel in deliveries.refused} == {"away again"}


def test_where_a_right_is_missing_a_job_that_is_to_end_gives_up_at_once():
    """No further attempt is made, and all of it is refused."""
    deliveries = Deliveries("outputs", 5.0, gives_up=True)
    deliveries.add(letters_of([1, 2]))
    deliveries.begin(0.0)
    deliveries.failed("no right", 0.0, is_final=False, is_denied=True)
    assert [offsets_in(parcel) for parcel in deliveries.refused] == [[1, 2]]


def test_a_destination_that_refuses_a_record_is_there():
    """What comes next is written in time, and is not shown as held back."""
    deliveries = Deliveries("outputs", 5.0)
    deliveries.add(letters_of([1]))
    deliveries.begin(0.0)
    deliveries.failed("away", 0.0, is_final=False)
    deliveries.begin(LONGEST_PAUSE)
    deliveries.failed("too large", LONGEST_PAUSE, is_final=True)
    deliveries.add(letters_of([2]))
    assert deliveries.is_moving(LONGEST_PAUSE)
    assert [offsets_in(parcel) for parcel in deliveries.to_show(LONGEST_PAUSE)] == [[1]]


def test_where_a_right_is_missing_parcels_stay_whole():
    """No part of it would be taken either."""
    deliveries, now = Deliveries("outputs", 5.0), 0.0
    deliveries.add(letters_of([1, 2]))
    for _ in range(4):
        parcel = deliveries.begin(now)
        assert offsets_in(parcel) == [1, 2]
        deliveries.failed("no right", now, is_final=False, is_denied=True)
        now += LONGEST_PAUSE


def test_a_slow_failure_is_not_enough_to_give_up():
    """Two failures may be far apart; the job goes on until the third one."""
    deliveries = Deliveries("outputs", 5.0, gives_up=True)
    deliveries.add(letters_of([1]))
    for at, now in ((0.0, 1.0), (2.0, 30.0)):
        assert deliveries.begin(at)
        deliveries.failed("away", now, is_final=False)
    assert not deliveries.refused
    assert deliveries.begin(60.0)
    deliveries.failed("away", 60.0, is_final=False)
    assert deliveries.refused


def test_a_parcel_that_fits_is_not_divided():
    """Nothing is left of it; else its letters go with their offsets."""
    parcel = letters_of([1, 2])
    assert parcel.divided({TP: OffsetRanges()})[0] is parcel
    assert not parcel.divided({TP: OffsetRanges()})[1]
    now, later = parcel.divided({TP: OffsetRanges([(2, 2)])})
    assert (offsets_in(now), offsets_in(later)) == ([1], [2])


def test_a_lane_waits_for_all_its_rows_and_then_goes_on():
    """Also where its rows are written in another order, and a lower record is not done."""
    p = make_partition(
        0, "t", 0, stable=0, committed=OffsetRanges(), slots=[(0, (KeyRange(),))],
        ordering="key", whole=True,
    )  # fmt: skip
    p.ledger.end = 10
    assert plan_batch([p], [0], 0.0, Limits(100, 100))
    done = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    failed = [Failure(0, 77, b"k", 1, 50.0, "not yet")]
    p.slots.reported(
        0, PartitionReport(done=pack_offsets(pa.array(done, pa.int64())), failed=failed), 0.0
    )
    rows = OffsetRanges([(2, 2), (4, 4)])
    p.ledger.defer(rows)
    assert not p.ledger.to_commit & rows
    p.hold_back(Waiting(o, 9, 0, math.inf, "away", is_undelivered=True) for o in (2, 4))
    assert (p.ledger.first_open(), p.supply.parked) == (0, [])
    p.ledger.end = 20
    assert plan_batch([p], [0], 1.0, Limits(100, 100))
    p.slots.reported(0, PartitionReport(blocked=[(11, 9)], done=pack_offsets(
        pa.array([10, *range(12, 20)], pa.int64()))), 1.0)  # fmt: skip
    assert not p.is_drained
    for written in (4, 2):
        assert plan_batch([p], [0], 2.0, Limits(100, 100)) is None, "11 waits for 2 and 4"
        p.commit_answered(OffsetRanges([(written, written)]), 0, OffsetRanges())
    assert 2 in p.ledger.done
    plan = plan_batch([p], [0], 2.0, Limits(100, 100))
    assert plan is not None
    assert plan.wanted[0].pairs() == [(11, 11)]
    assert not p.ledger.undelivered


class Unreliable(World):
    """A world in which some records give rows, and whose destination does not take all of them."""

    def __init__(self, *args, giving, bad, **kwargs):
        self.giving = giving
        self.bad = bad
        self.is_away = False
        self.written = set()
        super().__init__(*args, **kwargs)

    def start(self):
        """Begin from what was committed: rows that are not written are lost with the process."""
        super().start()
        self.deliveries = Deliveries("rows", 10.0)
        self.under_way = None

    def handler(self, record):
        """No record starts behind one of its lane that is held back."""
        partition = self.partitions[record.partition]
        lane = partition.lanes.lane(self.dealt(record.partition, record.offset), record.offset)
        for share in partition.cursors.values():
            for waiting in share.waiting.records(lane) if lane in share.waiting.lowest else ():
                if waiting.is_undelivered and waiting.offset < record.offset:
                    self.breaks.append(f"{record.offset} started behind {waiting.offset}")
        return super().handler(record)

    def dealt(self, part, offset):
        """The hash that a record is dealt by."""
        key = self.logs[part][offset]
        return offset_hash(offset) if key is None else key_hash(key)

    def deliver(self, slot, *, lost):
        """What a slot did is known."""
        with self.deferring():
            super().deliver(slot, lost=lost)

    def progress(self, slot, data):
        """What a slot has done so far is known."""
        with self.deferring():
            super().progress(slot, data)

    def end_stuck(self, number, *, lost):
        """What a slot did after it gave its other records back is known."""
        with self.deferring():
            super().end_stuck(number, lost=lost)

    @contextlib.contextmanager
    def deferring(self):
        """What gives rows is not committed before they are written."""
        before = {p.index: p.ledger.to_commit for p in self.partitions}
        yield
        for p in self.partitions:
            new = (p.ledger.to_commit - before[p.index]).offsets().tolist()
            giving = {o: self.dealt(p.index, o) for o in new if (p.index, o) in self.giving}
            if giving:
                p.ledger.defer(OffsetRanges.from_offsets(list(giving)))
                self.deliveries.add(rows_of(p.index, giving))
        self.show()

    def show(self):
        """Hold back what cannot be written."""
        for parcel in self.deliveries.to_show(self.now):
            for (_, part), records in parcel.records().items():
                self.partitions[part].hold_back(
                    Waiting(r.offset, r.key_hash, r.attempts, math.inf, parcel.error,
                            is_undelivered=not parcel.is_refused)
                    for r in records
                )  # fmt: skip
                for r in records:
                    shown = Pending(r.offset, r.key_hash, r.attempts, int(self.now * 1000))
                    self.pending[part][r.offset] = (
                        r.offset, shown.key_hash, shown.attempts, self.now, parcel.error
                    )  # fmt: skip

    def commit(self):
        """Commit what gave nothing; go on with what is to be written."""
        super().commit()
        for part, offset in self.giving - self.written:
            log = self.committed[part]
            assert log.stable_offset <= offset, f"{offset} is committed, and not its rows"
            assert offset not in log.ranges, f"{offset} is committed, and not its rows"
        if self.under_way is None:
            self.under_way = self.deliveries.begin(self.now)
        else:
            self.end()
        self.show()

    def end(self):
        """The destination answers."""
        parcel, self.under_way = self.under_way, None
        places = {(tp[1], o) for tp, r in parcel.places().items() for o in r.offsets().tolist()}
        if self.is_away:
            self.deliveries.failed("away", self.now, is_final=False)
        elif places & self.bad:
            self.deliveries.failed("too large", self.now, is_final=True)
        else:
            self.deliveries.delivered()
            self.written |= places
            for (_, part), offsets in parcel.places().items():
                p = self.partitions[part]
                self.committed[part].amend(offsets)
                p.commit_answered(offsets, self.committed[part].stable_offset, OffsetRanges())
                for offset in offsets.offsets().tolist():
                    self.pending[part].pop(offset, None)

    def step(self, what, data, *, rough, **more):
        """The destination comes and goes; in the end it is there."""
        self.is_away = rough and data.draw(st.booleans())
        super().step(what, data, rough=rough, **more)


@st.composite
def unreliable_worlds(draw):
    """Worlds in which many records give rows, and a few of these are never taken."""
    logs = {}
    for part in range(draw(st.integers(1, 2))):
        offsets = draw(st.lists(st.integers(0, 40), max_size=25, unique=True))
        logs[part] = {offset: draw(keys) for offset in sorted(offsets)}
    every = [(p, o) for p, log in logs.items() for o in log]
    some = st.lists(st.sampled_from(every), max_size=20) if every else st.just([])
    giving = set(draw(some))
    return Unreliable(
        logs,
        {at: draw(st.integers(1, 3)) for at in draw(some)[:4]},
        slots=draw(st.integers(1, 3)),
        ordering=draw(st.sampled_from(["key", "key", "partition", "none"])),
        concurrency=draw(st.sampled_from([1, 1, 3])),
        policy=RetryPolicy(backoff=1.0, jitter=0),
        giving=giving,
        bad={at for at in giving if draw(st.integers(0, 5)) == 0},
    )


@given(unreliable_worlds(), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_destination_holds_back_its_own_records_alone(world, data):
    """Whatever it refuses: order holds, nothing is lost, and all but the refused keys go on."""
    world.run(data, 600)
    for step in range(600):
        world.step("ldcw"[step % 4], data, rough=False)
        left = world.under_way or world.deliveries.is_moving(world.now)
        at_rest = all(p.is_drained and not p.ledger.to_commit for p in world.partitions)
        if at_rest and not (left or world.deliveries.is_in_trouble(world.now)):
            break
    else:
        raise AssertionError("the world did not come to rest")
    assert not world.breaks
    for p in world.partitions:
        held = [o for q, o in world.bad if q == p.index]
        lanes = {p.lanes.lane(world.dealt(p.index, o), o): o for o in sorted(held, reverse=True)}
        for offset in world.logs[p.index]:
            at = (p.index, offset)
            is_done = offset < p.ledger.stable or offset in world.committed[p.index].ranges
            first = lanes.get(p.lanes.lane(world.dealt(*at), offset), offset + 1)
            if at in world.bad:
                assert not is_done
                # One behind a record of its lane that was refused may never have started.
                assert offset > first or offset in world.pending[p.index]
            elif offset < first:
                assert is_done, f"{at} is held back by nothing"
        if not held:
            assert p.ledger.stable >= world.ends[p.index]
            continue
        blocker = p.blocker(0.0)
        assert blocker is not None
        assert (blocker["offset"], blocker["state"]) == (min(held), "parked")
        assert blocker["error"] == "too large"
