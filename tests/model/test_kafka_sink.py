"""The fenced Kafka sink on a broker in memory: runs of a job at once, woken in any order."""

from __future__ import annotations

import itertools
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coopconsume.errors import AppendRefused, BatchRefused, InvalidOption, SinkUnavailable
from coopconsume.fenced import FencedWriter
from coopconsume.fenced.stamp import decode, is_batch_id
from coopconsume.kafka import call_limit
from coopconsume.sinks import FencedKafkaSink
from coopconsume.sinks.fenced_kafka import batch_name, entries_of, number_of
from tests.fenced_checker import Outcomes, problems
from tests.model.fenced_broker import OPTIONS, Broker, FakeEngine, Fate
from tests.model.fenced_cluster import Cluster, ClusterEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Frame:
    """As much of a DataFrame as the sink looks at."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.columns = list(rows[0]) if rows else ["value"]
        self._rows = rows

    def select(self, *names: str) -> Frame:
        return Frame([{name: row[name] for name in names} for row in self._rows])

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's
        return pa.Table.from_pylist(self._rows)


def frame(batch: int) -> Frame:
    """The rows of a batch; every fourth one has none."""
    return Frame([{"value": f"{batch}.{i}"} for i in range(batch % 4)])


def values(broker: Broker) -> list[str]:
    """What a reader finds, in order."""
    stamps = [(row, decode(row.headers)) for row in broker.visible()]
    return [
        (row.value or b"").decode()
        for row, stamp in stamps
        if stamp is not None and stamp.kind == "data" and row.offset == stamp.expected + stamp.i
    ]


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_each_batch_is_there_once_and_zombies_write_none(visibility: str) -> None:
    """Runs begin at a batch that may be in the log, are woken in any order, and answers get lost.

    The query of a run starts again where an error ended it, with a sink of its own.
    """

    @settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(
        st.lists(st.integers(0, 3), max_size=30),
        st.lists(st.integers(0, 3), min_size=3, max_size=3),
        st.lists(st.sampled_from([0] * 8 + [1, 2]), min_size=1, max_size=60),
    )
    def run(turns: list[int], behind: list[int], luck: list[int]) -> None:
        play(visibility, turns, behind, luck)

    run()


def play(visibility: str, turns: list[int], behind: list[int], luck: list[int]) -> None:
    """One story, and what has to be true all the time."""
    fates: list[Fate] = ["done", "unanswered", "after a foreign one"]
    asked = iter(luck * 4)
    broker = Broker(lambda name: "done" if name == "init" else fates[next(asked, 0)], lambda: None)
    runs: dict[int, list] = {}
    highest = done = 0

    def sink(epoch: int) -> FencedKafkaSink:
        return FencedKafkaSink(
            OPTIONS, "t", "job", epoch, visibility=visibility, engine=FakeEngine(broker)
        )  # type: ignore[arg-type]  # fmt: skip

    for turn in turns:
        if turn not in runs:
            first = max(0, done - behind[turn]) if turn < 3 else done
            runs[turn] = [sink(len(runs) + 1), first]
        made, batch = runs[turn]
        before = values(broker)
        try:
            made(frame(batch), batch)
        except BatchRefused:
            assert made.epoch < highest
            assert values(broker) == before
            continue
        except SinkUnavailable:
            runs[turn][0] = sink(made.epoch)
            highest = max(highest, made.epoch)  # it may have opened the log
            continue
        assert made.epoch >= highest
        highest, done, runs[turn][1] = made.epoch, max(done, batch + 1), batch + 1
        assert values(broker) == [f"{b}.{i}" for b in range(done) for i in range(b % 4)]
    outcomes = Outcomes(unknown={f"job:{batch}" for batch in range(40)})
    assert not problems(broker.visible(), outcomes)


def test_a_zombie_hears_of_it_with_a_batch_that_is_there() -> None:
    """It must stop, not go on; and the log is as it was."""
    broker = Broker()
    old, new = (
        FencedKafkaSink(OPTIONS, "t", "job", epoch, engine=FakeEngine(broker)) for epoch in (1, 2)
    )
    old(frame(1), 1)  # type: ignore[arg-type]
    new(frame(1), 1)  # type: ignore[arg-type]
    for batch in (0, 1, 2, 4):
        with pytest.raises(BatchRefused, match="epoch 1, in force is 2"):
            old(frame(batch), batch)  # type: ignore[arg-type]
    late = FencedKafkaSink(OPTIONS, "t", "job", 1, engine=FakeEngine(broker))
    with pytest.raises(BatchRefused):
        late(frame(2), 2)  # type: ignore[arg-type]
    new(frame(2), 2)  # type: ignore[arg-type]
    assert values(broker) == ["1.0", "2.0", "2.1"]


def test_commits_of_the_library_and_numbers_do_not_meet() -> None:
    """Nor do two jobs; each id is one that a log takes."""
    names = [batch_name(job, b) for job in ("a", "a.b") for b in (1, 12, "1", "0af3-12")]
    assert len(set(names)) == len(names)
    assert all(map(is_batch_id, names))
    assert [number_of(name) for name in names] == [1, 12, -1, -1, 1, 12, -1, -1]
    assert number_of(None) == -1
    assert is_batch_id(batch_name("j" * 40, 2**63 - 1))
    broker = Broker()
    sink = FencedKafkaSink(OPTIONS, "t", "a", engine=FakeEngine(broker))
    for batch in ("1", "1", 1, 1, 0):
        sink(Frame([{"value": f"{batch!r}"}]), batch)  # type: ignore[arg-type]
    assert values(broker) == ["'1'", "1"]


def test_rows_become_records() -> None:
    """Text or bytes; what a handler returned says where it comes from."""
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    row = {"x": 1, "key": "k", "value": b"v", "headers": headers}
    (plain,) = entries_of(Frame([row]), [4])[4]  # type: ignore[arg-type]
    assert (plain.value, plain.key, plain.headers) == (b"v", b"k", [("a", b"1"), ("b", b"")])
    row |= {"_topic": "t", "_partition": 2, "_offset": 7}
    (entry,) = entries_of(Frame([row]), [4])[4]  # type: ignore[arg-type]
    assert entry.headers[2:] == [("coopconsume.origin", b"t-2@7")]
    with pytest.raises(InvalidOption, match="value"):
        entries_of(Frame([{"x": 1}]), [0])  # type: ignore[arg-type]


def test_partitions_are_dealt_as_kafka_deals_them() -> None:
    """By the column, by the key, by the value; the order of the rows is kept."""
    # As the tests of Kafka's own murmur2 have it.
    hashes = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}
    rows = [{"key": key, "value": key} for key in hashes]
    rows += [{"key": b"abc", "value": b"named", "partition": 4}, {"value": b"21"}]
    rows += [{"key": b"21", "value": b"again"}]
    frame = Frame([{"key": None, "partition": None} | row for row in rows])
    found = entries_of(frame, range(5))  # type: ignore[arg-type]
    wanted: dict[int, list[bytes]] = {4: [b"named"]}
    for value, key in ((b"21", b"21"), (b"foobar", b"foobar"), (b"abc", b"abc"),
                       (b"21", b"21"), (b"again", b"21")):  # fmt: skip
        wanted.setdefault((hashes[key] & 0x7FFFFFFF) % 5, []).append(value)
    assert {p: sorted(e.value for e in entries) for p, entries in found.items()} == {
        p: sorted(some) for p, some in wanted.items()
    }
    with pytest.raises(AppendRefused, match="partition 4"):
        entries_of(frame, range(4))  # type: ignore[arg-type]


#: Which of the keys 0 to 6 each of three partitions has.
_HAS = ({1, 5}, {4, 6}, {0, 2, 3})


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes by each time that somebody looks."""
    ticks = itertools.count()
    fake = SimpleNamespace(monotonic=lambda: next(ticks) / 50, sleep=lambda _: None)
    monkeypatch.setattr(call_limit, "time", fake)


