"""The pure parts of the fenced writer: stamps, expectations, the fold and the audit of a log."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopconsume.admin.text import text_lines
from coopconsume.cli.log import blockage_parts
from coopconsume.errors import AppendRefused, InvalidOption, UnknownOption
from coopconsume.fenced import Audit, Entry, ExclusiveProducer, LeaderElection, LogId, audit
from coopconsume.fenced.auditing import Blockage
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.engine import OpenTransaction
from coopconsume.fenced.fold import Fold, Owner, SequenceGap, Verdict
from coopconsume.fenced.log import (
    Ends,
    Position,
    Raw,
    Rows,
    checked_size,
    entries,
    expectation,
    is_in_place,
)
from coopconsume.fenced.requests import new_batch_id
from coopconsume.fenced.stamp import NAME, MalformedStamp, Stamp, decode, encode, encode_batch
from coopconsume.record import time_of

SERVERS = {"kafka.bootstrap.servers": "a:1"}
LOG = LogId("t", "an-id", 0)
STAMPS = st.builds(
    Stamp,
    visibility=st.sampled_from(["read_committed", "filter"]), kind=st.just("data"),
    epoch=st.integers(0, 2**40), seq=st.integers(5, 2**40), n=st.just(6), i=st.integers(0, 5),
    batch=st.from_regex(r"[A-Za-z0-9._:-]{1,64}", fullmatch=True), expected=st.integers(0, 2**40),
    tag=st.binary(min_size=8, max_size=8),
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
    assert decode([encode(stamp), *headers]) == stamp
    assert decode(headers) is None
    assert len(encode(stamp)[1]) == 42 + len(stamp.batch)


@given(STAMPS)
def test_a_batch_is_stamped_record_by_record(stamp: Stamp) -> None:
    """Each record has its own number, and all of them one id."""
    head = replace(stamp, i=0)
    found = [decode([header]) for header in encode_batch(head)]
    assert found == [replace(head, i=i, seq=head.seq + i) for i in range(head.n)]


@given(STAMPS, st.binary(max_size=120))
def test_no_bytes_are_taken_that_the_writer_would_not_write(stamp: Stamp, junk: bytes) -> None:
    """Whatever decodes encodes to the same bytes; everything else is malformed."""
    value = encode(stamp)[1]
    for changed in (junk, b"\x02" + junk, value + junk, value[: len(junk)], value[:38] + junk):
        try:
            found = decode([(NAME, changed)])
        except MalformedStamp:
            continue
        assert found is not None
        assert encode(found) == (NAME, changed)


@pytest.mark.parametrize("change", ["none", "empty", "format", "kind", "twice", "behind", "number"])
def test_a_malformed_stamp_is_not_a_foreign_record(change: str) -> None:
    """The error says what is wrong with it."""
    stamp = Stamp("filter", "data", 1, 0, 1, 0, "b", 0)
    name, value = encode(stamp)
    headers = {
        "none": [(name, None)], "empty": [(name, b"")], "format": [(name, b"\x01" + value[1:])],
        "kind": [(name, value[:1] + b"\x03" + value[2:])], "twice": [(name, value)] * 2,
        "behind": [("mine", b""), (name, value)],
        "number": [(name, value[:2] + b"\xff" * 8 + value[10:])],
    }[change]  # fmt: skip
    with pytest.raises(MalformedStamp):
        decode(headers)  # type: ignore[arg-type]


def test_a_child_process_makes_its_own_batch_ids() -> None:
    """None of them is one that its parent has made or will make."""
    made = {new_batch_id() for _ in range(300)}
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, " ".join(new_batch_id() for _ in range(300)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        childs = set(pipe.read().split())
    os.waitpid(pid, 0)
    made |= {new_batch_id() for _ in range(300)}
    assert len(made) == 600
    assert len(childs - made) == 300


# -- what is expected --------------------------------------------------------------------------


@given(st.integers(0, 99), st.integers(1, 5), st.data())
def test_each_record_may_expect_its_number(first: int, count: int, data: st.DataObject) -> None:
    """A list with gaps says the same as its first number; one that contradicts itself nothing."""
    numbers = [first + i for i in range(count)]
    shown = [n if data.draw(st.booleans()) else -1 for n in numbers]
    wanted = expectation(-1, shown, [Entry(b"")] * count, check=True)
    if set(shown) == {-1}:
        assert wanted.mismatch(LOG, Position(0, 0), {}) is None
        return
    assert wanted == expectation(-1, first, [Entry(b"")] * count, check=True)
    assert wanted.mismatch(LOG, Position(0, first), {}) is None
    missed = wanted.mismatch(LOG, Position(first, first + 1), {})
    assert missed is not None
    assert (missed.by, missed.expected, missed.actual) == ("sequence", first, first + 1)
    shown[next(i for i, n in enumerate(shown) if n >= 0)] += 1
    if sum(n >= 0 for n in shown) > 1:
        with pytest.raises(AppendRefused, match="follow each other"):
            expectation(-1, shown, [Entry(b"")] * count, check=True)


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
        expectation(offset, seq, [Entry(b"")] * 2, check=True)


def test_switched_off_nothing_is_missed() -> None:
    """The numbers are then not looked at."""
    assert expectation(7, -1, [Entry(b"")], check=False).mismatch(LOG, Position(0, 0), {}) is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 9))
def test_offsets_are_judged(offsets: list[int], expected: int) -> None:
    """In place is a row of neighbours at the expected offset, and nothing else."""
    neighbours = all(b == a + 1 for a, b in itertools.pairwise(offsets))
    assert is_in_place(offsets, expected) == (neighbours and offsets[0] == expected)


def test_headers_count_towards_the_size_of_an_append() -> None:
    """So do keys and values; what is too large is refused before it is sent."""
    small, large = Entry(b"v", b"k"), b"x" * 2_000
    assert checked_size([small], 1_000, is_filtered=True) < 1_000
    for entry in (Entry(large), Entry(b"v", large), Entry(b"v", headers=[("h", large)])):
        with pytest.raises(AppendRefused, match="takes up to"):
            checked_size([small, entry], 1_500, is_filtered=False)


def test_records_are_taken_in_three_forms() -> None:
    """Values, pairs and entries; what makes no sense is refused."""
    assert entries([b"v", (b"k", b"v"), Entry(None, b"k")]) == [
        Entry(b"v"), Entry(b"v", b"k"), Entry(None, b"k"),
    ]  # fmt: skip
    for wrong in ([], b"bytes", [(None, None)], ["text"], [Entry(b"", headers=[("fw", b"")])]):
        with pytest.raises(AppendRefused):
            entries(wrong)  # type: ignore[arg-type]


def test_settings_are_checked() -> None:
    """Unknown names, the writer's own business, and which topics are checked."""
    with pytest.raises(UnknownOption, match=r"check[.]expected[.]offsets"):
        FencedSettings.parse(SERVERS | {"check.expected.offset": "true"})
    with pytest.raises(UnknownOption, match=r"transaction[.]timeout[.]ms"):
        FencedSettings.parse(SERVERS | {"kafka.transaction.timeout": "1"})
    for ours in ("acks", "transactional.id", "linger.ms"):
        with pytest.raises(InvalidOption, match="leave it out"):
            FencedSettings.parse(SERVERS | {f"kafka.{ours}": "1"})
    with pytest.raises(InvalidOption, match="give a number"):
        FencedSettings.parse(SERVERS | {"kafka.transaction.timeout.ms": "soon"})
    for value, a, b in (
        (True, True, True), ("TRUE", True, True), ("false", False, False), ("a, c", True, False),
        (["b"], False, True),
    ):  # fmt: skip
        found = FencedSettings.parse(SERVERS | {"check.expected.offsets": value})
        assert (found.checks("a"), found.checks("b")) == (a, b)
    with pytest.raises(InvalidOption, match="topics"):
        FencedSettings.parse(SERVERS | {"check.expected.offsets": ""})


