"""Rules of cooperative fetch: what a request acquires, what a late commit counts for, expiry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from assignors import Share
from commits import (
    AcquireRequest,
    AcquisitionId,
    AcquisitionWatch,
    CommitLogUnavailable,
    CommitRefused,
    CommitStore,
    Epoch,
    FencedMember,
    OffsetRanges,
    Pending,
    Wanted,
)
from commits.fold import LogState
from commits.model import PARKED_MS
from commits.rows import Event, Part
from commits.snapshot import newest_snapshot, snapshot_events
from commits.validation import request_events
from tests.lost_answers import lose

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from commits.fold import GroupState
    from commits.partition_commits import Answer

P0 = ("t", 0)
FIRST = Epoch(1, "n")


def epoch_row(
    number: int = 1, sharing: str = "cooperative", members: Sequence[str] = ("a", "b")
) -> Event:
    """The row of an epoch that follows the one before it."""
    detail = {
        "members": {member: [[*P0, 0, 2**63 - 1]] for member in members},
        "topic_ids": {}, "sharing": sharing, "life_ms": 7_000,
    }  # fmt: skip
    previous = Epoch(number - 1, "n") if number > 1 else None
    return Event("epoch", f"e{number}", epoch=Epoch(number, "n"), previous=previous, detail=detail)


class Log:
    """A group of two members in a cooperative epoch, whose partition begins at an offset."""

    def __init__(self, start: int = 40, sharing: str = "cooperative") -> None:
        self.state = LogState()
        self.fold(epoch_row(sharing=sharing))
        self.fold(Event("start", "s", epoch=FIRST, member="a", parts=(Part(*P0, first=start),)))

    def fold(self, event: Event) -> Answer:
        ((_, answer),) = self.state.fold([event])
        return answer

    @property
    def group(self) -> GroupState:
        return self.state.group("", "")

    def request(self, request: AcquireRequest, member: str, epoch: Epoch = FIRST) -> Answer:
        base = Event("commit", "x", epoch=epoch, member=member)
        answers = [self.fold(event) for event in request_events(base, request)]
        return answers[-1]

    def acquire(
        self,
        name: str,
        member: str,
        count: int = 5,
        last: int = 49,
        *,
        due: Sequence[int] = (),
        epoch: Epoch = FIRST,
    ) -> list[tuple[int, int]]:
        """The offsets that a request gets."""
        wanted = Wanted(count, last, OffsetRanges.from_offsets(due))
        self.request(AcquireRequest(name, {P0: wanted}), member, epoch)
        return self.held(name)

    def held(self, name: str) -> list[tuple[int, int]]:
        return self.group.acquired(f"{name}/request").get(P0, OffsetRanges()).pairs()

    def expire(self, name: str, renewals: int = 0, member: str = "b") -> None:
        chunk = AcquisitionId(*P0, f"{name}/request", renewals)
        number = len(self.group.answers)
        self.request(AcquireRequest(f"x{number}", expire=(chunk,)), member)

    def commit(
        self,
        name: str,
        member: str,
        *pairs: tuple[int, int],
        pending: Sequence[int] = (),
        epoch: Epoch = FIRST,
    ) -> Answer:
        failed = tuple(Pending(offset, attempts=1) for offset in pending)
        parts = (Part(*P0, offsets=OffsetRanges(pairs), pending=failed),)
        return self.fold(Event("commit", name, epoch=epoch, member=member, parts=parts))

    @property
    def marker(self) -> int:
        return self.group.partitions[P0].acquisitions.marker

    @property
    def stable_offset(self) -> int:
        return self.group.partitions[P0].commits.stable_offset


def test_requests_get_consecutive_chunks() -> None:
    """KIP-X's example: of [40-49] one member gets [40-44], the next one [45-49], then no more."""
    log = Log()
    assert log.acquire("r1", "a") == [(40, 44)]
    assert log.acquire("r2", "b") == [(45, 49)]
    assert log.acquire("r3", "a") == []
    log.commit("c1", "b", (45, 49))
    assert log.stable_offset == 40
    log.commit("c2", "a", (40, 44))
    assert log.stable_offset == 50


def test_a_repeated_request_gets_the_same_chunk() -> None:
    """The marker does not move again, whether or not its first answer is still kept."""
    log = Log()
    assert log.acquire("r1", "a") == [(40, 44)]
    assert log.acquire("r1", "a") == [(40, 44)]
    with mock.patch("commits.fold.KEPT_ANSWERS", 1):
        for name in ("r2", "r3", "r4"):  # each drops one more of the answers
            log.acquire(name, "b", 1, 46)
        assert "r1/request" not in log.group.answers
        assert log.acquire("r1", "a") == [(40, 44)]
    assert log.marker == 47


