"""Exclusive producers and elections on a real broker: who may write, who is fenced, who is next."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume import AccessMode, ExclusiveProducer, LeaderElection
from coopconsume.errors import (
    LogReplaced,
    OffsetMismatch,
    OwnershipUnavailable,
    ProducerBusy,
    ProducerFenced,
    WriterNotOpen,
)
from coopconsume.fenced.exclusive import GROUP
from coopconsume.fenced.ownership import DeltaStore, KafkaStore, OwnershipRegistry
from coopconsume.fenced.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from coopconsume.fenced.ownership import OwnershipStore
    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.broker
SHARED, ALONE, FENCING, WAIT = AccessMode
PATIENCE = 90.0


class LogHarness:
    """A log, its registry, and all that were opened on them."""

    def __init__(self, kafka: LocalKafka, topic: TopicFactory, folder: Path, kind: str) -> None:
        self.kafka = kafka
        self.options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        self.topic = topic(1)
        self.opened: list[Any] = []
        self._folder, self._kind = folder, kind
        self._name = f"ownership-{uuid.uuid4().hex[:8]}"

    def store(self) -> OwnershipStore:
        if self._kind == "delta":
            return DeltaStore(self._folder / "owners")
        return KafkaStore(self.options, self._name)

    def producer(self, owner: str, mode: AccessMode = ALONE, **more: Any) -> ExclusiveProducer:
        made = ExclusiveProducer(
            self.options, more.pop("topic", self.topic), mode=mode, store=self.store(),
            owner=owner, **({"lease": 20.0} | more),
        )  # fmt: skip
        self.opened.append(made)
        return made

    def election(self, owner: str, **more: Any) -> LeaderElection:
        made = LeaderElection(
            self.options, self.topic, store=self.store, owner=owner, **({"lease": 20.0} | more)
        )
        self.opened.append(made)
        return made

    def operator(self) -> OwnershipRegistry:
        made = OwnershipRegistry(self.store(), owner="operator", lease=0)
        self.opened.append(made)
        return made

    def values(self) -> list[bytes | None]:
        with LogReader(self.options, self.topic) as reader:
            return [record.value for record in reader.read()]


@pytest.fixture
def harness(
    kafka: LocalKafka, topic: TopicFactory, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[LogHarness]:
    """A log with a registry in Kafka, or in Delta if the test asks for it."""
    found = LogHarness(kafka, topic, tmp_path, getattr(request, "param", "kafka"))
    yield found
    for made in reversed(found.opened):
        made.close()


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Call something in a thread; what it gives or raises comes into a list."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition."""
    waited = threading.Event()
    for _ in range(int(PATIENCE / 0.05)):
        if condition():
            return
        waited.wait(0.05)
    raise AssertionError("did not come true")


def kill(producer: ExclusiveProducer) -> None:
    """As if its process had stopped: no sign of life any more, and nothing given back."""
    producer.registry._closed.set()


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_one_has_it_alone_and_the_next_one_fences_it(harness: LogHarness, visibility: str) -> None:
    """Refused at once, granted after the close, and fenced by the one that takes all."""
    anna = harness.producer("anna", visibility=visibility).acquire()
    anna.append([b"1"])
    with pytest.raises(ProducerFenced, match="anna"):
        harness.producer("ben", visibility=visibility).acquire()
    anna.append([b"2"])
    anna.close()
    ben = harness.producer("ben", visibility=visibility).acquire()
    ben.append([b"3"], expected_seq=2)
    assert ben.epoch > anna.epoch
    carl = harness.producer("carl", FENCING, visibility=visibility).acquire()
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            ben.append([b"never"])
    with pytest.raises(ProducerFenced):
        ben.acquire()
    carl.append([b"4"])
    assert harness.values() == [b"1", b"2", b"3", b"4"]


