"""The fenced writer against a broker in memory that fails anywhere: I1 to I8, by the thousand."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from coopconsume.errors import (
    AppendOutcomeUnknown,
    LogBlocked,
    LogUnavailable,
    OffsetMismatch,
    ProducerFenced,
    WriterNotOpen,
)
from coopconsume.fenced import UNCHECKED, FencedWriter
from coopconsume.fenced.fold import KeyIndex
from coopconsume.fenced.log import Raw
from coopconsume.fenced.requests import Request
from coopconsume.kafka import call_limit
from tests.examples import examples
from tests.fenced_checker import Outcomes, batches, problems
from tests.model.fenced_broker import Broker, FakeEngine, Fate

OPTIONS = {"kafka.bootstrap.servers": "nowhere:1"}
FATES: tuple[Fate, ...] = ("lost", "unanswered", "late", "torn", "after a foreign one")
TIMEOUT = 2.0


class World:
    """A broker, writers, a clock that goes with requests, and random faults."""

    def __init__(self, seed: int, visibility: str, shared: int) -> None:
        self._random = random.Random(seed)
        self._ids = itertools.count()
        self._busy: list[FencedWriter] = []
        self._away = 0
        self.now = 0.0
        self.outcomes = Outcomes()
        self.wanted: dict[str, tuple[bytes, int | None]] = {}
        self.broker = Broker(self.fate, self.tick)
        self.writers = [self.writer(visibility, shared=i < shared) for i in range(3)]
        self._visibility = visibility

    def writer(self, visibility: str, *, shared: bool) -> FencedWriter:
        engine = FakeEngine(self.broker)
        return FencedWriter(
            OPTIONS, "t", visibility=visibility, engine=engine, shared=shared, timeout=TIMEOUT
        )  # type: ignore[arg-type]

    def tick(self) -> None:
        self.now += 0.01

    def fate(self, name: str) -> Fate:
        """Mostly all goes well; else something is lost or late, or others act in between."""
        if self._away > 0:
            self._away -= 1
            return "lost"
        luck = self._random.randrange(20)
        if luck == 0:
            self.act()
        elif luck == 1:
            self.broker.deliver()
        elif luck == 2:
            fate = self._random.choice(FATES)
            if self._random.random() < 0.2:
                self._away = self._random.randint(1, 80)  # long enough to run out of time
            return fate
        return "done"

    def act(self) -> None:
        """One writer does something."""
        writer = self._random.choice(self.writers)
        if writer in self._busy:
            return
        self._busy.append(writer)
        (self.append if writer.is_open else self.acquire)(writer)
        self._busy.remove(writer)

    def acquire(self, writer: FencedWriter) -> None:
        try:
            writer.acquire()
        except (ProducerFenced, WriterNotOpen):
            shared = writer._session.is_shared
            self.writers[self.writers.index(writer)] = self.writer(self._visibility, shared=shared)
        except (LogBlocked, LogUnavailable):
            pass

    def append(self, writer: FencedWriter) -> None:
        """One append, or several at once as of threads: all but the last one wait already."""
        requests = [self.request(writer, ahead) for ahead in range(self._random.choice([1, 1, 4]))]
        for request in requests:
            writer._groups._waiting.append(request)
        writer._groups.settle_waiting()
        for request in requests:
            batch_id = request.batch_id
            try:
                done = request.result()
                self.outcomes.acked[batch_id] = (done.first_offset, done.first_seq, done.count)
            except AppendOutcomeUnknown:
                self.outcomes.unknown.add(batch_id)
                self.resolve(writer, batch_id)
            except (OffsetMismatch, ProducerFenced, LogUnavailable, LogBlocked):
                self.outcomes.refused.add(batch_id)

    def request(self, writer: FencedWriter, ahead: int) -> Request:
        """An append that expects the place where some appends of one record may have left off."""
        how = self._random.choice(["unchecked", "offset", "seq", "stale", "key", "key"])
        if how == "key":
            return self.request_by_key(writer)
        offset, seq = {
            "unchecked": (UNCHECKED, UNCHECKED), "offset": (writer.next_offset + ahead, UNCHECKED),
            "seq": (UNCHECKED, writer.next_seq + ahead),
            "stale": (UNCHECKED, max(0, writer.next_seq - 1)),
        }[how]  # fmt: skip
        rows = [b"%d" % i for i in range(self._random.randint(1, 3 if not ahead else 2))]
        return writer._request(
            rows, expected_offset=offset, expected_seq=seq, batch_id=f"b{next(self._ids)}"
        )

    def request_by_key(self, writer: FencedWriter) -> Request:
        """An append that expects the last record of its key, as it is now or as it was."""
        batch_id, key = f"b{next(self._ids)}", b"k%d" % self._random.randrange(4)
        seqs = [None, *last_records(self.broker.visible()).get(key, [])]
        expected = seqs[-1] if self._random.random() < 0.8 else self._random.choice(seqs)
        self.wanted[batch_id] = key, expected
        rows = [(key, b"%d" % i) for i in range(self._random.randint(1, 2))]
        return writer._request(rows, expected_key_seq={key: expected}, batch_id=batch_id)

    def resolve(self, writer: FencedWriter, batch_id: str) -> None:
        try:
            done = writer.resolve(batch_id)
        except (AppendOutcomeUnknown, WriterNotOpen):
            return
        except (LogUnavailable, LogBlocked):
            return
        self.outcomes.unknown.discard(batch_id)
        if done is None:
            self.outcomes.refused.add(batch_id)
        else:
            self.outcomes.acked[batch_id] = (done.first_offset, done.first_seq, done.count)

    def verdict(self) -> list[str]:
        """What is wrong, after everything that was under way has arrived."""
        self.broker.deliver()
        for identity in self.broker.ids.values():
            self.broker.end(identity, commit=False)
        before: dict[str, dict[bytes, int]] = {}
        last_records(self.broker.visible(), before)
        wrong = [
            f"{batch_id} expected {wanted} before it: {before[batch_id]}"
            for batch_id, wanted in self.wanted.items()
            if batch_id in before and before[batch_id].get(wanted[0]) != wanted[1]
        ]
        return wrong + problems(self.broker.visible(), self.outcomes)


def last_records(
    records: list[Raw], before: dict[str, dict[bytes, int]] | None = None
) -> dict[bytes, list[int]]:
    """Sequence numbers of the records of each key that count.

    Args:
        records: The committed records.
        before: Takes the last number of each key at the beginning of each batch.
    """
    found: dict[bytes, list[int]] = {}
    by_offset = {record.offset: record for record in records}
    for batch_id, batch in batches(records, []).items():
        if before is not None:
            before[batch_id] = {key: seqs[-1] for key, seqs in found.items()}
        for offset, stamp in zip(batch.offsets, batch.rows, strict=True):
            key = by_offset[offset].key
            if key is not None:
                found.setdefault(key, []).append(stamp["first_seq"] + stamp["i"])
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """The time of the writers is the world's."""
    worlds: list[World] = []
    monkeypatch.setattr(KeyIndex, "remembered", 2)  # fewer than there are keys

    def sleep(seconds: float) -> None:
        worlds[-1].now += max(seconds, 0.001)

    fake = SimpleNamespace(monotonic=lambda: worlds[-1].now, sleep=sleep)
    monkeypatch.setattr(call_limit, "time", fake)
    return worlds


