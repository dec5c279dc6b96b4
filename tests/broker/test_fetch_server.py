"""The fetch server of a host on a real broker: slots read by it, lose it, and take it over."""

from __future__ import annotations

import os
import queue
import signal
import socket
import stat
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from assignors import KeyRange, key_hash
from commits import OffsetAndEpoch
from coopconsume import LocalKafka, Options
from coopconsume.filters import KeySet, RecordFilter
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.identity import LogIdentity
from coopconsume.worker.channel.spec import ChannelSpec
from coopconsume.worker.channel.wire import Identity, ProtocolError, SlotHandshake, Splitter
from coopconsume.worker.realtime import host_link
from coopconsume.worker.realtime.errors import ReadFailed
from coopconsume.worker.realtime.host_source import HostSource, open_source
from coopconsume.worker.realtime.reader import SlotReader
from coopconsume.worker.realtime.spec import RealTimeSpec
from coopconsume.worker.realtime.wanted import NOTHING
from coopconsume.worker.report import BatchSpec, PartitionWork
from tests.broker.test_log_ends import cut

pytestmark = pytest.mark.broker
PATIENCE = 300.0
SILENCE = host_link.SILENCE


def until(condition):
    """Waits until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def logs_of(servers, topic, partitions):
    """The logs of a topic as a driver sees them, and how far they reach in which epoch."""
    options = {"kafka.bootstrap.servers": servers, "kafka.group.id": "g", "commitTable": "c"}
    with closing(Cluster(Options.parse(options))) as cluster:
        ids = cluster.topic_ids([topic])
        ends = cluster.log_ends([(topic, p) for p in range(partitions)])
    seen = [ends[topic, p] for p in range(partitions)]
    reached = {p: OffsetAndEpoch(one.offset, one.leader_epoch) for p, one in enumerate(seen)}
    return tuple(LogIdentity(ids[topic], one.leader_epoch) for one in reached.values()), reached


def spec_of(servers, topic, slots, partitions=1, run="run", limit=64 << 20, **more):
    """A run of slots that share all partitions of a topic."""
    kafka = Options.parse(
        {"kafka.bootstrap.servers": servers, "kafka.group.id": "g", "commitTable": "c"}
    ).kafka
    ranges = [((one.first, one.last),) for one in KeyRange().split(slots)]
    parts = range(partitions)
    logs, reached = logs_of(servers, topic, partitions)
    return BatchSpec(
        batch=1, partitions=tuple((topic, p) for p in parts), slots=tuple(range(slots)),
        work={s: {p: PartitionWork(((0, 2**62),)) for p in parts} for s in range(slots)},
        ordering="key", concurrency=1, batch_time=1.0, handler_timeout=1.0, headers=False,
        run=run, channel=ChannelSpec("localhost", 1, b"s" * 32, 2.0),
        realtime=RealTimeSpec(
            60.0, kafka, logs,
            {s: dict.fromkeys(parts, ranges[s]) for s in range(slots)},
            {0: frozenset(parts)}, cache_bytes=limit, reached=reached, **more,
        ),
    )  # fmt: skip


class Slot:
    """Reads as a real-time slot does, in a thread."""

    def __init__(self, spec, number):
        realtime = spec.realtime
        start = 0 if realtime.ends is None else NOTHING
        self.chunks = queue.SimpleQueue()
        self.reader = SlotReader(
            spec.partitions, dict.fromkeys(spec.work[number], start), realtime.key_ranges[number],
            realtime.finds_holes.get(number, frozenset()), realtime.record_filter,
            headers=spec.headers,
        )  # fmt: skip
        self.source = open_source(spec, number, self.reader.starts)
        self.got, self.holes, self.rows = [], set(), []
        self._positions = list(self.reader.starts.values())
        self.error = None
        self.reads = threading.Event()
        self.reads.set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            while not self._over.is_set():
                if not self.reads.wait(0.05):
                    continue
                while not self.chunks.empty():
                    part, first, last = self.chunks.get()
                    self.reader.want(part, [(first, last)])
                    self.source.want(part, [(first, last)])
                fetched = self.source.poll(0.05, 1_000)
                taken = self.reader.take(fetched.records, fetched.ends, fetched.portions)
                rows = taken.rows.to_pylist()
                self.rows += rows
                self.got += [(row["part"], row["offset"]) for row in rows]
                for part, holes in taken.holes.items():
                    self.holes |= {(part, o) for a, b in holes for o in range(a, b + 1)}
                self._positions = list(self.reader.starts.values())
        except Exception as error:  # noqa: BLE001 - for the test's own thread
            self.error = error
        finally:
            self.source.close()

    def position(self, part=0):
        """How far the records go that it has got."""
        assert self.error is None, self.error
        return self._positions[part]

    def end(self):
        """Ends it."""
        self._over.set()
        self._thread.join()


@pytest.fixture
def slots(monkeypatch):
    """Return what starts the slots of a run; they and their servers end with the test."""
    # A server that waits for a processor is not to count as dead.
    monkeypatch.setattr(host_link, "SILENCE", PATIENCE)
    running = []

    def start(spec):
        these = [Slot(spec, number) for number in spec.slots]
        running.extend(these)
        return these

    yield start
    for one in running:
        one.end()
    for server in host_link._started.values():
        server.kill()
        server.wait()
    host_link._started.clear()


def use_server(these):
    """Whether all of some slots read by the server alone."""
    return all(
        isinstance(one.source, HostSource) and one.source._is_connected and not one.source.state.own
        for one in these
    )


def alive():
    """The process ids of the servers that live."""
    return [server.pid for server in host_link._started.values() if server.poll() is None]


def records(first, count, size=10):
    """Records of some keys."""
    return [(b"k%d" % (n % 37), b"x" * size) for n in range(first, first + count)]


def all_of(these):
    """How often the slots have each record."""
    return Counter(at for one in these for at in one.got)


def test_slots_share_one_fetch(kafka, topic, produce, slots):
    """Each record goes to its slot once; the brokers send the log once, and a little."""
    name = topic(2)
    size = 20_000
    spec = spec_of(kafka.bootstrap_servers, name, 4, 2)
    these = slots(spec)
    until(lambda: use_server(these))
    for part in range(2):
        produce(name, records(0, 200, size), part)
    until(lambda: all(one.position(p) == 200 for one in these for p in range(2)))
    assert use_server(these)
    produce(name, records(0, 200, size), 0)
    until(lambda: all(one.position() == 400 for one in these))
    assert set(all_of(these).values()) == {1}
    assert len(all_of(these)) == 600
    for one in these:
        first, last = spec.realtime.key_ranges[these.index(one)][0][0]
        assert all(first <= row["key_hash"] <= last for row in one.rows)
        assert all(len(row["value"]) == size for row in one.rows)
    log = 600 * size
    until(lambda: sum(one.source.reads.broker_bytes for one in these) >= log)
    assert sum(one.source.reads.broker_bytes for one in these) < 1.1 * log


@pytest.mark.parametrize("limit", [0, 64 << 20], ids=["without-a-server", "by-a-server"])
@pytest.mark.parametrize("content", ["record", "key"])
def test_slots_read_their_chunks_and_nothing_else(kafka, topic, produce, slots, limit, content):
    """In whatever order they come, also before the log reaches them, and with the holes in them."""
    name = topic(2)
    counts = 30_000, 100
    for part, count in enumerate(counts):
        produce(name, records(0, count), part)
    spec = spec_of(
        kafka.bootstrap_servers, name, 2, 2, limit=limit, cache_content=content,
        ends=dict(enumerate(counts)),
    )  # fmt: skip
    whole = dict.fromkeys(range(2), ((0, 2**63 - 1),))
    realtime = replace(spec.realtime, key_ranges=dict.fromkeys(range(2), whole))
    these, mine = slots(replace(spec, realtime=realtime)), [set(), set()]

    def give(number, part, first, last):
        mine[number] |= {(part, offset) for offset in range(first, last + 1)}
        these[number].chunks.put((part, first, last))

    def have_all():
        for one in these:
            assert one.error is None, one.error
        ends = dict(enumerate(counts))
        return all(
            set(one.got) == {(p, o) for p, o in own if o < ends[p]}
            for one, own in zip(these, mine, strict=True)
        )

    for step in (
        [(0, 0, 29_950, 29_999), (1, 0, 29_900, 29_949), (1, 1, 0, 9)],
        [(0, 0, 29_800, 29_809), (1, 1, 20, 29)],
        [(1, 0, 29_810, 29_899), (0, 0, 500, 501), (1, 0, 502, 503), (0, 0, 29_790, 29_799)],
        [(0, 0, 30_010, 30_019), (1, 0, 30_000, 30_009), (1, 1, 100, 101)],
    ):
        for chunk in step:
            give(*chunk)
        until(have_all)
    produce(name, records(0, 15), 0)
    produce(name, records(0, 1), 1)
    counts = 30_015, 101
    until(have_all)
    produce(name, records(0, 15), 0)
    counts = 30_030, 101
    until(have_all)
    assert all(set(Counter(one.got).values()) == {1} and not one.holes for one in these)
    if limit:
        until(lambda: use_server(these))


def test_keys_alone_are_kept_and_values_are_read_by_offset(kafka, topic, slots):
    """A slot far behind finds all in the memory that would not hold the values of a tenth.

    Values, headers and tombstones are those of the log; holes and what does not pass come, too.
    """
    from confluent_kafka import Producer

    name = topic(1)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "linger.ms": 0}
    )
    producer.init_transactions()
    spec = spec_of(
        kafka.bootstrap_servers, name, 3, limit=512 << 10, cache_content="key",
        record_filter=RecordFilter(deny=KeySet((b"k1",))),
    )  # fmt: skip
    these = slots(replace(spec, headers=True))

    def value(number):
        return None if number % 11 == 0 else b"%d" % number + b"." * 20_000

    def send(first, last):
        producer.begin_transaction()
        for n in range(first, last):
            producer.produce(name, value(n), b"k%d" % (n % 37), 0, headers=[("n", b"%d" % n)])
            producer.poll(0)
        producer.commit_transaction()

    send(0, 10)
    until(lambda: use_server(these) and all(one.position() == 11 for one in these))
    missed = sum(one.source.reads.misses for one in these)
    these[1].reads.clear()
    send(10, 300)
    until(lambda: these[0].position() == these[2].position() == 302)
    these[1].reads.set()
    until(lambda: these[1].position() == 302)
    assert use_server(these)
    assert sum(one.source.reads.misses for one in these) == missed
    assert these[0].holes == {(0, 10), (0, 301)}
    rows = sorted((row for one in these for row in one.rows), key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == [*range(10), *range(11, 301)]
    for number, row in enumerate(rows):
        assert row["filtered"] == (number % 37 == 1)
        if row["filtered"]:
            # Before there was a server the slot may have read the record itself, with its value.
            assert row["offset"] < 11 or row["value"] is None
        else:
            assert row["value"] == value(number)
            assert row["headers"] == [{"key": "n", "value": b"%d" % number}]


def test_a_killed_server_is_taken_over(kafka, topic, produce, slots):
    """Kill -9, again and again, while records come: each record once, in order; no server stays."""
    name = topic(1)
    these = slots(spec_of(kafka.bootstrap_servers, name, 3))
    count = 0
    for number in range(3):
        count += len(produce(name, records(count, 300), 0))
        until(lambda: use_server(these))
        (pid,) = alive()
        for _ in range(10):
            count += len(produce(name, records(count, 30), 0))
            if _ == 4:
                os.kill(pid, signal.SIGKILL)
        until(lambda: all(one.position() == count for one in these))  # noqa: B023
        if number:
            until(lambda: use_server(these))
            assert alive() != [pid]
    for one in these:
        assert one.got == sorted(set(one.got))
    assert all_of(these) == Counter((0, o) for o in range(count))
    assert not these[0].holes


@pytest.mark.slow
def test_a_stopped_server_is_ended_by_the_slot_that_started_it(
    kafka, topic, produce, slots, monkeypatch
):
    """SIGSTOP: it is silent, slots read for themselves, and another server takes over."""
    monkeypatch.setattr(host_link, "SILENCE", SILENCE)
    name = topic(1)
    these = slots(spec_of(kafka.bootstrap_servers, name, 2))
    produce(name, records(0, 100), 0)
    until(lambda: use_server(these))
    (pid,) = alive()
    os.kill(pid, signal.SIGSTOP)
    produce(name, records(100, 100), 0)
    until(lambda: all(one.position() == 200 for one in these))
    until(lambda: use_server(these))
    assert alive() != [pid]
    produce(name, records(200, 100), 0)
    until(lambda: all(one.position() == 300 for one in these))
    assert all_of(these) == Counter((0, o) for o in range(300))


def test_a_server_that_stops_before_it_answers_is_ended(kafka, topic, produce, slots, monkeypatch):
    """SIGSTOP while it starts: its slot does not wait for it without end."""
    monkeypatch.setattr(host_link, "SILENCE", SILENCE)
    monkeypatch.setattr(host_link, "STARTS_WITHIN", 3.0)
    name = topic(1)
    these = slots(spec_of(kafka.bootstrap_servers, name, 2))
    until(alive)
    (pid,) = alive()
    os.kill(pid, signal.SIGSTOP)
    produce(name, records(0, 100), 0)
    until(lambda: all(one.position() == 100 for one in these))
    until(lambda: pid not in alive())
    monkeypatch.setattr(host_link, "STARTS_WITHIN", PATIENCE)
    until(lambda: use_server(these))
    assert all_of(these) == Counter((0, o) for o in range(100))


def test_a_server_that_stops_as_its_run_ends_is_ended_by_the_next_run(
    kafka, topic, produce, slots, monkeypatch
):
    """The slot that started it is gone, and it keeps the lock without which no other starts."""
    monkeypatch.setattr(host_link, "SILENCE", SILENCE)
    name = topic(1)
    spec = spec_of(kafka.bootstrap_servers, name, 2)
    these = slots(spec)
    until(alive)
    (pid,) = alive()
    os.kill(pid, signal.SIGSTOP)
    for one in these:
        one.end()
    monkeypatch.setattr(host_link, "STARTS_WITHIN", 3.0)
    these = slots(spec)
    until(lambda: pid not in alive())
    monkeypatch.setattr(host_link, "STARTS_WITHIN", PATIENCE)
    until(lambda: use_server(these))
    produce(name, records(0, 100), 0)
    until(lambda: all(one.position() == 100 for one in these))
    assert all_of(these) == Counter((0, o) for o in range(100))


def test_a_slot_far_behind_reads_for_itself_and_catches_up(kafka, topic, produce, slots):
    """The limit holds, other slots go on, and every record comes."""
    name = topic(1)
    limit = 2 << 20
    these = slots(spec_of(kafka.bootstrap_servers, name, 2, limit=limit))
    produce(name, records(0, 10), 0)
    until(lambda: use_server(these) and all(one.position() == 10 for one in these))
    these[1].reads.clear()
    (server,) = alive()
    produce(name, records(10, 1_000, 20_000), 0)
    until(lambda: these[0].position() == 1_010)
    assert _resident(server) < 400 << 20
    these[1].reads.set()
    until(lambda: these[1].position() == 1_010 and use_server(these))
    assert these[1].source.reads.misses >= 1
    assert these[0].source.reads.misses == 0
    assert all_of(these) == Counter((0, o) for o in range(1_010))


def _resident(pid):
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_no_more_is_read_than_slots_take(kafka, topic, produce, slots):
    """Slots that stop hold back the server; what it pauses for is read once they go on."""
    name = topic(2)
    limit = 4 << 20
    these = slots(spec_of(kafka.bootstrap_servers, name, 2, 2, limit=limit))
    produce(name, records(0, 10), 0)
    until(lambda: use_server(these) and all(one.position() == 10 for one in these))
    for one in these:
        one.reads.clear()
    produce(name, records(10, 1_500, 20_000), 0)
    for one in these:
        one.reads.set()
    until(lambda: all(one.position() == 1_510 for one in these))
    produce(name, records(0, 10), 1)
    until(lambda: all(one.position(1) == 10 for one in these))
    assert all_of(these) == Counter([(0, o) for o in range(1_510)] + [(1, o) for o in range(10)])


def test_transactions_holes_and_filters_go_through_the_server(kafka, topic, slots):
    """An aborted transaction and all markers are holes; what does not pass comes without value."""
    from confluent_kafka import Producer

    name = topic(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions()
    only = RecordFilter(deny=KeySet((b"k1",)))
    spec = spec_of(kafka.bootstrap_servers, name, 2, record_filter=only)
    these = slots(spec)
    until(lambda: use_server(these))
    for first, commits in ((0, True), (10, False), (20, True)):
        producer.begin_transaction()
        for n in range(first, first + 10):
            producer.produce(name, b"x" * 50, b"k%d" % (n % 5), 0)
        producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)()
    until(lambda: all(one.position() == 33 for one in these))
    assert these[0].holes == {(0, o) for o in (10, *range(11, 22), 32)}
    assert sorted(o for _, o in all_of(these)) == [*range(10), *range(22, 32)]
    rows = [row for one in these for row in one.rows]
    for row in rows:
        dropped = row["key_hash"] == key_hash(b"k1")
        assert row["filtered"] == dropped
        assert (row["value"] is None) == dropped
    assert sum(row["filtered"] for row in rows) == 4
    assert use_server(these)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The data of a broker that tests may end."""
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def broker(folder):
    """A broker that tests may end; each has topics of its own on it."""
    with LocalKafka(data_dir=folder) as found:
        yield found


