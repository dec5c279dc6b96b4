"""One append over several logs: all or nothing, whatever fails and with any number of rivals."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from coopconsume.errors import (
    AppendOutcomeUnknown,
    AppendRefused,
    InvalidOption,
    LogBlocked,
    LogUnavailable,
    OffsetMismatch,
    ProducerBusy,
    ProducerFenced,
    WriterNotOpen,
)
from coopconsume.fenced import (
    Appended,
    FencedWriter,
    LogReader,
    MultiLogWriter,
    Write,
    audit_logs,
)
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.kafka import call_limit
from coopconsume.testing.history.appends import Append, check_appends
from coopconsume.testing.history.linear import NEVER
from tests.examples import examples
from tests.fenced_checker import Outcomes, batches, problems, read_stamp
from tests.model.fenced_broker import Fate
from tests.model.fenced_cluster import Cluster, ClusterEngine

OPTIONS = {"kafka.bootstrap.servers": "nowhere:1"}
TOPICS = ("a", "b", "c")
LOGS = tuple((topic, 0) for topic in TOPICS)
FATES: tuple[Fate, ...] = ("lost", "unanswered", "late", "torn")


class World:
    """Three logs, two writers of all of them, an owner of one now and then, and random faults."""

    def __init__(self, seed: int, *, luck: bool = True) -> None:
        self._random = random.Random(seed)
        self._ids = itertools.count()
        self._luck = luck
        self._busy: list[object] = []
        self.now = 0.0
        self.cluster = Cluster(LOGS, self.fate, self.tick)
        self.outcomes = {topic: Outcomes() for topic in TOPICS}
        #: Of each append: the logs, and the numbers that it expects of them.
        self.expected: dict[str, dict[str, int]] = {}
        #: What the callers saw, for the checker of linearisability.
        self.history: list[Append] = []
        #: Appends whose outcome is not known, by id, and their places in the history.
        self.unknown: dict[str, tuple[dict[tuple[str, int], Write], int]] = {}
        #: Who made each append first.
        self.senders: dict[str, MultiLogWriter] = {}
        self._clock = itertools.count()
        self.writers = [self.writer() for _ in range(2)]

    def writer(self) -> MultiLogWriter:
        return MultiLogWriter(OPTIONS, LOGS, engine=ClusterEngine(self.cluster), timeout=2.0)  # type: ignore[arg-type]

    def tick(self) -> None:
        self.now += 0.01

    def fate(self, name: str) -> Fate:
        """Mostly all goes well; else something is lost, or others act in between."""
        luck = self._random.randrange(20) if self._luck else 9
        if luck == 0:
            self.act()
        elif luck == 1:
            for broker in self.cluster.brokers.values():
                broker.deliver()
        elif luck == 2:
            return self._random.choice(FATES)
        return "done"

    def act(self) -> None:
        """One writer does something."""
        if self._random.random() < 0.1:
            self.take_over()
            return
        writer = self._random.choice(self.writers)
        if writer in self._busy:
            return
        self._busy.append(writer)
        try:
            writer.acquire()
            self.append(writer)
        except (ProducerFenced, WriterNotOpen):
            self.replace(writer)
        except (LogBlocked, LogUnavailable):
            pass
        finally:
            self._busy.remove(writer)

    def replace(self, writer: MultiLogWriter) -> None:
        """Another writer comes in the place of one."""
        self.writers = [self.writer() if each is writer else each for each in self.writers]

    def take_over(self) -> None:
        """An owner takes one log alone, for an append."""
        owner, batch_id = self.owner(), f"owner{next(self._ids)}"
        topic = owner.log.topic
        self._busy.append(owner)
        called, counts = next(self._clock), {topic: 1}
        try:
            done = owner.acquire().append([b"x"], batch_id=batch_id)
            self.saw(called, counts, {}, {topic: done.first_seq})
            self.outcomes[topic].acked[batch_id] = (done.first_offset, done.first_seq, done.count)
        except (AppendOutcomeUnknown, OffsetMismatch, ProducerFenced, LogUnavailable, LogBlocked):
            self.outcomes[topic].unknown.add(batch_id)
            self.history.append(Append(called, NEVER, counts, {}))
        finally:
            self._busy.remove(owner)

    def owner(self) -> FencedWriter:
        topic, engine = self._random.choice(TOPICS), ClusterEngine(self.cluster)
        return FencedWriter(OPTIONS, topic, engine=engine, timeout=2.0)  # type: ignore[arg-type]

    def saw(
        self, called: int, counts: dict[str, int], expected: dict[str, int], placed: dict[str, int]
    ) -> None:
        """Notes an append that was acknowledged."""
        self.history.append(Append(called, next(self._clock), counts, expected, placed))

    def append(self, writer: MultiLogWriter) -> None:
        topics = [topic for topic, _ in writer._sessions]
        its = [b for b, (writes, _) in self.unknown.items() if {t for t, _ in writes} <= {*topics}]
        if its and self._random.random() < 0.3:
            self.append_again(writer, self._random.choice(its))
            return
        batch_id = f"b{next(self._ids)}"
        self.senders[batch_id] = writer
        chosen = self._random.sample(topics, self._random.randint(1, len(topics)))
        wanted = {t: writer.next_seq(t) - (self._random.random() < 0.1) for t in chosen}
        wanted = {topic: max(0, seq) for topic, seq in wanted.items()}
        self.expected[batch_id] = wanted
        writes = {
            (topic, 0): Write([b"x"] * self._random.randint(1, 2), expected_seq=seq)
            for topic, seq in wanted.items()
        }
        counts = {log[0]: len(write.records) for log, write in writes.items()}  # type: ignore[arg-type]
        kind, done, called = "refused", {}, next(self._clock)
        try:
            done = writer.append(writes, batch_id=batch_id)
            self.saw(called, counts, wanted, {log[0]: a.first_seq for log, a in done.items()})
            kind = "acked"
        except AppendOutcomeUnknown:
            self.unknown[batch_id] = writes, len(self.history)
            self.history.append(Append(called, NEVER, counts, wanted))
            kind = "unknown"
        except OffsetMismatch as error:
            actual = {error.topic: error.actual}
            seen = Append(called, next(self._clock), counts, wanted, actual=actual)  # type: ignore[arg-type]
            self.history.append(seen)
        except (LogUnavailable, LogBlocked):
            pass
        finally:
            self.note(batch_id, chosen, kind, done)

    def append_again(self, writer: MultiLogWriter, batch_id: str) -> None:
        """Any writer repeats an append by its id: it is there once, and both have one answer."""
        writes, at = self.unknown[batch_id]
        with suppress(AppendOutcomeUnknown, OffsetMismatch):
            done = writer.append(writes, batch_id=batch_id)
            placed = {log[0]: a.first_seq for log, a in done.items()}
            if self.unknown.pop(batch_id, None) is not None:
                self.history[at] = replace(
                    self.history[at], answered=next(self._clock), placed=placed
                )
            assert self.history[at].placed == placed
            self.note(batch_id, [*placed], "acked", done)

    def note(self, batch_id: str, chosen: list, kind: str, done: dict) -> None:
        """The outcome that the writer got, for each log."""
        for topic in chosen:
            outcomes = self.outcomes[topic]
            if kind == "acked":
                answer = done[topic, 0]
                outcomes.acked[batch_id] = (answer.first_offset, answer.first_seq, answer.count)
            else:
                (outcomes.unknown if kind == "unknown" else outcomes.refused).add(batch_id)

    def verdict(self) -> list[str]:
        """What is wrong in a log, and which append is in some of its logs or in a wrong place."""
        self.cluster.settle()
        unplaced = check_appends(self.history)
        found = [] if unplaced is None else [f"not linearisable: {unplaced}"]
        seen: dict[str, dict[str, int]] = {}
        for (topic, _), broker in self.cluster.brokers.items():
            rows = broker.visible()
            found += [f"{topic}: {wrong}" for wrong in problems(rows, self.outcomes[topic])]
            for row in rows:
                stamp = read_stamp(row)
                if stamp is not None and stamp["batch"] in self.expected:
                    seen.setdefault(stamp["batch"], {})[topic] = stamp["first_seq"]
        self._luck = False
        judged = audit_logs(OPTIONS, LOGS, engine=ClusterEngine(self.cluster))  # type: ignore[arg-type]
        if not judged.ok or judged.whole != len(seen):
            found.append(f"the audit says {judged}, there are {len(seen)}")
        found += [
            f"{batch} is at {seen[batch]}, expected {self.expected[batch]}"
            for batch in seen
            if seen[batch] != self.expected[batch]
        ]
        return found


class Rivals(World):
    """Writers that share some logs or own them, and owners of one, also of one session; zombies."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.writers += [self.writer(), self.writer()]
        self._owners: list[FencedWriter] = []

    def writer(self) -> MultiLogWriter:
        logs, how = self._random.sample(LOGS, self._random.randint(2, 3)), self.how()
        if self._random.random() < 0.3:
            how = {"shared": True}
        engine: Any = ClusterEngine(self.cluster)
        return MultiLogWriter(OPTIONS, logs, engine=engine, timeout=2.0, **how)

    def how(self) -> dict[str, Any]:
        """What an owner does if it finds another one; two are of one session now and then."""
        fence = self._random.random() < 0.8
        session = self._random.choice([None, None, "one", "two"]) if fence else None
        return {"shared": False, "fence_owner": fence, "session": session}

    def owner(self) -> FencedWriter:
        """One that had its log before, or a new one."""
        idle = [each for each in self._owners if each not in self._busy]
        if idle and self._random.random() < 0.5:
            return self._random.choice(idle)
        engine: Any = ClusterEngine(self.cluster)
        new = FencedWriter(
            OPTIONS, self._random.choice(TOPICS), engine=engine, timeout=2.0, **self.how()
        )
        self._owners = [*self._owners[-1:], new]
        return new

    def replace(self, writer: MultiLogWriter) -> None:
        """One that is fenced goes on trying, or leaves."""
        if self._random.random() < 0.7:
            super().replace(writer)

    def act(self) -> None:
        with suppress(ProducerBusy):
            super().act()
        if self._random.random() < 0.1:
            self.replace(self._random.choice(self.writers))

    def verdict(self) -> list[str]:
        """Each writer answers for its appends, also a fenced one, and new writers can go on."""
        self.cluster.settle()
        self._luck, found = False, []
        for batch_id, (writes, _) in [*self.unknown.items()]:
            brokers = [self.cluster.brokers[log] for log in writes]
            is_there = any(batch_id in batches(broker.visible(), []) for broker in brokers)
            try:
                self.senders[batch_id].append(writes, batch_id=batch_id)
                self.append_again(self.senders[batch_id], batch_id)
            except (ProducerFenced, OffsetMismatch) as error:
                if is_there:
                    found.append(f"{batch_id} is there, and its writer says {error!r}")
            except AppendOutcomeUnknown:
                pass
        for shared in (True, False):
            engine: Any = ClusterEngine(self.cluster)
            self.append(MultiLogWriter(OPTIONS, LOGS, engine=engine, shared=shared).acquire())
        return found + super().verdict()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """The time of the writers is the world's."""
    worlds: list[World] = []

    def sleep(seconds: float) -> None:
        worlds[-1].now += max(seconds, 0.001)

    fake = SimpleNamespace(monotonic=lambda: worlds[-1].now if worlds else 0.0, sleep=sleep)
    monkeypatch.setattr(call_limit, "time", fake)
    return worlds


