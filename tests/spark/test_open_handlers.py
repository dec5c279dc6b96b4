"""Handlers that are opened once in each worker, in batches, in real time and over restarts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from coopconsume import CooperativeConsumer
from coopconsume.errors import HandlerNotOpened
from coopconsume.runtime.dispatch import job_slots
from tests.spark.support import PATIENCE, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]


class Billing:
    """Writes down what happens to it, in a file for each worker."""

    def __init__(self, folder, *, fails=False):
        self._folder = str(folder)
        self._fails = fails
        self._run = ""

    def open(self, slot):
        """Opens it."""
        if self._fails:
            raise OSError("the service is away")
        assert slot.group_id.endswith("-group")
        self._run = slot.run_id
        self._note(f"open {slot.query_id} {slot.slots}")

    def __call__(self, record):
        """Bills."""
        self._note(f"call {record.offset}")
        sys.stdout.write(f"billed {record.offset}\n")

    def close(self, error):
        """Closes it."""
        self._note(f"close {error}")

    def _note(self, text):
        with Path(self._folder, f"{os.getpid()}").open("a") as file:
            file.write(f"{self._run} {text}\n")


class AsyncBilling(Billing):
    """The same on the event loop."""

    async def open(self, slot):
        """Opens it."""
        super().open(slot)

    async def __call__(self, record):
        """Bills."""
        super().__call__(record)

    async def close(self, error):
        """Closes it."""
        super().close(error)


class Lives:
    """What workers have written down."""

    def __init__(self, folder):
        self._folder = folder

    def of(self, query):
        """For each worker that a query has used, what happened to its handler there."""
        files = {path.name: path.read_text().splitlines() for path in self._folder.iterdir()}
        own = {
            pid: [line.split(" ", 1)[1] for line in lines if line.startswith(query.runId)]
            for pid, lines in files.items()
        }
        return {pid: lines for pid, lines in own.items() if lines}

    def calls(self, query):
        """For each worker, the offsets of the handler's calls."""
        lives = self.of(query).items()
        return {
            pid: [int(line.split()[1]) for line in lines if line.startswith("call")]
            for pid, lines in lives
        }

    def ended(self, query):
        """The offsets of all calls, when the handlers are closed; each was opened once."""
        until(lambda: all(lines[-1].startswith("close") for lines in self.of(query).values()))
        for lines in self.of(query).values():
            assert (lines[0], lines[-1]) == (f"open {query.id} 2", "close None")
            assert all(line.startswith("call") for line in lines[1:-1])
        return sorted(offset for offsets in self.calls(query).values() for offset in offsets)


def test_a_handler_lives_as_long_as_its_query(spark, kafka, topic, produce, tmp_path, monkeypatch):
    """In batches and in real time; after a restart it is opened again, and `open` may fail.

    The driver shows what it prints, with its records.
    """
    name, folder = topic(), tmp_path / "lives"
    folder.mkdir()
    shown = []

    def billed(first, end):
        lines = sorted((f"billed {o}", o) for o in range(first, end))
        return sorted((one.text, one.place.offset) for one in shown) == lines

    lives, records = Lives(folder), [(b"k%d" % i, b"") for i in range(20)]
    opts = options(kafka, tmp_path, name, slots=2, showHandlerLines=1_000)
    with CooperativeConsumer(opts, spark) as consumer:
        query, rounds = consumer.foreach(Billing(folder)).onHandlerLine(shown.append).start(), 0
        # Spark passes tasks to the workers of the whole run in turns.
        while all(len({at // 20 for at in own}) < 2 for own in lives.calls(query).values()):
            produce(name, records)
            query.processAllAvailable()
            rounds += 1
        query.stop()
        assert lives.ended(query) == list(range(rounds * 20))
        until(lambda: billed(0, rounds * 20))

        shown.clear()
        job = consumer.foreach(AsyncBilling(folder), concurrency=4).onHandlerLine(shown.append)
        live = job.trigger(realTime="1 minute").start()
        until(lambda: live.lastProgress and live.lastProgress["mode"] == "realTime")
        produce(name, records)
        live.processAllAvailable()
        until(lambda: billed(rounds * 20, rounds * 20 + 20))
        live.stop()
        assert live.id == query.id
        assert len(lives.ended(live)) == 20

        monkeypatch.setattr(job_slots, "_PAUSE", 0.01)
        produce(name, records)
        failing = consumer.foreach(Billing(folder, fails=True)).start()
        with pytest.raises(HandlerNotOpened, match="Billing cannot be opened: OSError: the serv"):
            failing.awaitTermination(PATIENCE)
        assert not lives.of(failing)

        last = consumer.foreach(Billing(folder)).trigger(availableNow=True).start()
        last.awaitTermination(PATIENCE)
        assert len(lives.ended(last)) == 20