def test_those_that_share_are_busy_while_somebody_has_it_alone(harness: LogHarness) -> None:
    """And write beside each other when nobody has; one that takes all fences them."""
    first, second = harness.producer("first", SHARED).acquire(), harness.producer("second", SHARED)
    second.acquire()
    first.append([b"1"])
    second.append([b"2"])
    with pytest.raises(ProducerFenced, match="first"):
        harness.producer("alone").acquire()
    alone = harness.producer("alone", FENCING).acquire()
    alone.append([b"3"])
    with pytest.raises(ProducerBusy, match="alone"):
        harness.producer("third", SHARED).acquire()
    first.registry._forget([(GROUP, f"{harness.topic}-0")])  # as after its next sign of life
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            first.append([b"never"])
    with pytest.raises((ProducerFenced, OffsetMismatch)):
        second.append([b"never"], expected_seq=2)
    assert harness.values() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("harness", ["kafka", "delta"], indirect=True)
def test_who_waits_comes_next_in_the_order_of_asking(harness: LogHarness) -> None:
    """One is given up, one runs out of time; neither leaves anything behind."""
    looker = harness.operator()
    row = lambda: looker.show(GROUP, f"{harness.topic}-0")  # noqa: E731
    anna = harness.producer("anna", WAIT).acquire()
    anna.append([b"1"])
    waiters = []
    for at, name in enumerate(("ben", "carl", "dora")):
        waiters.append(harness.producer(name, WAIT))
        waiters[-1].waiting = in_thread(waiters[-1].acquire)  # type: ignore[attr-defined]
        until(lambda n=at: len(row().waiters) == n + 1)
    ben, carl, dora = waiters
    with pytest.raises(ProducerBusy, match=r"0\.3 s 3 wait before this one, and it is held by"):
        harness.producer("late", WAIT).acquire(timeout=0.3)
    ben.close()
    thread, found = ben.waiting  # type: ignore[attr-defined]
    thread.join(PATIENCE)
    assert isinstance(found[0], WriterNotOpen)
    assert [held.session.owner for held in row().waiters] == ["carl", "dora"]
    anna.close()
    for name, one in (("carl", carl), ("dora", dora)):
        thread, found = one.waiting  # type: ignore[attr-defined]
        thread.join(PATIENCE)
        assert found == [one]
        one.append([name.encode()])
        one.close()
    assert harness.values() == [b"1", b"carl", b"dora"]
    assert row().holders == ()


def test_one_that_stood_still_keeps_its_epoch_unless_somebody_came(harness: LogHarness) -> None:
    """The registry considered it dead: it comes back under its epoch, or stays fenced."""
    looker = harness.operator()
    resource = f"{harness.topic}-0"
    # It gives no signs of life by itself: one might come just before it expires.
    anna = harness.producer("anna", lease=0).acquire()
    epoch, grant = anna.epoch, looker.show(GROUP, resource)

    def expire() -> None:
        owner = looker.show(GROUP, resource).owner
        assert owner is not None
        # What an observer writes that saw the counter stand still for the lease.
        from coopconsume.fenced.ownership import rules

        looker._change({(GROUP, resource): lambda row: rules.expire(row, owner.session)})
        anna.registry._forget([(GROUP, resource)])  # as after its next sign of life

    expire()
    assert looker.show(GROUP, resource).is_free
    anna.append([b"1"])
    assert anna.epoch == epoch
    assert looker.show(GROUP, resource).is_owned_by(anna.registry.session)
    assert looker.show(GROUP, resource).fence_epoch == grant.fence_epoch
    expire()
    with harness.producer("ben") as ben:
        ben.append([b"2"])
        assert ben.epoch == epoch + 1
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            anna.append([b"never"])
    assert harness.values() == [b"1", b"2"]


