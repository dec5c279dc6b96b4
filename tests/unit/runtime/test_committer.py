"""When a job has committed all, and what becomes of commits while outputs cannot be published."""

from __future__ import annotations

import math
import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from assignors import KeyRange
from commits import (
    AcquireRequest,
    CommitStore,
    CorruptCommitLog,
    Epoch,
    MaxIndividualCommitsReached,
    OffsetRanges,
    Pending,
)
from coopconsume.errors import FencedMember, OutputsNotPublished
from coopconsume.group.chunks import AcquiredChunks
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.epoch_proof import EpochProof
from coopconsume.group.owned import Owned
from coopconsume.runtime.commit.committer import Committer
from coopconsume.runtime.commit.log_calls import commit_outcomes
from coopconsume.runtime.commit.mirror import Mirror
from coopconsume.runtime.commit.next_commit import CommitRequest
from coopconsume.runtime.commit.parcels import Parcel, Written
from coopconsume.runtime.events import (
    CommitAnswered,
    CommitFailed,
    CommitFenced,
    LogRead,
    OffsetsMirrored,
)
from coopconsume.runtime.plan import Partition
from coopconsume.worker.handler_lines import SlotLines
from coopconsume.worker.report import SlotReport
from tests.partitions import make_partition

TP = ("t", 0)


class FakeAssignment:
    """What is owned; publishing it goes as is said: True means that something is left."""

    def __init__(self, outcomes: list[BaseException | bool]) -> None:
        self.options = SimpleNamespace(
            max_num_ranges_to_commit=10, batch_time=1.0, commit_interval=0.0,
            uses_chunks=False,
        )  # fmt: skip
        self.owned: dict[Any, Any] = {TP: SimpleNamespace(range_count=0, last_committed=-1)}
        self.is_shared = self.is_between_epochs = False
        self.primary = self
        self.publishes = True
        self.has_unpublished = True
        self.troubled: dict[Any, tuple[int, str]] = {}
        self.stopped = False
        self.outcomes = outcomes
        #: Is set while the topic answers.
        self.answers = threading.Event()
        self.answers.set()
        self.attempts = 0
        self.lasting: Exception | None = None
        self.epoch = Epoch(1, "n")
        self.store = SimpleNamespace(maintain=lambda: None)

    def may_be_late(self, _error: FencedMember) -> bool:
        """Whether the work goes on, and the next epoch is not known yet."""
        return self.is_between_epochs

    @property
    def is_publishing(self) -> bool:
        """Whether outputs are about to be published."""
        return self.has_unpublished and not self.troubled

    def given_up(self, _patience: float) -> Exception | None:
        """Why nobody waits for it any more."""
        return self.lasting

    def write(self) -> None:
        """Publish, unless it fails, or is not to be done now."""
        self.attempts += 1
        assert self.answers.wait(120)
        outcome = self.outcomes.pop(0) if self.outcomes else False
        if isinstance(outcome, BaseException):
            raise outcome
        self.has_unpublished = outcome

    def write_quietly(self, *, force: bool = False) -> None:
        """For the end."""

    def refresh(self) -> dict:
        """Nobody else moves anything."""
        return {}

    def stop_repeating(self) -> None:
        """No commit is under way."""

    def stop_publishing(self) -> None:
        """It is over."""
        self.stopped = True

    def commit(self, offsets: Any, *, maintain: bool = True, **_more: Any) -> Any:
        """It counts."""
        if maintain:
            self.store.maintain()
        return {
            tp: SimpleNamespace(
                status="committed", stable_offset=done.last + 1, not_held=OffsetRanges()
            )
            for tp, done in offsets.items()
        }


def partition_of(done: list[int]) -> Partition:
    """A partition with some records done."""
    made = make_partition(slots=[(0, (KeyRange(),))])
    made.ledger.settle(OffsetRanges.from_offsets(done))
    return made


def committer(assignment: FakeAssignment, *partitions: Any) -> tuple[Committer, queue.Queue[Any]]:
    """A committer, and what it has to say."""
    said: queue.Queue[Any] = queue.Queue()
    work = SimpleNamespace(may_park=False, available_now=False, state=None, real_time=None)
    meter = SimpleNamespace(progressed=lambda *_: None, committed=lambda _: None)
    ids = (f"id-{n}" for n in range(99))
    made = Committer(
        assignment,
        work,
        list(partitions),
        meter,
        ids,
        said.put,
    )
    return made, said


