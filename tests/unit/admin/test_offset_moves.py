"""How a group stands and what moving it comes to, against a naive count; and the document."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from assignors import key_hash
from commits import CommitStore, OffsetRanges, PartitionCommits, Pending
from coopconsume.admin.offsets import (
    Kept,
    PartitionStatus,
    read_checkpoint,
    read_document,
    write_document,
)
from coopconsume.admin.offsets.moves import marked, replaced, to_offset, unmoved
from coopconsume.admin.offsets.reading import check_exist
from coopconsume.admin.offsets.status import FAILED, NOT_DONE, Times, times_of
from coopconsume.admin.offsets.tables import (
    blocker_table,
    gap_parts,
    lag_table,
    move_parts,
    offset_table,
)
from coopconsume.admin.text import text_lines
from coopconsume.cli import main
from coopconsume.cli.offset_documents import move_document
from coopconsume.cli.offset_options import ranges
from coopconsume.cli.offsets import Execution, _chosen
from coopconsume.errors import InvalidOption
from coopconsume.kafka.blocker_records import BlockerRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def checkpoint(folder: Path, batches: dict[int, str], committed: Iterable[int]) -> Path:
    """Writes a checkpoint as Spark does, with the line of each batch's sources."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for batch, lines in batches.items():
        (folder / "offsets" / str(batch)).write_text(lines)
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in committed:
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def test_a_checkpoint_continues_after_its_last_committed_batch(tmp_path: Path) -> None:
    """The batch that was started after it is not done; offsets of other sources are left out."""
    settings = '{"batchWatermarkMs":0,"conf":{"a":{"0":1}}}'
    sources = '-\n51\n{"logOffset":3}\n{"orders":{"1":12,"0":%d},"bills":{"0":7}}'
    batches = {batch: f"v1\n{settings}\n{sources % (10 * batch)}" for batch in (9, 10, 11)}
    found = read_checkpoint(checkpoint(tmp_path / "v1", batches, (9, 10)))
    assert [(one.topic, one.partition, one.stable_offset) for one in found] == [
        ("bills", 0, 7), ("orders", 0, 100), ("orders", 1, 12),
    ]  # fmt: skip
    assert all(one.done == OffsetRanges() and one.pending == () for one in found)
    second = {3: f'v2\n{settings}\nclicks:-\n0:{{"orders":{{"0":{FAR + 1}}}}}'}
    (only,) = read_checkpoint(checkpoint(tmp_path / "v2", second, (3,)))
    assert (only.topic, only.stable_offset) == ("orders", FAR + 1)


@pytest.mark.parametrize(
    ("batches", "committed", "said"),
    [
        ({0: 'v1\n{}\n{"t":{"0":5}}'}, (), "its query has committed no batch"),
        ({0: 'v1\n{}\n{"t":{"0":5}}'}, (0, 1), "commits/1 has no offsets/1 beside it"),
        ({0: 'v3\n{}\n{"t":{"0":5}}'}, (0,), "has version 'v3', not v1 or v2"),
        ({0: "v1\n{}\n51\n-"}, (0,), "has no offsets of Kafka's source"),
        ({0: 'v1\n{}\n{"t":{"0":5}}\n{"t":{"0":6}}'}, (0,), "two sources of its query read t-0"),
    ],
)
def test_other_folders_are_refused_by_name(
    tmp_path: Path, batches: dict[int, str], committed: tuple[int, ...], said: str
) -> None:
    """The folder is named, and what is wrong in it."""
    with pytest.raises(InvalidOption, match=said) as caught:
        read_checkpoint(checkpoint(tmp_path / "odd", batches, committed))
    assert "odd" in str(caught.value)
    assert "checkpointLocation" in str(caught.value)
    with pytest.raises(InvalidOption, match="it has no folders commits and offsets"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"orders":{"0":1305', r"line 4: it ends early .*\{\"orders\""),
        ('0:{"orders":{"0":1305', "line 4: it ends early"),
        ('{"t":{"0":5.9}}', r"line 4: t-0 has 5.9, not an offset"),
        ('{"t":{"0":true}}', "t-0 has True"), ('{"t":{"0":null}}', "t-0 has None"),
        ('{"t":{"0":"5"}}', "t-0 has '5'"), ('{"t":{"0":-1}}', "t-0 has -1"),
        ('{"t":{"0":-2}}', "t-0 has -2"), ('{"t":{"0":Infinity}}', "t-0 has inf"),
        (f'{{"t":{{"0":{10**23}}}}}', "t-0 has 1000"), (f'{{"t":{{"0":{2**63}}}}}', "t-0 has 9223"),
        (f'{{"t":{{"0":{"9" * 5_000}}}}}', "line 4: "), ('{"t":{"-1":5}}', "t has '-1'"),
        (f'{{"t":{{"{2**31}":5}}}}', "no partition"), ('{"t":{"00":5}}', "no partition"),
        ('{"t":{"0":5,"x":6}}', "t has 'x', which is no partition"),
        ('{"t":{"0":5},"u":7}', "topic u has 7 instead of partitions"),
        ('{"t":{"0":5,"0":6}}', "a name appears twice"),
        ('{"t":{"0":5},"t":{"1":6}}', "a name appears twice"),
        ('{"t":' * 100_000, "line 4: "),
    ],
)  # fmt: skip
def test_a_damaged_line_of_a_checkpoint_is_no_other_source(
    tmp_path: Path, line: str, said: str
) -> None:
    """Its topic would be repeated as a whole; the line is named, and what is found there."""
    text = f'v1\n{{}}\n{{"other":{{"0":5}}}}\n{line}'
    with pytest.raises(InvalidOption, match=said) as caught:
        read_checkpoint(checkpoint(tmp_path / "odd", {0: text}, (0,)))
    assert re.search("odd.*offsets/0, line 4: .*copy the whole checkpoint", str(caught.value))


