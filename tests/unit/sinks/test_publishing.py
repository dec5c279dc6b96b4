"""Publishing against a Kafka that loses requests and answers, beside others that publish, too."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from commits import Epoch, OffsetRanges
from coopconsume.errors import FencedMember, MissingOption, NotAuthorized, OutputsNotPublished
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.kafka.primary import Primary, primary_mark
from coopconsume.options import Options
from coopconsume.sinks import Outputs, TransactionalTopic, publishing, purgatory
from coopconsume.sinks.purgatory import Chunk, Purgatory, cut, newest
from coopconsume.sinks.transactions import transactional_id
from coopconsume.state.rows import Origin

if TYPE_CHECKING:
    from collections.abc import Callable

TP = ("t", 0)
EPOCH = Epoch(1, "n")
HEADERS = ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))


@dataclass
class Broker:
    """What Kafka knows: records that are committed, the group's offset, whose producer it is."""

    log: list[int] = field(default_factory=list)
    primary: Primary | None = None
    producer: int = 0
    faults: deque[str] = field(default_factory=deque)
    disturb: Callable[[], None] = lambda: None

    def call(self, act: Callable[[], Any]) -> Any:
        """Do something as the next fault says: not at all, unheard, or once others were there."""
        fault = self.faults.popleft() if self.faults else ""
        if fault == "others":
            disturb, self.disturb = self.disturb, lambda: None
            disturb()
        if fault == "lost":
            raise EngineDoubt("nothing was heard")
        answer = act()
        if fault == "unheard":
            raise EngineDoubt("nothing was heard")
        return answer


class Channel:
    """A producer of that Kafka; to begin is to fence the one before."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.id = -1
        self.records: list[int] = []
        self.offset: tuple[int, str] | None = None
        self.is_dropped = False

    def init(self, timeout: float) -> None:
        """Get a number above all before."""
        self.broker.call(self._init)

    def _init(self) -> None:
        self.broker.producer += 1
        self.id = self.broker.producer

    def begin(self) -> None:
        """Begin a transaction."""
        self.records, self.offset = [], None

    def send(self, messages: list[int], timeout: float) -> None:
        """Add records to it."""
        self.broker.call(lambda: self._mine() or self.records.extend(messages))

    def add_offsets(self, offsets: dict, group: str, timeout: float) -> None:
        """Add the offset."""
        self.broker.call(lambda: self._mine() or setattr(self, "offset", *offsets.values()))

    def commit(self, timeout: float) -> None:
        """Make both count."""
        self.broker.call(self._commit)

    def _commit(self) -> None:
        self._mine()
        assert self.offset is not None
        self.broker.log += self.records
        self.broker.primary = Primary.read(*self.offset)
        self.records, self.offset = [], None

    def _mine(self) -> None:
        assert not self.is_dropped, "a producer that was dropped is never used again"
        if self.id != self.broker.producer:
            raise EngineDoubt("fenced")

    def drop(self) -> None:
        """It is over."""
        self.is_dropped = True


@dataclass
class Waiting:
    """A purgatory: how many rows each record has."""

    rows: dict[int, int]

    def chunk(self, origin: Origin, first: int, stop: int, most: int, counts: object) -> Any:
        """As the real one."""
        there = [(o, n) for o, n in sorted(self.rows.items()) if first <= o < stop]
        end = cut(there, most, stop)
        flat = [o for o, n in there if o < end for _ in range(n)]
        return Chunk(pa.table({"o": flat}), end)

    def forget(self, origin: Origin, below: int) -> None:
        """Keep them: that nothing is published twice must not hang on it."""


def publisher(broker: Broker, waiting: Waiting, log: SimpleNamespace) -> publishing.Publishing:
    """A publisher; the log accepts each one as the owner, as in a race."""
    store = SimpleNamespace(
        check=lambda *_: None,
        state=lambda _: {TP: SimpleNamespace(stable_offset=log.stable)},
        counted_commits=lambda _: frozenset(),
    )
    assignment = SimpleNamespace(
        options=SimpleNamespace(group_id="g"), epoch=EPOCH, member="m", topic_ids={"t": "id"},
        store=store, cluster=SimpleNamespace(
            stable_primary=lambda _: broker.primary, fence_producers=lambda *_: None
        ),
        place=lambda: "g",
    )  # fmt: skip
    return publishing.Publishing(
        assignment, "out", waiting, lambda chunk: chunk.rows.column("o").to_pylist()
    )


FAULTS = st.lists(st.sampled_from(["", "", "", "lost", "unheard", "others"]), max_size=40)
TURNS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=8)


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 4)), TURNS, FAULTS, st.integers(1, 5))
@settings(max_examples=50)
def test_each_row_is_published_once_whatever_is_lost_by_any_publisher(rows, turns, faults, most):
    """In the order of the offsets; the group's offset is where the topic has got to."""
    broker, log, expected = Broker(faults=deque(faults)), SimpleNamespace(stable=0), dict(rows)
    waiting = Waiting(dict(rows))
    several = [publisher(broker, waiting, log) for _ in range(3)]
    known = [0, 0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "TransactionChannel", lambda *_: Channel(broker))
        patch.setattr(publishing, "_PAUSE", 0)
        patch.setattr(publishing, "ROWS", most)
        for who, more in turns:
            log.stable += more
            known[who] = log.stable
            # One knows as much, the other one goes by an older stable offset.
            first, second = (who + 1) % 3, (who + 2) % 3
            broker.disturb = lambda a=first, b=second: (
                several[a].publish(TP, log.stable), several[b].publish(TP, known[b])
            )  # fmt: skip
            assert several[who].publish(TP, known[who])
        broker.faults.clear()
        assert several[0].publish(TP, log.stable)
    assert broker.log == [
        o for o, n in sorted(expected.items()) if o < log.stable for _ in range(n)
    ]
    assert broker.primary == Primary(log.stable, ours=True, topic_id="id", outputs="out")
    for one in several:
        one.close()
        assert not one.publish(TP, log.stable + 1), "what is over publishes nothing"


