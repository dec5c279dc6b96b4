"""Events of OpenLineage: what is in them, and a destination that is slow, refuses or is away."""

from __future__ import annotations

import json
import logging
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pyarrow as pa
import pytest

from coopconsume.errors import InvalidOption
from coopconsume.monitoring import QueryProgressEvent
from coopconsume.monitoring.datasets import Dataset, table_dataset, topic_dataset
from coopconsume.monitoring.lineage import Lineage, LineageListener, Output, open_client
from coopconsume.options import Options
from coopconsume.runtime.checks import check_settings
from coopconsume.runtime.job_spec import HandlerSettings
from coopconsume.runtime.status.progress import Meter
from coopconsume.sinks import open_dead_letters, open_output
from coopconsume.sinks.datasets import outputs_of
from coopconsume.values.schema import named_types
from coopconsume.worker.report import DeadLetter
from tests.spark.support import until
from tests.unit.sinks.test_sinks import SCHEMA, outputs

RUN = str(uuid.uuid4())
IDENTITY = {
    "id": "an-id", "runId": RUN, "name": "billing", "groupId": "shop", "clientId": "shop-h-7",
}  # fmt: skip
WORDS = {
    "kafka.bootstrap.servers": "one:9092,two:9092", "kafka.group.id": "shop",
    "subscribe": "orders", "commitTable": "./commits",
}  # fmt: skip
#: Seconds that no test waits for in full.
LONG = 600.0


class LineageServer:
    """A server of OpenLineage on loopback.

    Attributes:
        status: Of its answers.
        answers: Cleared: it keeps its answers back.
        events: Those that it has accepted.
        requests: The number of requests that have reached it.
    """

    def __init__(self):
        self.status, self.answers, self.events, self.requests = 201, threading.Event(), [], 0
        self.answers.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                assert self.path == "/api/v1/lineage"
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = server.status
                server.requests += 1
                server.answers.wait(LONG)
                if status == 201:
                    server.events.append(event)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def states(self):
        """Of the events."""
        return [event["eventType"] for event in self.events]

    def close(self):
        """Ends."""
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """One in which nothing configures OpenLineage."""
    for name in ("URL", "CONFIG", "DISABLED", "NAMESPACE"):
        monkeypatch.delenv(f"OPENLINEAGE_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server():
    """A server, which a test may have ended before."""
    found = LineageServer()
    yield found
    found.close()


def client_of(port, retries=0):
    """A client for a port; it repeats a request so many times, without a pause."""
    retry = {"total": retries, "connect": retries, "read": retries, "backoff_factor": 0}
    url = f"http://127.0.0.1:{port}"
    return configured({"type": "http", "url": url, "timeout": LONG, "retry": retry})


def configured(transport):
    """The client that a file in the working folder configures, as users write it."""
    with open("openlineage.yml", "w") as file:
        json.dump({"transport": transport}, file)  # JSON is YAML
    return open_client()


def lineage(outputs=(), *, topics=("orders",), is_finite=False):
    """Of a query."""
    return Lineage(WORDS["kafka.bootstrap.servers"], topics, outputs, is_finite, "4.2.0")


def begun(client, found=None, *, interval=0.0, patience=LONG):
    """A listener and the meter of a query that has just started."""
    listener = LineageListener(client, found or lineage(), interval=interval, patience=patience)
    meter = Meter(IDENTITY, 1, [listener])
    meter.started()
    return listener, meter


def progress(listener, done, *topics):
    """Reports progress: records committed, and the topics of partitions that the member has."""
    partitions = [{"topic": topic} for topic in topics or ("orders",)]
    event = {"totals": {"done": done}, "partitions": partitions}
    listener.onQueryProgress(QueryProgressEvent(event))


def test_a_run_has_its_inputs_and_outputs(server, monkeypatch):
    """As users configure it by environment variables; each event has all of it."""
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "payments")
    bills = Dataset("s3://bucket", "bills", (("id", "bigint"), ("tail", "string")))
    letters = Dataset("kafka://one:9092", "letters")
    rows = [7]
    outputs = [Output(bills, lambda: rows[0]), Output(letters)]
    listener, meter = begun(open_client(), lineage(outputs))
    until(lambda: len(server.events) == 1)
    progress(listener, 5)
    until(lambda: len(server.events) == 2)
    rows[0] = 9
    progress(listener, 6)
    until(lambda: len(server.events) == 3)
    meter.ended(None)
    assert server.states == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    for event, done, written in zip(server.events, (0, 5, 6, 6), (7, 7, 9, 9), strict=True):
        assert event["run"]["runId"] == RUN
        assert event["producer"].endswith("/coopconsume")
        assert event["schemaURL"].endswith("#/$defs/RunEvent")
        assert (event["job"]["namespace"], event["job"]["name"]) == ("payments", "shop.billing")
        kind = event["job"]["facets"]["jobType"]
        assert (kind["processingType"], kind["integration"]) == ("STREAMING", "COOPCONSUME")
        engine = event["run"]["facets"]["processing_engine"]
        assert (engine["name"], engine["version"]) == ("spark", "4.2.0")
        (orders,) = event["inputs"]
        assert (orders["namespace"], orders["name"]) == ("kafka://one:9092", "orders")
        assert orders["inputFacets"]["inputStatistics"]["rowCount"] == done
        table, topic = event["outputs"]
        assert (table["namespace"], table["name"]) == ("s3://bucket", "bills")
        fields = [(one["name"], one["type"]) for one in table["facets"]["schema"]["fields"]]
        assert fields == list(bills.columns)
        assert table["outputFacets"]["outputStatistics"]["rowCount"] == written
        assert (topic["namespace"], topic["name"]) == ("kafka://one:9092", "letters")
        assert not topic["facets"]
        assert not topic["outputFacets"]