@pytest.mark.parametrize(
    ("text", "said"), [(b"", "is empty"), (b"v1\n\xff", "not UTF-8 at byte 3")]
)
def test_a_damaged_file_of_a_checkpoint_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    """As a copy that was cut off leaves it."""
    folder = checkpoint(tmp_path / "odd", {0: ""}, (0,))
    (folder / "offsets" / "0").write_bytes(text)
    with pytest.raises(InvalidOption, match=f"odd: offsets/0 .*{said}.*copy the whole"):
        read_checkpoint(folder)


def test_lines_of_other_sources_are_left_out(tmp_path: Path) -> None:
    """Also objects, if the names in them are no numbers."""
    others = ['{"logOffset":0}', '{"shards":{"a":{"p":1}}}', "17", "-", '"x"', "[{]", "{}",
              '{"reservoirId":"a","index":-1}', "a:{}", "b:5"]  # fmt: skip
    text = "\n".join(["v1", "{}", *others, '{"t":{"0":5},"empty":{}}'])
    (only,) = read_checkpoint(checkpoint(tmp_path / "v1", {0: text}, (0,)))
    assert (only.topic, only.stable_offset) == ("t", 5)


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


def test_what_the_query_of_a_checkpoint_has_done_is_not_called_skipped() -> None:
    """A new group has no entry, so that this is all from the start of the log on."""
    move = replaced(
        PartitionStatus(*P0, log_start=0, end_offset=9), Kept(*P0, "", 7, OffsetRanges())
    )
    counts = [(len(move.again), len(move.skipped))]
    words = {"what": "offsets", "executed": False, "by_query": True}
    lines = list(text_lines(move_parts([move], counts, **words)))
    assert "DONE BY QUERY" in lines[0]
    assert "0 offsets would be processed again, 7 were done by the query" in lines
    assert not any("skipped" in line for line in lines)
    document = move_document(move, *counts[0], by_query=True)
    assert (document["done_by_query"], "skipped" in document) == (7, False)
    assert move_document(move, *counts[0])["skipped"] == 7


class Reads:
    """An administrator of offsets that fails if it reads records."""

    group = "g"

    def state_reset(self, *_: object) -> None:
        pass

    def check_idle(self, *, end_claims: bool) -> None:
        pass

    def count_records(self, _: object) -> tuple[int, int]:
        raise AssertionError("it reads the whole topic")


def test_records_of_a_checkpoint_are_not_read_to_be_counted() -> None:
    """With the default of --count."""
    move = replaced(
        PartitionStatus(*P0, log_start=0, end_offset=9), Kept(*P0, "", 7, OffsetRanges())
    )
    how = Execution(False, True, False, None, None)
    document = how.carry_out(Reads(), [move], by_query=True).document()
    assert (document["counted"], document["partitions"][0]["done_by_query"]) == ("offsets", 7)
    with pytest.raises(AssertionError, match="whole topic"):
        how.carry_out(Reads(), [move])