def test_a_partition_in_trouble_is_tried_again_and_holds_no_other_back(monkeypatch, caplog):
    """With growing pauses; what it has waits. A job that is to end learns why, after a while."""
    brokers = {TP: Broker(), ("t", 1): Broker()}
    of_id = {transactional_id("g", *tp): broker for tp, broker in brokers.items()}
    now = [100.0]
    monkeypatch.setattr(publishing, "TransactionChannel", lambda *a: Channel(of_id[a[2]]))
    monkeypatch.setattr(publishing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(publishing, "_PATIENCE", -1.0)
    one = publisher(brokers[TP], Waiting({0: 1, 1: 1, 2: 1}), SimpleNamespace(stable=1))
    one._assignment.cluster.stable_primary = lambda tp: brokers[tp].primary
    one._assignment.store.state = lambda _: dict.fromkeys(brokers, SimpleNamespace(stable_offset=1))
    assert one.publish(TP, 1)
    brokers[TP].faults = deque(["lost"] * 4)
    for pause in (1.0, 2.0, 4.0, 8.0):
        assert not one.publish(TP, 3)
        faults = len(brokers[TP].faults)
        now[0] += pause - 0.1
        assert not one.publish(TP, 3)
        assert len(brokers[TP].faults) == faults, "no attempt before it is due"
        assert one.publish(("t", 1), 1), "the other partition does not wait"
        assert one.unpublished == {
            TP: (1, str(OutputsNotPublished("topic 'out'", "nothing was heard")))
        }
        lasts = len(brokers[TP].faults) < 2
        assert (one.given_up(2.0) is not None) is lasts
        assert one.given_up(60.0) is None
        now[0] += 0.2
    assert one.publish(TP, 3)
    assert brokers[TP].log == [0, 1, 2]
    assert one.unpublished == {}
    assert caplog.text.count("could not be published") == 1, "the same error is logged once"


def test_a_missing_right_is_an_error_of_its_partition_alone(monkeypatch):
    """It is granted while the job runs; a job that is to end does not wait for it."""
    denied = NotAuthorized("WRITE", "TOPIC", "out", "bob")

    def refuse() -> None:
        raise EngineDoubt("denied", denied)

    broker = Broker(faults=deque(["others"]), disturb=refuse)
    monkeypatch.setattr(publishing, "TransactionChannel", lambda *_: Channel(broker))
    one = publisher(broker, Waiting({0: 1}), SimpleNamespace(stable=1))
    assert not one.publish(TP, 1)
    assert one.given_up(60.0) is denied
    one.troubles[TP].backoff.not_before = 0.0
    assert one.publish(TP, 1)
    assert one.given_up(0.0) is None


def test_what_ends_the_epoch_is_no_trouble_of_a_partition(monkeypatch):
    """Somebody else has the shares: nothing is tried again."""
    fenced = FencedMember("g", "m", EPOCH, EPOCH, "another")
    broker = Broker()
    monkeypatch.setattr(publishing, "TransactionChannel", lambda *_: Channel(broker))
    one = publisher(broker, Waiting({0: 1}), SimpleNamespace(stable=1))

    def check(*_: object) -> None:
        raise fenced

    one._assignment.store.check = check
    with pytest.raises(FencedMember):
        one.publish(TP, 1)
    assert broker.log == []


def test_the_end_does_not_wait_for_an_attempt_that_hangs(monkeypatch):
    """The attempt drops its producer when it ends."""
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        assert goes_on.wait(120)
        raise EngineDoubt("nothing was heard")

    broker = Broker(faults=deque(["", "others"]), disturb=hang)
    channels: list[Channel] = []
    monkeypatch.setattr(
        publishing,
        "TransactionChannel",
        lambda *_: channels.append(Channel(broker)) or channels[-1],
    )
    one = publisher(broker, Waiting({0: 1}), SimpleNamespace(stable=1))
    attempt = threading.Thread(target=one.publish, args=(TP, 1))
    attempt.start()
    assert hangs.wait(120)
    one.close()
    assert attempt.is_alive()
    goes_on.set()
    attempt.join()
    assert broker.log == []
    assert [channel.is_dropped for channel in channels] == [True]
    assert one._lanes == {}


@pytest.mark.parametrize(
    ("offset", "mark", "stable", "position"),
    [
        (7, primary_mark("id", EPOCH, "out"), 9, 7),
        (7, primary_mark("id", EPOCH), 9, 7),
        (7, "of another tool", 9, 7),
        (7, primary_mark("another id", EPOCH, "out"), 9, 0),
        (7, primary_mark("id", EPOCH, "out"), 4, 4),
    ],
)
def test_publishing_begins_where_the_group_s_offset_stands(offset, mark, stable, position):
    """Unless it speaks of another topic, or the log was set back."""
    assert publishing.begin(Primary.read(offset, mark), "id", stable) == position
    assert publishing.begin(None, "id", stable) == 0


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 12))
def test_a_transaction_takes_as_many_records_as_fit(counts, most):
    """One at least, none by halves, and together all of them."""
    rows = [(3 * i, count) for i, count in enumerate(counts)]
    stop, first, taken = 3 * len(rows) + 1, 0, []
    while first < stop:
        left = [(o, n) for o, n in rows if o >= first]
        end = cut(left, most, stop)
        part = [(o, n) for o, n in left if o < end]
        assert end > first
        assert sum(n for _, n in part) <= most or len(part) == 1
        taken, first = taken + part, end
    assert taken == rows


