"""A job shows the keys of blockers that failed before it began; nothing waits for that."""

from __future__ import annotations

import pytest

from assignors import key_hash
from assignors.ranges import offset_hash
from commits import OffsetRanges, Pending
from commits.model import PARKED_MS
from coopconsume.cli.run import status_line
from coopconsume.record import shown_key
from tests.model.job_world import TP, World

KEYS = {offset: b"k%d" % offset for offset in range(8)}


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return what makes a world in which records of an earlier job are parked."""
    made = []

    def make(*parked, keys=KEYS, kept=False, **options):
        there = World(monkeypatch, tmp_path, keys, **options)
        made.append(there)
        before = there.claim()
        pending = [
            Pending(
                o, offset_hash(o) if keys[o] is None else key_hash(keys[o]), 3, PARKED_MS, "no",
                key=shown_key(keys[o]) if kept else None,
            )
            for o in parked
        ]  # fmt: skip
        before.assignment.commit({}, pending={TP: pending}, commit_id="before")
        before.leave()
        return there

    monkeypatch.setattr("coopconsume.runtime.status.blocker_keys._LOOK_EVERY", 0.0)
    yield make
    for one in made:
        one.close()


def blocker(job):
    """The blocker of the partition, as progress has it; nothing before the job has begun."""
    return next((partition.blocker(0.0) for partition in job.partitions), {"key": None})


def test_the_key_of_a_record_that_failed_before_is_read_once(world):
    """The status line has it without another attempt."""
    there = world(1, 4)
    member = there.claim()
    job = there.run(member, lambda _: None)
    there.until(lambda: blocker(job)["key"] == "k1")
    there.until(lambda: there.done(member) == set(KEYS) - {1, 4})
    there.until(lambda: job._meter.recent)
    assert "; t-0@1 key=k1: no (attempt 3, parked, nothing behind" in status_line(
        job._meter.recent[-1], 0.0
    )
    there.turns(job)
    assert there.kafka.blockers_read == [{TP: 1}]


def test_nothing_waits_for_the_record_of_a_blocker(world):
    """Batches and commits go on while Kafka does not answer."""
    there = world(1)
    there.kafka.may_read_blockers.clear()
    member = there.claim()
    job = there.run(member, lambda _: None)
    there.until(lambda: there.kafka.blockers_read)
    there.until(lambda: there.done(member) == set(KEYS) - {1})
    there.turns(job)
    assert (blocker(job)["key"], len(there.kafka.blockers_read)) == (None, 1)
    there.kafka.may_read_blockers.set()
    there.until(lambda: blocker(job)["key"] == "k1")


def test_a_record_that_cannot_be_read_is_tried_again(world, caplog):
    """A failure is no warning."""
    there = world(1)
    there.kafka.blocker_errors.append(RuntimeError("away"))
    with caplog.at_level("DEBUG", "coopconsume.runtime.status.blocker_keys"):
        job = there.run(there.claim(), lambda _: None)
        there.until(lambda: blocker(job)["key"] == "k1")
    assert there.kafka.blockers_read == [{TP: 1}] * 2
    (line,) = [one for one in caplog.records if "away" in one.getMessage()]
    assert line.levelname == "DEBUG"


def test_a_blocker_that_was_compacted_away_is_read_once(world):
    """It is shown by its hash."""
    there = world(1)
    del there.kafka.log[1]
    member = there.claim()
    job = there.run(member, lambda _: None)
    there.until(lambda: there.kafka.blockers_read)
    there.turns(job)
    assert there.kafka.blockers_read == [{TP: 1}]
    assert (blocker(job)["key"], blocker(job)["keyHash"]) == (None, key_hash(b"k1"))


@pytest.mark.parametrize("key", [None, b"k1"])
def test_nothing_is_read_for_what_the_commit_log_says(world, key):
    """It has the key of a failed record; a record without one is dealt by its offset."""
    there = world(1, keys=KEYS | {1: key}, kept=True)
    member = there.claim()
    job = there.run(member, lambda _: None)
    there.until(lambda: there.done(member) == set(KEYS) - {1})
    there.turns(job)
    assert (blocker(job)["key"], there.kafka.blockers_read) == (shown_key(key), [])


@pytest.mark.parametrize("keep", [True, False])
def test_the_row_of_a_record_that_fails_has_its_key_if_it_may(world, keep):
    """It goes with the row."""
    there = world(2, kept=True, keepFailedKeys=keep)
    member = there.claim()
    store = member.store
    assert store.pending("g")[TP][2].key == ("k2" if keep else None)

    def handler(record):
        if record.offset == 1:
            raise ValueError("no")

    there.run(member, handler)
    there.until(lambda: 1 in store.pending("g")[TP])
    assert store.pending("g")[TP][1].key == ("k1" if keep else None)
    member.assignment.commit({TP: OffsetRanges([(1, 1)])}, commit_id="done")
    assert 1 not in store.pending("g")[TP]


def test_with_an_ordering_key_no_record_is_read(world):
    """Its key is another one; the commit log has the ordering key."""
    there = world(1, ordered_by=lambda offset: KEYS[offset])
    member = there.claim()
    job = there.run(member, lambda _: None)
    there.until(lambda: there.done(member) == set(KEYS) - {1})
    there.turns(job)
    assert (blocker(job)["key"], there.kafka.blockers_read) == (None, [])
