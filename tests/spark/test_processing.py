"""Handlers of every kind in real jobs: coroutines, batches, killers, a service that is down."""

from __future__ import annotations

import asyncio
import os

import pytest

from coopconsume import (
    CooperativeConsumer,
    Reject,
    Retry,
    RetryPolicy,
    committed_rows,
    current_slot,
)
from coopconsume.errors import InvalidOption
from coopconsume.testing.history import Kill, Recorder, check, read_history
from tests.spark.support import (
    PATIENCE,
    Recorded,
    done_book,
    options,
    pending_book,
    until,
)

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def verdict_of(consumer, folder, produced, dead=(), **more):
    """The checker's verdict over the history in a folder and the consumer's commit log."""
    store, group = consumer._subscription.joined().store, consumer.options.group_id
    letters = {tp: [(o, o) for t, p, o in dead if (t, p) == tp] for tp in produced}
    return check(
        read_history(folder / "history"), produced, done_book(store, group),
        pending_book(store, group), letters, **more,
    )  # fmt: skip


class Slowly:
    """Waits as long as a service would; at its first attempt at some records, for ever."""

    def __init__(self, folder) -> None:
        self.recorder = Recorder(str(folder))

    async def __call__(self, record):
        """Wait, and answer."""
        with self.recorder.call(record, current_slot()):
            if record.offset % 400 == 7 and record.attempt == 1:
                await asyncio.sleep(600)
            await asyncio.sleep(0.02)
        return {"n": record.offset}


@pytest.mark.slow
def test_coroutines_by_the_hundred_keep_the_order_of_keys(spark, kafka, topic, produce, tmp_path):
    """Two slots of 300 on one event loop each; what hangs is cancelled and tried again in order."""
    name = topic(1)
    records = [(b"k%d" % (i * 7919 % 700), b"") for i in range(2_400)]
    produced = {(name, 0): {o: key for o, (key, _) in enumerate(records)}}
    produce(name, records)
    opts = options(kafka, tmp_path, name, slots=2, batchTime=60)
    out = str(tmp_path / "out")
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(
            Slowly(tmp_path / "history"), concurrency=300, output=out, output_schema="n bigint",
            retry=RetryPolicy(timeout=8.0, backoff=0.1),
        ).trigger(availableNow=True).start()  # fmt: skip
        assert query.awaitTermination(PATIENCE)
        verdict = verdict_of(consumer, tmp_path, produced)
        assert verdict.ok, str(verdict)
        assert (verdict.done, verdict.calls) == (2_400, 2_406)
        assert query.lastProgress["totals"]["retries"] == 6
    rows = committed_rows(out, opts["commitTable"], opts["kafka.group.id"])
    assert sorted(rows.column("n").to_pylist()) == list(range(2_400))


class Kills:
    """One record ends its worker whenever it is handled, and leaves a note of it."""

    def __init__(self, folder) -> None:
        self.recorder = Recorder(str(folder / "history"))
        self.notes = str(folder)

    def __call__(self, record):
        """Handle it, or die."""
        call = self.recorder.started(record, current_slot())
        if record.offset == 41:
            self.recorder.finished(call, "retry", "killed")
            with open(f"{self.notes}/{os.getpid()}.kill", "w"):
                os._exit(9)
        self.recorder.finished(call)


def kills_in(folder):
    """What the notes say; a worker went right after the last that its threads wrote."""
    last: dict[int, int] = {}
    for call in read_history(folder / "history"):
        pid = int(call.process.split("-")[0])
        last[pid] = max(last.get(pid, 0), call.start_ns, call.end_ns or 0)
    pids = [int(path.stem) for path in folder.glob("*.kill")]
    return [Kill(last[pid], {}, frozenset({pid})) for pid in pids]


