"""The registry on both of its stores: a Kafka log and a Delta table."""

from __future__ import annotations

import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from coopconsume.errors import OwnershipFormat, OwnershipUnavailable, StaleGeneration
from coopconsume.fenced.ownership import (
    Busy,
    DeltaStore,
    Fenced,
    Grant,
    KafkaStore,
    OwnershipRegistry,
    Queued,
    Row,
)
from coopconsume.fenced.ownership.model import AccessMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from coopconsume.fenced.ownership import OwnershipStore
    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.broker
SHARED, ALONE, FENCING, WAIT = AccessMode


@pytest.fixture(params=["kafka", "delta"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], OwnershipStore]]:
    """Return what opens the same store once more."""
    opened: list[OwnershipStore] = []
    name = f"ownership-{uuid.uuid4().hex[:8]}"

    def open_store() -> OwnershipStore:
        if request.param == "delta":
            found: Any = DeltaStore(tmp_path / "owners")
        else:
            kafka: LocalKafka = request.getfixturevalue("kafka")
            found = KafkaStore({"kafka.bootstrap.servers": kafka.bootstrap_servers}, name)
        opened.append(found)
        return found

    yield open_store
    while _CLAIMANTS:
        _CLAIMANTS.pop().close()
    for found in opened:
        found.close()


Opens = "Callable[[], OwnershipStore]"
_CLAIMANTS: list[OwnershipRegistry] = []


def registry(store: Opens, owner: str, lease: float = 0) -> OwnershipRegistry:
    """A claimant of its own."""
    _CLAIMANTS.append(OwnershipRegistry(store(), owner=owner, lease=lease))
    return _CLAIMANTS[-1]


def until_granted(waiter: OwnershipRegistry, timeout: float = 60) -> Grant:
    """Wait as a waiter does, until it is promoted."""
    done = threading.Event()
    timer = threading.Timer(timeout, done.set)
    timer.start()
    try:
        while not done.is_set():
            found = waiter.poll("g", "log")
            if not isinstance(found, Queued):
                assert isinstance(found, Grant)
                return found
            waiter.wait(0.2)
    finally:
        timer.cancel()
    raise AssertionError("was not promoted")


def test_own_by_generation(store: Opens) -> None:
    """The wiki's table over two claimants; all or nothing; the history shows it."""
    anna, ben = registry(store, "anna"), registry(store, "ben")
    assert anna.own("g", {"a": 1, "b": 1}) == {"a": Grant("a", 1, 1), "b": Grant("b", 1, 1)}
    assert anna.own("g", {"a": 1}) == {"a": Grant("a", 1, 1)}
    assert ben.own("g", {"b": 5}) == {"b": Grant("b", 5, 2)}
    with pytest.raises(StaleGeneration) as caught:
        anna.own("g", {"a": 1, "b": 4, "c": 1})
    assert (caught.value.resource, caught.value.refused) == ("b", {"b": (4, 5)})
    assert ben.show("g", "c") == Row("g", "c")
    assert ben.own("g", {"a": 1, "b": 0}) == {"a": Grant("a", 2, 2), "b": Grant("b", 1, 3)}
    assert (anna.holds("g", "a"), ben.holds("g", "a"), ben.holds("g", "a", 1)) == (
        False,
        True,
        False,
    )
    ben.release("g", ["a", "b", "never claimed"])
    assert anna.own("g", {"b": 9}) == {"b": Grant("b", 9, 4)}
    assert anna.own("other", {"b": 9}) == {"b": Grant("b", 9, 1)}
    history = [(entry.event, entry.owner, entry.fence_epoch) for entry in anna.history("g", "a")]
    assert history == [
        ("owned", "anna", 1), ("severed", "anna", 2), ("owned", "ben", 2), ("released", "ben", 2),
    ]  # fmt: skip
    assert [row.key for row in anna.list()] == [("g", "a"), ("g", "b"), ("other", "b")]
    assert [row.key for row in ben.list("g")] == [("g", "a"), ("g", "b")]


