"""What a job reports: progress events, listeners, OpenTelemetry, Prometheus, logs as JSON."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.admin.overview.metrics import LABELS
from coopconsume.cli.logs import LogScreen, TextScreen, log_line
from coopconsume.group.owned import Failed
from coopconsume.monitoring import (
    JsonFormatter,
    LoggingListener,
    OpenTelemetryListener,
    PrometheusListener,
    QueryListener,
)
from coopconsume.monitoring.prometheus import metric_name
from coopconsume.monitoring.waiting_lines import WaitingLines, left_behind
from coopconsume.runtime.events import CommitAnswered
from coopconsume.runtime.plan import BatchPlan, Partition
from coopconsume.runtime.status import progress as progress_module
from coopconsume.runtime.status.progress import Meter
from coopconsume.runtime.status.waiting import WaitingFor
from coopconsume.worker.handler_lines import CallPlace, HandlerLine, note_of
from coopconsume.worker.report import (
    Failure,
    PartitionReport,
    SlotReport,
    SlotStats,
    pack_offsets,
    pack_times,
)
from tests.partitions import make_partition
from tests.times import with_and_without_date

IDENTITY = {
    "id": "an-id", "runId": "a-run", "name": "billing", "groupId": "shop", "clientId": "shop-h-7",
}  # fmt: skip
RESOURCES = Path(__file__).parents[3] / "docs/reference/monitoring"
PLAN = BatchPlan((), {0: {}}, {})


class Recorder(QueryListener):
    """Keeps the events that it gets."""

    def __init__(self):
        self.events = []

    def onQueryStarted(self, event):  # noqa: N802
        self.events.append(("started", event.groupId))

    def onQueryProgress(self, event):  # noqa: N802
        self.events.append(("progress", event.progress["totals"]["done"]))

    def onQueryIdle(self, event):  # noqa: N802
        self.events.append(("idle", event.runId))

    def onQueryTerminated(self, event):  # noqa: N802
        self.events.append(("terminated", event.exception))


class Fails(QueryListener):
    """Fails at everything."""

    def onQueryProgress(self, event):  # noqa: N802
        raise RuntimeError("a bad listener")


def partition() -> Partition:
    """A partition of ten offsets: 2 is parked with 4 behind it, 3 and 5 are done."""
    found = make_partition(
        0, "orders", 0, stable=2, committed=OffsetRanges(), slots=[(0, (KeyRange(),))],
        ordering="key", whole=True,
    )  # fmt: skip
    found.ledger.end = 10
    share = found.cursors[0]
    share.dispatched, share.next_position = OffsetRanges([(2, 5)]), 6
    parked = Failure(2, 77, b"k", 3, math.inf, "no luck")
    done = pack_offsets(pa.array([3, 5], pa.int64()))
    found.slots.reported(0, PartitionReport(done, None, [parked], [(4, 77)]), 1_000.0)
    found.commit_answered(found.ledger.to_commit, 2, OffsetRanges())
    return found


def run(listeners) -> Meter:
    """A meter that saw one batch of three handlers, and its commit."""
    meter = Meter(IDENTITY, 1, listeners)
    meter.started()
    meter.joined(4)
    meter.launched(0, PLAN)
    meter._launched[0] -= 5.0
    stamps = pack_times(pa.array([1_000, 2_500], pa.int64()))
    found = {0: PartitionReport(pack_offsets(pa.array([3, 5])), times=stamps)}
    stats = SlotStats(handled=3, failures=1, busy=3.0)
    report = SlotReport(0, 0, partitions=found, dead=[object()], stats=stats)
    for seconds in (0.004, 0.2, 7.0):
        report.stats.starts.add(seconds)
    for seconds in (0.125, 0.125, 3.5):
        report.stats.calls.add(seconds)
    meter.reported(report, [("orders", 0)])
    meter.batch_ended(0, 6.0)
    three = {("orders", 0): (OffsetRanges([(3, 3)]), 2)}
    meter.committed(CommitAnswered(three, {}, (0.25, 0.5), answered_at=3.0))
    meter.progressed(2, (0.25, 0.5), [partition()])
    return meter


def test_a_program_says_once_what_it_waits_for(capsys, monkeypatch):
    """Not at once, and not again for the same reason until it has said another one."""
    monkeypatch.setattr(progress_module, "_IDLE_EVERY", 0.0)
    meter = Meter(IDENTITY, 1, [WaitingLines("shop")])

    def written(found):
        meter.waits(found, [])
        at_once = capsys.readouterr().err
        meter.idle([])
        meter.idle([])
        return at_once, capsys.readouterr().err

    records = WaitingFor("newRecords", "waiting for new records")
    retry = WaitingFor("retry", "waiting for the next retry")
    assert written(records) == ("", "coopconsume, group shop: waiting for new records\n")
    assert written(None) == ("", "")
    assert written(records) == ("", "")
    assert written(retry) == ("", "coopconsume, group shop: waiting for the next retry\n")


def test_a_program_says_at_its_end_what_waits_for_a_decision(capsys):
    """What was done, how many records wait, what is behind them, and the next command."""
    meter = run([WaitingLines("shop")])
    meter.ended(None)
    assert capsys.readouterr().err == (
        "coopconsume, group shop: ended: 2 records done, 1 waits for your decision with 1 record "
        "behind it; next: coopconsume records list shop\n"
    )
    nothing = Meter(IDENTITY, 1, [WaitingLines("shop")])
    nothing.ended(None)
    nothing = Meter(IDENTITY, 1, [WaitingLines("shop")])
    nothing.progressed(2, (0.0, 0.0), [])
    nothing.ended(None)
    assert capsys.readouterr().err == ""


def test_the_last_line_of_a_command_says_what_waits_for_a_decision():
    """Of several records, with what is behind all of them; without any of these, only the rest."""
    (event,) = run([]).recent
    assert left_behind(event | {"parked": 2, "behindParked": 1_005}) == (
        "2 wait for your decision with 1,005 records behind them; "
        "next: coopconsume records list shop"
    )
    assert left_behind(event | {"parked": 2, "behindParked": 0}).startswith(
        "2 wait for your decision; next: "
    )
    assert left_behind(event | {"parked": 0, "behindParked": 0}) == ""


def test_the_last_event_shows_what_a_job_leaves():
    """Also of a job that committed nothing; it makes no event of nothing, or of the same."""
    meter = Meter(IDENTITY, 1)
    meter.leaves([])
    assert meter.recent == []
    meter.leaves([partition()])
    meter.leaves([partition()])
    assert [(one["parked"], one["behindParked"]) for one in meter.recent] == [(1, 1)]
    meter = Meter(IDENTITY, 1)
    meter.waits(WaitingFor("group", "waiting for group shop"), [])
    meter.leaves([partition()])
    assert [one["parked"] for one in meter.recent] == [0, 1], "it had no key ranges yet"


def test_an_event_describes_a_whole_batch():
    """Counts, rates, sums and phases; what was parked has no due time; it is plain JSON."""
    (event,) = run([]).recent
    event_dict = json.loads(event.json)
    assert event_dict == json.loads(event.prettyJson) == event
    assert {name: event_dict[name] for name in IDENTITY} == IDENTITY
    assert (event_dict["numInputRows"], event_dict["numDeadLetters"], event_dict["numRetries"]) == (
        3,
        1,
        0,
    )
    assert (event_dict["epoch"], event_dict["batchId"]) == (4, 0)
    read = event_dict["durationMs"].pop("read")
    assert read >= 2_000, "what no handler took of the time before the report"
    assert event_dict["durationMs"] == {
        "handlers": 3000,
        "batch": 6000,
        "outputs": 250,
        "commit": 500,
    }
    assert (
        event_dict["lag"],
        event_dict["pending"],
        event_dict["parked"],
        event_dict["behindParked"],
        event_dict["gapRanges"],
    ) == (6, 1, 1, 1, 2)
    assert event_dict["startLatency"] == {
        "count": 3, "sumSeconds": 7.204, "p50Seconds": 0.175, "p99Seconds": 9.85,
        "buckets": [[0.005, 1], [0.2, 1], [10.0, 1]],
    }  # fmt: skip
    assert event_dict["commitLatency"]["buckets"] == [[2.0, 1]], "5 is not committed"
    (found,) = event_dict["partitions"]
    assert found["blocker"]["dueInSeconds"] is None
    assert found["blocker"]["behind"] == 1
    verdict = event_dict["verdict"]
    assert (event_dict["verdictSeverity"], verdict["reason"]) == (3, "decision")
    assert verdict["sentence"] in {
        f"1 key waits for your decision since {since}: 1 record behind k (orders-0@2)"
        for since in with_and_without_date(datetime.fromisoformat(verdict["since"]))
    }
    assert verdict["records"] == [{"topic": "orders", "partition": 0, "offset": 2, "key": "k"}]


def test_a_meter_counts_from_event_to_event():
    """An event does not repeat what the last one reported; arrivals are the growth of the ends."""
    meter = run([])
    later = partition()
    later.ledger.end = 60
    later.ledger.max_outputs_waiting = 5
    meter.progressed(1, (0.0, 0.0), [later])
    event = meter.recent[-1]
    waiting = len(later.ledger.done)
    assert event["outputsWaiting"] == waiting > meter.recent[0]["outputsWaiting"] == 0
    assert (event["numInputRows"], event["numDeadLetters"]) == (0, 0)
    assert event["startLatency"]["count"] == event["commitLatency"]["count"] == 0
    assert event["totals"]["done"] == 3
    assert event["inputRowsPerSecond"] > 0
    assert event["durationMs"]["batch"] == 0


def test_a_job_knows_when_it_is_done(monkeypatch):
    """By the rates of all members of its group; none of them is known after a single event."""
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    meter = Meter(IDENTITY, 1)
    sentences = []
    for seconds, stable, end in ((0, 0, 1_000), (10, 200, 1_050), (40, 200, 1_050)):
        clock.now = 1_000.0 + seconds
        found = make_partition(
            0, "orders", 0, stable=stable, committed=OffsetRanges(), slots=[(0, (KeyRange(),))],
            ordering="key", whole=True,
        )  # fmt: skip
        found.ledger.end = end
        meter.progressed(0, (0.0, 0.0), [found])
        sentences.append(meter.recent[-1]["verdict"]["sentence"])
    assert sentences == [
        "Working: 1,000 records not done", "Working, done in 57 s", "Working: 850 records not done"
    ]  # fmt: skip
    assert [event["inputRowsPerSecond"] for event in meter.recent] == [0.0, 5.0, 0.0]


def test_listeners_are_notified_and_cannot_harm(monkeypatch, caplog):
    """Start, progress, idleness and end reach all; one that fails is logged and left alone."""
    recorder = Recorder()
    meter = run([Fails(), recorder])
    assert "a listener failed in onQueryProgress" in caplog.text
    monkeypatch.setattr(progress_module, "_IDLE_EVERY", math.inf)
    meter.idle([partition()])
    assert recorder.events == [("started", "shop"), ("progress", 2)]
    monkeypatch.setattr(progress_module, "_IDLE_EVERY", 0.0)
    meter.idle([partition()])
    drained = make_partition(
        0, "orders", 0, stable=2, committed=OffsetRanges(), slots=[(0, (KeyRange(),))],
        ordering="key", whole=True,
    )  # fmt: skip
    drained.ledger.end = 2
    meter.idle([drained])
    meter.ended(ValueError("enough"))
    assert recorder.events[2:] == [
        ("progress", 2), ("progress", 2), ("idle", "a-run"), ("terminated", "ValueError: enough")
    ]  # fmt: skip


def assert_resources_fit(scraped):
    """The dashboard and the alert rules use only metrics of jobs and of the exporter."""
    emitted = set(re.findall(r"^(coopconsume_\w+)", scraped, re.MULTILINE))
    emitted |= set(map(metric_name, LABELS))
    assert json.loads((RESOURCES / "grafana-dashboard.json").read_text())["panels"]
    for name in ("grafana-dashboard.json", "prometheus-alerts.yml"):
        used = set(re.findall(r"coopconsume_\w+", (RESOURCES / name).read_text()))
        assert used, name
        assert used <= emitted, f"{name}: no such metrics: {sorted(used - emitted)}"
    # Pending records include parked ones.
    assert not re.search(
        r"_pending\b.*\+.*_parked\b", (RESOURCES / "grafana-dashboard.json").read_text()
    )


def test_prometheus_reports_the_same_numbers():
    """Counters grow by what is new, gauges are of each partition, and end with the query."""
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    listener = PrometheusListener(registry)
    meter = run([listener])
    meter.progressed(5, (0.0, 0.0), [partition()])
    query = {"group": "shop", "query": "billing", "member": "shop-h-7"}
    place = query | {"topic": "orders", "partition": "0"}
    value = registry.get_sample_value
    assert value("coopconsume_records_done_total", query) == 7
    assert value("coopconsume_records_dead_total", query) == 1
    assert value("coopconsume_lag", place) == 6
    assert value("coopconsume_parked", place) == 1
    assert value("coopconsume_epoch", query) == 4
    assert value("coopconsume_rebalances_total", query) == 1
    assert value("coopconsume_stable_offset_age_seconds", place) is not None
    assert value("coopconsume_blocker_attempts", place) == 3
    assert value("coopconsume_in_doubt_seconds", place) == 0
    assert value("coopconsume_slot_silent_seconds", query) == 0
    assert value("coopconsume_handler_oldest_seconds", query) == 0
    assert value("coopconsume_verdict", query) == 3
    assert value("coopconsume_handler_duration_seconds_count", query) == 3
    assert value("coopconsume_handler_duration_seconds_sum", query) == 3.75
    for below, counted in (("0.1", 0), ("0.15", 2), ("3.0", 2), ("5.0", 3), ("+Inf", 3)):
        calls = query | {"le": below}
        assert value("coopconsume_handler_duration_seconds_bucket", calls) == counted
    for below, counted in (("0.003", 0), ("0.005", 1), ("0.2", 2), ("10.0", 3), ("+Inf", 3)):
        starts = query | {"le": below}
        assert value("coopconsume_latency_start_seconds_bucket", starts) == counted
    assert value("coopconsume_latency_start_seconds_sum", query) == 7.204
    assert value("coopconsume_latency_commit_seconds_count", query) == 1
    commits = query | {"phase": "commit", "le": "0.5"}
    assert value("coopconsume_phase_duration_seconds_bucket", commits) == 1
    assert_resources_fit(client.generate_latest(registry).decode())
    assert value("coopconsume_phase_duration_seconds_sum", query | {"phase": "handlers"}) == 3
    meter.ended(None)
    assert value("coopconsume_lag", place) is None
    assert value("coopconsume_verdict", query) is None, "a query that has ended alerts nobody"
    assert value("coopconsume_records_done_total", query) == 7
    run([listener])  # Of another run of the query.
    assert value("coopconsume_latency_start_seconds_count", query) == 6


class Member:
    """A member of a group of several, with a listener of its own."""

    def __init__(self, make, listener, ranges=(), leads=None, name="member"):
        self.listener, self.name = make(listener), name
        own = {"runId": f"run-{id(self)}", "clientId": name}
        self.meter = Meter(IDENTITY | own, 1, [self.listener])
        self.meter.started()
        self.meter.joined(4)
        self.partition = make_partition(
            0, "orders", 0, stable=2, committed=OffsetRanges([(5, 5)]), leads=leads,
            slots=[(0, tuple(ranges))], ordering="key" if leads is None else "none", whole=False,
        )  # fmt: skip
        self.partition.ledger.end = 10
        if leads is not None:
            self.partition.chunks.pending = 2

    def report(self):
        """Reports progress."""
        self.meter.progressed(1, (0.0, 0.0), [self.partition])


@pytest.mark.parametrize("by_chunks", [False, True])
def test_sums_over_members_count_a_shared_partition_once(by_chunks):
    """By one member, also after its share has moved; each member reports what is its own."""
    client = pytest.importorskip("prometheus_client")
    registries = [client.CollectorRegistry() for _ in range(3)]
    pieces = KeyRange().split(3)
    members = [
        Member(PrometheusListener, registry, (), i == 1, name=f"member-{i}")
        if by_chunks
        else Member(PrometheusListener, registry, pieces[i : i + 1], name=f"member-{i}")
        for i, registry in enumerate(registries)
    ]
    place = {"group": "shop", "query": "billing", "topic": "orders", "partition": "0"}

    def found(name):
        return [
            registry.get_sample_value(f"coopconsume_{name}", place | {"member": f"member-{i}"})
            for i, registry in enumerate(registries)
        ]

    if not by_chunks:
        for member, offset in zip(members, (2, 3, 4), strict=True):
            failed = Failed(offset, pieces[offset - 2].first, 1, 0.0, "no")
            member.partition.restore([failed])
    for member in members:
        member.report()
    first = 1 if by_chunks else 0
    for name, value in (("lag", 7), ("stable_offset", 2), ("gap_ranges", 1)):
        assert found(name) == [value if i == first else None for i in range(3)]
    assert found("in_doubt_seconds") == [0, 0, 0]
    assert found("pending") == ([None, 2, None] if by_chunks else [1, 1, 1])
    if by_chunks:
        return
    for member, ranges in zip(members, (pieces[1:2], pieces[:1], pieces[2:]), strict=True):
        member.partition.cursors[0].ranges = tuple(ranges)
        member.report()
    assert found("lag") == [None, 7, None], "the series of the former owner is gone"
    members[1].meter.ended(None)
    assert found("pending")[1] is None


def test_opentelemetry_reports_a_shared_partition_once():
    """As for Prometheus."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    points = []
    for piece in KeyRange().split(2):
        reader = InMemoryMetricReader()
        Member(OpenTelemetryListener, MeterProvider([reader]), [piece]).report()
        metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        points.append({one.name: len(list(one.data.data_points)) for one in metrics})
    assert [found.get("coopconsume.lag", 0) for found in points] == [1, 0]
    assert [found["coopconsume.pending"] for found in points] == [1, 1]


