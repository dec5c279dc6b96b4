"""Handler calls have spans in the traces of their records, in batches and in real time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coopconsume import CooperativeConsumer
from tests.spark.support import PATIENCE, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]


class ToFile:
    """Exports spans to a file for each worker."""

    def __init__(self, folder):
        self._folder = folder

    def export(self, spans):
        with Path(self._folder, f"{os.getpid()}").open("a") as file:
            for span in spans:
                of, made = span.attributes, span.parent
                line = [
                    span.name, of.get("messaging.kafka.offset"), made and made.trace_id,
                    of.get("messaging.consumer.group.name"), of.get("messaging.client.id"),
                ]  # fmt: skip
                file.write(json.dumps(line) + "\n")

    def shutdown(self):
        """It holds nothing."""


class Traced:
    """Calls an instrumented client; spans are exported as tasks end, or not at all."""

    def __init__(self, folder):
        self._folder = str(folder)

    def open(self, slot):
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider()
        exporter = ToFile(self._folder)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
        # One that an earlier job of the worker has set would stay.
        trace._TRACER_PROVIDER = provider

    def __call__(self, record):
        from opentelemetry import trace

        trace.get_tracer("client").start_span("client").end()


def test_calls_have_spans_in_the_traces_of_their_records(spark, kafka, topic, tmp_path):
    """Headers are read though handlers do not ask for them."""
    from kafka import KafkaProducer

    pytest.importorskip("opentelemetry.sdk")
    name, folder = topic(), tmp_path / "spans"
    folder.mkdir()

    def send(first):
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
        for i in range(first, first + 10):
            headers = [("traceparent", b"00-%032x-%016x-01" % (100 + i, 7))]
            producer.send(name, key=b"k%d" % i, value=b"v", headers=headers)
        producer.flush()
        producer.close()

    def traces(kind):
        lines = [json.loads(one) for file in folder.iterdir() for one in file.open()]
        assert {tuple(one[3:]) for one in lines if one[0] != "client"} <= {(group, "member")}
        return sorted(one[2] for one in lines if one[0] == kind)

    opts = options(
        kafka, tmp_path, name, slots=2, traceHandlers="true", **{"kafka.client.id": "member"}
    )
    group = opts["kafka.group.id"]
    send(0)
    with CooperativeConsumer(opts, spark) as consumer:
        job = consumer.foreach(Traced(folder), concurrency=4)
        assert job.trigger(availableNow=True).start().awaitTermination(PATIENCE)
        until(lambda: traces(f"process {name}") == list(range(100, 110)))
        live = job.trigger(realTime="1 minute").start()
        until(lambda: live.lastProgress and live.lastProgress["mode"] == "realTime")
        send(10)
        live.processAllAvailable()
        live.stop()
        until(lambda: traces(f"process {name}") == list(range(100, 120)))
        until(lambda: traces("client") == list(range(100, 120)))
