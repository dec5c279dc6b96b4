"""Owners of one log and of several that lose it, come too late, or do not know what happened."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from coopconsume.errors import (
    AppendOutcomeUnknown,
    LogUnavailable,
    ProducerBusy,
    ProducerFenced,
    SinkUnavailable,
    WriterNotOpen,
)
from coopconsume.fenced import EpochSource, FencedWriter, MultiLogWriter, Write
from coopconsume.fenced.log import LogId
from coopconsume.kafka import call_limit
from coopconsume.sinks import FencedKafkaSink, fenced_kafka
from tests.model.fenced_broker import OPTIONS, Broker, Fate, reader_of, writer_of
from tests.model.fenced_cluster import Cluster, ClusterEngine
from tests.model.test_kafka_sink import keyed, values

LOGS = (("a", 0), ("b", 0), ("c", 0))
A, B, C = LOGS


class Clock:
    """The writers' time: it goes by with each request and each pause."""

    now = 0.0

    def tick(self) -> None:
        self.now += 0.01


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of all writers."""
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += max(seconds, 0.001)

    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(call_limit, "time", fake)
    return clock


@pytest.fixture
def cluster(clock: Clock) -> Cluster:
    """Three logs."""
    return Cluster(LOGS, tick=clock.tick)


@pytest.fixture
def broker(clock: Clock) -> Broker:
    """One log."""
    return Broker(tick=clock.tick)


def multi(cluster: Cluster, *logs: tuple[str, int], **how: Any) -> MultiLogWriter:
    """A writer of some logs, which shares them by default."""
    engine: Any = ClusterEngine(cluster)
    return MultiLogWriter(OPTIONS, logs, engine=engine, **{"timeout": 2.0} | how)


def owning(cluster: Cluster, *logs: tuple[str, int], **how: Any) -> MultiLogWriter:
    """A writer that owns some logs."""
    return multi(cluster, *logs, **{"shared": False, "fence_owner": True} | how)


def owner(cluster: Cluster, log: tuple[str, int]) -> FencedWriter:
    """The owner of one log."""
    engine: Any = ClusterEngine(cluster)
    return FencedWriter(OPTIONS, *log, engine=engine, timeout=2.0)


def both(value: bytes = b"1") -> dict[tuple[str, int], Write]:
    """What is written to two of the logs."""
    return {A: Write([value]), B: Write([value])}


def losing(cluster: Cluster, fate: Fate = "unanswered") -> None:
    """The next commit has no answer; then nothing is reached."""
    sent: list[str] = []

    def fates(name: str) -> Fate:
        if name == "commit" and not sent:
            sent.append(name)
            return fate
        return "lost" if sent else "done"

    cluster.fate = fates


def requests(cluster: Cluster | Broker) -> list[str]:
    """The requests from now on, as they come."""
    asked: list[str] = []

    def fate(name: str) -> Fate:
        asked.append(name)
        return "done"

    cluster.fate = fate
    return asked


def done(_: str) -> Fate:
    """All goes well."""
    return "done"


def in_between(broker: Broker | Cluster, request: str, *writers: Any) -> None:
    """Writers take their logs before the next request of a name."""

    def fate(name: str) -> Fate:
        if name == request:
            broker.fate = done
            for writer in writers:
                writer.acquire()
        return "done"

    broker.fate = fate


# -- one session in several writers ----------------------------------------------------------------


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
@pytest.mark.parametrize("others", [1, 2])
def test_the_last_writer_of_a_session_that_opens_the_log_owns_it(
    broker: Broker, visibility: str, others: int
) -> None:
    """Others took the log between its look and its ``open`` record: what it appends counts."""
    how: dict[str, Any] = {"session": "job", "timeout": 5, "visibility": visibility}
    first, *later = (writer_of(broker, **how) for _ in range(1 + others))
    in_between(broker, "append", *later)
    first.acquire().append([b"1"], batch_id="1")
    for writer in later:
        with pytest.raises(ProducerFenced):
            writer.append([b"2"], batch_id="2")
    first.append([b"3"])
    assert [record.value for record in reader_of(broker).read()] == [b"1", b"3"]


def test_the_last_writer_of_a_session_owns_all_of_its_logs(cluster: Cluster) -> None:
    """As with one log."""
    first, *later = (owning(cluster, A, B, session="job") for _ in range(3))
    in_between(cluster, "append", *later)
    first.acquire().append(both(), batch_id="1")
    assert [len(values(cluster.brokers[log])) for log in (A, B)] == [1, 1]
    with pytest.raises(ProducerFenced):
        later[-1].append(both())


# -- what became certain ---------------------------------------------------------------------------


def test_a_new_id_in_doubt_is_looked_for_where_it_may_be(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's ids are not read from its start."""
    writer = multi(cluster, A, B).acquire()
    for number in range(100):
        writer.append(both(), is_new=True, batch_id=f"n{number}")
    losing(cluster)
    with pytest.raises(AppendOutcomeUnknown):
        writer.append(both(), is_new=True, batch_id="x")
    cluster.fate = done
    starts: list[int] = []
    read = ClusterEngine.read

    def noted(engine: Any, topic: str, partition: int, start: int, *rest: Any) -> Any:
        starts.append(start)
        return read(engine, topic, partition, start, *rest)

    monkeypatch.setattr(ClusterEngine, "read", noted)
    found = writer.append(both(), is_new=True, batch_id="x")
    assert {answer.first_seq for answer in found.values()} == {100}
    assert 0 not in starts