# -- the fold ----------------------------------------------------------------------------------


class Log:
    """A log as writers without a fault leave it, with foreign records and holes in it."""

    def __init__(self, seed: int, visibility: str = "read_committed") -> None:
        luck = random.Random(seed)
        self.rows: list[Raw] = []
        self.seq, self.epoch, self.end, self.tag = 0, 0, 0, b"-shared-"
        for number in range(luck.randint(1, 12)):
            kind = "open" if not self.epoch or luck.random() < 0.2 else "data"
            if kind == "open":
                self.epoch += luck.randint(1, 3)
                self.tag = luck.randbytes(8)
            value = Owner("me", f"s{self.epoch}", "id").to_bytes() if kind == "open" else b"v"
            n = luck.randint(1, 4) if kind == "data" else 1
            head = Stamp(
                visibility, kind, self.epoch, self.seq, n, 0, f"b{number}", self.end, self.tag
            )  # type: ignore[arg-type]
            self.write(head, value)
            self.seq += n if kind == "data" else 0
            self.end += luck.choice([0, 1, 1, 5])
            if luck.random() < 0.2:
                self.rows.append(Raw(self.end, 0, None, b"", [("other", b"")]))
                self.end += 1

    def write(self, head: Stamp, value: bytes = b"v", count: int | None = None) -> None:
        """Append the records of a batch, or only the first ones, wherever the log ends."""
        for header in list(encode_batch(head))[:count]:
            self.rows.append(Raw(self.end, 0, None, value, [header]))
            self.end += 1


