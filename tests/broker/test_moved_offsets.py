"""Groups that begin at offsets in Kafka that others wrote, on a broker with Kafka's own delays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from commits import ACCEPT_RANGE_FETCH
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options
from coopconsume.testing.local.broker import LocalKafka
from tests.broker.group_harness import PATIENCE, GroupHarness, Process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker
TOPIC = "orders"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    """A topic of ten records, on a broker that waits for the first members as Kafka does."""
    config = {"group.initial.rebalance.delay.ms": 3_000}
    with LocalKafka(config=config) as kafka:
        kafka.create_topic(TOPIC)
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
        for number in range(10):
            producer.send(TOPIC, key=b"%d" % number)
        producer.close()
        found = GroupHarness(kafka, TOPIC, tmp_path)
        found.store.set_setting(ACCEPT_RANGE_FETCH, value=True, topic=TOPIC)
        yield found
        for process in found.processes:
            process.end()


def consume_plainly(harness: GroupHarness) -> int:
    """Have a plain consumer of the group read some records and commit; returns its offset."""
    plain = KafkaConsumer(
        TOPIC, bootstrap_servers=harness.kafka.bootstrap_servers, group_id=harness.group,
        auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=3,
        metadata_max_age_ms=500,
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    count = 0
    while not count and time.monotonic() < deadline:
        count = sum(map(len, plain.poll(timeout_ms=1_000).values()))
    plain.commit()
    plain.close()
    return count


def kill(harness: GroupHarness, *members: Process) -> None:
    """Kill all members of the group, and have the broker notice."""
    for member in members:
        member.end()
    harness.forget_members()


def join_together(harness: GroupHarness) -> tuple[Process, Process]:
    """Let two members join the first epoch; returns the owner of hash 0, then the other one.

    Both are frozen: they have their shares, and have not looked where these begin.
    """
    pair = [harness.start(freezes_as_owner=True, waits=True) for _ in range(2)]
    for member in pair:
        member.wait_for("ready")
    for member in pair:
        member.say("join")
    ids = [member.wait_for("freezing")["member"] for member in pair]
    row = harness.store.assignment(harness.group)
    assert row is not None
    assert (row.epoch.number, set(row.members)) == (1, set(ids)), "they did not join together"
    owner = 0 if row.members[ids[0]][0].key_range.first == 0 else 1
    return pair[owner], pair[1 - owner]


@pytest.mark.slow
def test_offsets_of_plain_consumers_are_no_change_from_outside(harness: GroupHarness) -> None:
    """Neither for members of the first epoch that are late nor after a kill before the mirror.

    Once the group has written Kafka's offset, the same offset from outside is a change.
    """
    start = consume_plainly(harness)
    late, early = join_together(harness)
    early.wake()
    early.wait_for("begin")
    early.say(f"commit {start}")
    early.wait_for("committed")
    late.wake()
    late.wait_for("begin")
    late.say(f"commit {start + 1}")
    late.wait_for("committed")

    kill(harness, early, late)
    again = harness.start(onExternalReset="honour")
    again.wait_for("begin")
    assert harness.store.state(harness.group)[TOPIC, 0].stable_offset == start + 2
    again.say("mirror")
    again.wait_for("mirrored", taken=True)

    kill(harness, again)
    cluster = Cluster(Options.parse(harness.options))
    assert cluster.primary()[TOPIC, 0].offset == start + 2
    cluster.commit_primary({(TOPIC, 0): (start, "")})
    cluster.close()
    refused = harness.start().wait_for("refused")
    assert refused["error"] == "ExternalReset"
    assert harness.store.state(harness.group)[TOPIC, 0].stable_offset == start + 2
    harness.start(onExternalReset="honour").wait_for("begin")
    assert harness.store.state(harness.group)[TOPIC, 0].stable_offset == start


@pytest.mark.slow
def test_a_transaction_that_commits_offsets_is_waited_for(harness: GroupHarness) -> None:
    """A plain application consumed in a transaction and ended while it was still open."""
    producer = KafkaProducer(
        bootstrap_servers=harness.kafka.bootstrap_servers, transactional_id="plain",
    )  # fmt: skip
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(TOPIC, value=b"its output")
    producer.send_offsets_to_transaction(
        {TopicPartition(TOPIC, 0): OffsetAndMetadata(6, "", -1)}, harness.group
    )
    producer.flush()
    member = harness.start()
    deadline = time.monotonic() + PATIENCE
    while harness.store.assignment(harness.group) is None:
        assert time.monotonic() < deadline, "no epoch was opened"
        time.sleep(0.05)
    time.sleep(1.0)  # A member that does not wait begins within this time.
    assert (TOPIC, 0) not in harness.store.state(harness.group)
    producer.commit_transaction()
    producer.close()
    member.wait_for("begin")
    assert harness.store.state(harness.group)[TOPIC, 0].stable_offset == 6
    kill(harness, member)
    harness.start().wait_for("begin")
    assert harness.store.state(harness.group)[TOPIC, 0].stable_offset == 6