def fill(broker, names, count, value=b"v"):
    """Writes records to some topics, each in a batch of its own."""
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
        for name in names:
            for n in range(count):
                producer.send(name, key=b"k%d" % n, value=value).get(PATIENCE)


@pytest.mark.slow
def test_a_broker_that_restarts(broker, slots):
    """The server reads on; nothing is lost, nothing comes twice."""
    from confluent_kafka import Producer

    broker.create_topic("restarted", 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    def send(first):
        for key, value in records(first, 200):
            producer.produce("restarted", value, key, 0)
        assert producer.flush(PATIENCE) == 0

    these = slots(spec_of(broker.bootstrap_servers, "restarted", 2))
    send(0)
    until(lambda: all(one.position() == 200 for one in these))
    broker.kill()
    broker.restart()
    send(200)
    until(lambda: all(one.position() == 400 for one in these))
    assert all_of(these) == Counter((0, o) for o in range(400))


def test_runs_do_not_share_a_server_and_strangers_get_nothing(kafka, topic, slots):
    """The socket is this user's alone, and who does not know the secret is not served."""
    name = topic(1)
    one, other = (slots(spec_of(kafka.bootstrap_servers, name, 2, run=run)) for run in "ab")
    until(lambda: use_server([*one, *other]))
    assert len(alive()) == 2
    path = Path(one[0].source._link._spec.path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    stranger = SlotHandshake(b"wrong" * 8, Identity("a", 1, 9, 0))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(path))
        sock.sendall(stranger.hello())
        splitter = Splitter()
        splitter.feed(sock.recv(1 << 10))
        with pytest.raises(ProtocolError, match="does not know"):
            stranger.answer(*next(splitter.frames()))
        sock.sendall(SlotHandshake(b"", Identity("a", 1, 9)).hello())
        while sock.recv(1 << 10):
            pass
    assert use_server([*one, *other])


def test_a_server_ends_without_slots_and_with_its_parent(kafka, topic, slots):
    """It leaves no socket behind."""
    these = slots(spec_of(kafka.bootstrap_servers, topic(1), 2))
    until(lambda: use_server(these))
    (server,) = host_link._started.values()
    path = Path(these[0].source._link._spec.path)
    for one in these:
        one.end()
    assert server.wait(PATIENCE) == 0
    assert not path.exists()
    again = slots(spec_of(kafka.bootstrap_servers, topic(1), 2, run="again"))
    until(lambda: use_server(again))
    (server,) = (one for one in host_link._started.values() if one.poll() is None)
    server.stdin.close()
    assert server.wait(PATIENCE) == 0


KINDS = {"without-a-server": (0, "record"), "by-a-server": (64 << 20, "record"),
         "keys-by-a-server": (64 << 20, "key")}  # fmt: skip


@pytest.mark.parametrize(("limit", "content"), KINDS.values(), ids=KINDS)
def test_a_topic_that_is_created_again_is_another_log(kafka, topic, produce, slots, limit, content):
    """A server that outlives its run keeps nothing for the next one; slots do not read on."""
    name = topic(1)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)

    def create(value, count):
        if value != b"0":
            admin.delete_topics([name])
            until(lambda: name not in admin.list_topics())
            kafka.create_topic(name, 1)
        produce(name, [(b"k%d" % n, value) for n in range(count)])

    def start():
        return slots(spec_of(kafka.bootstrap_servers, name, 2, limit=limit, cache_content=content))

    for value, count in ((b"0", 200), (b"1", 120)):
        create(value, count)
        these = start()
        until(lambda these=these, count=count: all(one.position() == count for one in these))
        if value == b"0":
            for one in these:
                one.end()
    create(b"2", 300)
    until(lambda: all(one.error for one in these))
    admin.close()
    again = f"topic {name} was deleted and created again: its id is "
    for one in these:
        assert isinstance(one.error, ReadFailed)
        # As long as the new log is shorter, a fetch may fail before its id is asked for.
        assert again in str(one.error) or "Offset out of range" in str(one.error)
        assert {row["value"] for row in one.rows} == {b"1"}
    assert sorted(all_of(these)) == [(0, offset) for offset in range(120)]