def test_a_batch_that_one_log_has_is_looked_for_in_a_lost_one(cluster: Cluster) -> None:
    """It is there since long; so the id is not one that only some of the logs have."""
    first = multi(cluster, A, B).acquire()
    first.append(both(), batch_id="x")
    for number in range(80):
        first.append(both(), batch_id=f"n{number}", is_new=True)
    writer = multi(cluster, A, B).acquire()
    owner(cluster, A).acquire()
    with pytest.raises(ProducerFenced):
        writer.refresh()
    assert {a.first_seq for a in writer.append(both(), batch_id="x").values()} == {0}


@pytest.mark.parametrize(("lost", "away"), [(A, B), (B, A)])
def test_a_batch_that_a_lost_log_has_is_not_reported_as_missing(
    cluster: Cluster, lost: tuple[str, int], away: tuple[str, int]
) -> None:
    """The other log cannot be read."""
    writer = multi(cluster, A, B).acquire()
    losing(cluster)
    with pytest.raises(AppendOutcomeUnknown):
        writer.append(both(), batch_id="x")
    cluster.fate = done
    owner(cluster, lost).acquire()
    cluster.brokers[away].fate = lambda _: "lost"
    with pytest.raises(AppendOutcomeUnknown):
        writer.append(both(), batch_id="x")


def test_a_batch_is_found_although_an_uninvolved_log_is_lost(cluster: Cluster) -> None:
    """All logs are read on before the writer gives up."""
    writer = multi(cluster, *LOGS).acquire()
    writes = {B: Write([b"1"]), C: Write([b"1"])}
    losing(cluster)
    with pytest.raises(AppendOutcomeUnknown):
        writer.append(writes, batch_id="x")
    cluster.fate = done
    owner(cluster, A).acquire()
    assert {a.first_seq for a in writer.append(writes, batch_id="x").values()} == {0}


def test_a_writer_that_lost_the_log_learns_it_without_reading_it(cluster: Cluster) -> None:
    """Also while the new owner has a transaction open; its append is new."""
    writer = owner(cluster, A).acquire()
    writer._appender.drop()  # as after a doubt
    later = owner(cluster, A).acquire()
    errors: list[BaseException] = []

    def fate(name: str) -> Fate:
        if name == "commit":
            cluster.fate = done
            try:
                writer.append([b"late"], batch_id="new")
            except ProducerFenced as error:
                errors.append(error)
        return "done"

    cluster.fate = fate
    later.append([b"1"])
    assert len(errors) == 1


# -- a refusal is permanent ------------------------------------------------------------------------


