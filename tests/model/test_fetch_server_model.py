"""The fetch server of a host and its slots, without sockets: records are cached, lost, evicted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assignors import KeyRange, key_hash
from assignors.ranges import offset_hash
from commits import OffsetAndEpoch
from coopconsume.filters import RecordFilter
from coopconsume.worker.channel.wire import ProtocolError
from coopconsume.worker.realtime.fetch_messages import (
    NEAR,
    Ask,
    Evicted,
    Fetch,
    FetchAnswer,
    Portion,
    decode_answer,
    decode_fetch,
    encode_answer,
    encode_fetch,
)
from coopconsume.worker.realtime.fetch_state import FetchState
from coopconsume.worker.realtime.reader import ReadPosition, SlotReader, row_schema
from coopconsume.worker.realtime.record_cache import CHUNK_BYTES, LARGEST_PORTION, RecordCache
from coopconsume.worker.realtime.wanted import NOTHING

FULL = ((0, 2**63 - 1),)
PLACES = (("t", 0), ("t", 1))
SCHEMA = row_schema(headers=False, filters=False)


class Message:
    """A record as confluent-kafka returns it."""

    def __init__(self, part, offset, key, value=b"v"):
        self.offset, self.key, self.value = (lambda: offset), (lambda: key), (lambda: value)
        self.topic, self.partition = (lambda: PLACES[part][0]), (lambda: PLACES[part][1])

    timestamp, headers = staticmethod(lambda: (1, 7)), staticmethod(lambda: None)
    leader_epoch = staticmethod(lambda: 2)


@dataclass
class Log:
    """A partition: its records by offset, and its end."""

    records: dict = field(default_factory=dict)
    end: int = 0

    def add(self, step, key):
        """Adds a record; offsets that are left out are holes."""
        self.end += step
        self.records[self.end - 1] = key

    def read(self, part, first, count):
        """The next records from an offset on, and the end if they reach it."""
        found = sorted(o for o in self.records if o >= first)[:count]
        messages = [Message(part, o, self.records[o]) for o in found]
        is_all = not found or found[-1] >= max(self.records, default=0)
        return messages, {PLACES[part]: self.end} if is_all else {}


def rows_of(*messages):
    """Rows of partition 0 and the offset that follows."""
    reader = SlotReader(PLACES, {0: 0}, {0: FULL}, frozenset(), RecordFilter(), headers=False)
    return reader.take(messages, {}).rows


class Server:
    """The server's part, as `fetch_server` runs it."""

    def __init__(self, logs, limit):
        self.logs, self.limit = logs, limit
        self.cache = RecordCache(limit)
        self.reader = SlotReader(PLACES, {}, {}, frozenset(), RecordFilter(), headers=False)
        self.reads = []

    def read(self, part, count):
        """Reads on, unless it has read too far ahead."""
        if part in self.cache.full:
            return
        first = self.reader.starts[PLACES[part]]
        taken = self.reader.take(*self.logs[part].read(part, first, count))
        self.reads += [(part, o) for o in taken.rows.column("offset").to_pylist()]
        if taken.positions:
            self.cache.append(part, taken.rows, taken.positions[part], taken.holes.get(part, []))
        assert self.cache.size <= self.limit

    def answer(self, slot, asks):
        """Answers a fetch, over the wire."""
        fetch = decode_fetch(encode_fetch(Fetch(asks, 1 << 20, 0.5)))
        found = []
        for ask in fetch.asks:
            if not self.cache.has(ask.part):
                assert ask.begin <= self.logs[ask.part].end, "brokers know no such offset"
                self.cache.begin(ask.part, ask.begin)
                self.reader.begin(PLACES[ask.part], ReadPosition(ask.part, ask.begin, FULL, True))
            found.append(self.cache.fetch(slot, ask, fetch.max_bytes))
        answer = FetchAnswer(
            tuple(one for one in found if isinstance(one, Portion)),
            tuple(one for one in found if isinstance(one, Evicted)),
        )
        return decode_answer(encode_answer(answer), SCHEMA)