class Shelf:
    """An engine that has some records, and gives them out in pieces."""

    def __init__(self, rows: Sequence[Raw], end: int, spans: Sequence[int]) -> None:
        self._rows, self._end, self._spans = rows, end, spans

    def topic_id(self, topic: str) -> str:
        return f"id of {topic}"

    def is_compacted(self, topic: str) -> bool:
        return False

    def start(self, topic: str, partition: int) -> int:
        return 0

    def ends(self, topic: str, partition: int) -> Ends:
        return Ends(self._end, self._end)

    def open_transactions(self, topic: str, partition: int) -> tuple[()]:
        return ()

    def read(
        self, topic: str, partition: int, start: int, stop: int, timeout: float
    ) -> Iterator[Rows]:
        rows = [row for row in self._rows if start <= row.offset < stop]
        turn = 0
        while rows:
            span = self._spans[turn % len(self._spans)]
            yield Rows.of(rows[:span])
            rows, turn = rows[span:], turn + 1

    def channel(self, log: LogId, transactional_id: str | None, timeout: float) -> None:
        raise AssertionError("a reader does not write")

    def close(self) -> None:
        pass


def audited(log: Log) -> Audit:
    """The audit of a log."""
    return audit(SERVERS, "t", engine=Shelf(log.rows, log.end, [7]))[1]  # type: ignore[arg-type]


def verdicts(rows: list[Raw], fold: Fold | None = None) -> list[Verdict]:
    """What each record means."""
    fold = fold or Fold()
    return [fold.take(Rows.of([row]), 0)[1] for row in rows]


def gap(rows: list[Raw]) -> SequenceGap | None:
    """Where records are missing."""
    try:
        verdicts(rows)
    except SequenceGap as error:
        return error
    return None


@given(st.integers(0, 10**9), st.sampled_from(["read_committed", "filter"]))
def test_a_log_without_a_fault_is_folded(seed: int, visibility: str) -> None:
    """From its beginning, and from anywhere in it once a batch begins."""
    log = Log(seed, visibility)
    fold = Fold()
    assert set(verdicts(log.rows, fold)) <= {"counted", "partial", "foreign"}
    assert (fold.next_seq, fold.epoch, fold.tag) == (log.seq, log.epoch, log.tag)
    assert not fold.incomplete
    for start in range(len(log.rows)):
        part = Fold(None, None)
        verdicts(log.rows[start:], part)
        assert part.next_seq in (log.seq, None)
        assert part.epoch in (log.epoch, None)
        assert part.is_certain
    found = audited(log)
    assert (found.ok, found.findings) == (True, ())
    assert (found.records, found.next_seq, found.epoch) == (log.seq, log.seq, log.epoch)
    assert sum(term.records for term in found.terms) == log.seq


def heads(rows: list[Raw]) -> list[tuple[int, Stamp]]:
    """The indexes and stamps of the first records of all batches."""
    stamps = [(i, decode(row.headers)) for i, row in enumerate(rows)]
    return [(i, stamp) for i, stamp in stamps if stamp is not None and stamp.i == 0]


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_batch_that_is_gone_is_a_gap(seed: int, where: int) -> None:
    """It is found at the next batch of data of the owner in force."""
    rows = Log(seed).rows
    data = [(at, stamp) for at, stamp in heads(rows) if stamp.kind == "data"]
    if not data:
        return
    at, stamp = data[where % len(data)]
    rest = heads(rows[at + stamp.n :])
    found = gap([*rows[:at], *rows[at + stamp.n :]])
    assert (found is not None) == bool(rest)
    assert found is None or found.offset == rest[0][1].expected


