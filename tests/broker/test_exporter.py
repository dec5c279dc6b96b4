"""The exporter on a real broker and a real commit table, scraped by a real Prometheus."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer

from assignors import key_hash
from commits import CommitStore, Pending
from commits.model import PARKED_MS
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options
from tests import prometheus
from tests.prometheus import Case, series_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import TopicFactory

pytestmark = [pytest.mark.broker, pytest.mark.prometheus]

PATIENCE = 100.0
HOUR = 3_600_000


@contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program, which is killed at the end if it has not ended."""
    popen = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield popen
    finally:
        popen.kill()
        popen.communicate()


def answer(url: str) -> str:
    """The text at an address; empty while it cannot be had."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as found:
            return str(found.read().decode())
    except OSError:
        return ""


def until(get: Callable[[], str], is_it: Callable[[str], Any]) -> str:
    """The first text that is as it is waited for."""
    deadline = time.monotonic() + PATIENCE
    while not is_it(found := get()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


@pytest.fixture
def groups(kafka: LocalKafka, topic: TopicFactory, tmp_path: Path) -> dict[str, str]:
    """Two groups: left has a parked key, and old records; gone has a member that Kafka has lost."""
    orders = topic(1, {"retention.ms": 4 * HOUR, "segment.bytes": 1 << 20})
    at = int(time.time() * 1000)
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)) as producer:
        for offset in range(10):
            # Within the last eighth of a quarter of the retention, and new ones.
            stamp = at - 4 * HOUR + 400_000 if offset < 4 else at
            producer.send(orders, b"v", b"k%d" % (offset % 2), partition=0, timestamp_ms=stamp)
        producer.flush()
    words = {"bootstrap.servers": kafka.bootstrap_servers, "commitTable": str(tmp_path / "commits")}
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": "left"}
    with closing(Cluster(Options.parse(options, table=False))) as cluster:
        store = CommitStore.open(tmp_path / "commits", cluster=cluster.cluster_id)
    for group, parked in (
        ("left", [Pending(1, key_hash(b"k1"), 2, PARKED_MS, "no")]),
        ("gone", []),
    ):
        epoch = store.open_epoch(group, {"m": [(orders, 0)]}, previous=None)
        store.commit(group, epoch, "m", {(orders, 0): [(0, 0)]}, pending={(orders, 0): parked})
        if group == "left":
            store.release(group, epoch, "m")
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in words.items()))
    return {"file": str(file), "topic": orders}


def test_failures_are_seen_by_the_rules_of_a_real_prometheus(
    groups: dict[str, str], tmp_path: Path
) -> None:
    """Exactly the alerts that hold; every panel can be asked for; the exporter ends in order."""
    words = ["-m", "coopconsume", "exporter", "--command-config", groups["file"], "--port", "0"]
    with started([sys.executable, *words, "--interval", "0.5"]) as exporter:
        assert exporter.stdout is not None
        url = re.search(r"http://\S+", exporter.stdout.readline())
        assert url is not None
        text = until(
            lambda: answer(url[0]), lambda found: found.count("coopconsume_parked_behind{") == 2
        )
        labels = f'group="left",partition="0",topic="{groups["topic"]}"'
        for line in (
            f"coopconsume_lag{{{labels}}} 9.0", f"coopconsume_parked{{{labels}}} 1.0",
            'coopconsume_members{group="left",state="working"} 0.0',
            'coopconsume_members{group="gone",state="gone"} 1.0',
            'coopconsume_parked_behind{group="left"} 4.0',
            'coopconsume_verdict{group="left"} 4.0',
            'coopconsume_verdict_reason{group="left",reason="nobody"} 3.0',
            'coopconsume_retention_left_seconds{group="left"} 450.0',
            'coopconsume_retention_records{group="left"} 3.0',
            'coopconsume_exporter_up{source="kafka"} 1.0',
            'coopconsume_exporter_up{source="commit_table"} 1.0',
        ):  # fmt: skip
            assert f"{line}\n" in text, text
        of = {
            name: {series: value for series, value in series_of(text).items() if name in series}
            for name in ('"left"', '"gone"')
        }
        always = ["NobodyWorks", "RetentionNear", "SomebodyMustAct"]
        prometheus.judge(tmp_path, [
            Case("left", of['"left"'], [*always, "RecordsParked"]),
            Case("gone", of['"gone"'], [*always, "MemberGone"]),
        ])  # fmt: skip
        _ask_prometheus(url[0], tmp_path)
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(PATIENCE) == 0


def _alerts(text: str) -> set[str]:
    """The names of the alerts in an answer of Prometheus."""
    found = json.loads(text)["data"]["alerts"] if text else ()
    return {one["labels"]["alertname"] for one in found}


def _ask_prometheus(url: str, folder: Path) -> None:
    """Has a Prometheus scrape the exporter; its alerts wait, and panels have what is known."""
    target = url.removeprefix("http://").removesuffix("/metrics")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(prometheus.RULES)],
        "scrape_configs": [{"job_name": "exporter", "static_configs": [{"targets": [target]}]}],
    }
    file = folder / "prometheus.json"
    file.write_text(json.dumps(config))
    with started([
        prometheus.PROGRAMS.path(1), f"--config.file={file}", "--log.format=json",
        f"--storage.tsdb.path={folder / 'tsdb'}", "--web.listen-address=127.0.0.1:0",
    ]) as server:  # fmt: skip
        assert server.stdout is not None
        while not (
            found := re.search(r'"address":"(127\.0\.0\.1:[1-9]\d*)"', server.stdout.readline())
        ):
            assert server.poll() is None
        api = f"http://{found[1]}/api/v1"
        # A group of rules is evaluated one by one: an answer may have the first ones only.
        wanted = {"NobodyWorks", "MemberGone", "RecordsParked", "RetentionNear"}
        until(lambda: answer(f"{api}/alerts"), lambda text: _alerts(text) >= wanted)
        asked = {
            title: json.loads(answer(f"{api}/query?{urllib.parse.urlencode({'query': one})}"))
            for title, all_of in prometheus.expressions(group=".*").items()
            for one in all_of
        }
        assert [title for title, one in asked.items() if one["status"] != "success"] == []
        known = {title for title, one in asked.items() if one["data"]["result"]}
        assert {"Verdict", "Records not done", "Members", "What holds", "Parked records"} <= known
        lag = {one["metric"]["group"]: one["value"][1] for one in
               asked["Records not done"]["data"]["result"]}  # fmt: skip
        assert lag == {"left": "9", "gone": "9"}
