"""Each handler call has an OpenTelemetry span, in the trace of its record."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from importlib.metadata import entry_points

import pytest

from coopconsume.errors import InvalidOption
from coopconsume.options import Options
from coopconsume.record import Reject, Retry, RetryPolicy
from coopconsume.runtime.checks import check_settings
from coopconsume.runtime.job_spec import HandlerSettings, JobSpec
from coopconsume.worker import handler_spans
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.report import PartitionWork, QueryIds
from tests.unit.worker.slot_harness import PATIENCE, WAYS, Together, done, in_way, run

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)
from opentelemetry.trace import SpanKind, StatusCode

ROWS = [(0, o, b"k%d" % o) for o in range(12)]
WORDS = {"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", "commitTable": "/nowhere"}
QUERY = QueryIds("bills", "q", "r", 1, "app-1")
ONCE = RetryPolicy(max_attempts=1)


def trace_id(offset):
    """The trace in which a record was made; its span has the same number."""
    return 0xABC000 + offset


def made_in(offset, *more, sampled=True):
    """The headers of a record."""
    context = f"00-{trace_id(offset):032x}-{trace_id(offset):016x}-0{sampled:d}"
    return [("traceparent", context.encode()), ("tracestate", b"shop=1"), *more]


HEADERS = [made_in(o) for _, o, _ in ROWS]


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """Has what is set in the process as it was before."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", type(trace._TRACER_PROVIDER_SET_ONCE)())
    monkeypatch.setattr(handler_spans, "_used", None)
    monkeypatch.setattr(handler_spans, "_export", None)
    for cached in (handler_spans._from_environment, handler_spans._warn):
        cached.cache_clear()


@pytest.fixture
def exporter():
    """The spans that end, in this process; the handler's code has set the provider."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def traced(handler, rows=ROWS, headers=HEADERS, **more):
    """Run rows through a handler whose calls have spans."""
    return run(handler, rows, headers=headers[: len(rows)], has_spans=True, query=QUERY, **more)


def client_span(name):
    """The span of a client that a handler calls; it has the provider of now."""
    return trace.get_tracer("client").start_span(name)


def calls_of(exporter):
    """The spans of calls, by offset."""
    spans = [span for span in exporter.get_finished_spans() if span.kind == SpanKind.CONSUMER]
    found = {span.attributes["messaging.kafka.offset"]: span for span in spans}
    assert len(found) == len(spans)
    return found


def inner_of(exporter):
    """The spans of clients that handlers have called, by their name."""
    spans = exporter.get_finished_spans()
    return {span.name: span for span in spans if span.kind != SpanKind.CONSUMER}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_has_a_span_with_the_attributes_of_the_conventions(way, exporter):
    """In the trace of the producer, linked to its span, and current in the call alone."""

    def handler(record):
        client_span(f"client {record.offset}").end()
        assert record.headers[0][0] == "traceparent"

    handler, concurrency = in_way(way, handler)
    work = {0: PartitionWork(((0, 100),), {3: 4})}
    assert done(traced(handler, concurrency=concurrency, work=work)) == list(range(12))
    calls, inner = calls_of(exporter), inner_of(exporter)
    assert sorted(calls) == list(range(12))
    for offset, span in calls.items():
        assert (span.name, span.status.status_code) == ("process t", StatusCode.UNSET)
        assert span.attributes == {
            "messaging.system": "kafka", "messaging.operation.name": "process",
            "messaging.operation.type": "process", "messaging.destination.name": "t",
            "messaging.destination.partition.id": "10", "messaging.kafka.offset": offset,
            "messaging.consumer.group.name": "bills", "messaging.client.id": "app-1",
            "coopconsume.attempt": 5 if offset == 3 else 1,
        }  # fmt: skip
        (link,) = span.links
        for made in (span.parent, link.context):
            assert (made.trace_id, made.span_id) == (trace_id(offset), trace_id(offset))
            assert made.trace_state == {"shop": "1"}
        child = inner[f"client {offset}"]
        assert child.parent.span_id == span.context.span_id
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_calls_side_by_side_have_their_own_spans(way, exporter):
    """All calls are at work at once; tasks and threads of a coroutine are in its span, too."""
    together, here = Together(12), []

    def client(offset):
        client_span(f"client {offset}").end()

    async def coroutine(record):
        here.append(record)
        await together.awaited(len(here))
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(client, record.offset))

    def plain(record):
        here.append(record)
        together.wait(len(here))
        client(record.offset)

    handler = coroutine if way == "coroutines" else plain
    assert done(traced(handler, concurrency=12)) == list(range(12))
    calls, inner = calls_of(exporter), inner_of(exporter)
    assert {name: span.parent.span_id for name, span in inner.items()} == {
        f"client {o}": span.context.span_id for o, span in calls.items()
    }


@pytest.mark.parametrize("kind", ["arrow", "pandas", "coroutine", "returned"])
def test_a_frame_has_one_span_with_links(kind, exporter):
    """To the records that have a trace, 128 at most; and its clients are in it."""

    def handler(frame):
        client_span("client").end()

    async def coroutine(frame):
        handler(frame)

    def returned(frame):
        return coroutine(frame)

    function = {"coroutine": coroutine, "returned": returned}.get(kind, handler)
    rows = [(0, o, b"k") for o in range(150)]
    headers = [made_in(o) if o != 5 else [] for o in range(150)]
    work = {0: PartitionWork(((0, 1_000),), {3: 4})}
    frames = FrameHandler(function, 1_000, "pandas" if kind == "pandas" else "arrow")
    report = traced(frames, rows, headers, batch_rows=150, work=work)
    assert done(report) == list(range(150))
    child, span = exporter.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("process t", SpanKind.CONSUMER, None)
    assert span.attributes["messaging.batch.message_count"] == 150
    assert span.attributes["messaging.destination.partition.id"] == "10"
    assert child.parent.span_id == span.context.span_id
    assert [
        (one.context.trace_id, *one.attributes.values()) for one in span.links
    ] == [(trace_id(o), o, 5 if o == 3 else 1) for o in range(128) if o != 5]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_returned", [False, True])
def test_a_failure_is_in_the_span(way, is_returned, exporter):
    """Raised or returned, with its type; records of others and order are as without spans."""

    def handler(record):
        kinds = {1: ValueError("no"), 2: Retry(9.0, "busy"), 3: Reject("bad")}
        error = kinds.get(record.offset)
        if error is not None and not is_returned:
            raise error
        return error

    report = traced(handler, ROWS[:4], way=way, policy=ONCE)
    assert sorted(letter.offset for letter in report.dead) == [1, 2, 3]
    calls = calls_of(exporter)
    assert {o: span.attributes.get("error.type") for o, span in calls.items()} == {
        0: None, 1: "ValueError", 2: "Retry", 3: "Reject",
    }  # fmt: skip
    assert (calls[1].status.status_code, calls[1].status.description) == (
        StatusCode.ERROR, "ValueError: no",
    )  # fmt: skip
    assert [event.name for event in calls[1].events] == ["exception"]


def test_the_exception_of_a_span_has_the_lines_of_its_call(exporter, monkeypatch):
    """With `handlerLogLines`, as the trace of its dead letter has them."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    factory = logging.getLogRecordFactory()

    def handler(record):
        sys.stdout.write("card ends with 4711\n")
        raise OSError

    try:
        traced(handler, ROWS[:1], log_lines=3, policy=ONCE)
    finally:
        logging.setLogRecordFactory(factory)
    (event,) = calls_of(exporter)[0].events
    assert "card ends with 4711" in event.attributes["exception.stacktrace"]