def test_events_of_a_running_query_are_rare(server):
    """Its inputs have changed, or records were committed and the interval is over."""
    listener, meter = begun(client_of(server.port), interval=LONG)

    def report(done, *topics):
        """An event that waits would be replaced by the next one."""
        progress(listener, done, *topics)
        until(lambda: listener._sender._newest is None)

    report(5)
    report(6, "orders", "returns")
    report(7, "returns")  # the member has lost a partition; it has read it
    listener._interval = 0.0
    report(8, "returns")
    report(8)
    meter.ended(None)
    assert server.states == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    names = [[one["name"] for one in event["inputs"]] for event in server.events]
    assert names == [["orders"], *[["orders", "returns"]] * 3]
    assert "inputStatistics" not in server.events[1]["inputs"][0]["inputFacets"]


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (None, "COMPLETE", None),
        (InterruptedError("the job was asked to leave at once"), "ABORT", None),
        (
            ValueError("no table at s3://key:secret@bucket/bills?token=secret"),
            "FAIL",
            "ValueError: no table at s3://key:***@bucket/bills?token=***",
        ),
    ],
)
def test_the_end_of_a_run_says_how_it_ended(tmp_path, error, state, message):
    """An error without its secrets; here with the client's file transport."""
    path = str(tmp_path / "events")
    client = configured({"type": "file", "log_file_path": path, "append": True})
    _, meter = begun(client, lineage(is_finite=True))
    meter.ended(error)
    with open(path) as file:
        first, last = map(json.loads, file)
    assert (first["eventType"], last["eventType"]) == ("START", state)
    assert (first["job"]["namespace"], first["job"]["name"]) == ("default", "shop.billing")
    assert last["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    facet = last["run"]["facets"].get("errorMessage")
    assert (facet and facet["message"]) == message


def test_a_query_does_not_wait_for_a_slow_destination(server, caplog):
    """Of events that wait the newest is sent; the end waits for a while only, and says so once."""
    server.answers.clear()
    listener, meter = begun(client_of(server.port), patience=0.1)
    until(lambda: server.requests == 1)
    for done in range(1, 100):
        progress(listener, done)
    meter.ended(None)
    listener._sender.close()
    assert [record.name for record in caplog.records] == ["coopconsume.monitoring.lineage"]
    assert "job shop.billing: lineage events are missing" in caplog.text
    assert "not sent within 0.1 s" in caplog.text
    server.answers.set()
    until(lambda: len(server.events) == 2)
    assert server.states == ["START", "COMPLETE"]
    assert server.events[1]["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 99


def test_a_destination_that_is_away_costs_one_warning(server, caplog):
    """However often the client repeats a request, and however many events there are."""
    server.close()
    with caplog.at_level(logging.WARNING):
        listener, meter = begun(client_of(server.port, retries=3))
        until(lambda: caplog.records)
        for done in range(5):
            progress(listener, done)
        meter.ended(None)
    assert [record.name for record in caplog.records] == ["coopconsume.monitoring.lineage"]
    assert "the job continues" in caplog.text
    assert not listener._sender._thread.is_alive()
    with caplog.at_level(logging.WARNING):
        logging.getLogger("urllib3.connectionpool").warning("of another thread")
    assert "of another thread" in caplog.text


def test_a_start_that_was_refused_is_sent_first_once_the_destination_is_back(server, caplog):
    """Consumers of events get one for each run."""
    server.status = 503
    with caplog.at_level(logging.WARNING):
        listener, meter = begun(client_of(server.port))
        until(lambda: "503" in caplog.text)
        progress(listener, 1)
        until(lambda: server.requests == 2)
        server.status = 201
        progress(listener, 2)
        until(lambda: "RUNNING" in server.states)
        meter.ended(None)
    assert server.states == ["START", "RUNNING", "COMPLETE"]
    assert len(caplog.records) == 1


def test_there_is_no_client_where_it_is_turned_off(monkeypatch):
    """By the client's own variable."""
    monkeypatch.setenv("OPENLINEAGE_URL", "http://localhost:1")
    assert open_client() is not None
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert open_client() is None


def test_a_wrong_configuration_is_refused(monkeypatch):
    """With the client's reason, without secrets."""
    monkeypatch.setenv("OPENLINEAGE_URL", "http:/user:secret@lineage")
    with pytest.raises(InvalidOption, match=r"emitLineage.*OPENLINEAGE_URL") as refused:
        open_client()
    assert "secret" not in str(refused.value)


def test_a_start_without_the_package_is_refused(monkeypatch):
    """With the name of the extra; other jobs do not need it."""
    options, settings = Options.parse(WORDS | {"emitLineage": "true"}), HandlerSettings()
    check_settings(options, print, settings)
    monkeypatch.setitem(sys.modules, "openlineage.client.event_v2", None)
    with pytest.raises(InvalidOption, match=r"emitLineage = .*coopconsume\[lineage\]"):
        check_settings(options, print, settings)
    check_settings(Options.parse(WORDS), print, settings)


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ("one:9092", "kafka://one:9092"),
        ("one:9093, two:9092", "kafka://one:9093"),
        ("SASL_SSL://one:9093,SASL_SSL://two:9093", "kafka://one:9093"),
        ("one", "kafka://one:9092"),
        ("[::1]", "kafka://[::1]:9092"),
        ("[::1]:9093", "kafka://[::1]:9093"),
    ],
)
def test_a_topic_is_in_the_cluster_of_the_first_server(servers, namespace):
    """As other integrations of OpenLineage name it."""
    assert topic_dataset(servers, "orders") == Dataset(namespace, "orders")