class Slot:
    """A slot's part, as `host_source` runs it."""

    def __init__(self, number, logs, ranges):
        starts = dict.fromkeys(range(len(logs)), 0)
        finds = frozenset(starts) if number == 0 else frozenset()
        ranges = dict.fromkeys(starts, ranges)
        self.number, self.logs = number, logs
        self.state = FetchState(starts, ranges)
        self.reader = SlotReader(PLACES, starts, ranges, finds, RecordFilter(), headers=False)
        self.got = {part: [] for part in starts}
        self.holes = {part: [] for part in starts}

    def _take(self, *what):
        taken = self.reader.take(*what)
        for part, offset in zip(
            taken.rows.column("part").to_pylist(),
            taken.rows.column("offset").to_pylist(),
            strict=True,
        ):
            self.got[part].append(offset)
        for part, holes in taken.holes.items():
            self.holes[part] += [o for first, last in holes for o in range(first, last + 1)]

    def take_in(self, answer):
        """Takes an answer in, soon or late."""
        for evicted in answer.evicted:
            self.state.missed(evicted)
        news = [one for one in answer.portions if self.state.answered(one)]
        self._take((), {}, news)

    def read(self, count):
        """Reads the partitions itself that are its own to read."""
        for part, offset in self.state.own.items():
            messages, ends = self.logs[part].read(part, offset, count)
            self._take(messages, ends)
            self.state.has_read(part, self.reader.starts[PLACES[part]])


class Host:
    """A server that comes and goes, and the answers that slots have not got yet."""

    def __init__(self, logs, limit):
        self._logs, self._limit = logs, limit
        self.server, self._late = Server(logs, limit), {}

    def ask(self, slot):
        """What the server answers to a slot."""
        return self.server.answer(slot.number, slot.state.asks())

    def play(self, op, slots, slot, part, count):
        """One step of the server, or of a slot."""
        if op == "serve" and self.server.cache.has(part):
            self.server.read(part, count)
        elif op == "ask" and slot.number not in self._late:
            slot.take_in(self.ask(slot))
        elif op == "late":  # The slot reads on, or the server dies, before the answer comes.
            self._late[slot.number] = self._late.get(slot.number) or self.ask(slot)
        elif op == "own":
            slot.read(3)
            if slot.number in self._late:
                slot.take_in(self._late.pop(slot.number))
        elif op == "die":
            self.server = Server(self._logs, self._limit)
            for one in slots:
                one.state.lost()
        elif op == "gone":
            self.server.cache.leave(slot.number)
        elif op == "settle":
            self.server.cache.is_starting = False

    def answer_late(self, slots):
        """The answers come that slots have not got yet."""
        for number, answer in self._late.items():
            slots[number].take_in(answer)


