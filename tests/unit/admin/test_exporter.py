"""The metrics of groups: their values, and an exporter whose sources do not answer."""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from kafka.errors import (
    CoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaTimeoutError,
    RequestTimedOutError,
)
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from assignors.wire import Subscription
from commits import CommitLogUnavailable, CommitStore, CommitTableNotFound, Pending
from commits.growth import LogGrowth
from commits.model import PARKED_MS
from coopconsume.admin.exporter import Exporter, GroupCollector, GroupDiscovery
from coopconsume.admin.offsets.status import PartitionStatus, times_of
from coopconsume.admin.overview.build import GroupFacts, build
from coopconsume.admin.overview.metrics import LABELS, measurements
from coopconsume.admin.overview.reader import GroupReading
from coopconsume.admin.overview.watch import (
    ANSWERED,
    GroupWatch,
    Readability,
    Sources,
    View,
    Watches,
)
from coopconsume.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ExporterUnavailable,
    GroupNotFound,
    InvalidOption,
    NotAuthorized,
    TopicNotFound,
)
from coopconsume.kafka.coordinator import KafkaGroup, KafkaMember
from coopconsume.kafka.parked_keys import BehindParked
from coopconsume.kafka.retention import ExpiringOffsets
from coopconsume.monitoring.numbers import COUNTERS, GAUGES, HISTOGRAMS, JOB_GAUGES, PHASES
from coopconsume.monitoring.pace import Sample
from coopconsume.monitoring.prometheus import metric_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from coopconsume.kafka.connection import Connection

HALF, TOP = 2**62, 2**63 - 1
PATIENCE = 100.0
ZERO = {"group": "g", "topic": "t", "partition": "0"}


@pytest.fixture
def found(tmp_path: Path) -> GroupReading:
    """Member a works, b is gone; record 1 is parked with 2 behind it, and 5 has failed twice."""
    store = CommitStore.open(tmp_path / "commits", cluster="c")
    shares = {"a": [("t", 0, 0, HALF - 1)], "b": [("t", 0, HALF, TOP), ("t", 1)]}
    epoch = store.open_epoch("g", shares, previous=None)
    pending = [Pending(1, 7, 3, PARKED_MS, "no"), Pending(5, 8, 2, 5, "no")]
    store.commit("g", epoch, "a", {("t", 0): [(0, 0), (6, 7)]}, pending={("t", 0): pending})
    store.commit("g", epoch, "b", {("t", 1): [(0, 9)]})
    member = KafkaMember("a", None, "client-a", "10.0.0.7", Subscription({"store": store.id}, 1))
    facts = GroupFacts(
        KafkaGroup("Stable", "sticky", (member,)), store.assignment("g"), (), store.history("g"),
        group="g", cluster="c", servers="kafka:9092", table="/commits", store=store.id,
        behind={("t", 0): BehindParked(2)}, expiring=ExpiringOffsets(4, 900.0, (("t", 0),)),
    )  # fmt: skip
    times, state, failed = times_of(facts.history), store.state("g"), store.pending("g")
    statuses = [
        PartitionStatus.of(
            tp, state[tp], pending=failed.get(tp), log_start=0, end_offset=end, times=times[tp]
        )
        for tp, end in ((("t", 0), 20), (("t", 1), 10))
    ]
    return GroupReading(build(replace(facts, statuses=statuses)), store.growth())


