"""The pure parts of the fenced writer: stamps, expectations, the fold and the audit of a log."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopconsume.errors import AppendRefused, InvalidOption, UnknownOption
from coopconsume.fenced import Auditor, Entry, ExclusiveProducer, LeaderElection, LogId
from coopconsume.fenced.core import Position, entries, expectation, judge
from coopconsume.fenced.fold import Fold, Owner, RuleBroken
from coopconsume.fenced.headers import MalformedStamp, Stamp, decode, encode, encode_batch
from coopconsume.fenced.log import PlainRaw
from coopconsume.fenced.settings import Settings

SERVERS = {"kafka.bootstrap.servers": "a:1"}
STAMPS = st.builds(
    Stamp,
    visibility=st.sampled_from(["read_committed", "filter"]), kind=st.just("data"),
    epoch=st.integers(0, 2**40), seq=st.integers(5, 2**40), n=st.just(6), i=st.integers(0, 5),
    batch=st.from_regex(r"[A-Za-z0-9._:-]{1,64}", fullmatch=True), expected=st.integers(0, 2**40),
)  # fmt: skip


# -- names and stamps --------------------------------------------------------------------------


def test_no_two_logs_have_one_transactional_id() -> None:
    """Parts of the name have their lengths before them."""
    logs = [LogId("t", "a", 11), LogId("t", "a1", 1), LogId("t", "a.1:1", 1), LogId("t", "a", 1)]
    ids = {log.transactional_id(writer) for log in logs for writer in (None, "1", "1.1:1")}
    assert len(ids) == 12


@given(STAMPS, st.lists(st.tuples(st.text().map("x{}".format), st.binary())))
def test_a_stamp_comes_back(stamp: Stamp, headers: list[tuple[str, bytes]]) -> None:
    """With any headers of the user's behind it."""
    assert decode([*encode(stamp), *headers]) == stamp
    assert decode(headers) is None


@given(STAMPS)
def test_a_batch_is_stamped_record_by_record(stamp: Stamp) -> None:
    """Each record has its own number, and all of them one id."""
    head = replace(stamp, i=0)
    found = [decode(headers) for headers in encode_batch(head)]
    assert found == [replace(head, i=i, seq=head.seq + i) for i in range(head.n)]


@given(
    STAMPS, st.integers(0, 7), st.sampled_from([b"", b"-1", b"01", b" 1", b"1_0", b"x", b"\xff"])
)
def test_a_malformed_stamp_is_told(stamp: Stamp, which: int, value: bytes) -> None:
    """No value is taken that the writer would not write."""
    headers = encode(stamp)
    if which == 6:
        value = b"no spaces" if value else value
    headers[which] = (headers[which][0], value)
    with pytest.raises(MalformedStamp, match=headers[which][0]):
        decode(headers)


@pytest.mark.parametrize("change", ["missing", "twice", "moved", "more"])
def test_a_stamp_has_its_headers_in_order(change: str) -> None:
    """One missing, twice, moved or unknown is no stamp, and no foreign record either."""
    headers = encode(Stamp("filter", "data", 1, 0, 1, 0, "b", 0))
    changed = {
        "missing": headers[1:], "twice": [*headers, headers[0]], "moved": headers[::-1],
        "more": [*headers, ("fw-new", b"")],
    }[change]  # fmt: skip
    with pytest.raises(MalformedStamp):
        decode(changed)


# -- what is expected --------------------------------------------------------------------------


@given(st.integers(0, 99), st.integers(1, 5), st.data())
def test_each_record_may_expect_its_number(first: int, count: int, data: st.DataObject) -> None:
    """A list with gaps says the same as its first number; one that contradicts itself nothing."""
    numbers = [first + i for i in range(count)]
    shown = [n if data.draw(st.booleans()) else -1 for n in numbers]
    wanted = expectation(-1, shown, count, check=True)
    if set(shown) == {-1}:
        assert wanted.missed(Position(0, 0)) is None
        return
    assert wanted == expectation(-1, first, count, check=True)
    assert wanted.missed(Position(0, first)) is None
    assert wanted.missed(Position(first, first + 1)) == (first, first + 1)
    shown[next(i for i, n in enumerate(shown) if n >= 0)] += 1
    if sum(n >= 0 for n in shown) > 1:
        with pytest.raises(AppendRefused, match="follow each other"):
            expectation(-1, shown, count, check=True)