def test_a_session_goes_on_in_a_new_producer(harness: LogHarness) -> None:
    """After a crash at once, after a close, too; another's turn bumps the epoch (PIP-68)."""
    anna = harness.producer("anna").acquire()
    anna.append([b"1"])
    session, epoch = anna.session, anna.epoch
    kill(anna)
    back = harness.producer("anna", session=session, epoch=epoch).acquire()
    back.append([b"2"], expected_seq=1)
    assert (back.epoch, back.session) == (epoch, session)
    back.close()
    again = harness.producer("anna", session=session).acquire()
    assert again.epoch == epoch
    again.append([b"3"])
    again.close()
    with harness.producer("ben") as ben:
        assert ben.epoch == epoch + 1
        ben.append([b"4"])
    with pytest.raises(ProducerFenced):
        harness.producer("anna", session=session, epoch=epoch).acquire()
    late = harness.producer("anna", session=session).acquire()
    late.append([b"5"])
    assert late.epoch == epoch + 2
    assert harness.values() == [b"1", b"2", b"3", b"4", b"5"]


def test_an_operator_evicts_an_owner(harness: LogHarness) -> None:
    """It is fenced permanently, although nobody else has the log; and one waits no longer."""
    anna = harness.producer("anna", lease=1.0).acquire()
    harness.operator().evict(GROUP, f"{harness.topic}-0")
    until(lambda: not anna.registry.keeps(GROUP, f"{harness.topic}-0"))
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            anna.append([b"never"])
    with harness.producer("ben") as ben:
        ben.append([b"1"])
    assert harness.values() == [b"1"]


def test_claimants_whose_beginnings_cross(harness: LogHarness) -> None:
    """The slower one begins its producer after the faster one has written: nothing is lost."""
    anna = harness.producer("anna")
    ben = harness.producer("ben", FENCING)
    opens = anna.writer._session._epochs.next_epoch  # between fencing and opening

    def slow(log: Any, last: int) -> int:
        if not ben.is_open:
            ben.acquire()
            ben.append([b"1"])
        return opens(log, last)

    anna.writer._session._epochs.next_epoch = slow  # type: ignore[method-assign]
    with pytest.raises(ProducerFenced, match="ben"):
        anna.acquire()
    ben.append([b"2"])
    assert harness.values() == [b"1", b"2"]


def test_a_grant_that_nobody_answers_for_is_revoked(harness: LogHarness) -> None:
    """A waiter whose process ended is promoted, gives no sign of life, and is passed over."""
    anna = harness.producer("anna", WAIT).acquire()
    ghost = harness.producer("ghost", WAIT, lease=0.8)
    looker = harness.operator()
    assert ghost.registry.acquire(GROUP, f"{harness.topic}-0", WAIT)
    kill(ghost)
    carl = harness.producer("carl", WAIT)
    thread, found = in_thread(carl.acquire)
    until(lambda: looker.show(GROUP, f"{harness.topic}-0").holder(carl.registry.session))
    anna.close()
    thread.join(PATIENCE)
    assert found == [carl]
    carl.append([b"1"])
    assert harness.values() == [b"1"]


def test_a_recreated_topic_is_another_log(harness: LogHarness) -> None:
    """Its owner is notified; a new one has to wait until the old one has gone."""
    from kafka.admin import KafkaAdminClient

    anna = harness.producer("anna").acquire()
    anna.append([b"1"])
    admin = KafkaAdminClient(bootstrap_servers=harness.kafka.bootstrap_servers)
    admin.delete_topics([harness.topic])
    until(lambda: harness.topic not in admin.list_topics())
    admin.close()
    harness.kafka.create_topic(harness.topic, 1)
    with pytest.raises(LogReplaced):
        harness.producer("ben").acquire()
    anna.close()
    with harness.producer("ben") as ben:
        ben.append([b"2"], expected_seq=0)
    assert harness.values() == [b"2"]


def test_without_its_registry_an_owner_writes_on(harness: LogHarness) -> None:
    """What fences is the log: a registry that cannot be reached stops nobody but newcomers."""
    anna = harness.producer("anna").acquire()

    def away(*_: object) -> Any:
        raise OwnershipUnavailable("somewhere", "reading", "it is away")

    anna.registry.store.rows = away  # type: ignore[method-assign]
    anna.append([b"1"])
    anna.writer._session.drop()  # as after a doubt
    anna.append([b"2"])
    assert harness.values() == [b"1", b"2"]
    with pytest.raises(OwnershipUnavailable):
        anna.registry.show(GROUP, "any")