@pytest.mark.parametrize(
    ("kept", "note"),
    [
        (Kept(*P0, "", 5, OffsetRanges()), ""), (Kept(*P0, "", 3, OffsetRanges()), ""),
        (Kept(*P0, "", 9, OffsetRanges()), ""),
        (Kept(*P0, "", 2, OffsetRanges()), "2 is not in the log, which goes 3 to 9"),
        (Kept(*P0, "", 10, OffsetRanges()), "10 is not in the log, which goes 3 to 9"),
        (Kept(*P0, "", 4, OffsetRanges([(6, 8)])), ""),
        (Kept(*P0, "", 4, OffsetRanges([(6, 9)])), "9 is not in the log, which goes 3 to 9"),
        (Kept(*P0, "", 4, OffsetRanges(), (Pending(11),)), "11 is not in the log"),
    ],
)  # fmt: skip
def test_offsets_that_do_not_fit_the_log_are_noted(kept: Kept, note: str) -> None:
    """The dry run shows it: the log may be that of another topic or cluster."""
    found = replaced(PartitionStatus(*P0, log_start=3, end_offset=9), kept).note
    assert found.startswith(note) if note else not found


class Topics:
    """A cluster with these topics."""

    def __init__(self, **partitions: int) -> None:
        self.known = partitions

    def topics(self, names: Iterable[str], *, missing_ok: bool) -> list[SimpleNamespace]:
        assert missing_ok
        known = [name for name in names if name in self.known]
        return [SimpleNamespace(name=name, partitions=self.known[name]) for name in known]


def test_topics_that_are_not_in_the_cluster_are_named_with_the_others() -> None:
    """The remedy can be followed as it is printed."""
    wanted = {("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)}
    check_exist(Topics(a=1, b=3, c=2), wanted)
    with pytest.raises(
        InvalidOption, match=r"a-0: not .*; give --topic b --topic c for the others"
    ):
        check_exist(Topics(b=3, c=2), wanted)
    with pytest.raises(InvalidOption, match=r"b-2: .* give --topic a --topic b:0,1 --topic c for"):
        check_exist(Topics(a=1, b=2, c=2), wanted)
    with pytest.raises(InvalidOption, match=r"a-0, .* and 1 more: .* check --bootstrap-servers"):
        check_exist(Topics(), wanted)


def test_an_import_can_leave_topics_out(tmp_path: Path) -> None:
    """What is not in the file is refused before any request."""
    sources = '{"orders":{"0":1,"1":2},"bills":{"0":3}}'
    folder = str(checkpoint(tmp_path / "c", {0: f"v1\n{{}}\n{sources}"}, (0,)))
    kept = read_checkpoint(Path(folder))

    def chosen(topics: dict[str, list[int]] | None) -> list[tuple[str, int]]:
        return [(one.topic, one.partition) for one in _chosen(kept, topics, folder)]

    assert chosen(None) == [("bills", 0), ("orders", 0), ("orders", 1)]
    assert chosen({"orders": []}) == [("orders", 0), ("orders", 1)]
    assert chosen({"orders": [1], "bills": []}) == [("bills", 0), ("orders", 1)]
    words = [
        "offsets",
        "import",
        folder,
        "--group",
        "g",
        "-o",
        "kafka.bootstrap.servers=127.0.0.1:1",
    ]
    for topic, said in (("other", "no such topic; it has bills, orders"),
                        ("orders:2", "no partition 2 of it")):  # fmt: skip
        refused = CliRunner().invoke(main, [*words, "--topic", topic])
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff", "not UTF-8 at byte 0"), (b"", "not JSON"), (b"[" * 100_000, "not JSON"),
        (b'{"format": "coopconsume-offsets", "version": 1, "partitions": 5}',
         "partitions are int, not a list"),
    ],
)  # fmt: skip
def test_a_damaged_document_is_refused_by_name(tmp_path: Path, text: bytes, said: str) -> None:
    """As a damaged checkpoint is."""
    file = tmp_path / "odd.json"
    file.write_bytes(text)
    words = ["offsets", "import", str(file), "-o", "kafka.bootstrap.servers=127.0.0.1:1"]
    refused = CliRunner().invoke(main, words)
    assert (refused.exit_code, "odd.json" in refused.stderr) == (2, True), refused.output
    assert said in refused.stderr


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


def test_offsets_of_a_command_are_single_ones_and_ranges() -> None:
    """Without any, nothing is marked."""
    given = ranges(None, None, ("17,20-22", "40"))
    assert given == OffsetRanges([(17, 17), (20, 22), (40, 40)])
    assert ranges(None, None, ()) is None


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