def test_a_zombie_gets_nothing_and_the_marker_stays() -> None:
    """An epoch that is not in force, and a member that is not in it."""
    log = Log()
    log.fold(epoch_row(2, members=["b", "c"]))
    for name, member, epoch in (("r1", "b", FIRST), ("r2", "a", Epoch(2, "n"))):
        assert not log.request(AcquireRequest(name, {P0: Wanted(5, 49)}), member, epoch).counted
    assert log.marker == 0
    assert log.acquire("r3", "b", epoch=Epoch(2, "n")) == [(40, 44)]


def test_returned_offsets_come_first() -> None:
    """A chunk that expired is acquired before new offsets, without what is committed of it."""
    log = Log()
    log.acquire("r1", "a")
    log.commit("c1", "a", (41, 42))
    log.expire("r1")
    assert log.acquire("r2", "b") == [(40, 40), (43, 46)]


def test_a_renewed_chunk_does_not_expire() -> None:
    """A watcher that saw it before its renewal has not watched it for long enough."""
    log = Log()
    log.acquire("r1", "a")
    renew = AcquireRequest("r2", renew=(AcquisitionId(*P0, "r1/request"),))
    log.request(renew, "b")  # not its chunk
    log.request(AcquireRequest("r3", renew=renew.renew), "a")
    log.expire("r1", 0)
    assert log.held("r1") == [(40, 44)]
    log.expire("r1", 1)
    assert log.held("r1") == []


def test_a_zombie_expires_nothing() -> None:
    """A member that is fenced may have seen an old state."""
    log = Log()
    log.acquire("r1", "a")
    log.expire("r1", member="z")
    assert log.held("r1") == [(40, 44)]


def test_a_late_commit_counts_for_what_nobody_else_has() -> None:
    """Not for offsets that another member has acquired since, or committed."""
    log = Log()
    log.acquire("r1", "a")
    log.expire("r1")
    assert log.acquire("r2", "b", 3) == [(40, 42)]
    log.commit("c1", "b", (40, 40))
    result = log.commit("late", "a", (40, 44)).results[P0]
    assert (result.status, result.committed) == ("committed", 2)
    assert result.not_held.pairs() == [(40, 42)]
    assert log.group.not_held["late"][P0].pairs() == [(40, 42)]
    again = log.commit("late", "a", (40, 44)).results[P0]
    assert again.not_held.pairs() == [(40, 42)]
    mixed = log.commit("mixed", "a", (40, 42)).results[P0]
    assert mixed.stable_offset == 41
    assert mixed.status == "not_held", "41 is open: the commit is not too old"
    assert "mixed" not in log.group.counted
    lost = log.commit("later", "a", (41, 42), pending=[41]).results[P0]
    assert (lost.status, lost.not_held.pairs()) == ("not_held", [(41, 42)])
    assert "later" not in log.group.counted
    assert not log.group.partitions[P0].pending
    assert log.held("r2") == [(41, 42)]


def test_pending_records_are_acquired_by_name() -> None:
    """Their holder gives them back with the commit; a request gets those that it calls due."""
    log = Log()
    log.acquire("r1", "a")
    log.commit("c1", "a", (40, 42), pending=[43, 44])
    assert log.held("r1") == []
    assert log.acquire("r2", "b", 2) == [(45, 46)]
    assert log.acquire("r3", "b", 3, due=[44, 45]) == [(44, 44), (47, 48)]
    assert log.group.partitions[P0].pending.keys() == {43, 44}


def test_a_parked_record_is_acquired_by_nobody() -> None:
    """Though a member that has not seen yet that it is parked names it as due."""
    log = Log()
    log.acquire("r1", "a")
    parked = Pending(43, due_ms=PARKED_MS)
    part = Part(*P0, offsets=OffsetRanges([(40, 42)]), pending=(parked, Pending(44)))
    log.fold(Event("commit", "c1", epoch=FIRST, member="a", parts=(part,)))
    assert log.acquire("r2", "b", 2, due=[43, 44]) == [(44, 45)]
    assert log.acquire("r3", "a", 1, due=[43]) == [(46, 46)]


def test_committed_offsets_above_the_marker_are_skipped() -> None:
    """As after key ranges, which leave separate ranges."""
    log = Log(sharing="")
    log.commit("c1", "a", (41, 42), (44, 45), pending=[43])
    log.fold(epoch_row(2))
    assert log.acquire("r1", "a", 3, epoch=Epoch(2, "n")) == [(40, 40), (46, 47)]