#: What others may write into a log: stamps that do not count, by what is changed in a good one.
STRAYS = st.sampled_from([
    "foreign", "malformed", "elsewhere", "former epoch", "later epoch", "other tag", "torn",
    "open of a former epoch", "open of another session", "open without an owner",
    "open with a nested value", "headless",
    "id that has counted",
])  # fmt: skip


@given(
    st.integers(0, 10**9), st.sampled_from(["read_committed", "filter"]),
    st.lists(STRAYS, min_size=1, max_size=6),
)  # fmt: skip
def test_nobody_who_writes_into_a_log_stops_it(
    seed: int, visibility: str, strays: list[str]
) -> None:
    """What others write does not count and is in the audit; the owner's next batch counts."""
    log = Log(seed, visibility)
    before = list(log.rows)
    for stray in strays:
        write_stray(log, visibility, stray)
    count = len(log.rows) - len(before)
    head = Stamp(visibility, "data", log.epoch, log.seq, 2, 0, "next", log.end, log.tag)  # type: ignore[arg-type]
    log.write(head)
    fold = Fold()
    found = verdicts(log.rows, fold)
    assert "counted" not in found[len(before) : len(before) + count]
    assert found[-2:] == ["partial", "counted"]
    assert fold.next_seq == log.seq + 2
    audit = audited(log)
    assert (audit.ok, audit.records) == (True, log.seq + 2)
    passed = audit.rejected + audit.fenced + audit.malformed + audit.torn + audit.foreign
    assert passed == count + sum(row.headers[0][0] == "other" for row in before)


def write_stray(log: Log, visibility: str, stray: str) -> None:
    """Append something that does not count."""
    good = Stamp(visibility, "data", log.epoch, log.seq, 1, 0, "stray", log.end, log.tag)  # type: ignore[arg-type]
    owner = Owner("o", "other", "").to_bytes()
    one = Raw(log.end, 0, None, b"", [])
    if stray == "foreign":
        log.rows.append(one)
        log.end += 1
    elif stray == "malformed":
        log.rows.append(one._replace(headers=[(NAME, b"\x09")]))
        log.end += 1
    elif stray == "elsewhere":
        log.write(replace(good, expected=log.end + 1))
    elif stray == "former epoch":
        log.write(replace(good, epoch=log.epoch - 1))
    elif stray == "later epoch":
        log.write(replace(good, epoch=log.epoch + 1))
    elif stray == "other tag":
        log.write(replace(good, tag=b"strange!"))
    elif stray == "torn":
        log.write(replace(good, n=3), count=2)
        # What follows directly might complete it.
        log.rows.append(one._replace(offset=log.end))
        log.end += 1
    elif stray == "headless":
        log.write(replace(good, n=3, i=0, expected=log.end - 1), count=3)
    elif stray == "id that has counted":
        log.write(replace(good, batch="b0"))
    elif stray == "open of a former epoch":
        log.write(replace(good, kind="open", epoch=max(1, log.epoch - 1)), owner)
    elif stray == "open of another session":
        log.write(replace(good, kind="open"), owner)
    else:
        value = b"[" * 100_000 if stray == "open with a nested value" else b"no owner"
        log.write(replace(good, kind="open", epoch=log.epoch + 1), value)


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_a_batch_without_its_end_does_not_count(visibility: str) -> None:
    """A stall between its records, followed by death, leaves a log that the next owner takes."""
    log = Log(3, visibility)
    good = Stamp(visibility, "data", log.epoch, log.seq, 5, 0, "cut", log.end, log.tag)  # type: ignore[arg-type]
    log.write(good, count=3)
    fold = Fold()
    assert verdicts(log.rows, fold)[-3:] == ["partial"] * 3
    assert (fold.next_seq, len(fold.incomplete)) == (log.seq, 3)
    epoch = log.epoch + 1
    opened = Stamp(visibility, "open", epoch, log.seq, 1, 0, "open", log.end, b"the-next")  # type: ignore[arg-type]
    log.write(opened, Owner("o", "next", "").to_bytes())
    log.write(Stamp(visibility, "data", epoch, log.seq, 2, 0, "new", log.end, b"the-next"))  # type: ignore[arg-type]
    assert verdicts(log.rows)[-3:] == ["counted", "partial", "counted"]
    assert audited(log).torn == 3