def hear(made: Committer, said: queue.Queue[Any]) -> None:
    """Has the committer take the next event of its threads."""
    try:
        event = said.get(timeout=60)
    except queue.Empty:
        pytest.fail("no event comes")
    takes: dict[type, Any] = {
        CommitAnswered: made.commit_answered, CommitFenced: made.fenced,
        OffsetsMirrored: made.mirrored, LogRead: made.looked,
    }  # fmt: skip
    takes[type(event)](event)


def turn(made: Committer, said: queue.Queue[Any]) -> None:
    """A turn of the loop: have it commit, and hear what it says."""
    made.commit_if_due(more_to_come=False)
    while made._thread.is_busy or made._mirror.is_busy:
        hear(made, said)


def test_all_is_committed_once_it_is_published(monkeypatch):
    """What the group's coordinator does not take now is tried again."""
    monkeypatch.setattr("coopconsume.runtime.commit.mirror._PUBLISH_EVERY", -1.0)
    assignment = FakeAssignment([True, True])
    made, said = committer(assignment)
    for unpublished in (True, True, False):
        assert not made.has_all
        assert not made.has_all_it_can
        turn(made, said)
        assert assignment.primary.has_unpublished is unpublished
    assert made.has_all
    made.close(well=True)


def test_commits_are_an_interval_apart_unless_somebody_waits_for_them(monkeypatch):
    """The first one does not wait, and nothing is appended where nothing was done."""
    clock = SimpleNamespace(now=100.0)
    clocks = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr("coopconsume.runtime.commit.committer.time", clocks)
    assignment, partition = FakeAssignment([]), partition_of([0])
    assignment.options.commit_interval, assignment.has_unpublished = 0.2, False
    made, said = committer(assignment, partition)

    def done(*offsets: int) -> None:
        partition.ledger.to_commit = OffsetRanges.from_offsets(offsets)
        made._next.since = clock.now

    turn(made, said)
    assert partition.ledger.stable == 1
    clock.now += 0.1
    done(1)
    assert made.due == 100.2
    turn(made, said)
    assert partition.ledger.stable == 1
    clock.now += 0.11
    turn(made, said)
    assert partition.ledger.stable == 2
    done(2)
    made.commit_if_due(more_to_come=True, is_last=True)
    assert not made._thread.is_busy, "reports of other slots are about to come"
    made.commit_if_due(more_to_come=False, is_last=True)
    assert made._thread.is_busy
    hear(made, said)
    assert partition.ledger.stable == 3
    clock.now += 1.0
    turn(made, said)
    assert next(made._next._ids) == "id-3", "as many commits as were needed"
    made.close(well=True)


def test_a_commit_waits_for_slots_that_are_about_to_report_and_for_no_others(monkeypatch):
    """The loop does not sleep for reports that nobody is about to make."""
    clock = SimpleNamespace(now=100.0)
    clocks = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr("coopconsume.runtime.commit.committer.time", clocks)
    assignment = FakeAssignment([])
    assignment.options.commit_interval, assignment.has_unpublished = 0.2, False
    made, _ = committer(assignment, partition_of([0]))
    made._pace.began(99.81)
    made._next.since = 100.0
    made.commit_if_due(more_to_come=False)
    assert made.due == pytest.approx(100.01)
    made.commit_if_due(more_to_come=True)
    assert made.due == pytest.approx(100.1)
    made.close(well=False)


def test_maintenance_of_the_table_is_a_part_of_what_a_commit_costs(monkeypatch):
    """Else a table that needs much would be appended to as often as another."""
    clock = SimpleNamespace(now=100.0)
    clocks = SimpleNamespace(
        monotonic=lambda: clock.now, thread_time=lambda: clock.now, time=lambda: clock.now
    )
    monkeypatch.setattr("coopconsume.runtime.commit.log_calls.time", clocks)
    assignment = FakeAssignment([])
    assignment.has_unpublished = False

    def maintain() -> None:
        clock.now += 0.016

    assignment.store.maintain = maintain
    partition = partition_of([0])
    made, said = committer(assignment, partition)
    for offset in (0, 1):
        partition.ledger.to_commit = OffsetRanges.from_offsets([offset])
        turn(made, said)
        made._thread._call.result(120)
        made._calls._maintenance.result(120)
    made.close(well=True)
    assert made._pace.interval == pytest.approx(50 * 0.016 / 8)