@pytest.mark.slow
def test_a_log_that_was_cut_is_another_log_above_the_cut(broker, folder, slots):
    """What a server has of the cut part is not what the log has now, and no slot reads on there.

    Slots without a server and slots of one read side by side, each from a log of its own.
    """
    limits = {"cut-alone": 0, "cut-served": 64 << 20}
    for name in limits:
        broker.create_topic(name, 1)

    def lose(offset):
        broker.kill()
        for name in limits:
            cut(folder, offset, name)
        broker.restart()

    def start():
        return {
            name: slots(spec_of(broker.bootstrap_servers, name, 2, limit=limit))
            for name, limit in limits.items()
        }

    def are_at(kinds, position):
        return all(one.position() == position for these in kinds.values() for one in these)

    fill(broker, limits, 20, b"0")
    kinds = start()
    until(lambda: are_at(kinds, 20))
    for these in kinds.values():
        for one in these:
            one.end()
    lose(10)
    fill(broker, limits, 15, b"1")
    kinds = start()
    until(lambda: are_at(kinds, 25))
    lose(15)
    fill(broker, limits, 30, b"2")
    for these in kinds.values():
        until(lambda these=these: all(one.error for one in these))
        rows = sorted((row["offset"], row["value"]) for one in these for row in one.rows)
        assert rows == [(n, b"0" if n < 10 else b"1") for n in range(25)]
        for one in these:
            assert isinstance(one.error, ReadFailed)