def test_a_request_needs_a_cooperative_epoch_and_a_start() -> None:
    """Otherwise the partition is refused, with the reason."""
    log = Log(sharing="")
    answer = log.request(AcquireRequest("r1", {P0: Wanted(5, 49)}), "a")
    assert "by key range" in answer.results[P0].reason
    log = Log()
    del log.group.partitions[P0]
    answer = log.request(AcquireRequest("r1", {P0: Wanted(5, 49)}), "a")
    assert "does not know where it starts" in answer.results[P0].reason


def test_chunks_outlive_a_cooperative_epoch() -> None:
    """Their holder may still be at work: the next members get them when they expire."""
    log = Log()
    log.acquire("r1", "a")
    log.fold(epoch_row(2, members=["b"]))
    assert log.group.in_force is not None
    assert log.group.in_force.doubts == ()
    assert log.acquire("r2", "b", epoch=Epoch(2, "n")) == [(45, 49)]


def test_key_ranges_take_over_what_is_committed() -> None:
    """Chunks end, and their next owners wait for the members that had them, and the other way."""
    log = Log()
    log.acquire("r1", "a")
    log.commit("c1", "a", (41, 42))
    log.fold(epoch_row(2, sharing=""))
    state = log.group.partitions[P0]
    assert state.commits.ranges.pairs() == [(41, 42)]
    assert not state.acquisitions.chunks
    assert log.group.in_force is not None
    (doubt,) = log.group.in_force.doubts
    assert (doubt.share, doubt.life_ms) == (Share(*P0), 7_000)
    log.fold(epoch_row(3))
    assert {doubt.share for doubt in log.group.in_force.doubts} == {Share(*P0)}


def test_a_member_that_leaves_returns_its_chunks() -> None:
    """All of them; those of a partition on which it may still be at work expire."""
    for running, left in (([], []), ([[*P0, 0, 5]], [(40, 44)])):
        log = Log()
        log.acquire("r1", "a")
        detail = {"running": running}
        log.fold(Event("release", "r", epoch=FIRST, member="a", detail=detail))
        assert log.held("r1") == left


def test_ends_of_logs_bound_chunks() -> None:
    """Retention and truncation take offsets out of chunks; a reset ends them."""
    log = Log()
    log.acquire("r1", "a", 9)
    for kind, offset, left in (("log_start", 42, [(42, 48)]), ("truncation", 45, [(42, 44)])):
        parts = (Part(*P0, first=offset),)
        log.fold(Event(kind, kind, epoch=FIRST, member="b", parts=parts))
        assert log.held("r1") == left
    assert log.acquire("r2", "b", 2) == [(45, 46)]
    log.fold(Event("reset", "reset", parts=(Part(*P0, first=10),)))
    assert log.held("r1") == []
    assert [doubt.share for doubt in log.group.loose] == [Share(*P0)]


def test_a_snapshot_has_chunks_and_what_does_not_count() -> None:
    """The fold goes on from it as from the whole log."""
    log = Log()
    log.acquire("r1", "a")
    log.expire("r1")
    log.acquire("r2", "b", 3)
    log.commit("late", "a", (40, 44))
    back = newest_snapshot(snapshot_events(log.state, "s"))
    assert back == log.state
    assert back is not None
    assert back.group("", "").not_held == log.group.not_held != {}
    log.state = back
    assert log.acquire("r3", "a", 2) == [(45, 46)]


def test_a_watch_counts_from_when_it_saw_a_chunk() -> None:
    """A renewal starts the time again; a chunk that ended is forgotten."""
    log = Log()
    log.acquire("r1", "a")
    chunks = log.group.partitions[P0].acquisitions.chunks
    watch = AcquisitionWatch(10)
    assert watch.overdue({P0: chunks.values()}, 100.0) == ()
    assert watch.overdue({P0: chunks.values()}, 109.9) == ()
    assert watch.overdue({P0: chunks.values()}, 110.0) == (AcquisitionId(*P0, "r1/request", 0),)
    log.request(AcquireRequest("r3", renew=(AcquisitionId(*P0, "r1/request"),)), "a")
    assert watch.overdue({P0: chunks.values()}, 110.1) == ()
    assert watch.overdue({}, 111.0) == ()
    assert watch.overdue({P0: chunks.values()}, 121.0) == ()
    with pytest.raises(ValueError, match="above 0"):
        AcquisitionWatch(0)


