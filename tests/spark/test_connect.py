"""A client of Spark Connect; the server runs in the JVM of the run's own session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commits import CommitStore
from coopconsume import committed_rows
from coopconsume.testing.history import read_history
from tests.spark.support import PATIENCE, done_book, options

pytestmark = [pytest.mark.spark, pytest.mark.broker]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def remote(spark):
    """Where clients reach the server."""
    jvm = spark.sparkContext._jvm
    # The service reads the settings of the running process, not those that Python gave it.
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
    conf.set("spark.connect.grpc.binding.port", "0")
    place = jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(place, "SparkConnectService$"), "MODULE$")
    service.start(spark.sparkContext._jsc.sc())
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(getattr(service, "stop$default$1")(), getattr(service, "stop$default$2")())


def test_a_client_of_spark_connect_works(remote, kafka, topic, produce, tmp_path):
    """It polls and commits, drains with records that fail, and is stopped in the middle.

    Outcomes come with a job's result there, as there is no accumulator.
    """
    name, other = topic(), topic()
    for place in (name, other):
        produce(place, [(b"k%d" % (i % 8), b"%d" % i) for i in range(40)])
    history, other_history = tmp_path / "history", tmp_path / "other"
    config = {
        "remote": remote,
        "options": options(kafka, tmp_path, name),
        "history": str(history),
        "dead": str(tmp_path / "dead"),
        "other": options(kafka, tmp_path, other, slots=2, maxOffsetsPerTrigger=10),
        "other_history": str(other_history),
    }  # fmt: skip
    del config["options"]["slots"]
    subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", json.dumps(config)],
        cwd=ROOT, check=True, timeout=PATIENCE,
    )  # fmt: skip
    (cluster,) = CommitStore.open(tmp_path / "commits").clusters(f"{name}-group")
    store = CommitStore.open(tmp_path / "commits", cluster=cluster)
    assert done_book(store, f"{name}-group") == {(name, 0): [(0, 39)]}
    tries = {(call.offset, call.attempt) for call in read_history(history)}
    assert tries == {(offset, 1) for offset in range(1, 40, 2)} | {(7, 2)}
    dead = committed_rows(str(tmp_path / "dead"), str(tmp_path / "commits"), f"{name}-group")
    assert sorted(dead.column("_offset").to_pylist()) == [7, 9]
    done = done_book(store, f"{other}-group")[other, 0]
    ended = {call.offset for call in read_history(other_history)}
    assert ended == {offset for first, last in done for offset in range(first, last + 1)}