def test_of_two_commits_of_a_record_the_newest_counts():
    """All rows of that, and none of the other one."""
    rows = [(1, 10, "a"), (1, 20, "b"), (1, 20, "b"), (2, 10, "a"), (3, 5, "c"), (3, 5, "d")]
    assert newest(rows) == [False, True, True, True, False, True]


def test_the_newest_rows_are_taken_whatever_clocks_say(tmp_path, monkeypatch):
    """The clock of a process steps back, and that of the next owner's host is late."""
    schema = pa.schema([("value", pa.string()), HEADERS])
    now = [1_000_000.0]
    monkeypatch.setattr(purgatory, "time", SimpleNamespace(time=lambda: now[0]))
    one, other = (Purgatory(str(tmp_path), ("g", "out")) for _ in range(2))

    def published() -> set[str]:
        found = one.chunk(Origin("id", 0), 0, 9, 100, lambda _: True).rows
        assert found.num_rows == 2, "each record's rows are those of one commit"
        return set(found.column("_commit").to_pylist())

    other.write(outputs(schema, [7], "other"), schema)
    other.gain()
    for number, (owner, step) in enumerate(
        [(one, 0.0), (one, -60.0), (one, 0.0), (other, -3600.0)]
    ):
        now[0] += step
        owner.write(outputs(schema, [1, 7], f"c-{9 - number}"), schema)
        assert published() == {f"c-{9 - number}"}
    one.gain()
    one.write(outputs(schema, [1, 7], "c-0"), schema)
    assert published() == {"c-0"}


def test_no_two_partitions_have_the_same_transactional_id():
    """Dots and colons in names change nothing."""
    names = ["g", "g.1", "g:1", "1", "1:1"]
    ids = {transactional_id(g, t, p) for g in names for t in names for p in range(12)}
    assert len(ids) == len(names) ** 2 * 12