def test_watches_count_on_from_what_others_have_noted() -> None:
    """Of several notes the largest counts; a renewal, and the holder's return, begin again."""
    log = Log()
    log.acquire("r1", "a")
    acquisitions = log.group.partitions[P0].acquisitions

    def note(chunk: AcquisitionId, ms: int, member: str = "b", epoch: Epoch = FIRST) -> int:
        request = AcquireRequest(f"n{next(numbers)}", watched={chunk: ms})
        log.request(request, member, epoch)
        return acquisitions.chunks["r1/request"].watched_ms

    numbers, chunk = count(), AcquisitionId(*P0, "r1/request", 0)
    for clock, lasted in ((100.0, 4_000), (7.0, 8_000)):
        watch = AcquisitionWatch(10, Random(1))
        chunks = {P0: acquisitions.chunks.values()}
        assert watch.overdue(chunks, clock) == ()
        assert watch.notes(clock) == {}
        assert watch.overdue(chunks, clock + 4.0) == ()
        assert watch.notes(clock + 4.0) == {chunk: lasted}
        assert watch.notes(clock + 4.1) == {}
        assert watch.notes(clock + 4.5, is_last=True) == {chunk: lasted + 500}
        assert note(chunk, lasted) == lasted
    assert note(chunk, 5_000) == 8_000, "a late note"
    assert note(chunk, 9_000, member="z") == 8_000, "a zombie's note"
    assert newest_snapshot(snapshot_events(log.state, "s")) == log.state
    watch = AcquisitionWatch(10)
    assert watch.overdue({P0: acquisitions.chunks.values()}, 50.0) == ()
    assert watch.overdue({P0: acquisitions.chunks.values()}, 52.0) == (chunk,)
    log.request(AcquireRequest("again", renew=(chunk,)), "a")
    assert acquisitions.chunks["r1/request"].watched_ms == note(chunk, 9_000) == 0
    assert note(chunk._replace(renewals=1), 9_000) == 9_000
    log.fold(epoch_row(2, members=("b",)))
    assert acquisitions.chunks["r1/request"].watched_ms == 9_000
    log.fold(epoch_row(3, members=("a", "b")))
    assert acquisitions.chunks["r1/request"].watched_ms == 0
    request = AcquireRequest("end", expire=(chunk._replace(renewals=1),), watched={chunk: 9})
    log.request(request, "b", Epoch(3, "n"))
    assert not acquisitions.chunks


# -- the store


def opened(store: CommitStore) -> Epoch:
    """A cooperative epoch of two members, and where the partition begins."""
    epoch = store.open_epoch("g", {"a": [P0], "b": [P0]}, previous=None, sharing="cooperative",
                             topic_ids={"t": "id"})  # fmt: skip
    store.start("g", epoch, "a", {P0: 40})
    return epoch


def test_a_request_travels_with_the_commit_before_it(tmp_path: Path) -> None:
    """One version of the table for both; the other member gets the next chunk."""
    store, other = (CommitStore.open(tmp_path / "commits") for _ in range(2))
    epoch = opened(store)
    got = store.acquire("g", epoch, "a", AcquireRequest("a-1", {P0: Wanted(5, 49)}))
    assert got[P0].pairs() == [(40, 44)]
    request = AcquireRequest("b-1", {P0: Wanted(3, 49)})
    assert other.acquire("g", epoch, "b", request)[P0].pairs() == [(45, 47)]
    before = store.version()
    request = AcquireRequest("a-2", {P0: Wanted(5, 49)})
    results = store.commit("g", epoch, "a", {P0: [(40, 44)]}, request=request, commit_id="a-c")
    assert results[P0].stable_offset == 45
    assert store.acquired("g", "a-2")[P0].pairs() == [(48, 49)]
    assert store.version() == before + 1
    again = store.commit("g", epoch, "a", {P0: [(40, 44)]}, request=request, commit_id="a-c")
    assert again[P0].status == "committed"  # its first answer
    assert store.version() == before + 1
    held = other.acquisitions("g")[P0]
    assert [(one.member, one.offsets.pairs()) for one in held] == [
        ("b", [(45, 47)]), ("a", [(48, 49)]),
    ]  # fmt: skip
    assert all(one.since is not None for one in held)
    other.compact()
    assert CommitStore.open(tmp_path / "commits").acquisitions("g")[P0] == held
    assert other.assignment("g").sharing == "cooperative"  # type: ignore[union-attr]