def test_offsets_go_to_kafka_a_few_times_a_second(monkeypatch):
    """However often the job commits; the last ones are not forgotten."""
    clock = SimpleNamespace(now=100.0)
    clocks = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("coopconsume.runtime.commit.mirror.time", clocks)
    written: list[float] = []
    primary: Any = SimpleNamespace(
        publishes=False, has_unpublished=False, write_quietly=lambda: written.append(clock.now)
    )
    assignment: Any = SimpleNamespace(primary=primary, is_between_epochs=False)
    said: queue.Queue[Any] = queue.Queue()
    made = Mirror(assignment, {}, said.put)
    for _ in range(10):
        made.wake()
        if made._thread is not None:
            said.get(timeout=60)
            made.ended()
        clock.now += 0.07
    assert written == pytest.approx([100.0, 100.21, 100.42, 100.63])
    assert not made.is_busy
    made.wake()
    made.write_if_due()
    assert made._thread is None
    clock.now += 0.2
    made.write_if_due()
    assert made._thread is not None
    made._thread.join()
    assert len(written) == 5


def test_a_commit_is_answered_before_the_table_is_maintained():
    """Now and then that takes longer than the commit, and records would wait for it."""
    assignment, partition = FakeAssignment([]), partition_of([0])
    assignment.has_unpublished = False
    made, said = committer(assignment, partition)
    waiting: list[bool] = []
    maintained = threading.Event()

    def maintain() -> None:
        waiting.append(said.empty())
        maintained.set()

    assignment.store.maintain = maintain
    made._decisions._read_at = math.inf
    made._next.since = 1.0
    made.commit_if_due(more_to_come=False)
    assert maintained.wait(120)
    assert waiting == [False]
    hear(made, said)
    assert partition.ledger.stable == 1
    made.close(well=True)


def test_commits_go_on_while_the_table_is_maintained():
    """It may take as long as some commits; one call of it runs at a time."""
    assignment, partition = FakeAssignment([]), partition_of([])
    assignment.has_unpublished = False
    made, said = committer(assignment, partition)
    begun, go_on = threading.Semaphore(0), threading.Event()

    def maintain() -> None:
        begun.release()
        assert go_on.wait(120)

    assignment.store.maintain = maintain
    for offset in range(3):
        partition.ledger.to_commit = OffsetRanges.from_offsets([offset])
        until = time.monotonic() + 120
        while partition.ledger.stable <= offset and time.monotonic() < until:
            turn(made, said)
            time.sleep(0.001)  # Commits have an interval.
        assert partition.ledger.stable == offset + 1
    assert begun.acquire(timeout=120)
    assert not begun.acquire(blocking=False)
    go_on.set()
    made.close(well=True)
    assert made._calls._maintenance.done()


def test_a_request_for_chunks_is_answered_before_the_table_is_maintained():
    """Slots wait for the answer."""
    asked: list[bool] = []
    assignment = FakeAssignment([])
    assignment.acquire = lambda _request, *, maintain: asked.append(maintain)
    assignment.chunks = SimpleNamespace(acquired=lambda _request: AcquiredChunks({}))
    answer = commit_outcomes(assignment, CommitRequest("id", chunks=AcquireRequest("id")))
    assert answer.acquired == AcquiredChunks({})
    assert asked == [False]


def owner(tmp_path) -> EpochAssignment:
    """An assignment of one partition, of a commit table that takes two ranges of users."""
    store = CommitStore.open(tmp_path / "commits", max_ranges=2)
    epoch = store.open_epoch("g", {"m": [TP]}, previous=None)
    store.start("g", epoch, "m", {TP: 0})
    made = EpochAssignment.__new__(EpochAssignment)
    made.store, made.options = store, SimpleNamespace(
        group_id="g", batch_life=1.0, keep_failed_keys=True,
    )  # fmt: skip
    made._grant = SimpleNamespace(epoch=epoch, member="m")
    made.owned = {TP: Owned(*TP, (KeyRange(),), 0, OffsetRanges(), max_ranges=2)}
    made.logs = SimpleNamespace(reached=lambda _offsets: {})
    made._over, made._lock = threading.Event(), threading.RLock()
    made.proof = EpochProof(store, "g", lambda: made._grant, lambda _: 0.0)
    return made


def test_what_a_job_has_handled_is_committed_at_once_however_many_ranges_there_are(tmp_path):
    """Done records, holes, failed records and written outputs; a user's commit is refused."""
    assignment = owner(tmp_path)
    store, grant = assignment.store, assignment._grant
    done, holes = {TP: OffsetRanges.from_offsets([1, 3, 5])}, {TP: OffsetRanges([(7, 7)])}
    parcel = Parcel({TP: OffsetRanges.from_offsets([9, 11])})
    failed = {TP: [Pending(0, attempts=1)]}
    written = Written(parcel, "a-1", 0.0)
    answer = commit_outcomes(assignment, CommitRequest("a-1", done, holes, failed, done, written))
    assert answer.offsets == {TP: (OffsetRanges.from_offsets([1, 3, 5, 9, 11]), 0)}
    assert store.state("g")[TP].ranges == OffsetRanges.from_offsets(range(1, 12, 2))
    assert list(store.pending("g")[TP]) == [0]
    with pytest.raises(MaxIndividualCommitsReached):
        store.commit("g", grant.epoch, grant.member, {TP: [(13, 13)]})
    answer = commit_outcomes(
        assignment, CommitRequest("a-2", {TP: OffsetRanges([(0, 0), (13, 13)])})
    )
    assert answer.offsets[TP][1] == 2