def test_rows_wait_in_the_words_of_kafka(tmp_path):
    """Text becomes bytes, what is not there is null; rows of commits that do not count stay."""
    schema = pa.schema([("value", pa.string()), HEADERS])
    waiting = Purgatory(str(tmp_path), ("g", "out"))
    assert waiting.chunk(Origin("id", 0), 0, 9, 5, bool) == Chunk(waiting._full.empty_table(), 9)
    for commit, offsets in (("c-0", [2, 1, 1]), ("lost-0", [0]), ("c-1", [3])):
        waiting.write(outputs(schema, offsets, commit), schema)
    counts = {"c-0", "c-1"}.__contains__
    chunk = waiting.chunk(Origin("id", 0), 0, 9, 5, counts)
    assert chunk.next == 9
    assert [(r["_offset"], r["value"]) for r in chunk.rows.to_pylist()] == [
        (1, b"1"), (1, b"1"), (2, b"2"), (3, b"3")
    ]  # fmt: skip
    first = chunk.rows.to_pylist()[0]
    assert (first["key"], first["partition"]) == (None, None)
    assert first["headers"] == [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    assert waiting.chunk(Origin("id", 0), 1, 9, 2, counts).next == 2
    assert waiting.chunk(Origin("id", 1), 0, 9, 5, counts).rows.num_rows == 0
    assert waiting.chunk(Origin("other", 0), 0, 9, 5, counts).rows.num_rows == 0
    waiting.forget(Origin("id", 0), 3)
    (left,) = waiting.chunk(Origin("id", 0), 0, 9, 5, bool).rows.to_pylist()
    assert left["_offset"] == 3
    assert Purgatory(str(tmp_path), ("g-out", "")).path != waiting.path


def test_a_transaction_looks_at_little_more_than_it_takes(tmp_path, monkeypatch):
    """However much waits; and where rows are far apart, one transaction takes many all the same."""
    schema = pa.schema([("value", pa.string()), HEADERS])
    dense, far = list(range(3_000)), [10**6 + 10**5 * i for i in range(40)]
    waiting = Purgatory(str(tmp_path), ("g", "out"))
    waiting.write(outputs(schema, dense + far, "c-0"), schema)
    seen: list[int] = []
    read = Purgatory._read

    def watched(*args):
        seen.append(read(*args).num_rows)
        return read(*args)

    monkeypatch.setattr(Purgatory, "_read", watched)
    at, sizes, found = 0, [], []
    while at < 10**8:
        chunk = waiting.chunk(Origin("id", 0), at, 10**8, 100, lambda _: True)
        at = chunk.next
        sizes.append(chunk.rows.num_rows)
        found += chunk.rows.column("_offset").to_pylist()
    assert found == dense + far
    assert sizes == [100] * 30 + [40]
    assert max(seen) <= 8 * 200
    assert sum(seen) < 8 * len(found)


def outputs(schema: pa.Schema, offsets: list[int], commit: str) -> Outputs:
    """A row for each of some offsets."""
    rows: list[dict[str, Any]] = [
        {
            "value": str(o), "headers": [{"key": "h", "value": "x"}, {"key": "n", "value": None}],
            "_part": 0, "_offset": o,
        }
        for o in offsets
    ]  # fmt: skip
    full = pa.schema([*schema, ("_part", pa.int32()), ("_offset", pa.int64())])
    table = pa.Table.from_pylist(rows, schema=full)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    parts = [((TP,), out.getvalue().to_pybytes())]
    return Outputs(parts, {TP: OffsetRanges.from_offsets(offsets)}, {"t": "id"}, commit)


def test_a_place_to_wait_must_be_named():
    """Without it there is no such sink."""
    options = Options.parse(
        {"kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": "commits"}
    )
    with pytest.raises(MissingOption, match="purgatory"):
        TransactionalTopic("out", pa.schema([("value", pa.string())]), options)


def test_a_clean_up_does_not_fail_what_others_append(tmp_path, monkeypatch):
    """An append goes on behind a deletion of published rows; each row is there exactly once."""
    schema, far = pa.schema([("value", pa.string()), HEADERS]), 1_000_000
    one, other = (Purgatory(str(tmp_path), ("g", "out")) for _ in range(2))
    deletions, last, over = [0], [0], threading.Event()
    delete = DeltaTable.delete

    def counting(table, *args):
        delete(table, *args)
        deletions[0] += 1

    def clean_up():
        while not over.is_set():
            other.forget(Origin("id", 0), last[0])

    monkeypatch.setattr(DeltaTable, "delete", counting)
    cleaner = threading.Thread(target=clean_up)
    try:
        while deletions[0] < 5:
            rows = [last[0], far + last[0]]
            one.write(outputs(schema, rows, f"run-{last[0]}"), schema)
            last[0] += 1
            if last[0] == 1:
                cleaner.start()
    finally:
        over.set()
        cleaner.join()
    found = one.chunk(Origin("id", 0), far, far + last[0], 10 * last[0], lambda _: True)
    assert found.rows.column("_offset").to_pylist() == [far + i for i in range(last[0])]