KEYS = [None, b"a", b"b", b"c", b"d", b"e"]
OPS = st.lists(
    st.sampled_from(["produce", "serve", "ask", "late", "own", "die", "settle", "gone"]),
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(OPS, st.integers(1, 4), st.sampled_from([2_000, 6_000, 1 << 20]), st.randoms())
def test_each_slot_gets_its_records_once_whatever_becomes_of_the_server(ops, count, limit, rng):
    """Deaths, evictions, late answers and slow slots: by offset, in order, with every hole."""
    logs = [Log(), Log()]
    slots = [
        Slot(n, logs, ((one.first, one.last),)) for n, one in enumerate(KeyRange().split(count))
    ]
    host = Host(logs, limit)
    for op in ops:
        slot = rng.choice(slots)
        part = rng.randrange(2)
        if op == "produce":
            for _ in range(rng.randrange(6)):
                logs[part].add(rng.choice([1, 1, 1, 3]), rng.choice(KEYS))
            logs[part].end += rng.choice([0, 0, 1])
        else:
            host.play(op, slots, slot, part, rng.randrange(1, 5))
        for one in slots:
            check(one, logs, is_over=False)
    host.answer_late(slots)
    server = host.server
    server.cache.is_starting = False
    for _ in range(400):
        if all(at_end(one, logs) for one in slots):
            break
        for part in range(2):
            if server.cache.has(part):
                server.read(part, 50)
        for one in slots:
            one.take_in(host.ask(one))
            one.read(50)
    for one in slots:
        check(one, logs, is_over=True)
        assert not one.state.own, "a slot that has caught up reads for itself no more"
    for _ in range(2):  # The second time, each knows where the others are.
        for one in slots:
            one.take_in(host.ask(one))
    assert server.cache.size == 0, "records leave that all slots have"
    assert not server.cache.full
    assert len(set(server.reads)) == len(server.reads), "a record is read from the brokers once"


def at_end(slot, logs):
    """Whether a slot has all there is, from the server."""
    return not slot.state.own and all(
        slot.reader.starts[PLACES[part]] == log.end for part, log in enumerate(logs)
    )


def check(slot, logs, *, is_over):
    """What a slot has is what it should have, in the log's order."""
    for part, log in enumerate(logs):
        end = log.end if is_over else slot.reader.starts[PLACES[part]]
        mine = [
            o for o, key in sorted(log.records.items())
            if o < end
            and any(
                first <= (offset_hash(o) if key is None else key_hash(key)) <= last
                for first, last in slot.state._ranges[part]
            )
        ]  # fmt: skip
        assert slot.got[part] == mine
        if slot.number == 0:
            assert slot.holes[part] == [o for o in range(end) if o not in log.records]


class ChunkSlot(Slot):
    """A slot that reads the chunks that it gets."""

    def __init__(self, number, logs):
        super().__init__(number, logs, FULL)
        parts = range(len(logs))
        self.state = FetchState(
            dict.fromkeys(parts, NOTHING), dict.fromkeys(parts, FULL),
            {part: log.end for part, log in enumerate(logs)},
        )  # fmt: skip
        starts, finds = dict.fromkeys(parts, NOTHING), frozenset(parts)
        self.reader = SlotReader(
            PLACES, starts, dict.fromkeys(parts, FULL), finds, RecordFilter(), headers=False
        )
        self.mine = {part: set() for part in parts}

    def want(self, part, first, last):
        """Gets a chunk."""
        self.mine[part] |= set(range(first, last + 1))
        self.state.want(part, [(first, last)])
        self.reader.want(part, [(first, last)])

    def read(self, count):
        """Reads the partitions itself that are its own to read, and not beyond its chunks."""
        for part in self.state.own:
            first, last = self.state.start_of(part).offset, self.state.last_of(part)
            assert first <= self.logs[part].end, "brokers know no such offset"
            messages, ends = self.logs[part].read(part, first, count)
            messages = [one for one in messages if one.offset() <= last]
            self._take(messages, ends)
            following = [one.offset() + 1 for one in messages] + list(ends.values())
            self.state.has_read(part, max(following, default=0))

    def check(self, *, is_over):
        """It has the records and the holes of its chunks, each once, and no others."""
        for part, log in enumerate(self.logs):
            mine = {o for o in self.mine[part] if o < log.end}
            got, holes = self.got[part], self.holes[part]
            assert len(set(got)) == len(got)
            assert len(set(holes)) == len(holes)
            assert set(got) <= mine & log.records.keys()
            assert set(holes) <= mine - log.records.keys()
            if is_over:
                assert set(got) | set(holes) == mine


@settings(max_examples=80, deadline=None)
@given(OPS, st.integers(1, 3), st.sampled_from([2_000, 6_000, 1 << 20]), st.randoms())
def test_each_slot_gets_its_chunks_once_whatever_becomes_of_the_server(ops, count, limit, rng):
    """Chunks come in any order, also beyond the end of the log; others are nobody's here."""
    logs = [Log(), Log()]
    for log in logs:
        for _ in range(5):
            log.add(1, b"a")
    slots = [ChunkSlot(n, logs) for n in range(count)]
    host = Host(logs, limit)
    left = {part: list(range(0, 200, 5)) for part in range(2)}

    for op in ops:
        slot, part = rng.choice(slots), rng.randrange(2)
        chunks = left[part]
        if chunks and rng.random() < 0.5:
            first = chunks.pop(rng.randrange(min(4, len(chunks))))
            slot.want(part, first, first + 4)
        if op == "produce":
            for _ in range(rng.randrange(6)):
                logs[part].add(rng.choice([1, 1, 1, 3]), b"a")
            logs[part].end += rng.choice([0, 0, 1])
        else:
            host.play(op, slots, slot, part, rng.randrange(1, 5))
        for one in slots:
            one.check(is_over=False)
    host.answer_late(slots)
    server = host.server
    for _ in range(60):
        for part in range(2):
            if server.cache.has(part):
                server.read(part, 50)
        for one in slots:
            one.take_in(host.ask(one))
            one.read(50)
    for one in slots:
        one.check(is_over=True)


def test_a_server_begins_near_the_end_of_the_log():
    """An old record that is tried again is read by its slot."""
    for offset, begin in ((NEAR, NEAR), (NEAR - 1, 2 * NEAR), (2 * NEAR + 1, 2 * NEAR)):
        assert Ask(0, offset, FULL, end=2 * NEAR).begin == begin
    assert Ask(0, 5, FULL).begin == 5


def test_without_a_server_a_slot_reads_for_itself():
    """From where it is, and it asks the next server from there, too."""
    logs = [Log({0: b"a", 1: b"b"}, 2), Log()]
    slot = Slot(0, logs, FULL)
    slot.read(1)
    assert slot.got[0] == []
    slot.state.lost()
    slot.read(1)
    assert slot.got[0] == [0]
    assert Ask(0, 1, FULL, is_joining=True) in slot.state.asks()
    slot.take_in(Server(logs, 1 << 20).answer(0, slot.state.asks()))
    assert slot.state.own == {}


def test_a_late_answer_brings_what_the_slot_has_not_read_meanwhile():
    """Records and holes of offsets that it has are left out."""
    logs = [Log({0: b"a", 2: b"b", 4: b"c"}, 5), Log()]
    slot, server = Slot(0, logs, FULL), Server(logs, 1 << 20)
    server.answer(0, slot.state.asks())
    server.read(0, 9)
    late = server.answer(0, slot.state.asks())
    slot.state.lost()
    slot.read(2)
    assert slot.got[0] == [0, 2]
    slot.take_in(late)
    assert slot.got[0] == [0, 2, 4]
    assert slot.holes[0] == [1, 3]


def cache_of(*sizes, limit=1 << 30, slots=()):
    """A cache with a record of each size in partition 0; some slots have asked for the first."""
    cache = RecordCache(limit)
    cache.begin(0, 0)
    for slot in slots:
        cache.fetch(slot, Ask(0, 0, FULL), 1)
    for offset, size in enumerate(sizes):
        cache.append(0, rows_of(Message(0, offset, b"a", b"x" * size)), offset + 1)
    return cache


def offsets(portion):
    """The offsets of a portion's rows."""
    return portion.rows.column("offset").to_pylist()


def test_a_portion_has_records_up_to_the_limit_of_the_fetch_and_at_least_one():
    """More comes with the next fetch."""
    cache = cache_of(300, 300, 300)
    assert offsets(cache.fetch(1, Ask(0, 0, FULL), 1)) == [0]
    assert offsets(cache.fetch(1, Ask(0, 1, FULL), 1 << 20)) == [1, 2]
    assert cache.fetch(1, Ask(0, 3, FULL), 1 << 20) is None


def test_a_record_that_is_too_large_for_an_answer_is_read_by_the_slot():
    """The server returns the next offset to fetch."""
    cache = cache_of(10, LARGEST_PORTION + 1, 10)
    portion = cache.fetch(1, Ask(0, 0, FULL), 1 << 30)
    assert (offsets(portion), portion.next) == ([0], 1)
    assert cache.fetch(1, Ask(0, 1, FULL), 1 << 30) == Evicted(0, 2)
    assert offsets(cache.fetch(1, Ask(0, 2, FULL), 1 << 30)) == [2]


def test_what_is_read_at_once_leaves_in_pieces():
    """A large read is cut, so that it does not stay whole for its last record."""
    rows = rows_of(*(Message(0, o, b"a", b"x" * (CHUNK_BYTES // 2)) for o in range(8)))
    cache = RecordCache(1 << 30)
    cache.is_starting = False
    cache.begin(0, 0)
    cache.append(0, rows, 10, [(8, 9)])
    before = cache.size
    portion = cache.fetch(1, Ask(0, 0, FULL), 1)
    assert 1 <= portion.next < 8
    rest = cache.fetch(1, Ask(0, portion.next, FULL), 1 << 30)
    assert (rest.next, rest.holes) == (10, ((8, 9),))
    assert offsets(portion) + offsets(rest) == list(range(8))
    assert cache.size < before


def test_a_slow_slot_does_not_hold_records_beyond_the_limit():
    """The oldest leave; the slot reads for itself, and the others never notice."""
    cache = RecordCache(20_000)
    cache.is_starting = False
    cache.begin(0, 0)
    slow = Ask(0, 0, FULL)
    assert cache.fetch(2, slow, 1) is None
    for offset in range(100):
        fast = Ask(0, offset, FULL)
        assert cache.fetch(1, fast, 1) is None
        assert not cache.full
        cache.append(0, rows_of(Message(0, offset, b"a", b"x" * 500)), offset + 1)
        assert offsets(cache.fetch(1, fast, 1)) == [offset]
        assert cache.size <= 20_000
    missed = cache.fetch(2, slow, 1)
    assert isinstance(missed, Evicted)
    assert 80 < missed.start < 100
    assert cache.fetch(2, Ask(0, missed.start, FULL, is_joining=True), 1).next == missed.start + 1


def test_no_more_is_read_than_half_of_the_limit_ahead_of_the_fastest_slot():
    """Back-pressure: it goes on once the slots have half of that; another partition is free."""
    cache = cache_of(limit=40_000, slots=(1,))
    cache.begin(1, 0)
    offset = 0
    while not cache.full and offset < 100:
        cache.append(0, rows_of(Message(0, offset, b"a", b"x" * 500)), offset + 1)
        offset += 1
    assert cache.full == {0}
    assert 10_000 < cache.size < 13_000
    cache.fetch(1, Ask(0, 1, FULL), 1)
    assert cache.full == {0}
    cache.fetch(1, Ask(0, offset // 2 + 1, FULL), 1)
    assert not cache.full


def test_records_stay_while_a_slot_catches_up():
    """Else it would never find the server where it is."""
    cache = cache_of(10, 10, 10, slots=(1,))
    cache.is_starting = False
    missed = RecordCache(1 << 20)
    missed.begin(0, 5)
    missed.is_starting = False
    assert missed.fetch(2, Ask(0, 3, FULL), 1) == Evicted(0, 5)
    missed.append(0, rows_of(Message(0, 5, b"a")), 6)
    assert missed.fetch(1, Ask(0, 6, FULL), 1) is None
    assert missed.size > 0
    assert offsets(missed.fetch(2, Ask(0, 5, FULL, is_joining=True), 1)) == [5]
    missed.fetch(2, Ask(0, 6, FULL), 1)
    assert missed.size == 0


def test_a_slot_that_is_gone_holds_no_records():
    """Its connection was closed."""
    cache = cache_of(10, 10, slots=(1, 2))
    cache.is_starting = False
    cache.fetch(1, Ask(0, 2, FULL), 1)
    assert cache.size > 0
    cache.leave(2)
    cache.fetch(1, Ask(0, 2, FULL), 1)
    assert cache.size == 0


def test_messages_that_are_cut_or_changed_are_refused():
    """Never an answer with other records than the server's."""
    answer = FetchAnswer(
        (
            Portion(0, 3, 9, rows_of(Message(0, 4, b"a")), ((5, 6),), OffsetAndEpoch(5, 2)),
            Portion(1, 2, 3),
        ),
        (Evicted(1, 7),), 5,
    )  # fmt: skip
    data = encode_answer(answer)
    back = decode_answer(data, SCHEMA)
    assert back.portions[0].rows.equals(answer.portions[0].rows)
    assert (back.evicted, back.broker_bytes) == (answer.evicted, 5)
    assert back.portions[0].holes == ((5, 6),)
    assert [one.reached for one in back.portions] == [OffsetAndEpoch(5, 2), None]
    rng = random.Random(3)
    for cut in [0, 3, len(data) - 1, *(rng.randrange(len(data)) for _ in range(20))]:
        with pytest.raises(ProtocolError):
            decode_answer(data[:cut], SCHEMA)
    with pytest.raises(ProtocolError):
        decode_answer(data + b"x", SCHEMA)
    for wrong in (b"", b"[]", b"[1,2,[[0,-1,true,[]]]]", b"[1,2,[[0,1,true,[[1]]]]]", b"\xff"):
        with pytest.raises(ProtocolError):
            decode_fetch(wrong)


def test_an_answer_says_how_far_the_log_reached_as_its_records_were_read():
    """In which leader epoch, by the last of them that is known."""
    cache = RecordCache(1 << 30)
    cache.begin(0, 0)
    reached = [OffsetAndEpoch(1, 3), None, OffsetAndEpoch(3, 4)]
    for offset, one in enumerate(reached):
        cache.append(0, rows_of(Message(0, offset, b"a")), offset + 1, reached=one)
    found = [cache.fetch(1, Ask(0, 0, FULL, last=last), 1 << 20).reached for last in range(3)]
    assert found == [reached[0], reached[0], reached[2]]
