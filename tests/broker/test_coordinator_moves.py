"""A group whose coordinator dies and comes up on another broker, in a cluster of two."""

from __future__ import annotations

import re
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from commits import ACCEPT_RANGE_FETCH
from coopconsume import LocalKafka
from coopconsume.errors import BrokerUnreachable
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options
from coopconsume.testing.local.config import new_cluster_id
from tests.broker.group_harness import PATIENCE, GroupHarness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.broker.group_harness import Process

pytestmark = [pytest.mark.broker, pytest.mark.slow]
_OFFSETS = "__consumer_offsets"


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def two_brokers(folder: Path) -> Iterator[tuple[LocalKafka, LocalKafka, KafkaAdminClient]]:
    """A cluster of broker 1, with its controller, and broker 2, which coordinates the groups.

    The topic ``t`` is on the first alone, the groups' offsets are on both. Yields the brokers, and
    a client of the first.
    """
    replicated = {"offsets.topic.replication.factor": 2}
    with LocalKafka(folder / "1", config=replicated) as first:
        first.create_topic("t")
        # The other's storage, as Kafka's tool would format it for the cluster that is there.
        cluster = re.search("cluster.id=.*", (folder / "1/log/meta.properties").read_text())
        quorum = re.search("voters=(.*)", (folder / "1/server.properties").read_text())
        assert cluster is not None
        assert quorum is not None
        storage = folder / "2" / "log"
        storage.mkdir(parents=True)
        (storage / "meta.properties").write_text(
            f"version=1\n{cluster[0]}\nnode.id=2\ndirectory.id={new_cluster_id()}\n"
        )
        names = ("PLAINTEXT", "CONTROLLER", "QUORUM")
        config = {
            "process.roles": "broker",
            "node.id": 2,
            "controller.quorum.voters": quorum[1].replace("\\", ""),
            # A broker alone may not listen where its controllers do.
            "controller.listener.names": "QUORUM",
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        }
        with (
            LocalKafka(folder / "2", config=config) as second,
            closing(KafkaAdminClient(bootstrap_servers=first.bootstrap_servers)) as admin,
        ):
            wait_until(lambda: len(admin.describe_cluster()["brokers"]) == 2)
            made = {"assignments": {0: [2, 1]}, "configs": {"cleanup.policy": "compact"}}
            admin.create_topics({_OFFSETS: made})
            wait_until(lambda: _coordinator(admin) == 2)
            yield first, second, admin


def _coordinator(admin: KafkaAdminClient) -> int:
    """The broker that leads the only partition of the groups' offsets: it coordinates them all.

    -1: no coordinator, or the client has asked a broker that is down.
    """
    try:
        (topic,) = admin.describe_topics([_OFFSETS])
    except KafkaError:
        return -1
    return topic["partitions"][0]["leader_id"] if topic["partitions"] else -1


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[tuple[GroupHarness, LocalKafka, KafkaAdminClient]]:
    """Ten records that are open to sharing, the broker that coordinates, and a client."""
    with two_brokers(tmp_path) as (first, second, admin):
        with closing(KafkaProducer(bootstrap_servers=first.bootstrap_servers)) as producer:
            for number in range(10):
                producer.send("t", key=b"%d" % number, value=b"")
        harness = GroupHarness(first, "t", tmp_path)
        harness.store.set_setting(ACCEPT_RANGE_FETCH, value=True, topic="t")
        yield harness, second, admin
        for process in harness.processes:
            process.end()


def test_a_group_outlives_its_coordinator(
    moving: tuple[GroupHarness, LocalKafka, KafkaAdminClient],
) -> None:
    """Its broker is killed: members go on, and what Kafka has for them is not lost.

    Until another broker coordinates, commits count all the same, as the log has them. Then Kafka
    learns of them, and the next rebalance takes place there.
    """
    harness, second, admin = moving
    a, b = harness.start(), harness.start()
    epoch = harness.settled(a, b)

    def commit(member: Process, offset: int) -> None:
        """Should the members have joined again meanwhile, it is refused between two epochs."""
        words = f"commit {offset}", "committed", "refused"
        wait_until(lambda: member.ask(*words)["event"] == "committed")

    def primary() -> int:
        """What Kafka has, once a coordinator answers."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return cluster.primary()["t", 0].offset
            except BrokerUnreachable:
                assert time.monotonic() < deadline

    def mirrored(offset: int, *members: Process) -> bool:
        """The member with hash 0 writes it."""
        return all(m.ask("mirror", "mirrored")["taken"] for m in members) and primary() == offset

    with closing(Cluster(Options.parse(harness.options))) as cluster:
        commit(a, 0)
        commit(b, 1)
        wait_until(lambda: mirrored(2, a, b))
        second.kill()
        commit(a, 3)
        commit(b, 4)
        wait_until(lambda: _coordinator(admin) == 1)
        assert primary() == 2
        commit(b, 2)
        wait_until(lambda: mirrored(5, a, b))
        a.leave()
        assert harness.settled(b) > epoch
        commit(b, 5)
        wait_until(lambda: mirrored(6, b))
        assert harness.store.state(harness.group)["t", 0].stable_offset == 6