def test_the_producer_decides_what_is_sampled(exporter):
    """By its flag, as the SDK samples by default; a record without a trace begins its own."""
    headers = [made_in(0, sampled=False), made_in(1), [], [("traceparent", b"odd\xff")]]
    headers[1] += made_in(7, ("baggage", b"tenant=7"))
    found = {}

    def handler(record):
        found[record.offset] = baggage.get_baggage("tenant")

    assert done(traced(handler, ROWS[:4], headers)) == [0, 1, 2, 3]
    calls = calls_of(exporter)
    assert {o: span.parent and span.parent.trace_id for o, span in calls.items()} == {
        1: trace_id(7), 2: None, 3: None,
    }  # fmt: skip
    assert [len(calls[o].links) for o in (1, 2, 3)] == [1, 0, 0]
    assert found == {0: None, 1: "7", 2: None, 3: None}


def test_a_tombstone_is_named_so(exporter):
    """It has no value."""
    traced(lambda _: None, ROWS[:2], values=[None, b""])
    found = [o for o, span in calls_of(exporter).items()
             if span.attributes.get("messaging.kafka.message.tombstone")]  # fmt: skip
    assert found == [0]


def test_without_the_option_nothing_is_made(exporter):
    """Though there is a provider."""
    assert done(run(lambda _: None, ROWS, headers=HEADERS)) == list(range(12))
    assert not exporter.get_finished_spans()
    assert handler_spans._used is None


class Broken:
    """A provider that fails, or its tracers."""

    def __init__(self, *, has_tracers):
        self._has_tracers = has_tracers

    def get_tracer(self, name):
        if not self._has_tracers:
            raise RuntimeError
        return self

    def start_span(self, *_):
        raise SystemExit

    def force_flush(self):
        raise SystemExit


@pytest.mark.parametrize("has_tracers", [True, False])
def test_an_sdk_that_fails_costs_no_record(has_tracers):
    """Calls have no spans then."""
    trace.set_tracer_provider(Broken(has_tracers=has_tracers))
    assert done(traced(lambda _: None)) == list(range(12))