@pytest.mark.parametrize(
    ("offset", "seq", "said"),
    [
        (3, 3, "one of both"), (-2, -1, "-2"), ([1], -1, "1 numbers for 2"),
        ([-1, 0], -1, "from 0"),
    ],
)  # fmt: skip
def test_expectations_that_make_no_sense(offset: int, seq: int, said: str) -> None:
    """They are refused before anything is sent."""
    with pytest.raises(AppendRefused, match=said):
        expectation(offset, seq, 2, check=True)


def test_switched_off_nothing_is_missed() -> None:
    """The numbers are then not looked at."""
    assert expectation(7, -1, 1, check=False).missed(Position(0, 0)) is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 9))
def test_offsets_are_judged(offsets: list[int], expected: int) -> None:
    """In place is a row of neighbours at the expected offset, and nothing else."""
    neighbours = all(b == a + 1 for a, b in itertools.pairwise(offsets))
    found = judge(offsets, expected)
    assert (found == "torn") == (not neighbours)
    assert (found == "in place") == (neighbours and offsets[0] == expected)


def test_records_are_taken_in_three_forms() -> None:
    """Values, pairs and entries; what makes no sense is refused."""
    assert entries([b"v", (b"k", b"v"), Entry(None, b"k")]) == [
        Entry(b"v"), Entry(b"v", b"k"), Entry(None, b"k"),
    ]  # fmt: skip
    for wrong in ([], b"bytes", [(None, None)], ["text"], [Entry(b"", headers=[("fw-x", b"")])]):
        with pytest.raises(AppendRefused):
            entries(wrong)  # type: ignore[arg-type]


def test_settings_are_checked() -> None:
    """Unknown names, the writer's own business, and which topics are checked."""
    with pytest.raises(UnknownOption, match=r"check[.]expected[.]offsets"):
        Settings.parse(SERVERS | {"check.expected.offset": "true"})
    with pytest.raises(UnknownOption, match=r"transaction[.]timeout[.]ms"):
        Settings.parse(SERVERS | {"kafka.transaction.timeout": "1"})
    for ours in ("acks", "transactional.id", "linger.ms"):
        with pytest.raises(InvalidOption, match="leave it out"):
            Settings.parse(SERVERS | {f"kafka.{ours}": "1"})
    with pytest.raises(InvalidOption, match="give a number"):
        Settings.parse(SERVERS | {"kafka.transaction.timeout.ms": "soon"})
    for value, a, b in (
        (True, True, True), ("TRUE", True, True), ("false", False, False), ("a, c", True, False),
        (["b"], False, True),
    ):  # fmt: skip
        found = Settings.parse(SERVERS | {"check.expected.offsets": value})
        assert (found.checks("a"), found.checks("b")) == (a, b)
    with pytest.raises(InvalidOption, match="topics"):
        Settings.parse(SERVERS | {"check.expected.offsets": ""})


# -- the fold ----------------------------------------------------------------------------------