class Crashing:
    """Runs of a job over three partitions, which end at any request; time goes by."""

    def __init__(self, visibility: str) -> None:
        self.left = 10**9
        self.cluster = Cluster([("t", partition) for partition in range(3)], self._fate)
        self.brokers = list(self.cluster.brokers.values())
        self._visibility = visibility

    def _fate(self, _: str) -> Fate:
        self.left -= 1
        return "done" if self.left >= 0 else "unanswered" if self.left == -1 else "lost"

    def run(self, epoch: int | None) -> FencedKafkaSink:
        """A run's sink."""
        return FencedKafkaSink(
            OPTIONS, "t", "job", epoch, range(3), engine=ClusterEngine(self.cluster), timeout=1.0,
            visibility=self._visibility,
        )  # type: ignore[arg-type]  # fmt: skip

    def crash(self, sink: FencedKafkaSink, rows: DataFrame, batch: int | str, after: int) -> bool:
        """Writes a batch; the run ends after some requests. Returns whether it wrote it."""
        self.left = after
        try:
            sink(rows, batch)
        except SinkUnavailable:
            return False
        else:
            return True
        finally:
            self.left = 10**9
            self.cluster.settle()


def keyed(number: int) -> DataFrame:
    """Rows of a batch for some of the partitions."""
    made = [{"value": f"{number}.{i}", "key": f"{i}"} for i in range(number % 7)]
    return Frame(made)  # type: ignore[return-value]


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(crashes=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 60)), max_size=12))
def test_each_partition_has_each_batch_once(
    visibility: str, crashes: list[tuple[int, int]]
) -> None:
    """A run ends anywhere; zombies' batches are refused.

    In transactions a batch is in all of its partitions or in none, whenever somebody looks.
    """
    world = Crashing(visibility)
    batch, runs = 0, [world.run(1)]
    for batches, requests in crashes:
        for _ in range(batches):
            runs[-1](keyed(batch), batch)
            batch += 1
        world.crash(runs[-1], keyed(batch), batch, requests)
        found = [{value.split(".")[0] for value in values(b)} for b in world.brokers]
        has = [str(batch) in some for some, keys in zip(found, _HAS, strict=True)
               if keys & set(range(batch % 7))]  # fmt: skip
        assert visibility == "filter" or len(set(has)) <= 1
        runs.append(world.run(len(runs) + 1))
    for number in range(batch + 1):
        runs[-1](keyed(number), number)
    before = list(map(values, world.brokers))
    for zombie in runs[:-1]:
        with pytest.raises(BatchRefused):
            zombie(keyed(6), batch + 1)
    assert list(map(values, world.brokers)) == before
    for partition, broker in enumerate(world.brokers):
        outcomes = Outcomes(unknown={f"job:{number}" for number in range(batch + 1)})
        assert not problems(broker.visible(), outcomes)
        assert before[partition] == [
            f"{number}.{i}"
            for number in range(batch + 1)
            for i in range(number % 7)
            if i in _HAS[partition]
        ]


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("epoch", [1, None])
@pytest.mark.parametrize("at", ["opening", "ends", "append", "commit"])
def test_a_run_that_slept_writes_to_none_of_its_partitions(at: str, epoch: int | None) -> None:
    """Another process of the same run, or a later run, takes one log while this one is paused."""
    world = Crashing("read_committed")
    first = world.run(epoch)
    if at != "opening":
        first(keyed(6), 0)
    before = list(map(values, world.brokers))
    other = FencedWriter(
        OPTIONS, "t", 1, engine=ClusterEngine(world.cluster), timeout=1.0,
        **({} if epoch is None else {"session": f"job:{epoch}", "epoch": epoch}),
    )  # type: ignore[arg-type]  # fmt: skip
    request, after = ("commit", 2) if at == "opening" else (at, 0)
    fate, asked = world.cluster.fate, iter(range(100))

    def pause(name: str) -> Fate:
        if name == request and next(asked) == after:
            world.cluster.fate = fate
            other.acquire()
        return "done"

    world.cluster.fate = pause
    for _ in range(2):
        with pytest.raises(BatchRefused):
            first(keyed(6), 1)
    assert list(map(values, world.brokers)) == before
    other.append([b"mine"])