def test_an_election_shows_every_leader_all_of_the_log(harness: LogHarness) -> None:
    """Candidate, elected, lost; each record is applied once in each process, in order."""
    seen: dict[str, list[bytes | None]] = {}
    events: list[str] = []

    def stand(name: str) -> LeaderElection:
        seen[name] = []
        return harness.election(
            name,
            apply=lambda record: seen[name].append(record.value),
            on_candidate=lambda: events.append(f"{name} stands"),
            on_elected=lambda leader: events.append(f"{name} leads {leader.epoch}"),
            on_lost=lambda: events.append(f"{name} lost"),
        )

    anna, ben = stand("anna"), stand("ben")
    first = anna.lead(PATIENCE)
    first.append([b"1", b"2"])
    with pytest.raises(TimeoutError):
        ben.lead(0.2)
    until(lambda: ben.leader_name == "anna")
    first.append([b"3"])
    first.confirm()
    assert seen["anna"] == [b"1", b"2", b"3"]
    anna.resign()
    second = ben.lead(PATIENCE)
    assert seen["ben"] == [b"1", b"2", b"3"]
    with pytest.raises(WriterNotOpen, match="resigned"):
        first.append([b"never"])
    second.append([b"4"])
    ben.close()
    third = anna.lead(PATIENCE)
    third.append([b"5"])
    assert seen == {"anna": [b"1", b"2", b"3", b"4", b"5"], "ben": [b"1", b"2", b"3", b"4"]}
    anna.close()
    with pytest.raises(WriterNotOpen):
        anna.lead(PATIENCE)
    of_anna, of_ben = (
        [word for word in events if word.startswith(name) and not word.endswith("stands")]
        for name in ("anna", "ben")
    )
    assert of_anna == ["anna leads 1", "anna lost", "anna leads 3", "anna lost"]
    assert of_ben == ["ben leads 2", "ben lost"]
    assert events.index("anna lost") < events.index("ben leads 2") < events.index("anna leads 3")
    assert events.count("anna stands") == 2


def test_a_leader_that_was_fenced_learns_it_by_confirming(harness: LogHarness) -> None:
    """It answers nothing from the past, stands again, and leads with what was written meanwhile."""
    state: dict[bytes | None, bytes | None] = {}
    lost = threading.Event()
    # Without a lease it asks the registry for nothing, and so does not hear of it there first.
    anna = harness.election(
        "anna", lease=0, on_lost=lost.set,
        apply=lambda record: state.update({record.key: record.value}),
    )  # fmt: skip
    leader = anna.lead(PATIENCE)
    leader.append([(b"k", b"old")])
    taker = harness.producer("taker", FENCING).acquire()
    taker.append([(b"k", b"new")])
    with pytest.raises(ProducerFenced):
        leader.confirm()
    assert lost.wait(PATIENCE)
    taker.close()
    anna.lead(PATIENCE)
    assert state == {b"k": b"new"}


def test_a_compacted_log_of_state(harness: LogHarness) -> None:
    """PIP-68's example: replay the state, then write ahead of it."""
    topic = f"{harness.topic}-state"
    harness.kafka.create_topic(topic, 1, {"cleanup.policy": "compact"})
    harness.topic = topic
    for number in range(2):
        state: dict[bytes | None, bytes | None] = {}
        with harness.election("anna", apply=lambda r: state.update({r.key: r.value})) as election:  # noqa: B023
            leader = election.lead(PATIENCE)
            assert state.get(b"count") == (b"0" if number else None)
            leader.append([(b"count", b"%d" % number)])
            assert state[b"count"] == b"%d" % number


def test_an_election_that_cannot_go_on_says_why(harness: LogHarness) -> None:
    """A topic that is not there."""
    harness.topic = "no-such-topic"
    with pytest.raises(LogReplaced), harness.election("anna") as election:
        election.lead(PATIENCE)
