"""Jobs of a cooperative epoch without Kafka and Spark: who acquires what, and what comes back."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from assignors import Share
from commits import AcquireRequest, OffsetRanges, Wanted
from coopconsume.group.owned import EpochGrant
from coopconsume.record import Reject, RetryPolicy
from coopconsume.runtime import trace
from coopconsume.runtime.decisions import Decision, decide, decided, record_decisions
from coopconsume.runtime.plan.chunk_sizes import ChunkSizes
from tests.model.job_world import TP, Calls, until
from tests.replay import runs

COUNT = 600
#: Records without keys, and two holes.
LOG = {offset: None for offset in range(COUNT) if offset not in (7, 300)}


@pytest.fixture
def world(world):
    """Return what makes a world of cooperative members."""
    return lambda keys=LOG, **options: world(keys, channel=True, sharing="cooperative", **options)


def test_a_job_handles_each_record_once(world):
    """Holes are found, and nothing is left."""
    there = world()
    (member,) = there.cooperate("a")
    calls = Calls()
    there.run(member, calls, ordering="none")
    there.until(lambda: there.done(member) == set(range(COUNT)))
    assert calls.count == dict.fromkeys(LOG, 1)


def test_members_share_a_partition_without_keys(world):
    """Each offset goes to one of them, and both get some."""
    there = world(maxOffsetsPerTrigger=20)
    one, other = there.cooperate("a", "b")
    calls, others = Calls(), Calls()

    def handler(mine, theirs):
        def handle(record):
            mine(record)
            until(lambda: theirs.calls)

        return handle

    there.run(one, handler(calls, others), ordering="none")
    there.run(other, handler(others, calls), ordering="none")
    there.until(lambda: there.done(one) == set(range(COUNT)))
    assert calls.count + others.count == dict.fromkeys(LOG, 1)
    assert min(len(calls.calls), len(others.calls)) > 0


def test_a_stuck_member_holds_back_its_own_chunk_alone(world):
    """The other one goes on with all the rest, and with what comes later."""
    there = world(maxOffsetsPerTrigger=100)
    one, other = there.cooperate("a", "b")
    gate, calls = there.gate(3), Calls()
    there.run(one, gate, ordering="none")
    there.until(lambda: gate.at_work)
    held = one.store.acquisitions("g")[TP]
    mine = {o for chunk in held if chunk.member == "a" for o in chunk.offsets.offsets().tolist()}
    assert len(mine) < COUNT / 2
    there.run(other, calls, ordering="none")
    there.until(lambda: there.done(one) >= set(range(COUNT)) - mine)
    gate.opened.set()
    there.until(lambda: there.done(one) == set(range(COUNT)))
    assert calls.count + Counter(offset for offset, _ in gate.calls) == dict.fromkeys(LOG, 1)


@pytest.mark.parametrize(("names", "is_kept"), [("a", False), ("ab", True)])
def test_what_only_one_member_wanted_goes_to_those_that_join(world, names, is_kept):
    """It begins with all there is, and hands it over if its slots are slow; else it keeps on."""
    count = 8_000
    there = world(dict.fromkeys(range(count)))
    member, *_ = there.cooperate(*names)
    gate = there.gate(3, 150, count // 2 + 3)  # One in each slice.
    there.run(member, gate, ordering="none")
    there.until(lambda: len(gate.at_work) == 2)
    held = sum(len(chunk.offsets) for chunk in member.store.acquisitions("g")[TP])
    assert (held == count) is not is_kept
    assert member.owner.continue_work() is is_kept


def test_a_failed_record_is_tried_again_by_any_member(world):
    """Its attempts are counted over members, and it waits for its time."""
    there = world()
    one, other = there.cooperate("a", "b")
    lock, attempts = threading.Lock(), {}

    def handler(record):
        with lock:
            attempts.setdefault(record.offset, []).append(record.attempt)
        if record.offset % 100 == 5 and record.attempt < 4:
            raise RuntimeError("not yet")

    first = there.run(one, handler, ordering="none", policy=RetryPolicy(backoff=0.05, jitter=0))
    there.until(lambda: 5 in attempts)
    there.run(other, handler, ordering="none", policy=RetryPolicy(backoff=0.05, jitter=0))
    first.stop()
    there._jobs.remove(first)
    there.until(lambda: there.done(other) == set(range(COUNT)))
    failing = {offset for offset in LOG if offset % 100 == 5}
    assert {o: n for o, n in attempts.items() if n != [1]} == {
        offset: [1, 2, 3, 4] for offset in failing
    }
    assert not other.store.pending("g").get(TP)


class Pair:
    """Two members; the first one runs a slow job, and its first records are handled."""

    def __init__(self, there):
        self.there = there
        self.one, self.other = there.cooperate("a", "b")
        self.calls, self.others = Calls(), Calls()
        self.job = there.run(self.one, self._slowly, ordering="none")
        there.until(lambda: self.calls.calls)

    def _slowly(self, record):
        self.calls(record)
        time.sleep(0.002)

    def finish(self):
        """Has the second member do what the first one has not."""
        self.there.run(self.other, self.others, ordering="none")
        self.there.until(lambda: self.there.done(self.one) == set(range(COUNT)))
        assert self.count == dict.fromkeys(LOG, 1)

    @property
    def count(self):
        return self.calls.count + self.others.count


def test_what_a_paused_job_has_not_started_goes_to_others(world):
    """Its chunks are returned once nothing runs; resumed, it takes part again."""
    there = world()
    pair = Pair(there)
    pair.job.pause()
    pair.finish()
    pair.job.resume()
    there.kafka.log |= dict.fromkeys(range(COUNT, 2 * COUNT))
    there.kafka.end = 2 * COUNT
    there.until(lambda: there.done(pair.one) == set(range(2 * COUNT)))
    assert set(pair.count.values()) == {1}


def test_a_job_that_stops_returns_what_it_has_not_started(world):
    """Its member stays in the group without a job."""
    there = world()
    pair = Pair(there)
    pair.job.stop()
    there._jobs.remove(pair.job)
    assert pair.one.store.acquisitions("g") == {}
    pair.finish()


def test_chunks_of_a_member_that_is_gone_come_back_after_its_handlers_have_ended(world, watch):
    """Not before: until then nobody knows whether they still run."""
    there = world()
    one, other = there.cooperate("a", "b")
    gone = one.store
    epoch, life = gone.current_epoch("g"), one._life.ms
    request = AcquireRequest("lost", {TP: Wanted(100, COUNT - 1)})
    assert gone.acquire("g", epoch, "a", request)[TP] == OffsetRanges([(0, 99)])
    calls = Calls()
    job = there.run(other, calls, ordering="none")
    there.until(lambda: there.done(one) == set(range(100, COUNT)))
    watch.goes_on(2 * life / 1000)
    assert there.done(one) == set(range(100, COUNT)), "the member is in its group"
    ids = {"t": there.kafka.topic_id}
    assert other.owner.continue_work()
    epoch = gone.open_epoch(
        "g", {"b": [TP]}, previous=epoch, topic_ids=ids, sharing="cooperative", life_ms=life,
        continues={"b": epoch.number},
    )  # fmt: skip
    other.owner.assigned(EpochGrant(epoch, "b", (Share(*TP),), ids, life_ms=life, continues=True))
    there.until(lambda: job._epoch_state.assignment.epoch == epoch)
    watch.goes_on()
    assert there.done(one) == set(range(100, COUNT)), "its handlers may still run"
    watch.goes_on(life / 1000)
    there.until(lambda: there.done(one) == set(range(COUNT)))
    assert calls.count == dict.fromkeys(LOG, 1)


@pytest.mark.parametrize(("ends", "notes"), [("killed", 10), ("closed", 1)])
def test_members_that_live_for_less_than_a_batch_return_chunks_together(
    world, watch, monkeypatch, ends, notes
):
    """They note now and then, and as they leave, for how long they have watched a chunk."""
    monkeypatch.setattr("commits.watch._NOTES", notes)
    there = world()
    (one,) = there.cooperate("a")
    life = one._life.ms / 1000
    request = AcquireRequest("lost", {TP: Wanted(100, COUNT - 1)})
    one.store.acquire("g", one.store.current_epoch("g"), "a", request)
    calls = Calls()
    for name in "bcd":
        (member,) = there.cooperate(name)
        job = there.run(member, calls, ordering="none")
        there.until(lambda member=member: there.done(member) >= set(range(100, COUNT)))
        watch.goes_on()
        assert there.done(member) == set(range(100, COUNT)), "its handlers may still run"
        watch.goes_on(0.4 * life)
        if name != "d":
            job.stop()
            there._jobs.remove(job)
            if ends == "closed":
                member.assignment.release()
    there.until(lambda: there.done(member) == set(range(COUNT)))
    assert calls.count == dict.fromkeys(LOG, 1)


def size_of(pairs):
    """How many offsets are in some ranges."""
    return sum(last - first + 1 for first, last in pairs)


def test_slices_are_sized_by_what_is_acquired(world, monkeypatch):
    """So that no tail is left for a batch of its own, see `ChunkSizes.of_batch`."""
    acquired, of_batch = [], ChunkSizes.of_batch

    def noting(sizes, slots, there, window):
        acquired.append(there)
        return of_batch(sizes, slots, there, window)

    monkeypatch.setattr(ChunkSizes, "of_batch", noting)
    there = world()
    (member,) = there.cooperate("a")
    there.run(member, Calls(), ordering="none")
    there.until(lambda: there.done(member) == set(range(COUNT)))
    assert max(acquired) == COUNT


def test_a_batch_waits_for_the_chunks_that_its_slots_are_about_to_get(world, monkeypatch, tmp_path):
    """Once slots have shown their speed, none of them works on leftovers of a smaller chunk."""
    path = tmp_path / "trace"
    monkeypatch.setenv(trace.VARIABLE, str(path))
    monkeypatch.setattr(ChunkSizes, "reported", lambda sizes, one, _: sizes.set(one.slot, 2_000))
    monkeypatch.setattr(
        ChunkSizes, "set", lambda sizes, *one: sizes._sizes.update([one]), raising=False
    )
    count = 8_000
    there = world(dict.fromkeys(range(count)))
    member, _ = there.cooperate("a", "b")
    there.run(member, Calls(), ordering="none")
    there.until(lambda: there.done(member) == set(range(count)))
    (lines,) = runs(path.read_text())
    acquired, sizes = 0, []
    for line in lines:
        if line["kind"] == "CommitAnswered" and line["acquired"]:
            acquired += sum(size_of(some) for some in line["acquired"]["offsets"].values())
        if line["kind"] == "BatchStarted" and acquired < count:  # The last ones have what is left.
            sizes += [size_of(work["0"]["ranges"]) for work in line["plan"]["work"].values()]
    assert sizes[:2] == [100, 100]
    assert min(sizes[2:]) > 500


class Letters:
    """Takes dead letters of all members."""

    def __init__(self):
        self.lock = threading.Lock()
        self.offsets = []

    def append(self, letters, _topic_ids, _commit_id):
        """Takes them."""
        with self.lock:
            self.offsets.extend(letter.offset for letter in letters)

    def close(self):
        """Nothing is open."""


def test_a_record_that_is_given_up_counts_with_its_letter(world):
    """Of two members each writes the letters of what it has rejected."""
    there = world()
    one, other = there.cooperate("a", "b")
    letters = Letters()

    def handler(record):
        if record.offset % 50 == 1:
            raise Reject("no")

    for member in (one, other):
        there.run(member, handler, ordering="none", dead_letters=letters)
    there.until(lambda: there.done(one) == set(range(COUNT)))
    assert sorted(letters.offsets) == [offset for offset in sorted(LOG) if offset % 50 == 1]


def test_parked_records_hold_back_no_other_and_wait_for_a_decision(world):
    """Any member parks them; then they are nobody's, and a job with availableNow ends.

    A decision is taken once, and any member tries again what is replayed, from its first attempt.
    """
    there = world()
    members = there.cooperate("a", "b")
    letters, lock, attempts, is_mended = Letters(), threading.Lock(), {}, threading.Event()
    rejected = {offset for offset in LOG if offset % 50 == 1}
    hopeless = {offset for offset in LOG if offset % 100 == 3}

    def handler(record):
        with lock:
            attempts.setdefault(record.offset, []).append(record.attempt)
        if record.offset in rejected and not is_mended.is_set():
            raise Reject("no")
        if record.offset in hopeless and not is_mended.is_set():
            raise RuntimeError("no luck")

    def run(**how):
        policy = RetryPolicy(max_attempts=2, backoff=0.01, jitter=0)
        how |= {"dead_letters": letters, "park": True, "policy": policy}
        return [there.run(member, handler, ordering="none", **how) for member in members]

    parked = rejected | hopeless
    for job in run(available_now=True):
        assert job.ended.wait(120)
        assert job.error is None
        assert job._meter.recent[-1]["partitions"][0]["parked"] == len(parked)
        there._jobs.remove(job)
    store = members[0].store
    assert there.done(members[0]) == set(range(COUNT)) - parked
    assert store.acquisitions("g") == {}
    pending = store.pending("g")[TP]
    assert {offset: one.attempts for offset, one in pending.items() if one.is_parked} == {
        offset: 1 if offset in rejected else 2 for offset in parked
    }
    assert sorted(letters.offsets) == sorted(parked)
    run()
    is_mended.set()
    decide(store, "g", [Decision(*TP, offset, "replay") for offset in rejected])
    decide(store, "g", [Decision(*TP, offset, "discard") for offset in hopeless])
    there.until(lambda: there.done(members[0]) == set(range(COUNT)))
    assert {offset: attempts[offset] for offset in parked} == {
        offset: [1, 1] if offset in rejected else [1, 2] for offset in parked
    }
    assert not store.pending("g").get(TP)
    there.until(lambda: not decided(store, "g", ["t"]))
    assert sorted(letters.offsets) == sorted(parked)


def test_failed_chunks_are_decided_on_while_members_work(world):
    """A decision ends the back-off of an hour, whichever member acquires the record."""
    retried, skipped, parked = 3, 44, 90
    there = world(maxOffsetsPerTrigger=20)
    members = there.cooperate("a", "b")
    calls, letters = Calls(), Letters()

    def handler(record):
        calls(record)
        if record.offset in (skipped, parked) or (record.offset == retried and record.attempt == 1):
            raise RuntimeError("no luck")

    policy = RetryPolicy(backoff=3_600, max_backoff=3_600, jitter=0)
    for member in members:
        there.run(member, handler, ordering="none", policy=policy, dead_letters=letters)
    store, failed = members[0].store, {retried, skipped, parked}
    there.until(lambda: there.done(members[0]) == set(range(COUNT)) - failed)
    there.until(lambda: store.pending("g")[TP].keys() == failed)
    actions = {retried: "retry", skipped: "skip", parked: "park"}
    decide(store, "g", [Decision(*TP, at, action, attempts=1) for at, action in actions.items()])
    there.until(lambda: there.done(members[0]) == set(range(COUNT)) - {parked})
    there.until(lambda: store.pending("g")[TP][parked].is_parked)
    there.until(
        lambda: (
            {one.offset: one.status for one in record_decisions(store, "g", ["t"])}
            == {retried: "done", skipped: "done", parked: "parked"}
        )
    )
    assert {at: len(calls.attempts[at]) for at in failed} == {retried: 2, skipped: 1, parked: 1}
    assert sorted(letters.offsets) == [skipped, parked]