class Registry(EpochSource):
    """Refuses a claim once, and forgets it."""

    refuses = True

    def next_epoch(self, log: LogId, last: int) -> int:
        self.check(log, last)
        return last + 1

    def check(self, log: LogId, epoch: int) -> None:
        if self.refuses:
            self.refuses = False
            raise ProducerFenced(*log.tp, epoch, epoch, "somebody")


def test_a_writer_that_its_registry_refused_never_takes_the_log(broker: Broker) -> None:
    """Neither by an append nor by a look; its owner notices nothing."""
    live = writer_of(broker).acquire()
    writer = writer_of(broker, epochs=Registry())
    with pytest.raises(ProducerFenced):
        writer.acquire()
    live.append([b"live"])
    asked = requests(broker)
    for batch_id in ("x", None):
        with pytest.raises(ProducerFenced):
            writer.append([b"zombie"], batch_id=batch_id)
    with pytest.raises(AppendOutcomeUnknown):
        writer.resolve("x")
    live.append([b"live"])
    assert "init" not in asked
    assert not writer.is_open


def test_a_writer_that_lost_the_log_and_was_released_disturbs_nobody(broker: Broker) -> None:
    """It answers by what it has read."""
    writer = writer_of(broker, timeout=2).acquire()
    broker.fate = lambda name: "lost" if name in ("commit", "metadata") else "done"
    with pytest.raises(AppendOutcomeUnknown):
        writer.append([b"1"], batch_id="x")
    broker.fate = done
    writer_of(broker).acquire()
    asked = requests(broker)
    with pytest.raises(ProducerFenced):
        writer.append([b"1"], batch_id="x")
    writer.release()
    with pytest.raises(ProducerFenced):
        writer.append([b"1"], batch_id="x")
    assert "init" not in asked


# -- to take several logs --------------------------------------------------------------------------


def test_a_log_that_is_taken_is_not_opened_again_while_another_is_away(cluster: Cluster) -> None:
    """Nor by a writer that has lost one of them."""
    cluster.brokers[B].fate = lambda name: "lost" if name == "ends" else "done"
    with pytest.raises(LogUnavailable):
        owning(cluster, A, B, timeout=30.0).acquire()
    assert sum(slot.raw is not None for slot in cluster.brokers[A].slots) == 1
    cluster.brokers[B].fate = done
    writer = owning(cluster, A, B).acquire()
    owner(cluster, B).acquire()
    with pytest.raises(ProducerFenced):
        writer.refresh()
    writer._appender.drop()
    before = len(cluster.brokers[A].slots)
    for _ in range(5):
        with pytest.raises(ProducerFenced):
            writer.append(both())
    assert len(cluster.brokers[A].slots) == before


def test_an_owner_that_is_refused_has_taken_no_log(cluster: Cluster) -> None:
    """A writer that shares the first one goes on."""
    shared = multi(cluster, A).acquire()
    owner(cluster, B).acquire()
    with pytest.raises(ProducerBusy):
        owning(cluster, A, B, fence_owner=False).acquire()
    shared.append({A: Write([b"1"])})


