"""How a group stands and what moving it comes to, against a naive count; and the document."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors import key_hash
from commits import CommitStore, OffsetRanges, PartitionCommits, Pending
from coopconsume.admin.offsets import Kept, PartitionStatus, read_document, write_document
from coopconsume.admin.offsets.moves import marked, replaced, to_offset, unmoved
from coopconsume.admin.offsets.status import FAILED, NOT_DONE, Times, times_of
from coopconsume.admin.offsets.tables import (
    blocker_table,
    gap_parts,
    lag_table,
    move_parts,
    offset_table,
)
from coopconsume.admin.text import text_lines
from coopconsume.errors import InvalidOption
from coopconsume.kafka.blocker_records import BlockerRecord

P0 = ("t", 0)
FAR = 2**62
sets = st.sets(st.integers(0, 40), max_size=20)


@st.composite
def statuses(draw):
    """A partition whose log is some 40 offsets long, perhaps not known to the commit log."""
    start = draw(st.integers(0, 15))
    end = draw(st.integers(start, 40))
    if draw(st.booleans()):
        return PartitionStatus("t", 0, log_start=start, end_offset=end)
    commits = PartitionCommits(draw(st.integers(0, end)), max_ranges=None)
    commits.amend(OffsetRanges.from_offsets(o for o in draw(sets) if o < end))
    top = commits.ranges.last or commits.stable_offset
    pending = {
        o: Pending(o, 1, 2, 3, "no")
        for o in draw(sets)
        if commits.stable_offset <= o <= min(top, end - 1) and o not in commits.ranges
    }
    return PartitionStatus(
        "t", 0, "id", commits.stable_offset, commits.ranges, pending, start, end
    )  # fmt: skip


def done_of(status: PartitionStatus) -> set[int]:
    """Every offset in the log that is done."""
    stable = status.log_start if status.stable_offset is None else status.stable_offset
    return {
        o for o in range(status.log_start, status.end_offset)
        if o < stable or o in status.done
    }  # fmt: skip


def after(move) -> PartitionStatus:
    """How the group stands after a move."""
    return replace(
        move.before, stable_offset=move.stable_offset, done=move.done,
        pending={p.offset: p for p in move.pending},
    )  # fmt: skip


def as_set(offsets: OffsetRanges) -> set[int]:
    """Its offsets one by one."""
    return set(offsets.offsets().tolist())


def check(move, expected: set[int]) -> None:
    """After a move exactly these are done, and it says what it has done again and skips."""
    before = done_of(move.before)
    assert done_of(after(move)) == expected
    assert as_set(move.again) == before - expected
    assert as_set(move.skipped) == expected - before
    assert move.stable_offset not in move.done
    assert all(p.offset >= move.stable_offset for p in move.pending)
    assert not {p.offset for p in move.pending} & as_set(move.done)


@given(statuses(), st.integers(0, 50))
def test_a_move_to_an_offset_has_all_from_there_on_done_again(status, offset):
    """Below it all is done, from it on nothing; inside of the log, and a note where it was not."""
    move = to_offset(status, offset)
    check(move, set(range(status.log_start, min(offset, status.end_offset))))
    assert not move.done
    assert not move.pending
    assert bool(move.note) == (not status.log_start <= offset <= status.end_offset)


@given(statuses(), sets, sets)
def test_marks_change_nothing_else(status, undone, done):
    """Offsets that are not named stay as they are, and so does what is known of failed ones."""
    one, other = OffsetRanges.from_offsets(undone), OffsetRanges.from_offsets(done - undone)
    if status.stable_offset is None:
        with pytest.raises(ValueError, match="has no entry"):
            marked(status, one, other)
        return
    move = marked(status, one, other)
    inside = set(range(status.log_start, status.end_offset))
    check(move, ((done_of(status) - undone) | (done - undone)) & inside)
    kept = {o: p for o, p in status.pending.items() if o not in (undone | done) & inside}
    assert {p.offset: p for p in move.pending} == {
        o: p for o, p in kept.items() if o >= move.stable_offset
    }
    assert bool(move.note) == bool((undone | done) - inside)


@given(statuses(), statuses())
def test_a_document_replaces_all_and_comes_back_exactly(status, other):
    """A restored partition is what was exported, whatever the group had done."""
    if other.stable_offset is None:
        return
    pending = tuple(other.pending.values())
    kept = Kept("t", 0, "id", other.stable_offset, other.done, pending)
    group, (again,) = read_document(write_document("g", "c", [kept]), "g.json")
    assert (group, again) == ("g", kept)
    move = replaced(status, again)
    inside = set(range(status.log_start, status.end_offset))
    as_if = replace(status, stable_offset=other.stable_offset, done=other.done)
    check(move, done_of(as_if) & inside)
    assert move.pending == pending
    assert not replaced(replace(other, topic="t"), again).changes_log


def test_an_offset_cannot_be_marked_both_ways() -> None:
    """Which of the two was meant nobody knows."""
    with pytest.raises(ValueError, match="offset 3 is in --done and --undone"):
        marked(
            PartitionStatus("t", 0, "", 5, log_start=0, end_offset=9),
            OffsetRanges([(3, 3)]), OffsetRanges([(2, 4)]),
        )  # fmt: skip


def test_following_the_log_changes_kafka_alone() -> None:
    """Nothing of the commit log moves."""
    status = PartitionStatus("t", 0, "", 5, OffsetRanges([(7, 8)]), {6: Pending(6)}, 0, 9)
    move = unmoved(status)
    assert not move.changes_log
    assert not move.again
    assert (move.stable_offset, move.done) == (5, status.done)


def test_a_document_keeps_offsets_beyond_2_to_the_53rd() -> None:
    """Numbers stay integers, and one that a tool has rounded to a float is refused."""
    headers = (("ü", b"\x00\xff"), ("none", None))
    pending = (
        Pending(FAR + 1, FAR + 5, 3, 1_795_255_200_001, 'quote " and \n line', headers=headers),
    )
    kept = Kept(
        "t", 0, "id", FAR + 1, OffsetRanges([(FAR + 3, FAR + 3), (FAR + 5, FAR + 9)]), pending
    )
    text = write_document("g", "c", [kept])
    assert read_document(text, "f") == ("g", [kept])
    rounded = text.replace(f'"stable_offset":{FAR + 1}', '"stable_offset":4.611686018427388e18')
    with pytest.raises(InvalidOption, match="not an integer"):
        read_document(rounded, "f")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "format is not"),
        ({"version": 2}, "version is 2, not 1"),
        ({"partitions": [{"topic": "t"}]}, "partition entry 0: .* is missing"),
    ],
)
def test_other_documents_are_refused_by_name(change, said) -> None:
    """The file is named, and what is wrong in it."""
    document = json.loads(write_document("g", "c", [Kept("t", 0, "", 1, OffsetRanges())]))
    with pytest.raises(InvalidOption, match=said) as caught:
        read_document(json.dumps(document | change), "odd.json")
    assert "odd.json" in str(caught.value)
    with pytest.raises(InvalidOption, match="is not JSON"):
        read_document("{", "odd.json")
    twice = document | {"partitions": document["partitions"] * 2}
    with pytest.raises(InvalidOption, match="t-0 appears twice"):
        read_document(json.dumps(twice), "odd.json")


# -- since when, and what holds it ---------------------------------------------------------------


def status_of(store: CommitStore, end: int) -> PartitionStatus:
    """How the group g of a store stands in its partition."""
    commits = store.state("g")[P0]
    return PartitionStatus(
        *P0, "", commits.stable_offset, commits.ranges, store.pending("g").get(P0, {}), 0, end,
        times=times_of(store.history("g"))[P0],
    )  # fmt: skip


def test_gaps_have_the_age_of_the_first_commit_above_them(tmp_path) -> None:
    """The rows of the log say so; a reset forgets it."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = store.open_epoch("g", {"m": [P0]}, previous=None)
    hashed = key_hash(b"customer-7")
    failed = Pending(2, key_hash=hashed, attempts=3, due_ms=1_795_255_200_000, error="no\nroute")
    store.commit("g", epoch, "m", {P0: [(0, 1), (4, 4)]}, pending={P0: [failed]})
    store.commit("g", epoch, "m", {P0: [(9, 9)]})
    status = status_of(store, 20)
    first, second = (
        entry["written_at"] for entry in store.history("g") if entry["kind"] == "commit"
    )
    assert [(gap.first, gap.last, gap.since) for gap in status.gaps()] == [
        (2, 3, first), (5, 8, second),
    ]  # fmt: skip
    blocker = status.blocker
    assert (blocker.offset, blocker.state, blocker.key_hash) == (2, FAILED, hashed)
    assert blocker.attempts == 3
    assert (blocker.since, blocker.error) == (first, "no\nroute")
    assert (blocker.done_behind, blocker.open_behind, status.lag) == (2, 5, 16)

    now = first + timedelta(seconds=100)
    table = lag_lines(status, now)
    assert table[1].split()[:7] == ["t-0", "16", "2", "failed", "hash", f"{hashed}", "3"]
    read = replace(status, record=BlockerRecord(is_there=True, key=b"customer-7"))
    assert lag_lines(read, now)[1].split()[:6] == ["t-0", "16", "2", "failed", "customer-7", "3"]
    compacted = replace(status, record=BlockerRecord(is_there=False))
    assert "deleted by compaction" in lag_lines(compacted, now)[1]
    assert compacted.blocker.deleted_by == "compaction"
    cut = replace(status, log_start=3)
    assert (status.blocker_offset, cut.blocker_offset) == (2, None)
    assert "deleted by retention" in lag_lines(cut, now)[1]
    assert "100 s" in table[1]
    assert table[1].endswith("no route")
    assert len(list(text_lines(gap_parts([status], now, 1)))) == 3
    assert list(text_lines(gap_parts([status], now, 1)))[-1] == "t-0 has 1 more gaps: raise --limit"
    assert list(text_lines([offset_table([status])]))[1].split()[:8] == [
        "t-0",
        "0",
        "2",
        "20",
        "2",
        "2",
        "2",
        "1",
    ]

    store.reset("g", {P0: 1}, done={P0: [(3, 3)]})
    (gap,) = status_of(store, 20).gaps()
    assert gap.since == store.history("g")[-1]["written_at"]