@pytest.mark.slow
def test_an_election_that_loses_nothing_ends_no_reading(broker, slots):
    """Slots, and the server that comes next, begin beyond the leader epoch that the run knew.

    Slots of each kind read side by side, each from a log of its own.
    """
    names = [f"elected-{kind}" for kind in KINDS]
    specs, kinds = {}, {}
    for name in names:
        broker.create_topic(name, 1)
    fill(broker, names, 20)
    for name, (limit, content) in zip(names, KINDS.values(), strict=True):
        specs[name] = spec_of(broker.bootstrap_servers, name, 2, limit=limit, cache_content=content)
        kinds[name] = slots(specs[name])

    def are_at(position):
        return all(one.position() == position for these in kinds.values() for one in these)

    alone, *others = kinds.values()
    served = [one for these in others for one in these]
    until(lambda: are_at(20) and use_server(served))
    assert len(alive()) == 2
    broker.kill()
    broker.restart()
    for name in names:
        (log,), _ = logs_of(broker.bootstrap_servers, name, 1)
        assert log.leader_epoch > specs[name].realtime.logs[0].leader_epoch
    fill(broker, names, 20)
    until(lambda: are_at(40))
    for pid in alive():
        os.kill(pid, signal.SIGKILL)
    for one in alone:
        # As if it had fallen behind, and had caught up.
        one.source._own_next = {}
    fill(broker, names, 20)
    until(lambda: are_at(60))