def test_opentelemetry_reports_the_same_numbers():
    """Counters, gauges and phases under OpenTelemetry's own attribute names."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    listener = OpenTelemetryListener(MeterProvider([reader]))
    meter = run([listener])
    meter.progressed(5, (0.0, 0.0), [partition()])

    def points():
        data = reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics[0].metrics if data else []
        return {metric.name: list(metric.data.data_points) for metric in metrics}

    found = points()
    (done,) = found["coopconsume.records.done"]
    assert done.value == 7
    assert done.attributes["messaging.consumer.group.name"] == "shop"
    (lag,) = found["coopconsume.lag"]
    assert lag.value == 6
    assert lag.attributes["messaging.destination.name"] == "orders"
    assert lag.attributes["messaging.client.id"] == "shop-h-7"
    assert lag.attributes["messaging.destination.partition.id"] == "0"
    phases = {p.attributes["coopconsume.phase"]: p.sum for p in found["coopconsume.phase.duration"]}
    assert phases["handlers"] == 3.0
    assert found["coopconsume.slot.silent"][0].value == 0
    assert found["coopconsume.verdict"][0].value == 3
    meter.ended(None)
    assert not points().get("coopconsume.lag")


def test_a_command_that_logs_json_says_nothing_else():
    """What a screen would show is a line of the log; afterwards all is as it was before."""
    stream = io.StringIO()
    root = logging.getLogger("coopconsume")
    before = root.level, root.propagate, list(root.handlers)
    with LogScreen(stream) as screen:
        screen.status("1,000 done", force=True)
        screen.line("stopped: 1,000 records done")
        logging.getLogger("coopconsume.runtime.loop").warning("batch %d failed", 3)
        log_line(HandlerLine("paid %s", CallPlace("orders", 1, 7, 7, "k", 2)))
        log_line(note_of(3))
    logged = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["msg"] for line in logged] == [
        "stopped: 1,000 records done", "batch 3 failed", "paid %s", "… 3 more lines not shown"
    ]  # fmt: skip
    assert logged[2]["context"] == {
        "topic": "orders", "partition": 1, "offset": 7, "lastOffset": 7, "key": "k", "attempt": 2
    }  # fmt: skip
    assert (logged[2]["logger"], "context" in logged[3]) == ("coopconsume.handlers", False)
    assert before == (root.level, root.propagate, list(root.handlers))


_OTHERS = """
import logging, subprocess, sys, warnings
from coopconsume.cli.logs import LogScreen

