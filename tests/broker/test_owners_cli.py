"""``coopconsume owners`` on both stores, as an operator types it."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from coopconsume.cli import main
from coopconsume.fenced.ownership import DeltaStore, KafkaStore, OwnershipRegistry
from coopconsume.fenced.ownership.model import AccessMode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from coopconsume.fenced.ownership import OwnershipStore
    from coopconsume.testing.local.broker import LocalKafka

pytestmark = pytest.mark.broker


@pytest.fixture(params=["kafka", "delta"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[OwnershipStore, list[str]]]:
    """A store, and the words that name it on the command line."""
    if request.param == "delta":
        yield DeltaStore(tmp_path / "owners"), ["--table", str(tmp_path / "owners")]
        return
    servers = request.getfixturevalue("kafka").bootstrap_servers
    name = f"ownership-{uuid.uuid4().hex[:8]}"
    store = KafkaStore({"kafka.bootstrap.servers": servers}, name)
    yield store, ["--bootstrap-servers", servers, "--topic", name]
    store.close()


def call(*words: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, ["owners", *words])


def test_an_operator_looks_takes_and_releases(place: tuple[OwnershipStore, list[str]]) -> None:
    """From the owner, then the first waiter comes next; all is shown, also as JSON."""
    store, at = place
    anna = OwnershipRegistry(store, owner="anna", lease=0)
    ben = OwnershipRegistry(store, owner="ben", lease=0)
    anna.acquire("log", "orders-0", AccessMode.EXCLUSIVE, topic_id="an-id")
    ben.acquire("log", "orders-0", AccessMode.WAIT_FOR_EXCLUSIVE)
    anna.own("jobs", {"nightly": 4})

    listed = call("list", *at)
    assert listed.exit_code == 0, listed.stderr
    assert [line.split() for line in listed.stdout.splitlines()[1:]] == [
        ["jobs", "nightly", "anna", "by", "generation", "4", "1", "-", "-"],
        ["log", "orders-0", "anna", "exclusive", "1", "1", "-", "1"],
    ]
    only = json.loads(call("list", "--group", "jobs", "--json", *at).stdout)
    assert [(row["resource"], row["owner"]["session"]["owner"]) for row in only] == [
        ("nightly", "anna")
    ]

    shown = call("show", "log", "orders-0", *at)
    assert shown.exit_code == 0
    assert "owned by anna, generation 1, epoch 1" in shown.stdout
    assert "topic id an-id" in shown.stdout
    assert [w for w in ("has it", "waits", "queued") if w in shown.stdout] == [
        "has it", "waits", "queued",
    ]  # fmt: skip
    document = json.loads(call("show", "log", "orders-0", "--json", *at).stdout)
    assert [entry["event"] for entry in document["history"]] == ["owned", "queued"]

    for words in (("show",), ("take",), ("release",)):
        misspelt = call(*words, "log", "ordres-0", *at)
        assert (misspelt.exit_code, misspelt.stdout) == (1, "")
        assert "did you mean 'log orders-0'?" in misspelt.stderr
    assert len(store.rows()) == 2
    taken = call("take", "log", "orders-0", "nightly", "--generation", "1", "--create", *at)
    assert taken.exit_code == 0, taken.stderr
    assert "orders-0: owned by operator, generation 2, epoch 2" in taken.stdout
    stale = call("take", "log", "orders-0", "--generation", "1", *at)
    assert (stale.exit_code, stale.stdout) == (3, "")
    assert "is at generation 2, claimed was 1" in stale.stderr
    again = call("take", "log", "orders-0", "--owner", "boss", "--json", *at)
    assert json.loads(again.stdout) == [{"resource": "orders-0", "generation": 3, "fence_epoch": 3}]
    assert not anna.holds("log", "orders-0")

    released = call("release", "log", "orders-0", "nightly", *at)
    assert released.exit_code == 0
    assert released.stdout.splitlines() == ["orders-0: owned by ben", "nightly: free"]
    assert ben.holds("log", "orders-0", 4)


def test_foreign_records_in_the_registry_are_reported(kafka: LocalKafka) -> None:
    """It is passed over; a log without its beginning is repaired from what is left."""
    servers = kafka.bootstrap_servers
    name = f"ownership-{uuid.uuid4().hex[:8]}"
    at = ("--bootstrap-servers", servers, "--topic", name)
    with OwnershipRegistry(
        KafkaStore({"kafka.bootstrap.servers": servers}, name), owner="anna", lease=0
    ) as anna:
        foreign = KafkaProducer(bootstrap_servers=servers)
        foreign.send(name, b"foreign", partition=0).get(60)
        for generation in (3, 4):
            anna.own("jobs", {"nightly": generation})
        checked = call("check", *at)
        assert (checked.exit_code, "1 resources, 1 records ignored" in checked.stdout) == (
            0,
            True,
        )
        assert "offset 0: found no JSON" in checked.stdout
        admin = KafkaAdminClient(bootstrap_servers=servers)
        admin.delete_records({TopicPartition(name, 0): 2})
        admin.close()
        assert call("check", *at).exit_code == 1
        assert call("list", *at).exit_code == 1
        repaired = call("check", "--repair", *at)
        assert (repaired.exit_code, "1 resources" in repaired.stdout) == (0, True)
        assert "nightly" in call("list", *at).stdout
        assert anna.own("jobs", {"nightly": 9})["nightly"].generation == 9
        foreign.close()


def test_wrong_usage_is_reported(tmp_path: Path) -> None:
    """No place, two places, or a place where nothing is; nothing is made on the way."""
    for words in (
        [],
        ["--table", "a", "--bootstrap-servers", "b"],
        ["--table", "a", "--topic", "b"],
    ):
        assert call("list", *words).exit_code == 2
    nowhere = call("list", "--table", str(tmp_path / "nowhere"))
    assert (nowhere.exit_code, nowhere.stdout) == (1, "")
    assert "no Delta table" in nowhere.stderr
    assert not (tmp_path / "nowhere").exists()
