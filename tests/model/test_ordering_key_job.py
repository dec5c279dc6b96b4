"""Jobs with ordering keys: order and overlap of records with different keys."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from coopconsume.record import Reject, ordering_key_of
from tests.model.job_world import World
from tests.unit.worker.slot_harness import Together

#: Every record has a key of its own.
KEYS = {offset: b"k%d" % offset for offset in range(60)}


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return what makes a world; its jobs are ended with the test."""
    made = []

    def make(**options):
        made.append(World(monkeypatch, tmp_path, KEYS, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ordered_by(offset):
    """Seven ordering keys, and some records without one."""
    return None if offset % 11 == 0 else b"o%d" % (offset % 7)


class Watched:
    """Fails some records at first; notes the order of calls, and calls of an ordering key at once.

    Args:
        failing: Offsets that fail at the first attempt.
    """

    def __init__(self, failing):
        self.failing = failing
        self.running = Counter()
        self.overlaps = []
        self.done = []
        self.seen = {}
        self.lock = threading.Lock()
        self.dice = random.Random(1)

    def __call__(self, record):
        """Handle a record."""
        by = ordering_key_of(record.headers)
        with self.lock:
            self.running[by] += 1
            if by is not None and self.running[by] > 1:
                self.overlaps.append(record.offset)
            self.seen[record.offset] = (record.key, by)
            wait = self.dice.random() / 500
        time.sleep(wait)
        with self.lock:
            self.running[by] -= 1
            if record.offset in self.failing and record.attempt == 1:
                raise RuntimeError("at first")
            self.done.append(record.offset)


@pytest.mark.parametrize("seed", range(4))
def test_records_of_an_ordering_key_never_overlap_and_keep_their_order(world, seed):
    """Their keys differ; each handler sees the key of its record, and the ordering key."""
    dice = random.Random(seed)
    there = world(ordered_by=ordered_by, channel=bool(seed % 2))
    handler = Watched(frozenset(dice.sample(range(60), 8)))
    member = there.claim()
    there.run(member, handler, concurrency=8)
    there.until(lambda: there.done(member) == set(KEYS))
    assert handler.overlaps == []
    assert sorted(handler.done) == sorted(KEYS)
    for key in {ordered_by(offset) for offset in KEYS} - {None}:
        own = [offset for offset in handler.done if ordered_by(offset) == key]
        assert own == sorted(own)
    assert handler.seen == {offset: (KEYS[offset], ordered_by(offset)) for offset in KEYS}


def test_records_without_an_ordering_key_have_no_order_to_keep(world):
    """As records without a key: two of them run at once, though their keys are equal."""
    there = world(ordered_by=lambda _: None)
    both = Together(2)
    at_work, lock = [0], threading.Lock()

    def handler(_record):
        with lock:
            at_work[0] += 1
            now = at_work[0]
        both.wait(now)

    member = there.claim()
    there.run(member, handler, concurrency=2)
    there.until(lambda: there.done(member) == set(KEYS))
    assert at_work[0] == 60


def test_a_parked_record_holds_the_records_of_its_ordering_key(world):
    """Its dead letter has the key of the record; the blocker is shown by its ordering key."""
    there = world(ordered_by=ordered_by)
    letters = Letters()

    def handler(record):
        if record.offset == 1:
            raise Reject("no")

    member = there.claim()
    job = there.run(member, handler, dead_letters=letters, park=True)
    waiting = {offset for offset in KEYS if ordered_by(offset) == b"o1"}
    there.until(lambda: there.done(member) == set(KEYS) - waiting)
    (letter,) = letters.all
    assert (letter.key, ordering_key_of(letter.headers)) == (b"k1", b"o1")

    def parked():
        found = job._meter.recent[-1]["partitions"][0]["blocker"] if job._meter.recent else None
        return found if found and found["state"] == "parked" else None

    there.until(parked)
    assert (parked()["offset"], parked()["key"]) == (1, "o1")


class Letters:
    """A sink of dead letters."""

    def __init__(self):
        self.all = []

    def append(self, letters, _topic_ids, _commit_id):
        """Keep them."""
        self.all += letters

    def close(self):
        """Nothing is open."""