logging.basicConfig(format="of the user's module: %(message)s")
with LogScreen(sys.stderr) as screen:
    screen.line("a line")
    subprocess.run(["sh", "-c", "echo of a JVM >&2"], check=True)
    logging.getLogger("commits.log").warning("of a library")
    warnings.warn("of Python")
print("afterwards", file=sys.stderr)
"""


def test_all_of_standard_error_is_json_while_a_command_logs_json():
    """Spark's JVM, other libraries and Python itself write there, too."""
    ran = subprocess.run(
        [sys.executable, "-c", _OTHERS], capture_output=True, text=True, check=True
    )
    *lines, last = ran.stderr.splitlines()
    assert last == "afterwards"
    said = {(found["logger"], found["msg"].splitlines()[0]) for found in map(json.loads, lines)}
    assert {logger for logger, _ in said} == {
        "coopconsume.run", "stderr", "commits.log", "py.warnings"
    }  # fmt: skip
    assert {("stderr", "of a JVM"), ("commits.log", "of a library")} < said


def test_warnings_do_not_mix_with_the_status_of_a_terminal(monkeypatch):
    """They take its place, as lines do; a program's own logging is left alone."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    with TextScreen(stream) as screen:
        screen.status("1,000 done", force=True)
        logging.getLogger("coopconsume.runtime.loop").warning("batch %d failed", 3)
    assert stream.getvalue() == "1,000 done\r\x1b[2Kbatch 3 failed\n"
    assert root.handlers == []
    own = logging.NullHandler()
    monkeypatch.setattr(root, "handlers", [own])
    with TextScreen(stream):
        assert root.handlers == [own]


def test_logs_are_json_with_what_was_given_beside(caplog):
    """One object a line: time, level, logger, message, context and exception."""
    caplog.set_level(logging.INFO, "coopconsume.query")
    meter = run([LoggingListener()])
    meter.ended(ValueError("enough"))
    records = [record for record in caplog.records if record.name == "coopconsume.query"]
    lines = [json.loads(JsonFormatter().format(record)) for record in records]
    assert [line["msg"] for line in lines] == [
        "query started", "query progress", "query terminated"
    ]  # fmt: skip
    assert [line["level"] for line in lines] == ["INFO", "INFO", "ERROR"]
    assert lines[0]["context"]["query"]["groupId"] == "shop"
    assert lines[1]["context"]["progress"]["lag"] == 6
    assert lines[2]["context"]["query"]["exception"] == "ValueError: enough"
    try:
        int("x")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "f", 1, "%s\nbad", ("so",), None)
        record.exc_info = sys.exc_info()
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["msg"] == "so\nbad"
    assert json.loads(text)["exception"]["class"] == "ValueError"
