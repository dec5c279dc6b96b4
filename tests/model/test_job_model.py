"""A job's loop without Kafka and Spark: hand-over, lost tasks, waits, the order of writes."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from assignors import KeyRange
from coopconsume.errors import DataLoss, NotAuthorized, OutputNotWritten, OutputRefused
from coopconsume.group.owned import LEASE
from coopconsume.record import Reject
from tests.model.job_world import _PATIENCE, TP, Gate, World, until

KEYS = {offset: b"k%d" % (offset % 5) for offset in range(20)}


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return what makes a world; its jobs are ended with the test."""
    made = []

    def make(keys=KEYS, **options):
        made.append(World(monkeypatch, tmp_path, keys, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_hand_over_waits_for_running_handlers_and_commits_them(world):
    """Nothing starts any more, what runs ends and counts, and the next owner need not wait."""
    there = world(drainTimeout="300 seconds")
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    there.kafka.log |= {offset: b"new%d" % offset for offset in range(20, 50)}
    handing_over = threading.Thread(target=member.hand_over)
    handing_over.start()
    until(lambda: job._hand_over is not None or not handing_over.is_alive())
    there.kafka.end = 50
    until(lambda: not handing_over.is_alive() or job.partitions[0].end == 50)
    there.turns(job)
    gate.opened.set()
    handing_over.join(120)
    assert {offset for offset, _ in gate.calls} == there.done(member) == set(range(20))
    after = there.claim()
    assert after.holding.waits(TP, [KeyRange()]) <= 0


def test_what_a_hand_over_gives_up_is_in_doubt_and_done_again(world):
    """It is late: the release names the slot, its work does not count, and the next owner waits."""
    there = world(drainTimeout="0 seconds")
    member, gate = there.claim(), there.gate(3)
    there.run(member, gate)
    there.until(lambda: gate.at_work)
    member.hand_over()
    assert 3 not in there.done(member)
    after = there.claim()
    assert after.holding.waits(TP, [KeyRange()]) > 0
    gate.opened.set()


@pytest.mark.parametrize("batches", [1, 2])
def test_work_of_a_lost_task_is_done_again_and_nothing_counts_without_a_handler(world, batches):
    """A batch that fails before any handler was called: its slots wait for its life, and begin."""
    there = world(batchTime="0.2 seconds", handlerTimeout="0.2 seconds")
    there.failures = [RuntimeError("executor lost")] * batches
    member, gate = there.claim(), there.gate()
    there.run(member, gate)
    there.until(lambda: there.done(member) >= set(range(20)))
    assert {offset for offset, _ in gate.calls} == set(range(20))


@pytest.mark.parametrize("fail", [True, False])
def test_retention_that_outruns_batches_does_not_end_a_job_that_may_lose_records(world, fail):
    """Each batch finds its first offsets deleted: the job goes on from where the log begins."""
    there = world(batchTime="0.1 seconds", handlerTimeout="0.1 seconds", failOnDataLoss=fail)
    there.kafka.retention = [2, 4, 6, 8, 10]
    member, gate = there.claim(), there.gate()
    job = there.run(member, gate)
    until(lambda: there.done(member) >= set(range(20)) or job.ended.is_set())
    if fail:
        assert isinstance(job.error, DataLoss)
        assert (job.error.first, job.error.last) == (0, 1)
    else:
        assert job.error is None
        assert {offset for offset, _ in gate.calls} == set(range(10, 20))


def test_the_next_owner_waits_for_the_life_of_a_batch(world):
    """What its former owner did not hand over may still be at work: no handler starts before."""
    there = world(batchTime="0.3 seconds", handlerTimeout="0.3 seconds")
    first = there.claim()
    second = there.claim(takeover=True)
    wait = second.holding.waits(TP, [KeyRange()])
    claimed = second.holding._seen
    assert wait > 0
    gate = there.gate()
    job = there.run(second, gate)
    told = until(lambda: job._meter.recent)[0]
    assert 0 < told["partitions"][0]["inDoubtSeconds"] <= wait + 0.1
    assert "until" in job._meter.message or there.done(second)
    there.until(lambda: there.done(second) == set(range(20)))
    assert min(at for _, at in gate.calls) >= claimed + 0.6 + LEASE - 0.1
    first.lost("it was taken over")


class Watching:
    """A sink that looks at the commit log as it is written to."""

    topic = None
    hears_all = False
    schema = pa.schema([("text", pa.string())])

    def __init__(self, member, there):
        self.seen = []
        self._done = lambda: there.done(member)

    def append(self, letters, _topic_ids, commit_id):
        """Dead letters."""
        done = self._done()
        self.seen += [(letter.offset, letter.offset in done, commit_id) for letter in letters]

    def write(self, outputs):
        """Rows."""
        done = self._done()
        rows = outputs.table(self.schema)
        for offset in rows.column("_offset").to_pylist():
            self.seen.append((offset, offset in done, outputs.commit_id))

    def close(self):
        """Nothing is open."""


def test_a_dead_letter_is_there_before_its_record_counts_as_done(world):
    """So no kill in between loses it; and the commit that it stands with is the one that counts."""
    there = world()
    member = there.claim()
    sink = Watching(member, there)

    def handler(record):
        if record.offset % 7 == 3:
            raise Reject("no")

    there.run(member, handler, dead_letters=sink)
    there.until(lambda: there.done(member) == set(range(20)))
    assert {offset for offset, _, _ in sink.seen} == {3, 10, 17}
    assert not any(counted for _, counted, _ in sink.seen)
    counted = member.store.counted_commits("g")
    assert all(commit in counted for _, _, commit in sink.seen)


def test_an_output_row_is_there_before_its_record_counts_as_done(world):
    """As with dead letters: a row stands or falls with the commit that it names."""
    there = world()
    member = there.claim()
    sink = Watching(member, there)
    there.run(member, lambda record: {"text": str(record.offset)}, outputs=sink)
    there.until(lambda: there.done(member) == set(range(20)))
    assert sorted(offset for offset, _, _ in sink.seen) == list(range(20))
    assert not any(done for _, done, _ in sink.seen)
    counted = member.store.counted_commits("g")
    assert all(commit in counted for _, _, commit in sink.seen)


class Unreliable:
    """A place for dead letters that hangs, is away, or never takes some of them."""

    topic = None

    def __init__(self, *, hangs=False, away=False, denied=False, never=()):
        self.back = threading.Event()
        self.hangs, self.away, self.denied, self.never = hangs, away, denied, set(never)
        self.written = []
        self.refusals = 0

    def append(self, letters, topic_ids, commit_id):
        """Take them, or not."""
        offsets = [letter.offset for letter in letters]
        if self.hangs:
            assert self.back.wait(_PATIENCE)
        elif self.away and not self.back.is_set():
            raise OutputNotWritten("dead letters", "the far place", "no route")
        if self.denied and not self.back.is_set():
            self.refusals += 1
            raise NotAuthorized("WRITE", "TOPIC", "letters", "joe")
        if self.never.intersection(offsets):
            raise OutputRefused("dead letters", "the far place", f"{offsets} are too large")
        self.written += offsets

    def close(self):
        """Nothing is open."""


class Rejecting(Gate):
    """A handler that rejects some records; it notes its calls."""

    def __init__(self, *rejected):
        super().__init__()
        self.rejected = rejected

    def __call__(self, record):
        super().__call__(record)
        if record.offset in self.rejected:
            raise Reject("no")


def pending_of(member):
    """The error of each pending record, as the commit log has it."""
    return {o: p.error for o, p in member.store.pending("g").get(TP, {}).items()}


@pytest.mark.parametrize("hangs", [True, False])
def test_a_destination_that_does_not_answer_stops_no_commit(world, hangs):
    """Its own records and their keys wait; no handler is called twice; in the end all is done."""
    there = world(batchTime="2 seconds" if hangs else "300 seconds")
    member, handler = there.claim(), Rejecting(3, 10)
    sink = Unreliable(hangs=hangs, away=not hangs)
    there.run(member, handler, dead_letters=sink)
    there.until(lambda: there.done(member) == set(range(20)) - {3, 10})
    there.until(lambda: set(pending_of(member)) == {3, 10})
    told = "dead letters have not been written" if hangs else "the far place (no route)"
    assert all(told in error for error in pending_of(member).values())
    # Keys k0 and k3 wait, the others go on.
    there.kafka.log |= {offset: b"k%d" % (offset % 5) for offset in range(20, 30)}
    there.kafka.end = 30
    waiting = {20, 23, 25, 28}
    there.until(lambda: there.done(member) == set(range(30)) - {3, 10} - waiting)
    assert not waiting & {offset for offset, _ in handler.calls}
    assert not sink.written
    sink.back.set()
    there.until(lambda: there.done(member) == set(range(30)))
    assert sorted(offset for offset, _ in handler.calls) == list(range(30))
    assert sorted(sink.written) == [3, 10]
    assert not pending_of(member)


def test_a_missing_right_is_reported_once_and_holds_back_its_own_records(
    world, caplog, monkeypatch
):
    """The error is in the commit log; once the right is granted all is done."""
    monkeypatch.setattr("coopconsume.job.deliveries.LONGEST_PAUSE", 0.05)
    there = world()
    member, sink = there.claim(), Unreliable(denied=True)
    there.run(member, Rejecting(3), dead_letters=sink)
    there.until(lambda: there.done(member) == set(range(20)) - {3})
    there.until(lambda: "joe" in pending_of(member).get(3, ""))
    there.until(lambda: sink.refusals > 2)
    assert sum("cannot be written" in record.message for record in caplog.records) == 1
    sink.back.set()
    there.until(lambda: there.done(member) == set(range(20)))


def test_a_missing_right_ends_a_job_that_is_to_end(world):
    """After everything else is done, with the error of the first attempt."""
    there = world()
    member, sink = there.claim(), Unreliable(denied=True)
    job = there.run(member, Rejecting(3), dead_letters=sink, available_now=True)
    until(job.ended.is_set)
    assert isinstance(job.error, NotAuthorized)
    assert sink.refusals == 1
    assert there.done(member) == set(range(20)) - {3}


def test_what_is_held_back_passes_to_the_next_owner(world):
    """A hand-over waits for no destination; the next owner does what was pending, and no more."""
    there = world()
    member, handler = there.claim(), Rejecting(3, 10)
    there.run(member, handler, dead_letters=Unreliable(away=True))
    there.until(lambda: set(pending_of(member)) == {3, 10})
    there.until(lambda: there.done(member) == set(range(20)) - {3, 10})
    member.hand_over()
    after, again, sink = there.claim(), Rejecting(3, 10), Unreliable()
    there.run(after, again, dead_letters=sink)
    there.until(lambda: there.done(after) == set(range(20)))
    assert sorted(offset for offset, _ in again.calls) == sorted(sink.written) == [3, 10]


def test_what_is_never_taken_is_parked_and_ends_a_job_that_is_to_end(world):
    """Found among others by halves; those are written, and the job says what is left."""
    there = world()
    member, handler = there.claim(), Rejecting(3, 6, 10, 14)
    sink = Unreliable(never=[10])
    job = there.run(member, handler, dead_letters=sink, available_now=True)
    until(job.ended.is_set)
    assert isinstance(job.error, OutputRefused)
    assert "[10] are too large" in str(job.error)
    assert there.done(member) == set(range(20)) - {10}
    assert set(sink.written) == {3, 6, 14}
    assert "[10] are too large" in pending_of(member)[10]
    assert len(handler.calls) == 20