class Log:
    """A log as writers without a fault leave it, with foreign records and holes in it."""

    def __init__(self, seed: int, visibility: str = "read_committed") -> None:
        luck = random.Random(seed)
        self.rows: list[PlainRaw] = []
        self.seq, self.epoch, self.end = 0, 0, 0
        for number in range(luck.randint(1, 12)):
            kind = "open" if not self.epoch or luck.random() < 0.2 else "data"
            if kind == "open":
                self.epoch += luck.randint(1, 3)
            value = Owner("me", f"s{self.epoch}", "id").to_bytes() if kind == "open" else b"v"
            n = luck.randint(1, 4) if kind == "data" else 1
            head = Stamp(visibility, kind, self.epoch, self.seq, n, 0, f"b{number}", self.end)  # type: ignore[arg-type]
            for i, headers in enumerate(encode_batch(head)):
                self.rows.append(PlainRaw(self.end + i, 0, None, value, headers))
            self.seq += n if kind == "data" else 0
            self.end += n + luck.choice([0, 1, 1, 5])
            if luck.random() < 0.2:
                self.rows.append(PlainRaw(self.end, 0, None, b"", [("other", b"")]))
                self.end += 1


def broken(rows: list[PlainRaw], fold: Fold | None = None) -> RuleBroken | None:
    """The first broken rule."""
    fold = fold or Fold()
    try:
        for row in rows:
            fold.add(row)
    except RuleBroken as error:
        return error
    return None


@given(st.integers(0, 10**9), st.sampled_from(["read_committed", "filter"]))
def test_a_log_without_a_fault_is_folded(seed: int, visibility: str) -> None:
    """From its beginning, and from anywhere in it once a batch begins."""
    log = Log(seed, visibility)
    fold = Fold()
    assert broken(log.rows, fold) is None
    assert (fold.next_seq, fold.epoch, fold.whole) == (log.seq, log.epoch, True)
    for start in range(len(log.rows)):
        part = Fold(None, None)
        assert broken(log.rows[start:], part) is None
        assert part.next_seq in (log.seq, None)
        assert part.epoch in (log.epoch, None)
    auditor = Auditor()
    assert all(map(auditor.add, log.rows))
    found = auditor.result()
    assert found.ok
    assert (found.records, found.next_seq, found.epoch) == (log.seq, log.seq, log.epoch)
    assert sum(term.records for term in found.terms) == log.seq


def changed(row: PlainRaw, **fields: object) -> PlainRaw:
    """A record with another stamp."""
    stamp = decode(row.headers)
    assert stamp is not None
    return row._replace(headers=encode(replace(stamp, **fields)))  # type: ignore[arg-type]


def heads(rows: list[PlainRaw]) -> list[tuple[int, Stamp]]:
    """The places and stamps of all batches."""
    stamps = [(i, decode(row.headers)) for i, row in enumerate(rows)]
    return [(i, stamp) for i, stamp in stamps if stamp is not None and stamp.i == 0]