def test_a_record_in_flight_is_no_blocker_to_look_at() -> None:
    """While nothing is done behind it and it has not failed; `lag` has it all the same."""
    now = datetime.now(UTC)
    status = PartitionStatus(*P0, "", 3, OffsetRanges(), {}, 0, 7)
    assert status.blocker is not None
    assert blocker_table([status], now).rows == []
    behind = replace(status, done=OffsetRanges([(5, 6)]))
    failed = replace(status, pending={3: Pending(3, 7, 1, 0, "no")})
    assert [row[1] for row in blocker_table([status, behind, failed], now).rows] == [3, 3]
    assert lag_table([status], now).rows[0][2] == 3
    long = replace(status, pending={3: Pending(3, 7, 1, 0, "no\nroute" * 999)})
    error = lag_table([long], now).rows[0][-1]
    assert (len(error), error[:8], error[-1]) == (200, "no route", "…")


def lag_lines(status: PartitionStatus, now: datetime) -> list[str]:
    """Returns what `coopconsume lag` writes of a partition."""
    return list(text_lines([lag_table([status], now)]))


def test_a_holder_that_never_failed_says_so_and_one_is_missing_when_all_is_done() -> None:
    """What is in flight or was not tried is not called failed."""
    status = PartitionStatus(*P0, "", 3, OffsetRanges([(5, 6)]), {}, 0, 7)
    blocker = status.blocker
    assert (blocker.offset, blocker.state, blocker.since) == (3, NOT_DONE, None)
    assert status.times == Times()
    assert PartitionStatus(*P0, "", 7, log_start=0, end_offset=7).blocker is None
    assert PartitionStatus(*P0, log_start=0, end_offset=7).blocker is None
    lines = lag_lines(PartitionStatus(*P0, "", 7, log_start=0, end_offset=7), datetime.now(UTC))
    assert lines[1].split()[:2] == ["t-0", "0"]