def test_what_a_user_names_fits_where_it_joins_what_is_committed_with_it(tmp_path):
    """Such as records that a filter drops, which need no place."""
    assignment = owner(tmp_path)
    named = {TP: OffsetRanges.from_offsets([4, 6, 8])}
    dropped = {TP: OffsetRanges.from_offsets([5, 7])}
    assert assignment.affordable(named, {}) == {TP: OffsetRanges.from_offsets([4, 6])}
    assert assignment.affordable(named, dropped) == named
    named[TP] |= OffsetRanges([(10, 10), (12, 12)])
    left = {TP: OffsetRanges([(12, 12)])}
    assert assignment.affordable(named, dropped) == {TP: named[TP] - left[TP]}


def test_chunks_are_returned_to_a_maintained_table(monkeypatch):
    """It is the last write of a job."""
    asked: list[bool] = []
    assignment = EpochAssignment.__new__(EpochAssignment)
    assignment.options = SimpleNamespace(
        group_id="g", batch_life=1.0, keep_failed_keys=True,
    )  # fmt: skip
    assignment.store = SimpleNamespace(acquire=lambda *_, maintain: asked.append(maintain))
    assignment._grant = SimpleNamespace(epoch=Epoch(1, "n"), member="m")
    assignment._ids, assignment._over = iter(["id"]), threading.Event()
    assignment.proof = SimpleNamespace(saw=lambda _asked: None)
    found = SimpleNamespace(partitions={TP: SimpleNamespace(chunks=("a-1",))})
    monkeypatch.setattr(assignment, "look_at_chunks", lambda: found)
    assignment.return_chunks()
    assert asked == [True]


def test_the_next_commit_is_known_before_there_is_anything_to_commit():
    """Its time is in the answers to reports."""
    made, _ = committer(FakeAssignment([]))
    assert made.next_commit(100.0).begins_in == -math.inf
    made._pace.took(0.4)
    made._pace.began(100.0)
    assert made.next_commit(100.05) == pytest.approx((0.15, 0.2))
    made.close(well=False)


def test_what_ends_the_epoch_while_outputs_are_published_reaches_the_loop():
    """And the end waits for nothing."""
    fenced = FencedMember("g", "m", Epoch(1, "n"), Epoch(2, "n"), "another")
    assignment = FakeAssignment([fenced])
    made, said = committer(assignment)
    with pytest.raises(FencedMember):
        turn(made, said)
    assert not made.has_all
    made.close(well=False)
    assert assignment.stopped


def test_outputs_wait_for_the_next_epoch_while_the_group_rebalances():
    """The end waits for them no longer than for a commit that was refused."""
    assignment = FakeAssignment(
        [FencedMember("g", "m", Epoch(1, "n"), Epoch(2, "n"), "another"), True]
    )
    assignment.is_between_epochs = True
    made, said = committer(assignment)
    turn(made, said)
    assert made.refused_for > 0
    assignment.is_between_epochs, assignment.epoch = False, Epoch(2, "n")
    assert made.refused_for > 0, "a turn decides under one epoch"
    assert made.watch.note_epoch() == assignment.epoch
    assert made.refused_for == 0
    made.close(well=False)


def test_failed_records_of_a_refused_commit_are_in_the_next_one():
    """The next epoch is in force, and not known yet: its commit is the same one."""
    assignment, partition = FakeAssignment([]), partition_of([0])
    assignment.has_unpublished, assignment.is_between_epochs = False, True
    made, said = committer(assignment, partition)
    failed, commit, tried = [Pending(9, 1, 1, 0, "x")], assignment.commit, []

    def refused_once(offsets: Any, **more: Any) -> Any:
        tried.append((offsets, more["pending"]))
        if len(tried) == 1:
            raise FencedMember("g", "m", assignment.epoch, Epoch(2, "n"), "another")
        return commit(offsets, **more)

    assignment.commit = refused_once
    made._next.add({TP: failed}, 1.0)
    made.commit_if_due(more_to_come=False)
    hear(made, said)
    made.commit_if_due(more_to_come=False)
    assert not made._thread.is_busy, "nothing is committed under a refused epoch"
    assignment.is_between_epochs, assignment.epoch = False, Epoch(2, "n")
    made.watch.note_epoch()
    made.commit_if_due(more_to_come=False, is_last=True)
    while made._thread.is_busy:
        hear(made, said)
    assert tried == [({TP: OffsetRanges([(0, 0)])}, {TP: failed})] * 2
    assert partition.ledger.stable == 1
    made.close(well=True)