def test_a_record_that_kills_its_workers_becomes_a_dead_letter(
    spark, kafka, topic, produce, tmp_path
):
    """It is found among those at work beside it, has its attempts, and everything else is done."""
    name = topic(1)
    records = [(b"k%d" % (i % 40), b"%d" % i) for i in range(200)]
    produced = {(name, 0): {o: key for o, (key, _) in enumerate(records)}}
    produce(name, records)
    opts = options(kafka, tmp_path, name, slots=2, batchTime=2)
    dead = str(tmp_path / "dead")
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(
            Kills(tmp_path), concurrency=4, dead_letter=dead,
            retry=RetryPolicy(max_attempts=2, backoff=0.1),
        ).trigger(availableNow=True).start()  # fmt: skip
        assert query.awaitTermination(PATIENCE)
        (letter,) = committed_rows(dead, opts["commitTable"], opts["kafka.group.id"]).to_pylist()
        assert (letter["_offset"], letter["attempts"], letter["value"]) == (41, 2, b"41")
        assert "worker" in letter["reason"]
        # Records that ran beside it are handled again, in the order of their keys.
        verdict = verdict_of(
            consumer, tmp_path, produced, [(name, 0, 41)], kills=kills_in(tmp_path), max_attempts=2
        )  # fmt: skip
        assert verdict.ok, str(verdict)
        assert verdict.done == 199
        (lag,) = consumer.lag().collect()
        assert lag["lag"] == 0


def in_frames(frame):
    """Answers row by row: some later, some never, an output row for the others."""
    answers = []
    for offset, attempt in zip(frame["offset"], frame["attempt"], strict=True):
        if offset % 10 == 3 and attempt == 1:
            answers.append(Retry(after=0.1))
        elif offset % 50 == 9:
            answers.append(Reject("nines"))
        else:
            answers.append({"n": offset, "size": len(frame)})
    return answers


def test_frames_of_records_are_settled_row_by_row(spark, kafka, topic, produce, tmp_path):
    """A frame handler gets pandas frames; each of its rows is done, tried again or given up."""
    name = topic(2)
    for partition in (0, 1):
        produce(name, [(b"k%d" % (i % 90), b"") for i in range(300)], partition)
    opts = options(kafka, tmp_path, name)
    dead, out = str(tmp_path / "dead"), str(tmp_path / "out")
    with CooperativeConsumer(opts, spark) as consumer:
        with pytest.raises(InvalidOption, match="max_records"):
            consumer.foreach_frame(in_frames, max_records=0)
        query = consumer.foreach_frame(
            in_frames, max_records=25, format="pandas", dead_letter=dead, output=out,
            output_schema="n bigint, size int",
        ).trigger(availableNow=True).start()  # fmt: skip
        assert query.awaitTermination(PATIENCE)
        assert query.lastProgress["totals"]["retries"] == 60
        lags = [row["lag"] for row in consumer.lag().collect()]
        assert lags == [0, 0]
    group = opts["kafka.group.id"]
    rows = committed_rows(out, opts["commitTable"], group)
    assert rows.num_rows == 588
    assert 1 < max(rows.column("size").to_pylist()) <= 25
    assert committed_rows(dead, opts["commitTable"], group).num_rows == 12


class NeedsFile:
    """Calls a service that is down as long as a file is not there."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __call__(self, record):
        """Call it."""
        if not os.path.exists(self.path):
            raise ConnectionError("the service is down")


def test_a_service_that_is_down_pauses_the_job(spark, kafka, topic, produce, tmp_path):
    """After some failures nothing starts; progress says so; a trial finds out that it is back."""
    name = topic(1)
    produce(name, [(b"k%d" % i, b"") for i in range(3_000)])
    opts = options(kafka, tmp_path, name, circuitBreaker=5, circuitBreakerPause=1)
    with CooperativeConsumer(opts, spark) as consumer:
        query = consumer.foreach(
            Recorded(tmp_path / "history", NeedsFile(tmp_path / "up")),
            retry=RetryPolicy(backoff=0.2, max_backoff=0.2),
        ).start()

        def opened():
            progress = query.lastProgress
            return progress and progress["circuitBreaker"]["opened"]

        until(lambda: (opened() or 0) >= 2)
        breaker = query.lastProgress["circuitBreaker"]
        assert breaker["reason"] == "ConnectionError: the service is down"
        assert query.lastProgress["totals"]["done"] == 0

        def paused():
            waiting = query.status["waitingFor"]
            return waiting if waiting and waiting["reason"] == "circuitBreaker" else None

        assert until(paused)["message"].endswith(": ConnectionError: the service is down")
        # At most five a slot, and then one for each trial; events may be late.
        calls = len(read_history(tmp_path / "history"))
        assert calls <= 4 * 5 + query._job._dispatcher.breaker.opened + 1
        (tmp_path / "up").touch()
        query.processAllAvailable()
        query.stop()
        (lag,) = consumer.lag().collect()
        assert lag["lag"] == 0
        assert query.lastProgress["circuitBreaker"]["state"] == "closed"