def test_whatever_fails_an_append_is_in_all_of_its_logs_or_in_none(clock: list[World]) -> None:
    """At the places that it expects: so all appends together are those of one after another."""

    @settings(max_examples=examples(400), deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(st.integers(0, 2**32), st.integers(1, 15))
    def run(seed: int, acts: int) -> None:
        clock.clear()
        world = World(seed)
        clock[:] = [world]
        for _ in range(acts):
            world.act()
        found = world.verdict()
        assert not found, (found, world.outcomes)

    run()


def test_whatever_fails_owners_and_zombies_keep_to_their_logs(clock: list[World]) -> None:
    """Any number of owners of some logs, and of writers that share them."""

    @settings(max_examples=examples(150), deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(st.integers(0, 2**32), st.integers(5, 30))
    def run(seed: int, acts: int) -> None:
        clock.clear()
        world = Rivals(seed)
        clock[:] = [world]
        for _ in range(acts):
            world.act()
        found = world.verdict()
        assert not found, (found, world.outcomes)

    run()


A, B = {"a": 1}, {"a": 1, "b": 1}
ZERO: dict[str, int] = {"a": 0, "b": 0}
FAULTS = {
    "two appends at one place": [
        Append(0, 3, B, ZERO, ZERO), Append(1, 4, A, {"a": 0}, {"a": 0}),
    ],
    "an append that only one log has": [
        Append(0, 1, B, ZERO, ZERO), Append(2, 3, B, {"a": 1}, {"a": 1, "b": 0}),
    ],
    "refused although each log was as expected": [Append(0, 1, B, ZERO)],
    "refused by a number that no log had": [
        Append(0, 1, A, {}, {"a": 0}), Append(2, 3, B, ZERO, actual={"a": 2}),
    ],
    "refused by an append that came later": [
        Append(0, 1, B, ZERO, actual={"a": 1}), Append(2, 3, A, {}, {"a": 0}),
    ],
    "acknowledged in the order of no two logs": [
        Append(0, 9, B, {}, {"a": 0, "b": 1}), Append(1, 9, B, {}, {"a": 1, "b": 0}),
    ],
    "an unknown one that happened twice": [
        Append(0, NEVER, A, {}), Append(1, 2, A, {}, {"a": 2}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_of_appends_finds(fault: str) -> None:
    """A history that is not linearisable, and where every explanation ends."""
    found = check_appends(FAULTS[fault])
    assert found is not None
    assert found.stuck


def test_the_checker_of_appends_explains_what_can_have_happened() -> None:
    """Overlapping calls in either order, and outcomes that are not known either way."""
    both = [Append(0, 9, B, ZERO, ZERO), Append(1, 8, B, ZERO, actual={"a": 1})]
    assert check_appends(both) is None
    unknown = Append(0, NEVER, B, ZERO)
    for first in (0, 1):
        after = Append(1, 2, A, {}, {"a": first})
        assert check_appends([unknown, after]) is None


def test_an_append_over_logs_is_refused_by_one_of_them(clock: list[World]) -> None:
    """And may only look at one: then it writes no data there."""
    world = World(0, luck=False)
    clock[:] = [world]
    one, two = world.writers
    one.acquire(), two.acquire()
    first = one.append({LOGS[0]: Write([b"1"], 0), LOGS[1]: Write([b"2", b"3"], 0)}, batch_id="x")
    assert first[LOGS[1]] == Appended("x", 0, 0, 2, 0)
    for late in ({LOGS[1]: Write([b"4"], 0), LOGS[2]: Write([b"5"], 0)},
                 {LOGS[2]: Write([b"5"], 0), LOGS[0]: Write((), 0)}):  # fmt: skip
        with pytest.raises(OffsetMismatch) as caught:
            two.append(late)
        assert caught.value.expected == 0
    two.append({LOGS[2]: Write([b"5"], 0), LOGS[0]: Write((), 1)})
    assert [two.next_seq(topic) for topic in TOPICS] == [1, 2, 1]
    again = two.append({LOGS[0]: Write([b"1"], 0), LOGS[1]: Write([b"2", b"3"], 0)}, batch_id="x")
    assert again == first
    one.refresh()
    assert [one.next_seq(topic) for topic in TOPICS] == [1, 2, 1]


def test_a_refused_append_costs_no_producer(clock: list[World]) -> None:
    """What was sent is aborted, so nothing is in doubt that a new producer would decide."""
    world = World(0, luck=False)
    clock[:] = [world]
    one, two = world.writers
    one.acquire(), two.acquire()
    one.append({LOGS[0]: Write([b"1"], 0)})
    requests: list[str] = []
    world.cluster.fate = lambda name: (requests.append(name), "done")[1]  # type: ignore[assignment, return-value]
    with pytest.raises(OffsetMismatch):
        two.append({LOGS[0]: Write([b"2"], 0), LOGS[1]: Write([b"3"], 0)})
    two.append({LOGS[0]: Write([b"2"], 1), LOGS[1]: Write([b"3"], 0)})
    assert {"append", "abort", "commit"} <= set(requests)
    assert "init" not in requests


def test_an_owner_of_one_log_fences_a_writer_of_several(clock: list[World]) -> None:
    """Also one that is paused in its transaction: the other logs have nothing of it either."""
    world = World(0, luck=False)
    clock[:] = [world]
    writer = world.writers[0].acquire()
    owner = FencedWriter(OPTIONS, "b", engine=ClusterEngine(world.cluster), timeout=2.0)  # type: ignore[arg-type]

    def fate(name: str) -> Fate:
        if name == "commit":
            world.cluster.fate = lambda _: "done"
            owner.acquire()
        return "done"

    world.cluster.fate = fate
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            writer.append({LOGS[0]: Write([b"1"]), LOGS[1]: Write([b"2"])}, batch_id="x")
    world.note("x", ["a", "b"], "refused", {})
    owner.append([b"mine"], batch_id="mine")
    world.outcomes["b"].unknown.add("mine")
    assert not world.verdict()


def owner_of(world: World, *topics: str, **how: Any) -> MultiLogWriter:
    """A writer that owns some logs."""
    engine: Any = ClusterEngine(world.cluster)
    logs = [(topic, 0) for topic in topics]
    return MultiLogWriter(OPTIONS, logs, engine=engine, timeout=2.0, shared=False, **how)


def test_an_owner_of_several_logs_is_fenced_by_a_later_one_of_any(clock: list[World]) -> None:
    """It fences the owners that it finds, or is refused, as its options say."""
    world = World(0, luck=False)
    clock[:] = [world]
    engine: Any = ClusterEngine(world.cluster)
    alone = FencedWriter(OPTIONS, "b", engine=engine, timeout=2.0).acquire()
    alone.append([b"alone"])
    shy = owner_of(world, "a", "b", fence_owner=False)
    with pytest.raises(ProducerBusy):
        shy.acquire()
    alone.append([b"alone"])
    first = owner_of(world, *TOPICS, fence_owner=True, owner="first").acquire()
    with pytest.raises(ProducerFenced, match="first"):
        alone.append([b"late"])
    first.append({log: Write([b"1"]) for log in LOGS}, batch_id="job:1")
    second = owner_of(world, "c", fence_owner=True).acquire()
    with pytest.raises(ProducerFenced):
        first.append({log: Write([b"2"]) for log in LOGS})
    second.append({LOGS[2]: Write([b"3"])}, batch_id="job:2")
    found = [each and each.batch_id for each in (
        first.last_batch("a", 0, "job:"), second.last_batch("c", 0, "job:"),
        second.last_batch("c", 0, "other:"),
    )]  # fmt: skip
    assert found == ["job:1", "job:2", None]
    engine = ClusterEngine(world.cluster)
    for topic, wanted in {"a": [b"1"], "b": [b"alone", b"alone", b"1"], "c": [b"1", b"3"]}.items():
        with LogReader(OPTIONS, topic, engine=engine) as reader:
            assert [record.value for record in reader.read()] == wanted


def test_an_owner_of_several_logs_ends_what_is_open_in_them(clock: list[World]) -> None:
    """An owner of one log that is paused in its transaction does not block it."""
    world = World(0, luck=False)
    clock[:] = [world]
    engine: Any = ClusterEngine(world.cluster)
    alone = FencedWriter(OPTIONS, "b", engine=engine, timeout=2.0).acquire()
    taken = owner_of(world, *TOPICS, fence_owner=True)

    def fate(name: str) -> Fate:
        if name == "commit":
            world.cluster.fate = lambda _: "done"
            taken.acquire()
        return "done"

    world.cluster.fate = fate
    with pytest.raises(ProducerFenced):
        alone.append([b"late"], batch_id="late")
    assert taken.append({log: Write([b"1"]) for log in LOGS})[LOGS[1]].first_seq == 0


def test_an_owner_whose_marker_is_late_does_not_fence_itself(clock: list[World]) -> None:
    """Kafka answers a commit before the end of the transaction is in the logs."""
    world = World(0, luck=False)
    clock[:] = [world]
    writer = owner_of(world, "a", "b", fence_owner=True).acquire()
    broker, late = world.cluster.brokers[LOGS[0]], []
    end, broker.end = broker.end, lambda *how, **more: late.append((how, more))  # type: ignore[method-assign]
    writer.append({log: Write([b"1"]) for log in LOGS[:2]})
    requests: list[str] = []

    def fate(name: str) -> Fate:
        requests.append(name)
        if requests.count("ends") == 6 and late:
            broker.end = end  # type: ignore[method-assign]
            for how, more in [late.pop()]:
                end(*how, **more)
        return "done"

    world.cluster.fate = fate
    writer.refresh()
    done = writer.append({log: Write([b"2"], 1) for log in LOGS[:2]})
    assert {answer.first_seq for answer in done.values()} == {1}
    assert not late
    assert "init" not in requests


@pytest.mark.parametrize("taken", [["a"], ["b"], ["a", "b"]])
def test_a_fenced_writer_answers_for_what_it_has_written(
    clock: list[World], taken: list[str]
) -> None:
    """Its answer was lost, and then another owner took a log, or all of them."""
    world = World(0, luck=False)
    clock[:] = [world]
    writer, engine = world.writers[0].acquire(), ClusterEngine(world.cluster)
    writes = {log: Write([b"1"]) for log in LOGS[:2]}

    def take(name: str) -> Fate:
        if name == "init":
            world.cluster.fate = lambda _: "done"
            for topic in taken:
                FencedWriter(OPTIONS, topic, engine=engine, timeout=2.0).acquire()  # type: ignore[arg-type]
        return "done"

    def lose(name: str) -> Fate:
        if name == "commit":
            world.cluster.fate = take
            return "unanswered"
        return "done"

    world.cluster.fate = lose
    with suppress(AppendOutcomeUnknown):
        writer.append(writes, batch_id="x")
    assert {a.first_seq for a in writer.append(writes, batch_id="x").values()} == {0}
    with pytest.raises(AppendRefused, match="other records"):
        writer.append({log: Write([b"2"]) for log in LOGS[:2]}, batch_id="x")
    for batch_id in ("y", None):
        with pytest.raises(ProducerFenced):
            writer.append({log: Write([b"3"], 9) for log in LOGS[:2]}, batch_id=batch_id)


@pytest.mark.parametrize("sent", [True, False])
def test_a_fenced_writer_knows_what_is_in_no_log(clock: list[World], sent: bool) -> None:
    """Its append was lost, before the transaction was there or in it."""
    world = World(0, luck=False)
    clock[:] = [world]
    writer, engine = world.writers[0].acquire(), ClusterEngine(world.cluster)

    def take(name: str) -> Fate:
        if name == "init":
            world.cluster.fate = lambda _: "done"
            FencedWriter(OPTIONS, "b", engine=engine, timeout=2.0).acquire()  # type: ignore[arg-type]
        return "done"

    def lose(name: str) -> Fate:
        if name == ("commit" if sent else "append"):
            world.cluster.fate = take
            return "lost"
        return "done"

    world.cluster.fate = lose
    for _ in range(3):
        with pytest.raises(ProducerFenced):
            writer.append({log: Write([b"1"]) for log in LOGS[:2]}, batch_id="x")


@pytest.mark.parametrize(
    ("how", "named"),
    [({"visibility": "filter"}, "visibility"), ({"checkpoint_every": 60.0}, "checkpoint_every")],
)
def test_what_a_writer_of_several_logs_cannot_do_is_refused(how: Any, named: str) -> None:
    """By the name of the argument."""
    with pytest.raises(InvalidOption, match=named):
        MultiLogWriter(OPTIONS, LOGS, **how)
    with pytest.raises(AppendRefused, match="no such log"):
        MultiLogWriter(OPTIONS, LOGS).next_seq("other")
    with pytest.raises(AppendRefused, match=r"max\.request\.size"):
        MultiLogWriter(OPTIONS | {"kafka.max.request.size": 2000}, LOGS).append(
            {LOGS[0]: Write([b"x" * 3000])}
        )


def test_the_audit_finds_an_append_that_is_not_in_all_of_its_logs(clock: list[World]) -> None:
    """Where retention may have removed a part, it does not judge."""
    world = World(0, luck=False)
    clock[:] = [world]
    writer = world.writers[0].acquire()
    for number in range(3):
        writer.append({log: Write([b"x"]) for log in LOGS}, batch_id=f"b{number}")
    broker = world.cluster.brokers[LOGS[1]]
    broker.slots[2].raw = None
    broker.slots[4].raw = None
    found = audit_logs(OPTIONS, LOGS, engine=ClusterEngine(world.cluster))  # type: ignore[arg-type]
    assert (found.whole, found.torn, found.ok) == (1, ("b1", "b2"), False)
    broker.retain(len(broker.slots))
    found = audit_logs(OPTIONS, LOGS, engine=ClusterEngine(world.cluster))  # type: ignore[arg-type]
    assert (found.whole, found.unknown, found.ok) == (0, 3, True)


def test_an_id_that_only_some_of_the_logs_have_is_refused(clock: list[World]) -> None:
    """Readers count a batch of an id once, so that a second one would leave a gap in its log."""
    world = World(0, luck=False)
    clock[:] = [world]
    engine = ClusterEngine(world.cluster)
    with FencedWriter(OPTIONS, "a", engine=engine, shared=True) as alone:  # type: ignore[arg-type]
        alone.append([b"1"], batch_id="x")
    writer = world.writers[0].acquire()
    with pytest.raises(AppendRefused, match="'x'"):
        writer.append({LOGS[0]: Write([b"2"]), LOGS[1]: Write([b"3"])}, batch_id="x")
    writer.append({log: Write([b"0"]) for log in LOGS[1:]}, batch_id="z")
    world.cluster.brokers[LOGS[1]].retain(2)
    late = world.writer().acquire()
    with pytest.raises(AppendRefused, match="'z'"):
        late.append({log: Write([b"0"]) for log in LOGS[1:]}, batch_id="z")
    writer.append({LOGS[0]: Write([b"4"]), LOGS[1]: Write([b"5"])}, batch_id="y")
    with LogReader(OPTIONS, "a", engine=engine) as reader:  # type: ignore[arg-type]
        assert [record.value for record in reader.read()] == [b"1", b"4"]


@pytest.mark.parametrize("has_read", [False, True])
def test_an_id_of_another_append_is_refused(clock: list[World], has_read: bool) -> None:
    """Its places are no answer; the same append has them, in whatever order its logs are given."""
    world = World(0, luck=False)
    clock[:] = [world]
    one, two = (writer.acquire() for writer in world.writers)
    first = one.append({LOGS[0]: Write([b"1"]), LOGS[1]: Write([b"2"])}, batch_id="x")
    if has_read:
        two.refresh()
    with pytest.raises(AppendRefused, match="other records"):
        two.append({LOGS[0]: Write([b"1"]), LOGS[1]: Write([b"3"])}, batch_id="x")
    assert two.append({LOGS[1]: Write([b"2"]), LOGS[0]: Write([b"1"])}, batch_id="x") == first


def test_an_append_that_found_no_place_and_cannot_be_compared_is_not_in_doubt(
    clock: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka has not taken it, and never will."""
    world = World(0, luck=False)
    clock[:] = [world]
    one, two = (writer.acquire() for writer in world.writers)
    one.append({LOGS[0]: Write([b"1"])}, batch_id="x")

    def away(*_: object) -> NoReturn:
        raise EngineDoubt("away")

    monkeypatch.setattr(two._sessions[LOGS[0]], "check_answer", away)
    with pytest.raises(LogUnavailable, match="away"):
        two.append({LOGS[0]: Write([b"2"])}, batch_id="x")


def test_an_append_that_another_writer_made_meanwhile_is_not_made_again(
    clock: list[World],
) -> None:
    """A second batch of an id does not count, so that the next one would leave a gap."""
    world = World(0, luck=False)
    clock[:] = [world]
    one, two = (writer.acquire() for writer in world.writers)
    writes = {LOGS[0]: Write([b"1"]), LOGS[1]: Write([b"2"])}
    first = one.append(writes, batch_id="x")
    world.now += 10  # The second one looks at the logs again before it appends.
    assert two.append(writes, batch_id="x") == first
    two.append({log: Write([b"3"]) for log in LOGS[:2]})
    one.append({log: Write([b"4"]) for log in LOGS[:2]})
    engine = ClusterEngine(world.cluster)
    for (topic, partition), value in zip(LOGS, (b"1", b"2"), strict=False):
        with LogReader(OPTIONS, topic, partition, engine=engine) as reader:  # type: ignore[arg-type]
            assert [record.value for record in reader.read()] == [value, b"3", b"4"]


def test_an_append_that_was_made_between_two_reads_has_its_answer(clock: list[World]) -> None:
    """The first log was read before it, the second one after it: it is in both all the same."""
    world = World(0, luck=False)
    clock[:] = [world]
    one, two = (writer.acquire() for writer in world.writers)
    writes = {log: Write([b"1"]) for log in LOGS[:2]}
    lookups = iter(LOGS)
    made: list[object] = []

    def fate(name: str) -> Fate:
        if name == "metadata" and next(lookups) == LOGS[1]:
            world.cluster.fate = lambda _: "done"
            made.append(one.append(writes, batch_id="x"))
        return "done"

    world.cluster.fate = fate
    two.refresh()
    assert [two.next_seq(*log) for log in LOGS[:2]] == [0, 1]
    assert [two.append(writes, batch_id="x")] == made


@pytest.mark.parametrize("gone", [[], [0], [0, 1]])
def test_an_append_that_retention_may_have_removed_is_not_appended_again(
    clock: list[World], gone: list[int]
) -> None:
    """Its answer was lost, others wrote more, and retention passed it in some logs or in all."""
    world = World(0, luck=False)
    clock[:] = [world]
    slow, fast = (writer.acquire() for writer in world.writers)
    writes = {log: Write([b"b"]) for log in LOGS[:2]}
    lost: dict[str, Fate] = {"commit": "unanswered", "metadata": "lost"}
    world.cluster.fate = lambda name: lost.get(name, "done")
    with pytest.raises(AppendOutcomeUnknown):
        slow.append(writes, batch_id="b1")
    world.cluster.fate = lambda _: "done"
    fast.refresh()
    for i in range(80):
        fast.append({log: Write([b"%d" % i]) for log in LOGS[:2]})
    for at in gone:
        world.cluster.brokers[LOGS[at]].retain(2)
    if gone:
        for _ in range(2):
            with pytest.raises(AppendOutcomeUnknown, match="retention"):
                slow.append(writes, batch_id="b1")
    else:
        assert {a.first_offset for a in slow.append(writes, batch_id="b1").values()} == {0}
    for log in LOGS[:2]:
        there = world.cluster.brokers[log].visible()
        assert len([raw for raw in there if raw.value == b"b"]) == 1
    assert slow.append({LOGS[0]: Write([b"c"])})[LOGS[0]].first_seq == 81


def test_what_no_append_over_logs_can_be_is_refused(clock: list[World]) -> None:
    """With what to give instead."""
    world = World(0, luck=False)
    clock[:] = [world]
    writer = world.writers[0]
    with pytest.raises(WriterNotOpen):
        writer.append({LOGS[0]: Write([b"1"])})
    writer.acquire()
    for writes, batch_id in (({}, None), ({("z", 0): Write([b"1"])}, None),
                             ({LOGS[0]: Write([b"1"])}, "a b")):  # fmt: skip
        with pytest.raises(AppendRefused):
            writer.append(writes, batch_id=batch_id)
    for logs in ([], [LOGS[0], LOGS[0]]):
        with pytest.raises(InvalidOption, match="logs"):
            MultiLogWriter(OPTIONS, logs)
    with pytest.raises(InvalidOption, match="timeout"):
        MultiLogWriter(OPTIONS, LOGS, timeout=0)