def test_what_is_asked_badly_is_refused(store: Opens) -> None:
    """Before anything is written."""
    anna = registry(store, "anna")
    for wrong in ({}, {"a": -1}):
        with pytest.raises(ValueError, match=r"resource|generation"):
            anna.own("g", wrong)
    with pytest.raises(ValueError, match="lease"):
        OwnershipRegistry(anna.store, lease=-1)
    assert anna.list() == []


def test_the_access_modes(store: Opens) -> None:
    """Shared beside shared, alone by turns, and everybody fenced at once."""
    anna, ben, carl = (registry(store, name) for name in ("anna", "ben", "carl"))
    assert anna.acquire("g", "log", SHARED) == Grant("log", 0, 0)
    assert ben.acquire("g", "log", SHARED) == Grant("log", 0, 0)
    assert carl.acquire("g", "log", ALONE) == Fenced("anna", 0)
    assert carl.acquire("g", "log", WAIT) == Queued(1, 0)
    assert anna.acquire("g", "log", SHARED) == Grant("log", 0, 0)
    anna.release("g", ["log"])
    assert anna.acquire("g", "log", SHARED) == Busy("carl")
    assert carl.poll("g", "log") == Queued(1, 0)
    ben.release("g", ["log"])
    assert carl.poll("g", "log") == Grant("log", 1, 1)
    assert ben.acquire("g", "log", WAIT) == Queued(2, 0)
    assert anna.acquire("g", "log", FENCING) == Grant("log", 2, 2)
    assert ben.poll("g", "log") == Fenced("anna", 2)
    assert not carl.holds("g", "log")


def test_the_dead_are_passed_over(store: Opens) -> None:
    """An owner and the head of the queue, both without a sign of life; who lives keeps its turn."""
    anna, ben = registry(store, "anna", 0.6), registry(store, "ben", 0.6)
    carl = registry(store, "carl", 20)
    anna.acquire("g", "log", ALONE)
    ben.acquire("g", "log", WAIT)
    carl.acquire("g", "log", WAIT)
    for dead in (anna, ben):  # as if their processes had been killed
        dead._closed.set()
    assert until_granted(carl).fence_epoch in (2, 3)  # ben may have died as the owner, or before
    history = [(e.event, e.owner) for e in carl.history("g", "log")]
    assert ("expired", "anna") in history
    assert ("expired", "ben") in history
    assert history[-1] == ("promoted", "carl")