def test_a_later_incarnation_fences_an_earlier_one() -> None:
    """Both go on with one session under one epoch; the records of the earlier do not count."""
    log = Log(0)
    log.epoch += 1
    tags = [b"incarn-1", b"incarn-2"]
    for number, tag in enumerate(tags, 1):
        opened = Stamp(
            "read_committed", "open", log.epoch, log.seq, 1, 0, f"o{number}", log.end, tag
        )
        log.write(opened, Owner("me", "mine", "", number).to_bytes())
    for tag, verdict in zip(tags, ("fenced", "counted"), strict=True):
        fold = Fold()
        good = Stamp("read_committed", "data", log.epoch, log.seq, 1, 0, "b", log.end, tag)
        row = Raw(log.end, 0, None, b"", [encode(good)])
        assert verdicts([*log.rows, row], fold)[-1] == verdict
    again = Stamp("read_committed", "open", log.epoch, log.seq, 1, 0, "o3", log.end, b"again---")
    row = Raw(log.end, 0, None, Owner("me", "mine", "", 1).to_bytes(), [encode(again)])
    assert verdicts([*log.rows, row])[-1] == "fenced"


def test_a_fold_that_begins_at_a_zombies_record_knows_that_it_is_not_certain() -> None:
    """The record counts only if its writer opened the epoch in force."""
    log = Log(5)
    good = Stamp("read_committed", "data", log.epoch, log.seq, 1, 0, "b", log.end, log.tag)
    zombie = replace(good, epoch=log.epoch + 4, batch="z")
    log.write(zombie)
    log.write(replace(good, expected=log.end))
    fold = Fold(None, None)
    assert verdicts(log.rows[-2:], fold) == ["counted", "fenced"]
    assert not fold.is_certain
    assert verdicts(log.rows)[-2:] == ["fenced", "counted"]


def test_a_compacted_log_may_have_holes() -> None:
    """Records and parts of batches may be gone; numbers and epochs still only grow."""
    log = Log(11)
    kept = [row for i, row in enumerate(log.rows) if i % 3 != 1]
    fold = Fold(None, None, compacted=True)
    assert set(verdicts(kept, fold)) <= {"counted", "foreign"}
    last = next(s for row in reversed(log.rows) if (s := decode(row.headers)))
    assert fold.epoch in (last.epoch, last.epoch - 1, last.epoch - 2, last.epoch - 3)
    again = Fold(None, None, compacted=True)
    late = log.rows[0]._replace(offset=log.end)
    assert verdicts([*log.rows, late], again)[-1] == "rejected"


def test_the_writer_needs_no_spark() -> None:
    """Importing any module of it loads neither Spark nor a Kafka client."""
    root = Path(__file__).parents[3]
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
def test_an_invalid_lease_is_refused_before_anything_is_opened(
    make: type[ExclusiveProducer | LeaderElection], lease: float
) -> None:
    """Nobody is asked for it, as there is nobody at this address."""
    with pytest.raises(ValueError, match="lease must be 0 or more seconds"):
        make({"kafka.bootstrap.servers": "127.0.0.1:1"}, "ledger", lease=lease)


# -- what blocks a log ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "hangs"),
    [("Ongoing", False), ("PrepareCommit", False), ("Empty", True), ("CompleteCommit", True),
     (None, True)],
)  # fmt: skip
def test_a_transaction_that_its_coordinator_has_ended_hangs(state: str | None, hangs: bool) -> None:
    """As after a lone broker started again without writing the markers of a commit."""
    name = None if state is None else "t.1"
    found = OpenTransaction(7, 0, 14, datetime(2026, 1, 2, tzinfo=UTC), name, state, 60_000)
    assert found.hangs == hangs
    output = "\n".join(text_lines(blockage_parts(Blockage("t", 0, 14, 15, (found,)), "a:1")))
    assert ("hangs: no coordinator will end it" in output) == hangs
    assert ("may have been reported as committed" in output) == hangs
    assert ("t.1: its coordinator ends it after its timeout" in output) == (not hangs)
    assert "abort --topic t --partition 0 --start-offset 14" in output


def test_the_time_of_a_transaction_may_be_any_number() -> None:
    """It is the timestamp of a record."""
    assert time_of(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert time_of(2**62) == datetime.max.replace(tzinfo=UTC)
    assert time_of(-(2**62)) == datetime.min.replace(tzinfo=UTC)