def after(stamp: Stamp) -> int:
    """The number that comes after a batch."""
    return stamp.seq + (stamp.n if stamp.kind == "data" else 0)


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_wrong_number_or_place_is_found(seed: int, where: int) -> None:
    """The record is named, and the rule that it breaks."""
    rows = Log(seed).rows
    at, stamp = heads(rows)[where % len(heads(rows))]
    faults = [({"expected": stamp.expected + 1}, 2), ({"seq": stamp.seq + 1}, 1)]
    if stamp.kind == "data":
        faults += [({"epoch": stamp.epoch + 1}, 3), ({"epoch": stamp.epoch - 1}, 3)]
    for fault, rule in faults:
        found = broken([*rows[:at], changed(rows[at], **fault), *rows[at + 1 :]])
        assert found is not None
        assert (found.offset, found.rule) == (rows[at].offset, rule)


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_batch_that_is_gone_or_twice_is_found(seed: int, where: int) -> None:
    """Where the next one begins, and where it comes again."""
    log = Log(seed)
    rows = log.rows
    data = [(at, stamp) for at, stamp in heads(rows) if stamp.kind == "data"]
    if not data:
        return
    at, stamp = data[where % len(data)]
    rest = heads(rows[at + stamp.n :])
    found = broken([*rows[:at], *rows[at + stamp.n :]])
    assert (found is not None) == bool(rest)
    assert found is None or (found.offset, found.rule) == (rest[0][1].expected, 1)
    again = [
        changed(row, expected=log.end, seq=log.seq + i, epoch=log.epoch)._replace(
            offset=log.end + i
        )
        for i, row in enumerate(rows[at : at + stamp.n])
    ]
    found = broken([*rows, *again])
    assert found is not None
    assert (found.offset, found.rule) == (log.end, 5)


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_torn_batch_is_found(seed: int, where: int) -> None:
    """At the next record, or by the audit at the end of the log."""
    rows = Log(seed).rows
    large = [(at, stamp) for at, stamp in heads(rows) if stamp.n > 1]
    if not large:
        return
    at, stamp = large[where % len(large)]
    gone = at + 1 + where % (stamp.n - 1)
    auditor = Auditor()
    rest = [*rows[:gone], *rows[gone + 1 :]]
    for row in rest:
        auditor.add(row)
    finding = auditor.result().finding
    assert finding is not None
    assert finding.rule == 4
    assert finding.offset == (rest[gone].offset if len(rest) > gone else rest[-1].offset + 1)


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_second_owner_of_an_epoch_is_found(seed: int, where: int) -> None:
    """An epoch is opened again by its own session alone."""
    rows = Log(seed).rows
    at, stamp = heads(rows)[where % len(heads(rows))]
    cut, place = at + stamp.n, rows[at].offset + stamp.n
    opened = Stamp("read_committed", "open", stamp.epoch, after(stamp), 1, 0, "new", place)
    for session, rule in ((f"s{stamp.epoch}", None), ("other", 3)):
        value = Owner("o", session, "").to_bytes()
        found = broken([*rows[:cut], PlainRaw(place, 0, None, value, encode(opened))])
        assert (None if found is None else found.rule) == rule


def test_what_is_elsewhere_in_a_filtered_log_does_not_count() -> None:
    """A late owner's batch certifies itself out, all of it."""
    log = Log(3, "filter")
    late = Stamp("filter", "data", log.epoch, log.seq, 2, 0, "late", log.end - 1)
    rows = [
        PlainRaw(log.end + i, 0, None, b"", headers) for i, headers in enumerate(encode_batch(late))
    ]
    fold = Fold()
    for row in log.rows:
        fold.add(row)
    assert [fold.add(row) for row in rows] == ["rejected", "rejected"]
    assert fold.next_seq == log.seq


def test_a_compacted_log_may_have_holes() -> None:
    """Records and parts of batches may be gone; numbers and epochs still only grow."""
    log = Log(11)
    kept = [row for i, row in enumerate(log.rows) if i % 3 != 1]
    fold = Fold(None, None, compacted=True)
    assert broken(kept, fold) is None
    last = next(s for row in reversed(log.rows) if (s := decode(row.headers)))
    assert fold.epoch in (last.epoch, last.epoch - 1, last.epoch - 2, last.epoch - 3)
    again = Fold(None, None, compacted=True)
    assert broken([*log.rows, log.rows[0]._replace(offset=log.end)], again) is not None


def test_the_writer_needs_no_spark() -> None:
    """Importing any module of it loads neither Spark nor a Kafka client."""
    root = Path(__file__).parents[2]
    files = (root / "coopconsume" / "fenced").glob("[a-z]*.py")
    modules = [f"coopconsume.fenced.{path.stem}" for path in files]
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert not {"pyspark", "kafka", "confluent_kafka", "deltalake"} & set(run.stdout.split())


@pytest.mark.parametrize("make", [ExclusiveProducer, LeaderElection])
@pytest.mark.parametrize("lease", [-1.0, float("nan")])
def test_a_lease_that_is_none_is_refused_before_anything_is_opened(
    make: type[ExclusiveProducer | LeaderElection], lease: float
) -> None:
    """Nobody is asked for it, as there is nobody at this address."""
    with pytest.raises(ValueError, match="lease must be 0 or more seconds"):
        make({"kafka.bootstrap.servers": "127.0.0.1:1"}, "ledger", lease=lease)
