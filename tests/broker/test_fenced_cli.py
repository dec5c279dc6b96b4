"""``coopconsume log`` on a real broker."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from coopconsume import FencedWriter
from coopconsume.cli import main
from coopconsume.errors import LogBlocked
from coopconsume.fenced import LogReader
from coopconsume.fenced.stamp import Stamp, decode, encode

if TYPE_CHECKING:
    from click.testing import Result

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = pytest.mark.broker


def called(kafka: LocalKafka, command: str, topic: str, *words: str) -> Result:
    """Call a command about a topic."""
    arguments = ["log", command, topic, "--bootstrap-servers", kafka.bootstrap_servers, *words]
    return CliRunner().invoke(main, arguments)


def document(kafka: LocalKafka, command: str, topic: str, *words: str) -> Any:
    """What it answers with --json."""
    result = called(kafka, command, topic, "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_log_is_described_and_audited(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce
) -> None:
    """Its end, its owners, what is passed over; missing records by exit code 1."""
    name = topic()
    nothing = called(kafka, "audit", name)
    assert nothing.exit_code == 1
    assert "none with a stamp" in nothing.stdout
    empty = document(kafka, "head", name)
    assert (empty["next_seq"], empty["epoch"], empty["owner"]) == (0, 0, None)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    for owner in ("one", "two"):
        with FencedWriter(options, name, owner=owner) as writer:
            writer.append([b"a", b"b"])
            writer.append([b"c"])
    produce(name, [(None, b"foreign")])
    found = document(kafka, "head", name)
    assert (found["next_seq"], found["epoch"], found["owner"]) == (6, 2, "two")
    assert found["visibility"] == "read_committed"
    assert "epoch     2, owner two" in called(kafka, "head", name).stdout
    audited = document(kafka, "audit", name)
    assert audited["ok"]
    assert (audited["records"], audited["foreign"], audited["findings"]) == (6, 1, [])
    assert [(t["epoch"], t["owner"], t["batches"]) for t in audited["terms"]] == [
        (1, "one", 2), (2, "two", 2),
    ]  # fmt: skip
    assert "no record is missing" in called(kafka, "audit", name).stdout
    forged = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    at = forged.send(name, b"x", headers=[("fw", b"1c")], partition=0).get(60).offset
    strange = Stamp("read_committed", "data", 2, 9, 1, 0, "b", at + 1, b"strange!")
    forged.send(name, b"x", headers=[encode(strange)], partition=0).get(60)
    result = called(kafka, "audit", name)
    assert result.exit_code == 0
    assert f"malformed at offset {at}" in result.stdout
    assert f"fenced at offset {at + 1}" in result.stdout
    assert document(kafka, "head", name)["next_seq"] == 6
    with LogReader(options, name) as reader:
        assert [record.value for record in reader.read()] == [b"a", b"b", b"c"] * 2
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest",
        isolation_level="read_committed",
    )  # fmt: skip
    consumer.assign([TopicPartition(name, 0)])
    rows = itertools.islice(consumer, 8)
    stamps = [decode(row.headers) for row in rows if row.headers]
    genuine = stamps[-1]
    assert genuine is not None
    consumer.close()
    gap = replace(genuine, seq=9, i=0, n=1, batch="gap", expected=at + 2)
    forged.send(name, b"x", headers=[encode(gap)], partition=0).get(60)
    forged.close()
    missing = called(kafka, "audit", name)
    assert missing.exit_code == 1
    assert f"gap at offset {at + 2}: sequence number 9, expected 6" in missing.stdout
    corrupt = called(kafka, "head", name)
    assert (corrupt.exit_code, f"offset {at + 2}" in corrupt.stderr) == (1, True)
    listed = called(kafka, "repair", name)
    assert (listed.exit_code, f"gap at offset {at + 2}" in listed.stdout) == (0, True)
    assert document(kafka, "repair", name, "--execute")["gaps"][0]["offset"] == at + 2
    assert (document(kafka, "head", name)["next_seq"], document(kafka, "audit", name)["ok"]) == (
        10, True,
    )  # fmt: skip
    with LogReader(options, name) as reader:
        assert [record.value for record in reader.read()] == [*[b"a", b"b", b"c"] * 2, b"x"]
    missing = called(kafka, "head", "nowhere")
    assert missing.exit_code == 1
    assert "nowhere-0" in missing.stderr


def test_blocking_transactions_are_listed(kafka: LocalKafka, topic: TopicFactory) -> None:
    """Its transaction and the way to end it; until then nobody takes the log."""
    name = topic()
    assert "is not blocked" in called(kafka, "blocked", name).stdout
    other = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"{name}-other",
        transaction_timeout_ms=600_000,
    )  # fmt: skip
    other.init_transactions()
    other.begin_transaction()
    at = other.send(name, b"x", partition=0).get(60).offset
    listed = document(kafka, "blocked", name)
    assert (listed["blocked"], listed["stable"], listed["end"]) == (True, at, at + 1)
    (transaction,) = listed["transactions"]
    assert transaction["transactional_id"] == f"{name}-other"
    assert (transaction["first_offset"], transaction["state"]) == (at, "Ongoing")
    shown = called(kafka, "blocked", name).stdout
    assert f"--topic {name} --partition 0 --start-offset {at}" in shown
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    hasty = FencedWriter(options, name, timeout=5.0)
    with pytest.raises(LogBlocked) as blocked:
        hasty.acquire()
    hasty.close()
    assert (blocked.value.stable, blocked.value.end) == (at, at + 1)
    assert blocked.value.producers == (transaction["producer_id"],)
    other.abort_transaction()
    other.close()
    with FencedWriter(options, name) as writer:
        assert writer.append([b"a"]).first_seq == 0


def test_a_transaction_that_ends_while_it_is_looked_up_does_not_hang(
    kafka: LocalKafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator has ended it by then, as with one that hangs, and its marker is there."""
    name = topic()
    other = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"{name}-other"
    )
    other.init_transactions()
    other.begin_transaction()
    other.send(name, b"x", partition=0).get(60)
    look = KafkaAdminClient.list_transactions

    def commit_before(self: KafkaAdminClient, *args: Any, **kwargs: Any) -> Any:
        other.commit_transaction()
        while document(kafka, "head", name)["stable"] < 2:
            pass
        return look(self, *args, **kwargs)

    monkeypatch.setattr(KafkaAdminClient, "list_transactions", commit_before)
    listed = document(kafka, "blocked", name)
    other.close()
    assert (listed["blocked"], listed["transactions"]) == (True, [])
