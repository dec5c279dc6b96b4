"""``coopconsume log`` on a real broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer

from coopconsume import FencedWriter
from coopconsume.cli import main
from coopconsume.errors import LogBlocked

if TYPE_CHECKING:
    from click.testing import Result

    from coopconsume.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = pytest.mark.broker


def called(kafka: LocalKafka, command: str, topic: str, *words: str) -> Result:
    """Call a command about a topic."""
    arguments = ["log", command, topic, "--bootstrap-servers", kafka.bootstrap_servers, *words]
    return CliRunner().invoke(main, arguments)


def document(kafka: LocalKafka, command: str, topic: str) -> Any:
    """What it answers with --json."""
    result = called(kafka, command, topic, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_log_is_told_and_audited(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce
) -> None:
    """Its end, its owners, what is foreign; the first wrong thing by exit code 1."""
    name = topic()
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
    assert "epoch     2, by two" in called(kafka, "head", name).stdout
    audited = document(kafka, "audit", name)
    assert audited["ok"]
    assert (audited["records"], audited["foreign"], audited["finding"]) == (6, 1, None)
    assert [(t["epoch"], t["owner"], t["batches"]) for t in audited["terms"]] == [
        (1, "one", 2), (2, "two", 2),
    ]  # fmt: skip
    assert "nothing is wrong" in called(kafka, "audit", name).stdout
    forged = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    at = forged.send(name, b"x", headers=[("fw-v", b"1c")], partition=0).get(60).offset
    forged.close()
    wrong = called(kafka, "audit", name)
    assert wrong.exit_code == 1
    assert f"WRONG at offset {at}: malformed stamp" in wrong.stdout
    corrupt = called(kafka, "head", name)
    assert (corrupt.exit_code, f"at offset {at}" in corrupt.stderr) == (1, True)
    missing = called(kafka, "head", "nowhere")
    assert missing.exit_code == 1
    assert "nowhere-0" in missing.stderr


def test_what_blocks_a_log_is_told(kafka: LocalKafka, topic: TopicFactory) -> None:
    """Its transaction and the way to end it; until then nobody takes the log."""
    name = topic()
    assert "is not blocked" in called(kafka, "blocked", name).stdout
    other = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"{name}-other"
    )
    other.init_transactions()
    other.begin_transaction()
    at = other.send(name, b"x", partition=0).get(60).offset
    told = document(kafka, "blocked", name)
    assert (told["blocked"], told["stable"], told["end"]) == (True, at, at + 1)
    (transaction,) = told["transactions"]
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
