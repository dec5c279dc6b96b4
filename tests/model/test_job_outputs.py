"""A job's dead letters and outputs: they are written before their records are committed."""

from __future__ import annotations

import pytest

from coopconsume.errors import (
    NotAuthorized,
    OutputRefused,
)
from coopconsume.record import Reject
from tests.model.job_sinks import Rejecting, Unreliable, Watching
from tests.model.job_world import TP, until


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


def test_a_parked_record_is_noted_with_its_dead_letter(world):
    """It stays pending as parked, with its error, until somebody decides; only its key waits."""
    there = world()
    member = there.claim()
    sink = Watching(member, there)
    there.run(member, Rejecting(3), dead_letters=sink, park=True)
    there.until(lambda: there.done(member) == set(range(20)) - set(range(3, 20, 5)))
    there.until(lambda: set(pending_of(member)) == {3})
    assert {offset for offset, _, _ in sink.seen} == {3}
    assert member.store.pending("g")[TP][3].is_parked


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
    message = "dead letters have not been written" if hangs else "the far place (no route)"
    assert all(message in error for error in pending_of(member).values())
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
    monkeypatch.setattr("coopconsume.runtime.commit.deliveries.LONGEST_PAUSE", 0.05)
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
    member.owner.hand_over()
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
