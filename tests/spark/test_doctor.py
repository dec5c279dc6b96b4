"""``coopconsume doctor`` and `diagnose` on a real session, a real broker and tables on a disk."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from commits import CommitStore
from coopconsume import diagnose
from coopconsume.cli import main
from coopconsume.doctor import Check
from coopconsume.doctor.places import kafka_checks
from coopconsume.errors import MissingOption
from coopconsume.options import Options
from coopconsume.worker.look import Look

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from coopconsume.doctor import Diagnosis
    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import TopicFactory

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def outcomes(found: Diagnosis) -> dict[str, str]:
    """The outcome of each check."""
    return {check.name: check.outcome for check in found.checks}


def said(found: Diagnosis, name: str) -> str:
    """What a check has found."""
    return next(check.found for check in found.checks if check.name == name)


def test_what_works_and_what_does_not_is_found_by_trying(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """All of it, with one limit: the session keeps fetched records, as Spark does by itself."""
    options: dict[str, Any] = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic(3),
        "commitTable": str(tmp_path / "commits"), "deadLetter": str(tmp_path / "letters"),
        "kafka.group.id": "g",
    }  # fmt: skip
    CommitStore.open(tmp_path / "commits")
    found = diagnose(options, spark)
    by_name = outcomes(found)
    assert by_name.pop("fetched records") == "warning"
    assert set(by_name.values()) == {"ok"}, found
    assert said(found, "topics") == "1 topic, 3 partitions; the group may read them"
    assert said(found, "commit table").startswith("a Delta table at ")
    assert said(found, "dead letters").startswith("nothing yet at ")
    assert kafka.bootstrap_servers in said(found, "brokers from the workers")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["commits"]

    alone = outcomes(diagnose(spark=spark))
    assert set(alone) == set(by_name) - {
        "Kafka", "topics", "commit table", "dead letters", "decisions on dead letters",
        "brokers from the workers",
    } | {"fetched records"}  # fmt: skip
    with pytest.raises(MissingOption, match=r"kafka\.bootstrap\.servers"):
        diagnose({"subscribe": "a"}, spark)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options |= {"channelPort": port, "subscribe": "no-such-topic"}
        options |= {
            "commitTable": "/Volumes/a/b/commits",
            "kafka.bootstrap.servers": f":{port + 1}",
        }
        options["kafka.bootstrap.servers"] = kafka.bootstrap_servers
        result = CliRunner().invoke(
            main,
            ["doctor", "--json", *(f"-o{name}={value}" for name, value in options.items())],
        )
    assert result.exit_code == 1, result.output
    failed = {
        one["name"]: one["found"]
        for one in json.loads(result.stdout)["checks"]
        if one["outcome"] == "failed" or one["name"] == "channel to the driver"
    }
    assert set(failed) == {"channel to the driver", "topics", "commit table"}
    assert f"cannot listen on 127.0.0.1:{port}" in failed["channel to the driver"]
    assert "no-such-topic" in failed["topics"]
    assert "object store behind it" in failed["commit table"]


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ({}, "give kafka.group.id"),
        (
            {"kafka.group.id": "g", "onMissingTopic": "wait"},
            "run it without onMissingTopic=wait",
        ),
    ],
)
def test_rights_that_were_not_tried_are_neither_ok_nor_failed(
    kafka: LocalKafka, topic: TopicFactory, more: dict[str, str], remedy: str
) -> None:
    """Brokers say by a commit of the group whether it may read; what exists is seen without one."""
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic(3), **more}
    options = Options.parse(given, group=False, table=False)
    (_, check), _ = kafka_checks(options)
    found = "1 topic, 3 partitions; the rights to them were not tried"
    assert check == Check("topics", "untried", found, remedy)
    missing = Options.parse(
        {**given, "subscribe": "no-such-topic", "onMissingTopic": "fail"}, group=False, table=False
    )
    (_, check), _ = kafka_checks(missing)
    assert check.outcome == "failed"
    assert "no-such-topic" in check.found


def test_a_job_that_fails_is_the_answer_about_workers(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its reason; what needs no worker is still looked at."""

    def fail(_: Look) -> dict[str, Any]:
        raise RuntimeError("no memory for a look")

    monkeypatch.setattr(Look, "found", fail)
    found = diagnose({"kafka.bootstrap.servers": "localhost:1"}, spark)
    by_name = outcomes(found)
    assert by_name["workers"] == "failed"
    assert said(found, "workers") == "RuntimeError: no memory for a look"
    assert by_name["Kafka"] == "failed"
    assert "localhost:1" in said(found, "Kafka")