def test_of_two_owners_at_once_one_gets_all_logs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither fences the other, and they name the logs in another order."""
    one = owning(cluster, A, B, fence_owner=False)
    two = owning(cluster, B, A, fence_owner=False)
    two._appender._look(call_limit.Deadline(1))  # Both look before either takes a log.
    monkeypatch.setattr(two._appender, "_look", lambda _: None)
    opened: list[str] = []

    def fate(name: str) -> Fate:
        opened.extend([name] * (name == "append"))
        if len(opened) == 2:  # The first one has its first log.
            cluster.fate = done
            with pytest.raises(ProducerBusy):
                two.acquire()
        return "done"

    cluster.fate = fate
    assert one.acquire().append(both())[B].first_seq == 0


def test_a_look_does_not_end_the_transaction_of_a_later_owner(cluster: Cluster) -> None:
    """A writer that has lost a log finds that out before it does anything."""
    writer = owning(cluster, A, B).acquire()
    live = owner(cluster, B).acquire()
    asked: list[str] = []

    def fate(name: str) -> Fate:
        if name == "commit":
            asked.extend(["commit"])
            cluster.fate = lambda name: (asked.append(name), "done")[1]  # type: ignore[assignment, return-value]
            with pytest.raises(ProducerFenced):
                writer.refresh()
        return "done"

    cluster.fate = fate
    assert live.append([b"1"]).first_seq == 0
    assert asked.count("init") == 0


def test_a_filtered_owner_ends_the_transaction_of_the_owner_before(broker: Broker) -> None:
    """It has no transactional id of its own."""
    crashed = writer_of(broker, timeout=2).acquire()
    broker.fate = lambda name: "lost" if name in ("commit", "metadata") else "done"
    with pytest.raises(AppendOutcomeUnknown):
        crashed.append([b"1"])
    broker.fate = done
    writer_of(broker, timeout=2, visibility="filter").acquire().append([b"2"])
    assert values(broker) == ["2"]


def test_a_closed_writer_stays_closed(cluster: Cluster) -> None:
    """Its connections would never be closed again."""
    writer = multi(cluster, A, B).acquire()
    writer.close()
    for call in (writer.acquire, writer.refresh, lambda: writer.append(both())):
        with pytest.raises(WriterNotOpen, match="closed"):
            call()


# -- sinks -----------------------------------------------------------------------------------------


def sink(cluster: Cluster, epoch: int, partitions: Any, **how: Any) -> FencedKafkaSink:
    """A run's sink."""
    how = {"engine": ClusterEngine(cluster), "timeout": 2.0} | how
    return FencedKafkaSink(OPTIONS, "t", "job", epoch, partitions, **how)


@pytest.fixture
def topic(clock: Clock) -> Cluster:
    """A topic of three partitions."""
    return Cluster([("t", partition) for partition in range(3)], tick=clock.tick)


@pytest.mark.parametrize("partitions", [0, range(3)])
def test_a_sink_goes_on_after_its_commit_was_lost(topic: Cluster, partitions: Any) -> None:
    """Nobody but its own producer ends its transaction."""
    mine = sink(topic, 1, partitions)
    mine(keyed(6), 0)
    losing(topic, "lost")
    with pytest.raises(SinkUnavailable):
        mine(keyed(6), 1)
    topic.fate = done
    mine(keyed(6), 1)
    assert sum(len(values(each)) for each in topic.brokers.values()) == 12


def test_a_run_takes_over_one_log_without_the_right_to_list_transactions(topic: Cluster) -> None:
    """The log's own transactional id decides what the run before has left."""
    crashed = sink(topic, 1, 0)
    crashed(keyed(6), 0)
    losing(topic, "lost")
    with pytest.raises(SinkUnavailable):
        crashed(keyed(6), 1)
    topic.fate = done
    engine: Any = ClusterEngine(topic)
    engine.open_transactions = lambda *_: []
    sink(topic, 2, 0, engine=engine)(keyed(6), 1)


def test_a_closed_sink_stays_closed(topic: Cluster) -> None:
    """Also for several partitions."""
    closed = sink(topic, 1, range(3))
    closed(keyed(6), 0)
    closed.close()
    with pytest.raises(WriterNotOpen):
        closed(keyed(6), 1)


def test_a_sink_that_was_interrupted_at_its_start_leaves_out_no_partition(
    topic: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its second writer was made."""
    made: list[object] = []

    def interrupted(*arguments: Any, **how: Any) -> MultiLogWriter:
        made.append(arguments)
        if len(made) == 2:
            raise KeyboardInterrupt
        return MultiLogWriter(*arguments, **how)

    monkeypatch.setattr(fenced_kafka, "MultiLogWriter", interrupted)
    mine = sink(topic, 1, range(3), visibility="filter")
    with suppress(KeyboardInterrupt):
        mine(keyed(6), 0)
    mine(keyed(6), 0)
    assert sum(len(values(each)) for each in topic.brokers.values()) == 6