@pytest.mark.parametrize("shared", [0, 2, 3])
@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_whatever_fails_the_log_is_right(clock: list[World], visibility: str, shared: int) -> None:
    """Three writers, some share the log, interleaved at any request; any request may fail."""

    @settings(max_examples=examples(300), deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(st.integers(0, 2**32), st.integers(1, 15))
    def run(seed: int, acts: int) -> None:
        world = World(seed, visibility, shared)
        clock[:] = [world]
        for _ in range(acts):
            world.act()
        found = world.verdict()
        assert not found, (found, world.outcomes)

    run()


@pytest.mark.parametrize("shared", [0, 3])
@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_what_is_not_in_the_log_never_comes_late(
    clock: list[World], visibility: str, shared: int
) -> None:
    """Its request is under way when the batch is not found; its place is taken."""
    world = World(0, visibility, shared)
    clock[:] = [world]
    broker, writer = world.broker, world.writers[0]
    broker.fate = lambda _: "done"
    writer.acquire()
    fates: dict[str, Fate] = {"append": "late", "metadata": "lost"}
    broker.fate = lambda name: fates.get(name, "done")
    with pytest.raises(AppendOutcomeUnknown):
        writer.append([b"a"], batch_id="late")
    broker.fate = lambda _: "done"
    assert writer.resolve("late") is None
    world.outcomes.refused.add("late")
    broker.deliver()
    done = writer.append([b"b"], batch_id="next")
    world.outcomes.acked["next"] = (done.first_offset, done.first_seq, done.count)
    assert not world.verdict()
