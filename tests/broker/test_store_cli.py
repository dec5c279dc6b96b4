"""``coopconsume store repair`` with a real broker: Kafka's offsets, and members that are there."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from commits import CommitStore, Epoch, PartitionCommits
from coopconsume import Options
from coopconsume.cli import main
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.coordinator import KafkaGroup, KafkaMember
from coopconsume.kafka.primary import primary_mark

if TYPE_CHECKING:
    from coopconsume import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = pytest.mark.broker


def test_a_lost_table_is_made_again_from_kafkas_offsets(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path
) -> None:
    """A dry run first; the new table begins where Kafka says the group was."""
    name, path = topic(2), tmp_path / "commits"
    produce(name, [(b"k", b"v")] * 10, partition=0)
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": "lost",
        "commitTable": str(path),
    }
    with closing(Cluster(Options.parse(options))) as cluster:
        cluster_id = cluster.cluster_id
        (found,) = cluster.topics([name])
        cluster.commit_primary({(name, 0): (4, primary_mark(found.id, Epoch(3, "x")))})
    CommitStore.open(path, cluster=cluster_id)
    shutil.rmtree(path)
    place = ["--bootstrap-servers", kafka.bootstrap_servers, "--commit-table", str(path)]
    call = ["store", "repair", "--from", "kafka", *place]
    nameless = CliRunner().invoke(main, call)
    assert (nameless.exit_code, "--group" in nameless.output) == (2, True)
    plan = CliRunner().invoke(main, [*call, "--group", "lost", "--json"])
    assert plan.exit_code == 0, plan.output
    answer = json.loads(plan.output)
    assert not answer["executed"]
    assert [(p["topic"], p["partition"], p["stable_offset"]) for p in answer["partitions"]] == [
        (name, 0, 4)
    ]
    assert not path.exists()
    done = CliRunner().invoke(main, [*call, "--group", "lost", "--execute"])
    assert (done.exit_code, "written to" in done.output) == (0, True), done.output
    store = CommitStore.open(path, cluster=cluster_id, create=False)
    assert store.state("lost") == {(name, 0): PartitionCommits(4)}


def test_a_group_with_members_is_left_alone(
    kafka: LocalKafka, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka knows members of the group: nothing is written."""
    path = str(tmp_path / "commits")
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "commitTable": path}
    with closing(Cluster(Options.parse(options, group=False))) as cluster:
        store = CommitStore.open(path, cluster=cluster.cluster_id)
    store.open_epoch("busy", {"m": [(topic(1), 0)]}, previous=None)
    member = KafkaMember("m", None, "client", "host", None)
    monkeypatch.setattr(
        Cluster,
        "describe_groups",
        lambda _, names: {name: KafkaGroup("Stable", members=(member,)) for name in names},
    )
    called = CliRunner().invoke(
        main,
        ["store", "repair", "--from", "version=1", "--execute",
         "--bootstrap-servers", kafka.bootstrap_servers, "--commit-table", path],
    )  # fmt: skip
    assert (called.exit_code, "stop them first" in called.output) == (1, True), called.output
    assert len(store.history("busy")) == 1