def values(view: View, *sources: Sources) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The metrics of a group by name and labels."""
    return {
        (metric_name(one.number), frozenset(one.labels.items())): one.value
        for one in measurements({"g": view}, sources)
    }


def value(found: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str):
    """The value of a metric; None without one."""
    return found.get((f"coopconsume_{name}", frozenset(labels.items())))


def test_a_group_has_the_metrics_of_its_status(found: GroupReading) -> None:
    """Names and labels are those of jobs, without the member, and those of a group."""
    at = datetime.now(UTC).timestamp() - 30
    samples = (Sample(at - 60, 17, 0.0, 0.0, 2), Sample(at, 17, 2.0, 1.0, 2))
    got = values(View(found, at, samples), ANSWERED, Sources(kafka=False))
    zero = {"lag": 17, "stable_offset": 1, "pending": 2, "parked": 1, "gap_ranges": 1,
            "blocker_attempts": 3, "in_doubt_seconds": 0}  # fmt: skip
    assert {name: value(got, name, **ZERO) for name in zero} == zero
    assert 0 <= value(got, "stable_offset_age_seconds", **ZERO) < PATIENCE
    one = ZERO | {"partition": "1"}
    assert value(got, "lag", **one) == value(got, "stable_offset_age_seconds", **one) == 0
    of_group = {
        "epoch": 1, "verdict": 4, "retention_left_seconds": 900, "retention_records": 4,
        "retention_deleted": 0, "parked_behind": 2, "done_in_seconds": (17 - 1 - 2) / (2 - 1),
    }  # fmt: skip
    assert {name: value(got, name, group="g") for name in of_group} == of_group
    assert 30 <= value(got, "exporter_age_seconds", group="g") < PATIENCE
    states = {"working": 1, "joining": 0, "gone": 1, "fenced": 0, "claim": 0}
    assert {name: value(got, "members", group="g", state=name) for name in states} == states
    assert value(got, "member_owned", group="g", member="client-a") == 0.5
    assert value(got, "member_owned", group="g", member="b") == 1.5
    reasons = {"retention": 4, "decision": 3, "working": 1}
    names = {dict(labels)["reason"] for name, labels in got if name.endswith("verdict_reason")}
    assert names == reasons.keys()
    assert {one: value(got, "verdict_reason", group="g", reason=one) for one in names} == reasons
    assert value(got, "exporter_up", source="kafka") == 0
    assert value(got, "exporter_up", source="commit_table") == 1
    assert value(got, "commit_table_appends") == 3
    assert value(got, "commit_table_snapshot_due") == pytest.approx(3 / 500)


def test_what_is_not_known_has_no_metric(found: GroupReading) -> None:
    """Before the first reading the age is that of the watch; an unknown lag has no series."""
    began = datetime.now(UTC) - timedelta(seconds=60)
    got = values(View(since=began.timestamp()))
    ((name, _),) = got
    assert name == "coopconsume_exporter_age_seconds"
    assert 60 <= value(got, "exporter_age_seconds", group="g") < 60 + PATIENCE
    zero, one = found.overview.partitions
    unseen = replace(found.overview, partitions=(replace(zero, end_offset=None), one),
                     expiring=None, epoch=None)  # fmt: skip
    got = values(View(GroupReading(unseen), 1.0))
    absent = ["epoch", "retention_left_seconds", "done_in_seconds", "commit_table_appends"]
    assert [name for name in absent if value(got, name, group="g") is not None] == []
    assert value(got, "lag", **ZERO) is None
    assert value(got, "pending", **ZERO) == 2
    assert value(got, "retention_records", group="g") == 0


def test_a_table_without_snapshots_grows(tmp_path: Path) -> None:
    """Past the limit; the newest reading of any group counts."""
    store = CommitStore.open(tmp_path / "commits", cluster="c")
    store.set_setting("snapshotCommits", 4)
    for _ in range(5):
        store.set_setting("note", 1)
    grown = store.growth()
    assert (grown.appends, grown.due) == (6, 1.5)
    assert grown.size > 0
    store.set_setting("snapshotCommits", 0)
    store.set_setting("snapshotBytes", 0)
    assert store.growth().due == 0.0


def test_the_newest_reading_of_the_table_counts(found: GroupReading) -> None:
    """Groups share it, and are read at different times."""
    old, new = (replace(found, growth=LogGrowth(appends, 10, appends / 500)) for appends in (9, 2))
    views = {"a": View(old, 100.0), "g": View(new, 200.0), "z": View()}
    got = [one.value for one in measurements(views, ()) if one.number.field == "appends"]
    assert got == [2]


def test_each_metric_is_declared_once() -> None:
    """A name has one meaning, whether a job or the exporter reports it."""
    declared = {*COUNTERS, *GAUGES, *JOB_GAUGES, *HISTOGRAMS, PHASES, *LABELS}
    names = [metric_name(number) for number in declared]
    assert len(names) == len(set(names))
    outside = {number.field for number in LABELS if number in (*GAUGES, *JOB_GAUGES)}
    assert {"lag", "parked", "verdictSeverity", "epoch"} < outside
    assert "outputsWaiting" not in outside


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (BrokerUnreachable("k:1", "no"), Sources(kafka=False)),
        (CommitLogUnavailable("/t", "read", "no"), Sources(kafka=True, commit_table=False)),
        (GroupNotFound("g", "/t", "k:1", ""), ANSWERED),
        (AuthenticationFailed("k:1", "PLAIN", "u", "no"), Sources(kafka=False)),
        (KafkaConnectionError("closed"), Sources(kafka=False)),
        (KafkaTimeoutError("late"), Sources(kafka=False)),
        (RequestTimedOutError(), Sources(kafka=False)),
        (CommitTableNotFound("/t"), Sources(kafka=True, commit_table=False)),
        # These are of one group: Kafka answers others.
        (NotAuthorized("READ", "TOPIC", "t", "u"), Sources(kafka=True)),
        (TopicNotFound("t", "k:1"), Sources(kafka=True)),
        (CoordinatorNotAvailableError(), Sources(kafka=True)),
        (InvalidOption("batchTime", "soon", "no"), Sources()),
        (TypeError("a defect"), Sources()),
    ],
)
def test_an_error_says_which_source_did_not_answer(error: Exception, after: Sources) -> None:
    """The table is read once Kafka has answered; of the other one the last answer counts."""
    assert Sources().after(error) == after
    kept = ANSWERED.after(BrokerUnreachable("k:1", "no"))
    assert kept == Sources(kafka=False, commit_table=True)
    assert kept.after(NotAuthorized("READ", "TOPIC", "t", "u")) == ANSWERED
    assert ANSWERED.after(InvalidOption("batchTime", "soon", "no")) == ANSWERED


class Panic(BaseException):
    """As Rust code raises it."""


def test_why_a_group_cannot_be_read_is_said_once(
    found: GroupReading, caplog: pytest.LogCaptureFixture
) -> None:
    """Each new reason, a panic too, and that it is read again; a trace only for debug."""
    answers = iter([OSError("away"), OSError("away"), Panic("a bug"), found, found])
    read = threading.Semaphore(0)

    class Reader:
        def read(self) -> GroupReading:
            answer = next(answers, found)
            read.release()
            self.has_failed = isinstance(answer, BaseException)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        def close(self) -> None:
            if self.has_failed:
                raise OSError("it cannot even be closed")

    caplog.set_level(logging.WARNING)
    watch = GroupWatch(lambda _: Reader(), "g", 0.01)
    for _ in range(6):
        assert read.acquire(timeout=PATIENCE)
    watch.close()
    watch.join(PATIENCE)
    # Clients of tests before may log theirs.
    said = [one for one in caplog.records if one.name.startswith("coopconsume.admin")]
    assert [one.getMessage() for one in said] == [
        "group g cannot be read: OSError: away", "group g cannot be read: Panic: a bug",
        "group g is read again",
    ]  # fmt: skip
    assert all(one.exc_info is None for one in said)
    caplog.set_level(logging.DEBUG, "coopconsume.admin")
    Readability("x").failed(OSError("no"))
    assert caplog.records[-1].exc_info is not None


def test_groups_are_looked_for_again_after_a_panic(caplog: pytest.LogCaptureFixture) -> None:
    """Else the thread would have ended, and its sources would stay as they were."""
    tried = threading.Semaphore(0)

    def connect() -> Connection:
        tried.release()
        raise Panic("a bug")

    watches = Watches(lambda _: None, 60.0, [])
    with GroupDiscovery(connect, watches, 0.01):
        for _ in range(3):
            assert tried.acquire(timeout=PATIENCE)
    said = [one.getMessage() for one in caplog.records]
    assert said == ["the list of groups cannot be read: Panic: a bug"]


def test_ages_of_blockers_do_not_grow_without_a_reading(found: GroupReading) -> None:
    """The record may be done meanwhile; only the age of the reading itself grows."""
    since = found.overview.partitions[0].blocker.since
    at = since.timestamp() + 7
    got = values(View(found, at))
    assert value(got, "stable_offset_age_seconds", **ZERO) == pytest.approx(7)
    long_ago = values(View(found, since.timestamp() - 1000))
    assert value(long_ago, "stable_offset_age_seconds", **ZERO) == 0
    assert value(long_ago, "exporter_age_seconds", group="g") >= 1000


def scraped(url: str) -> dict[str, float]:
    """The values of all metrics, by name and labels."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        text = answer.read().decode()
    return {
        f"{one.name}{''.join(sorted(one.labels.values()))}": one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_a_scrape_does_not_wait_for_a_reading() -> None:
    """A source that answers nobody: the age grows, and nothing else is known."""
    reading = threading.Event()
    over = threading.Event()

    class Frozen:
        def read(self) -> None:
            reading.set()
            over.wait(PATIENCE)
            raise OSError

        def close(self) -> None:
            pass

    watches = Watches(lambda _: Frozen(), 60.0, ["g"])
    registry = CollectorRegistry()
    registry.register(GroupCollector(watches))
    assert reading.wait(PATIENCE)
    ages = [registry.get_sample_value("coopconsume_exporter_age_seconds", {"group": "g"})]
    ages.append(registry.get_sample_value("coopconsume_exporter_age_seconds", {"group": "g"}))
    assert 0 <= ages[0] < ages[1]
    assert registry.get_sample_value("coopconsume_exporter_up", {"source": "kafka"}) is None
    over.set()
    watches.close()


def test_groups_that_come_later_are_watched_and_former_ones_are_not(found: GroupReading) -> None:
    """As the commit table knows them; the end is for all."""

    class Reader:
        def read(self) -> GroupReading:
            return found

        def close(self) -> None:
            pass

    watches = Watches(lambda _: Reader(), 60.0, ["g"])
    watches.follow(["g", "h"])
    first = watches.watched()
    assert first.keys() == {"g", "h"}
    first["g"].asked_at = -1e9
    watches.follow(["h"])
    assert watches.watched().keys() == {"h"}
    watches.close()
    watches.follow(["h", "i"])
    assert watches.watched().keys() == {"h"}, "nobody would end it"


def test_an_exporter_begins_without_its_sources(tmp_path: Path) -> None:
    """It says that Kafka does not answer; of the table it knows nothing yet."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "commitTable": str(tmp_path / "commits")}
    with Exporter(options, host="127.0.0.1", port=0, interval=0.1) as exporter:
        until = time.monotonic() + PATIENCE
        name = "coopconsume_exporter_upkafka"
        while name not in (got := scraped(exporter.url)) and time.monotonic() < until:
            time.sleep(0.05)
        assert got == {name: 0, "coopconsume_exporter_interval_seconds": 0.1}
        port = int(exporter.url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(ExporterUnavailable, match=r"cannot listen .* another --port"):
            Exporter(options, host="127.0.0.1", port=port, interval=1.0)
    assert not exporter.is_open
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    with pytest.raises(InvalidOption):
        Exporter(options | {"batchTime": "soon"}, host="127.0.0.1", port=0, interval=1.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """By SIGTERM as by Ctrl-C, also while Kafka does not answer; options come from a file, too."""
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers=127.0.0.1:1\ncommitTable={tmp_path / 'commits'}\n")
    words = ["exporter", "--command-config", str(file), "--group", "g", "--port", "0"]
    command = subprocess.Popen(
        [sys.executable, "-m", "coopconsume", *words], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert command.stdout is not None
        line = command.stdout.readline()
        url = re.fullmatch(r"metrics: (http://127\.0\.0\.1:\d+/metrics)\n", line)
        assert url is not None, line
        assert "coopconsume_exporter_age_secondsg" in scraped(url[1])
        command.send_signal(number)
        output, errors = command.communicate(timeout=PATIENCE)
        assert (command.returncode, output) == (0, ""), errors
        assert "Traceback" not in errors
    finally:
        command.kill()