def test_a_dry_run_says_that_nothing_was_changed() -> None:
    """With the counts in all, and what it would do to each partition."""
    status = PartitionStatus(*P0, "", 5, OffsetRanges([(7, 8)]), {}, 0, 9)
    moves = [to_offset(status, 2)]
    lines = list(text_lines(move_parts(moves, [(5, 0)], what="records", executed=False)))
    assert lines[1].split() == ["t-0", "5", "2", "0", "5", "0", "-"]
    assert lines[-2:] == [
        "5 records would be processed again, 0 would be skipped",
        "dry run, nothing was changed: add --execute to apply the change",
    ]
    done = list(text_lines(move_parts(moves, [(5, 0)], what="records", executed=True)))
    assert done[-1] == "5 records will be processed again, 0 will be skipped"


def test_a_partition_is_drawn_from_its_ranges(tmp_path) -> None:
    """Fifty million offsets as an SVG of a few hundred shapes."""
    import numpy as np

    from coopconsume.admin.pictures import draw_status

    firsts = np.arange(1, 100_001, dtype=np.int64) * 400
    done = OffsetRanges.from_bounds(firsts, firsts + 199)
    status = PartitionStatus("big", 0, "", 7, done, {9: Pending(9)}, 0, 50_000_000)
    file = tmp_path / "big.svg"
    draw_status(status, "g").savefig(file)
    text = file.read_text()
    assert len(text) < 2_000_000
    assert text.count("<path") + text.count("<use") < 3_000