def test_who_lives_is_left_alone(store: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner whose counter moves keeps its log, however long others look at it."""
    # Of the observers: it goes on with the signs of life, so that none of them comes late.
    clock = [0.0]
    monkeypatch.setattr("coopconsume.fenced.ownership.registry.monotonic", lambda: clock[0])
    anna, ben = registry(store, "anna", 2), registry(store, "ben")
    anna.acquire("g", "log", ALONE)
    ben.acquire("g", "log", WAIT)
    first = anna.show("g", "log").owner
    assert first is not None
    beats = first.heartbeat
    while beats < first.heartbeat + 6:  # more than a lease's worth of them
        clock[0] = (beats - first.heartbeat) * 0.5
        assert isinstance(ben.poll("g", "log"), Queued)
        ben.wait(0.3)
        owner = ben.show("g", "log").owner
        assert owner is not None
        assert owner.session == anna.session
        beats = owner.heartbeat
    anna.close()
    assert until_granted(ben) == Grant("log", 1, 2)


def test_claimants_at_once_never_share_an_epoch(store: Opens) -> None:
    """Several claim in a hurry: each fence epoch and each generation is one claimant's."""
    grants: list[tuple[str, Grant]] = []

    def claim(name: str) -> None:
        with registry(store, name) as mine:
            for _ in range(5):
                current = mine.show("g", "log").generation
                try:
                    grant = mine.own("g", {"log": current or 1})["log"]
                except StaleGeneration:
                    continue
                if not grants or grants[-1][1] != grant:
                    grants.append((name, grant))

    threads = [threading.Thread(target=claim, args=(name,)) for name in ("anna", "ben", "carl")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    owners: dict[int, str] = {}
    for name, grant in grants:
        assert owners.setdefault(grant.fence_epoch, name) == name
    with registry(store, "last") as last:
        history = last.history("g", "log")
    owned = [entry.fence_epoch for entry in history if entry.event == "owned"]
    assert owned == list(range(1, len(owned) + 1))
    assert set(owners) <= set(owned)


def test_another_table_is_no_store(tmp_path: Path) -> None:
    """A Delta table of somebody else is left alone, and so is a place that cannot be written."""
    import pyarrow as pa

    DeltaTable.create(str(tmp_path / "other"), pa.schema([("a", pa.int64())]))
    with pytest.raises(OwnershipFormat, match="another place"):
        DeltaStore(tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(OwnershipUnavailable):
        DeltaStore(tmp_path / "file" / "table")


@pytest.mark.parametrize("feature", ["columnMapping", "deletionVectors"])
def test_a_registry_whose_files_have_other_rows_is_refused(tmp_path: Path, feature: str) -> None:
    """At its opening, and where another program adds the feature to an open one."""
    place = tmp_path / "owners"
    store = DeltaStore(place)
    features = {"readerFeatures": [feature], "writerFeatures": [feature]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    newest = max(place.glob("_delta_log/*.json"))
    entry = newest.with_name(f"{int(newest.stem) + 1:020d}.json")
    entry.write_text(f'{{"commitInfo":{{}}}}\n{json.dumps({"protocol": protocol})}')
    for call in (store.rows, lambda: DeltaStore(place).rows()):
        with pytest.raises(OwnershipFormat, match=f"the table feature {feature}.* DROP FEATURE"):
            call()


def test_a_store_has_one_partition_and_passes_over_foreign_records(
    kafka: LocalKafka, topic: TopicFactory, produce: Any
) -> None:
    """A topic of several partitions is refused."""
    at = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.retry.backoff.ms": "20"}
    with pytest.raises(OwnershipFormat, match="2 partitions"):
        KafkaStore(at, topic(2))
    name = topic(1)
    produce(name, [(None, b"hello")])
    with OwnershipRegistry(KafkaStore(at, name), owner="anna", lease=0) as anna:
        assert anna.own("g", {"log": 1})["log"] == Grant("log", 1, 1)


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_foreign_transaction_at_the_end_of_a_registry_stops_nobody(
    kafka: LocalKafka, topic: TopicFactory, end: str
) -> None:
    """Its marker takes an offset without a record."""
    servers, name = kafka.bootstrap_servers, topic(1)
    at = {"kafka.bootstrap.servers": servers}
    with OwnershipRegistry(KafkaStore(at, name), owner="anna", lease=0) as anna:
        anna.own("g", {"log": 1})
        foreign = Producer({"bootstrap.servers": servers, "transactional.id": name})
        foreign.init_transactions()
        foreign.begin_transaction()
        foreign.produce(name, b"foreign")
        getattr(foreign, end)()
        assert anna.own("g", {"log": 2})["log"] == Grant("log", 2, 2)
    with OwnershipRegistry(KafkaStore(at, name), owner="ben", lease=0) as ben:
        assert ben.own("g", {"log": 3})["log"] == Grant("log", 3, 3)


def test_a_log_that_is_shortened_says_the_same(kafka: LocalKafka) -> None:
    """Snapshots stand for what is dropped: for readers that stay, were away, or are new."""
    at = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    name = f"ownership-{uuid.uuid4().hex[:8]}"
    anna = OwnershipRegistry(KafkaStore(at, name, snapshot_bytes=3_000), owner="anna", lease=0)
    ben = OwnershipRegistry(KafkaStore(at, name), owner="ben", lease=0)
    ben.own("g", {"kept": 1})
    for generation in range(1, 18):
        anna.own("g", {"log": 0})
        assert anna.own("g", {"log": generation + 1})["log"].generation == generation + 1
    new = OwnershipRegistry(KafkaStore(at, name), owner="new", lease=0)
    assert new.store._fold._start > 20  # type: ignore[attr-defined]
    assert new.list() == anna.list() == ben.list()
    assert new.history("g", "log") == anna.history("g", "log")
    assert new.own("g", {"log": 18})["log"] == Grant("log", 19, 35)
    for claimant in (anna, ben, new):
        claimant.close()
