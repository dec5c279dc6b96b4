"""A transaction whose marker the broker did not write, as with KAFKA-20734."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer

from coopconsume import FencedWriter, LocalKafka
from coopconsume.cli import main
from coopconsume.errors import LogBlocked
from coopconsume.fenced import LogReader
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.kafka_engine import Engine
from tests.chaos.frame import wait_until
from tests.missing_markers import end_hanging

pytestmark = pytest.mark.broker


def remove_marker(segment: Path) -> None:
    """Cuts the last batch off a segment, which has to be a marker."""
    content, at, last = segment.read_bytes(), 0, 0
    while at < len(content):
        last, at = at, at + 12 + int.from_bytes(content[at + 8 : at + 12])
    assert content[last + 22] & 0x20, "the last batch is no marker"
    with segment.open("r+b") as file:
        file.truncate(last)


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[LocalKafka]:
    """A broker of its own."""
    with LocalKafka(tmp_path / "kafka") as broker:
        broker.create_topic("t")
        yield broker


def blocked(kafka: LocalKafka) -> list[Any]:
    """The open transactions by the command."""
    words = ["log", "blocked", "t", "--json", "--bootstrap-servers", kafka.bootstrap_servers]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return list(json.loads(result.stdout)["transactions"])


@pytest.mark.slow
@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_a_transaction_without_its_marker_is_ended_as_its_coordinator_decided(
    kafka: LocalKafka, tmp_path: Path, decision: str
) -> None:
    """It hangs and nobody takes the log; after a commit what was acknowledged is there."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    with FencedWriter(options, "t") as writer:
        writer.append([b"a"])
        id_ = writer.log.transactional_id()
    if decision == "commit":
        with FencedWriter(options, "t") as writer:
            acknowledged = writer.append([b"b"])
            assert acknowledged.first_seq == 1
    else:
        raw = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=id_)
        raw.init_transactions()
        raw.begin_transaction()
        raw.send("t", b"b", partition=0).get(60)
        raw.abort_transaction()
        raw.close()
    engine = Engine(FencedSettings.parse(options))

    def is_complete() -> bool:
        with engine.asking("t") as admin:
            return bool(admin.describe_transactions([id_])[id_].state.value.startswith("Complete"))

    wait_until(is_complete, lambda: "the coordinator has not ended it")
    engine.close()
    kafka.kill()
    remove_marker(next((tmp_path / "kafka" / "log" / "t-0").glob("*.log")))
    kafka.start()

    (transaction,) = blocked(kafka)
    assert transaction["hangs"]
    with pytest.raises(LogBlocked):
        FencedWriter(options, "t", timeout=2.0).acquire()
    assert end_hanging(options, "t") == [decision]
    assert blocked(kafka) == []
    with FencedWriter(options, "t") as writer:
        assert writer.append([b"c"]).first_seq == 1 + (decision == "commit")
    with LogReader(options, "t") as reader:
        values = [record.value for record in reader.read()]
    assert values == [b"a", *[b"b"] * (decision == "commit"), b"c"]