@pytest.mark.usefixtures("ticking")
@given(requests=st.integers(0, 60))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_batch_whose_answer_was_lost_is_there_once(requests: int) -> None:
    """The same sink writes it again, under a number or a commit's id."""
    world = Crashing("read_committed")
    sink = world.run(None)
    for number, batch in enumerate([0, "commit", 2, "last"]):
        world.crash(sink, keyed(6), batch, requests * (number > 0) + 10**6 * (number == 0))
        sink(keyed(6), batch)
    assert [len(values(broker)) for broker in world.brokers] == [8, 4, 12]


def test_a_sink_travels_and_refuses_nonsense() -> None:
    """Without its connections; an invalid id is an error at once."""
    sink = FencedKafkaSink(OPTIONS, "t", "job", 7, [2, 0], visibility="filter")
    there = pickle.loads(pickle.dumps(sink))
    assert (there.topic, there.job, there.epoch, there.partitions) == ("t", "job", 7, (0, 2))
    there.close()
    for arguments in (
        {"job": "a:b"}, {"job": ""}, {"epoch": 0}, {"partition": -1}, {"partition": []},
        {"partition": [1, 1]},
    ):  # fmt: skip
        with pytest.raises(InvalidOption):
            FencedKafkaSink(OPTIONS, "t", **{"job": "a"} | arguments)  # type: ignore[arg-type]