def test_a_failed_commit_has_ended():
    """Nothing waits for its answer any more, whatever the loop makes of the error."""
    assignment, partition = FakeAssignment([]), partition_of([0])
    assignment.has_unpublished = False
    made, said = committer(assignment, partition)

    def fails(_offsets: Any, **_more: Any) -> Any:
        raise CorruptCommitLog("commits", "it is torn")

    assignment.commit = fails
    made.commit_if_due(more_to_come=False)
    event = said.get(timeout=60)
    assert isinstance(event, CommitFailed)
    with pytest.raises(CorruptCommitLog):
        made.failed(event)
    assert not made._thread.is_busy
    assert made.may_rebalance
    made.close(well=False)


def test_a_rebalance_waits_for_the_answer_to_a_commit_with_outputs():
    """They have the id of the commit, which cannot be repeated under the next epoch."""
    assignment, partition = FakeAssignment([]), partition_of([])
    assignment.has_unpublished = False
    made, said = committer(assignment, partition)
    done = {TP: OffsetRanges([(0, 1)])}
    made.outbox.ready.append(Written(Parcel(done), "id", 0.0))
    mark = made.mark([partition])
    assert mark.offsets == done
    made.commit_if_due(more_to_come=False)
    assert not made.may_rebalance
    assert not made.is_committed(mark)
    while made._thread.is_busy:
        hear(made, said)
    assert made.may_rebalance
    assert made.has_since(mark)
    assert partition.ledger.stable == 2
    made.close(well=True)


def test_commits_go_on_while_a_topic_does_not_take_outputs():
    """Neither a commit nor the end of the job waits for it; a job that is to end says why."""
    assignment, partition = FakeAssignment([False]), partition_of([0, 1, 2])
    assignment.answers.clear()
    made, said = committer(assignment, partition)
    made._next._pending[TP] = [Pending(9, 1, 1, 0, "x")]
    made.commit_if_due(more_to_come=False)
    while partition.ledger.to_commit or made._thread.is_busy:
        hear(made, said)
        made.commit_if_due(more_to_come=False)
    assert partition.ledger.stable == 3
    assert assignment.attempts == 1, "one attempt at a time"
    assert not made.has_all_it_can, "it may yet be published"
    made.raise_given_up()
    assignment.troubled = {TP: (0, "the topic is away")}
    assert made.has_all_it_can
    assert not made.has_all
    partition.ledger.to_commit = OffsetRanges([(5, 5)])
    is_over, partition.ledger.to_commit = made.has_all_it_can, OffsetRanges()
    assignment.lasting = OutputsNotPublished("topic 'out'", "gone")
    with pytest.raises(OutputsNotPublished, match="gone"):
        made.raise_given_up()
    assignment.answers.set()
    assert not is_over, "the commit table takes what is done"
    while made._mirror.is_busy:
        hear(made, said)
    assert partition.ledger.unpublished == (0, "the topic is away")
    assignment.troubled = {}
    made._mirror.wake()
    turn(made, said)
    assert partition.ledger.unpublished is None
    made.raise_given_up()
    made.close(well=True)
    assert assignment.stopped


def test_the_end_of_a_job_does_not_wait_for_a_topic_that_is_away(monkeypatch):
    """What waits is published by the next owner."""
    monkeypatch.setattr("coopconsume.runtime.commit.mirror._LAST_PUBLISH", 0.01)
    assignment = FakeAssignment([False])
    assignment.answers.clear()
    made, _ = committer(assignment)
    made.commit_if_due(more_to_come=False)
    made.close(well=True)
    assert assignment.stopped
    assignment.answers.set()


def test_lines_of_handlers_alone_are_nothing_to_commit(monkeypatch):
    """A handler that prints all the time does not keep the log from being read."""
    partition = partition_of([0])
    made, _ = committer(FakeAssignment([]), partition)
    monkeypatch.setattr(made.outbox, "take", lambda *_: ())
    monkeypatch.setattr(made, "_hold_back", lambda _: None)
    made.take(SlotReport(0, 0, seq=1, lines=SlotLines()), [partition], 1.0)
    assert made._next.since == 0.0
    made.take(SlotReport(0, 0, seq=2, kept=[]), [partition], 2.0)
    assert made._next.since == 2.0
    made.close(well=False)