@pytest.mark.parametrize(
    ("place", "namespace", "name"),
    [
        ("/data/bills/", "file", "/data/bills"),
        ("/data/x/../bills", "file", "/data/bills"),
        ("file:///data/my%20bills", "file", "/data/my bills"),
        ("file:/data/bills", "file", "/data/bills"),
        ("s3://bucket/a/bills/", "s3://bucket", "a/bills"),
        ("s3a://bucket/bills", "s3://bucket", "bills"),
        ("s3://key:sec/ret@bucket/bills", "s3://bucket", "bills"),
        ("gs://bucket/bills?token=secret", "gs://bucket", "bills"),
        ("hdfs://name:8020/bills", "hdfs://name:8020", "/bills"),
        ("abfs://box@one.dfs.core.windows.net/bills", "abfss://box@one.dfs.core.windows.net",
         "/bills"),
        ("wasbs://box@one.blob.core.windows.net/bills", "wasbs://box@one.blob.core.windows.net",
         "bills"),
        ("dbfs:/bills", "dbfs", "/bills"),
    ],
)  # fmt: skip
def test_a_table_has_the_name_of_the_conventions(place, namespace, name):
    """Without the secrets of its place."""
    assert table_dataset(place) == Dataset(namespace, name)


def test_a_relative_path_is_that_of_the_working_folder(tmp_path):
    """So that other programs name the same table."""
    assert table_dataset("bills") == Dataset("file", str(tmp_path / "bills"))


def test_sinks_are_the_outputs_with_the_rows_that_they_write(tmp_path):
    """From a run's start on; functions have no name, and transactions are not counted."""
    options = Options.parse(WORDS | {"purgatory": "./purgatory"})
    value, spark = pa.schema([("value", pa.string())]), SimpleNamespace()
    table = open_output("./bills", "append", SCHEMA, options, spark)
    merged = open_output("./merged", "merge", SCHEMA, options, spark)
    written = outputs({4: ["a", "b"], 5: ["c"]}, "run-0")
    table.write(written)
    letters = open_dead_letters("./letters", options)
    (bills, once, dead) = outputs_of("one:9092", [table, merged, None, letters])
    table.write(written)
    merged.write(written)
    letters.append([DeadLetter("orders", 0, 6, b"k", b"v", 0, [], 1, "bad", "")], {}, "id")
    assert (bills.rows(), once.rows(), dead.rows()) == (3, 3, 1)
    assert bills.dataset == Dataset("file", str(tmp_path / "bills"), bills.dataset.columns)
    assert bills.dataset.columns[:2] == (("text", "string"), ("_topic", "string"))
    assert once.dataset.columns[:2] == (("text", "string"), ("_row", "int"))
    assert ("headers", "array<struct<key:string,value:binary>>") in dead.dataset.columns

    topic = open_output("kafka:bills", "append", value, options, spark)
    once = open_output("kafka:bills", "transactional", value, options, spark)
    function = open_output(print, "append", SCHEMA, options, spark)
    dead = open_dead_letters("kafka:dead", options)
    found = [*outputs_of("one:9092", [topic, once, function, dead])]
    assert [one.dataset.name for one in found] == ["bills", "bills", "dead"]
    assert [one.rows and one.rows() for one in found] == [0, None, 0]


def test_types_are_those_of_ddl():
    """As Spark writes them."""
    kinds = pa.schema([("a", pa.timestamp("us")), ("b", pa.decimal128(10, 2)), ("c", pa.date32())])
    assert named_types(kinds) == (("a", "timestamp_ntz"), ("b", "decimal(10,2)"), ("c", "date"))
