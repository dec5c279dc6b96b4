"""Bytes that the brokers send to a job in real time, in a process with a Spark of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from coopconsume import CooperativeConsumer, local_session
from coopconsume.testing.local.session import stop_session
from tests.bench.figures import Ratio, Report
from tests.bench.processes import figures_of, print_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

_KEYS = 1_000
_VALUE = b"." * 1_000
_LOG = "the log"


def fetches(harness: Harness, say: Callable[[str], None]) -> Report:
    """Megabytes from the broker for some slots on a host, with a fetch server and without one."""
    records = harness.size(50_000, 5_000)
    report = Report(
        "Real time: bytes from the broker",
        f"{records:,} records of 1,000 B, one partition, sent while slots read. Bytes that "
        "librdkafka counts in the slots and in the fetch server of their host, in megabytes; the "
        "log is keys and values.",
    )
    sides = [(slots, 64 << 20) for slots in (1, 2, 4, 8)] + [(8, 0)]
    # The records of one of the two rounds around it are counted with it.
    log = sum(len(_key(n)) + len(_VALUE) for n in range(records + _KEYS)) / 1e6
    report.add(_LOG, [log], "MB")
    for slots, limit in sides:
        name = f"{slots} slot{'s' * (slots > 1)}{'' if limit else ', no fetch server'}"
        report.add(name, [_megabytes(harness, records, slots, limit)], "MB")
        say(f"  {name}: {report.figures[name].median:.1f} MB")
        target = 1.1 if limit else None
        report.ratios.append(Ratio(f"{name} / log", name, _LOG, at_most=target))
    return report


def _key(number: int) -> bytes:
    return b"key-%d" % (number % _KEYS)


def _megabytes(harness: Harness, records: int, slots: int, limit: int) -> float:
    topic = harness.path("fetches").name
    harness.broker.create_topic(topic, 1)
    more = {"slots": slots, "max.bytes.key.range.hashing": limit}
    options = harness.options(topic, **more)
    (bytes_,) = figures_of("tests.bench.fetch", options, topic, records, slots)
    return bytes_ / 1e6


def _run(options: dict[str, Any], topic: str, records: int, slots: int) -> list[float]:
    from confluent_kafka import Producer

    def nothing(_record: object) -> None:
        pass

    spark = local_session("coopconsume-bench-fetches", cores=slots + 1)
    producer = Producer({"bootstrap.servers": options["kafka.bootstrap.servers"]})

    def send(first: int, last: int) -> None:
        for number in range(first, last):
            producer.produce(topic, _VALUE, _key(number), 0)
            if number % 1_000 == 0:
                producer.flush()
        producer.flush()

    try:
        with CooperativeConsumer(options, spark) as consumer:
            job = consumer.foreach(nothing, concurrency=4).trigger(realTime="20 minutes")
            query = job.start()

            def wait(holds: Callable[[dict[str, Any]], bool]) -> int:
                while query.lastProgress is None or not holds(query.lastProgress):
                    if (error := query.exception()) is not None:
                        raise error
                    time.sleep(0.05)
                return int(query.lastProgress["totals"]["brokerBytes"])

            wait(lambda last: last["mode"] == "realTime")
            # Few records, until the slots read by the server of the host.
            sent = 0
            until = time.monotonic() + 20.0
            while time.monotonic() < until:
                send(sent, sent + _KEYS // 10)
                sent += _KEYS // 10
                time.sleep(0.2)
            wait(lambda last: last["totals"]["done"] >= sent)
            time.sleep(3.0)  # Counts come once a second, with the next report.
            send(sent, sent + _KEYS)
            before = wait(lambda last: last["totals"]["done"] >= sent + _KEYS)
            sent += _KEYS
            send(sent, sent + records)
            sent += records
            wait(lambda last: last["totals"]["done"] >= sent)
            time.sleep(3.0)
            send(sent, sent + _KEYS)
            after = wait(lambda last: last["totals"]["done"] >= sent + _KEYS)
            query.stop()
    finally:
        stop_session(spark)
    return [after - before]


if __name__ == "__main__":
    print_figures(_run)