def test_a_commit_without_offsets_may_have_a_request(tmp_path: Path) -> None:
    """It is written for the request alone."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = opened(store)
    store.commit("g", epoch, "a", {}, request=AcquireRequest("a-1", {P0: Wanted(5, 49)}))
    assert store.acquired("g", "a-1")[P0].pairs() == [(40, 44)]


def test_a_request_whose_answer_is_lost_is_repeated(tmp_path: Path) -> None:
    """It gets the same chunk, also from another handle, whether its row was written or not."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = opened(store)
    for number, loss in enumerate(("answer", "row")):
        request = AcquireRequest(f"a-{number}", {P0: Wanted(2, 49)})
        lose(store, loss)
        with pytest.raises(CommitLogUnavailable):
            store.acquire("g", epoch, "a", request)
        got = store.acquire("g", epoch, "a", request)
        first = 40 + 2 * number
        assert got[P0].pairs() == [(first, first + 1)]
    assert len(store.acquisitions("g")[P0]) == 2


def test_overdue_chunks_are_returned_by_a_request(tmp_path: Path) -> None:
    """The same append returns them and acquires them."""
    store, other = (CommitStore.open(tmp_path / "commits") for _ in range(2))
    epoch = opened(store)
    store.acquire("g", epoch, "a", AcquireRequest("a-1", {P0: Wanted(5, 49)}))
    watch = AcquisitionWatch(1)
    assert not watch.overdue(other.acquisitions("g"), 0.0)
    expire = watch.overdue(other.acquisitions("g"), 1.0)
    note = AcquireRequest("b-0", watched={expire[0]: 700})
    assert other.acquire("g", epoch, "b", note) == {}
    assert CommitStore.open(tmp_path / "commits").acquisitions("g")[P0][0].watched_ms == 700
    request = AcquireRequest("b-1", {P0: Wanted(3, 49)}, expire=expire)
    assert other.acquire("g", epoch, "b", request)[P0].pairs() == [(40, 42)]
    result = store.commit("g", epoch, "a", {P0: [(40, 44)]}, commit_id="late")[P0]
    assert result.not_held.pairs() == [(40, 42)]
    assert store.not_held("g") == {"late": {P0: OffsetRanges([(40, 42)])}}
    assert other.commit("g", epoch, "b", {P0: [(40, 42)]})[P0].stable_offset == 45


def test_requests_that_are_refused_say_why(tmp_path: Path) -> None:
    """A fenced member, key ranges, and what is not valid."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = opened(store)
    request = AcquireRequest("a-1", {P0: Wanted(5, 49)})
    with pytest.raises(FencedMember):
        store.acquire("g", epoch, "z", request)
    for wrong in (AcquireRequest(""), AcquireRequest("x", {P0: Wanted(0, 49)}),
                  AcquireRequest("x", {P0: Wanted(1, -2)}),
                  AcquireRequest("x", {("", 0): Wanted(1, 1)})):  # fmt: skip
        with pytest.raises(ValueError, match=r"must|is no \(topic"):
            store.acquire("g", epoch, "a", wrong)
    with pytest.raises(ValueError, match="sharing"):
        store.open_epoch("g", {}, previous=epoch, sharing="x")
    ranges = store.open_epoch("g", {"a": [P0]}, previous=epoch)
    with pytest.raises(FencedMember):
        store.acquire("g", epoch, "a", request)
    with pytest.raises(CommitRefused, match="key range"):
        store.acquire("g", ranges, "a", request)


def test_members_at_once_handle_each_offset_once(tmp_path: Path) -> None:
    """Three members with stores of their own, each in one append per chunk: no conflict, no gap."""
    table = tmp_path / "commits"
    store = CommitStore.open(table)
    members = ("a", "b", "c")
    shares = {member: [P0] for member in members}
    epoch = store.open_epoch("g", shares, previous=None, sharing="cooperative")
    store.start("g", epoch, "a", {P0: 0})

    def work(member: str) -> list[tuple[int, int]]:
        own, handled, done = CommitStore.open(table), [], OffsetRanges()
        for number in count():
            request = AcquireRequest(f"{member}-{number}", {P0: Wanted(5, 79)})
            own.commit("g", epoch, member, {P0: done}, request=request)
            done = own.acquired("g", request.id).get(P0, OffsetRanges())
            if not done:
                return handled
            handled += done.pairs()
        raise AssertionError

    with ThreadPoolExecutor(len(members)) as pool:
        chunks = sorted(pair for pairs in pool.map(work, members) for pair in pairs)
    assert chunks == [(first, first + 4) for first in range(0, 80, 5)]
    assert store.state("g")[P0].stable_offset == 80
    assert store.acquisitions("g") == {}