def test_spans_are_exported_at_the_end_of_a_task():
    """Spark may end or freeze the worker between tasks."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    trace.set_tracer_provider(provider)
    traced(lambda _: None)
    assert sorted(calls_of(exporter)) == list(range(12))


def test_a_destination_that_hangs_holds_a_task_up_for_a_second(monkeypatch):
    """And the tasks after it not at all; the limit is shorter here."""
    monkeypatch.setattr(handler_spans, "_PATIENCE", 0.01)
    begun, goes_on = threading.Event(), threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans):
            begun.set()
            goes_on.wait(PATIENCE)

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Hanging(), schedule_delay_millis=3_600_000))
    trace.set_tracer_provider(provider)
    try:
        for _ in range(2):
            assert done(traced(lambda _: None)) == list(range(12))
        assert begun.wait(PATIENCE)
        names = [thread.name for thread in threading.enumerate()]
        assert (goes_on.is_set(), names.count("export-spans")) == (False, 1)
    finally:
        goes_on.set()
        handler_spans._export.join(PATIENCE)


_PROGRAM = """
import os
from tests.unit.worker.test_handler_spans import ROWS, traced
traced(lambda record: None, ROWS[:1])
os._exit(0)
"""


def test_the_environment_describes_the_provider():
    """As for each program with OpenTelemetry; a worker ends without Python's own end."""
    env = {"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "billing"}
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=env | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    assert '"name": "process t"' in found.stdout
    assert '"service.name": "billing"' in found.stdout


@pytest.mark.parametrize(
    ("env", "warning"),
    [
        ({"OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_SDK_DISABLED": "True", "OTEL_TRACES_EXPORTER": "console"}, ""),
        ({"OTEL_TRACES_EXPORTER": "nosuch"}, "no exporter nosuch is installed"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "no exporter otlp is installed"),
        ({}, "install one, such as opentelemetry-exporter-otlp-proto-http"),
    ],
)
def test_an_environment_without_a_destination_makes_no_spans(env, warning, monkeypatch, caplog):
    """A missing exporter is named once; records are handled."""
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    monkeypatch.setattr(handler_spans, "_installed", lambda name: _only("console", name))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert done(traced(lambda _: None)) == list(range(12))
    assert caplog.text.count("handler calls have no spans") == bool(warning)
    assert warning in caplog.text
    assert handler_spans._used is None


def test_an_exporter_that_cannot_be_made_is_named(monkeypatch, caplog):
    """The others export."""

    class Odd:
        def load(self):
            raise ImportError("no grpc")

    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "odd,console")
    monkeypatch.setattr(handler_spans, "_installed", lambda name: [Odd()] if name == "odd" else (
        entry_points(group=handler_spans._EXPORTERS, name=name)
    ))  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert len([*handler_spans._exporters()]) == 1
    assert "the exporter odd cannot be made: ImportError: no grpc" in caplog.text


def _only(installed, name):
    return entry_points(group=handler_spans._EXPORTERS, name=name) if (
        name == installed
    ) else []  # fmt: skip


@pytest.mark.parametrize(
    ("protocols", "names"),
    [
        ({}, ("otlp_proto_http", "otlp_proto_grpc")),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("otlp_proto_grpc",)),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
             "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            ("otlp_proto_http",),
        ),
    ],
)  # fmt: skip
def test_otlp_is_the_exporter_of_the_protocol(protocols, names, monkeypatch):
    """Else that which is installed."""
    for name in ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in protocols.items():
        monkeypatch.setenv(name, value)
    assert handler_spans._installed_names("otlp") == names
    assert handler_spans._installed_names("console") == ("console",)


def test_a_worker_without_the_package_makes_no_spans(monkeypatch, caplog):
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with caplog.at_level(logging.WARNING):
        assert done(traced(lambda _: None)) == list(range(12))
    assert "opentelemetry is not installed: pip install 'coopconsume[otel]'" in caplog.text


def test_a_start_without_the_package_is_refused(monkeypatch):
    """With the name of the extra."""
    options, settings = Options.parse(WORDS | {"traceHandlers": "true"}), HandlerSettings()
    check_settings(options, print, settings)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(InvalidOption, match=r"traceHandlers = .*coopconsume\[otel\]"):
        check_settings(options, print, settings)
    check_settings(Options.parse(WORDS), print, settings)


@pytest.mark.parametrize("name", ["traceHandlers", "includeHeaders"])
def test_headers_are_read_for_spans(name):
    """And without them only if something else asks for them."""
    job_spec = JobSpec(
        handler=print, concurrency=1, ordering="key", policy=RetryPolicy(), dead_letters=None,
        park=False, outputs=None,
    )  # fmt: skip
    assert not job_spec.needs_headers(Options.parse(WORDS))
    assert job_spec.needs_headers(Options.parse(WORDS | {name: "true"}))
