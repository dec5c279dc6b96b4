"""Handlers that are opened once in a worker process, kept over batches, and closed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from coopconsume.errors import HandlerNotUsable
from coopconsume.runtime.checks import check_handler
from coopconsume.testing.faults import recorded
from coopconsume.testing.history import read_history
from coopconsume.worker import async_runner, between_tasks, open_handlers, slot
from coopconsume.worker.channel.server import ChannelServer
from coopconsume.worker.channel.spec import ChannelSpec
from coopconsume.worker.channel.watch import watch_driver
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.handler_life import OpenFailed, SlotContext, has_life, shown_handler
from coopconsume.worker.open_handlers import OpenHandlers
from coopconsume.worker.report import QueryIds
from tests.unit.worker.slot_harness import PATIENCE, done, prepared

ROWS = [(0, o, b"ab"[o % 2 : o % 2 + 1]) for o in range(10)]
#: What happened to handlers: pairs of a word and what came with it.
EVENTS = []
CLOSE_AT_THE_END = between_tasks.close_at_the_end.__wrapped__


class Plain:
    """A handler with a life."""

    def __init__(self, wrong=None):
        self.wrong = wrong
        self.client = None

    def open(self, slot):
        """Opens it."""
        if self.wrong is not None:
            raise self.wrong
        self.client = slot
        EVENTS.append(("open", slot))

    def __call__(self, record):
        """Handles a record, or a frame."""
        assert self.client is not None
        EVENTS.append(("call", record))

    def close(self, error):
        """Closes it."""
        EVENTS.append(("close", error))


class Coroutines(Plain):
    """The same on the event loop."""

    async def open(self, slot):
        """Opens it."""
        await asyncio.sleep(0)
        self.loop = asyncio.get_running_loop()
        super().open(slot)

    async def __call__(self, record):
        """Handles a record."""
        assert asyncio.get_running_loop() is self.loop
        super().__call__(record)

    async def close(self, error):
        """Closes it."""
        assert asyncio.get_running_loop() is self.loop
        super().close(error)


class Managed:
    """A context manager whose result is called."""

    def __init__(self, entered=print):
        self.entered = entered

    def __call__(self, record):
        """Is called if entering it returns nothing."""
        EVENTS.append(("call", record))

    def __enter__(self):
        EVENTS.append(("open", None))
        return self.entered

    def __exit__(self, kind, error, trace):
        EVENTS.append(("close", error))


class AsyncManaged(Managed):
    """An async context manager."""

    async def __aenter__(self):
        return super().__enter__()

    async def __aexit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)


class MixedLife(Plain):
    """A plain handler that is opened on the event loop."""

    async def open(self, slot):
        """Opens it."""
        super().open(slot)


def words():
    """What happened, in words."""
    return [word for word, _ in EVENTS]


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    """Return the open handlers of a worker that runs many tasks."""
    EVENTS.clear()
    made = OpenHandlers()
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(open_handlers, "HANDLERS", made)
    monkeypatch.setattr(between_tasks, "close_at_the_end", lambda: None)
    yield made
    made.close_all()


def slot_of(handler, run="r1", query="q", *, rows=ROWS, **more):
    """The runner of a slot, and its rows."""
    runner, batches = prepared(handler, rows, run_id=run, **more)
    runner._spec = replace(runner._spec, query=QueryIds("group", query, f"{run}-id"))
    return runner, batches


def run(handler, name="r1", query="q", **more):
    """The report of a slot of a run."""
    runner, batches = slot_of(handler, name, query, **more)
    return runner.run(3, batches)


@pytest.mark.parametrize(
    ("handler", "more"),
    [
        (Plain(), {}),
        (Plain, {}),
        (Plain(), {"concurrency": 4}),
        (Coroutines(), {"concurrency": 4}),
        (Coroutines, {"concurrency": 4}),
        (FrameHandler(Plain(), 100), {}),
        (FrameHandler(Coroutines, 100), {}),
        (f"{__name__}:Plain", {}),
    ],
)
def test_a_handler_is_opened_once_and_kept_over_batches(handler, more, handlers):
    """Whichever way it runs; then it is closed. It knows the slot and the query."""
    calls = 1 if isinstance(handler, FrameHandler) else 10
    for _ in range(2):
        assert done(run(handler, **more)) == list(range(10))
    handlers.close_all()
    assert words() == ["open", *["call"] * 2 * calls, "close"]
    assert EVENTS[0][1] == SlotContext(3, "group", "q", "r1-id")
    assert EVENTS[-1][1] is None


@pytest.mark.parametrize("kind", [Managed, AsyncManaged])
def test_a_context_manager_serves_too(kind, handlers):
    """What entering it returns is called; itself if that is nothing."""
    called = []
    run(kind(called.append))
    handlers.close_all(error := OSError("away"))
    assert words() == ["open", "close"]
    assert EVENTS[-1][1] is error
    assert [record.offset for record in called] == list(range(10))
    run(kind(None))
    assert words().count("call") == 10
    report = run(kind(7), "r2")
    assert report.end.open_error.endswith("returned int: return the handler, or nothing")
    assert words()[-2:] == ["open", "close"], "what was entered is left"


class Entered:
    """A context manager that is not called itself."""

    def __init__(self, entered=None):
        self.entered = entered

    def __enter__(self):
        return self.entered

    def __exit__(self, *_):
        EVENTS.append(("close", None))


class AsyncEntered(Entered):
    """The same on the event loop; a coroutine is called."""

    async def __aenter__(self):
        return super().__enter__()

    async def __aexit__(self, *_):
        super().__exit__(*_)


@pytest.mark.parametrize("kind", [Entered, AsyncEntered])
def test_a_context_manager_that_is_not_called_itself_returns_what_is(kind, handlers):
    """If entering it returns nothing, that is an error of opening it, not of its records."""
    called = []

    async def coroutine(record):
        called.append(record.offset)

    for number, call in enumerate((lambda record: called.append(record.offset), coroutine)):
        check_handler(kind(call))
        assert done(run(kind(call), f"r{number}")) == list(range(10))
    assert sorted(called) == sorted(2 * [*range(10)])
    check_handler(kind)
    check_handler(f"{__name__}:{kind.__name__}")
    assert run(kind(), "r9").end.open_error.endswith("returned NoneType: return the handler")
    handlers.close_all()
    assert words() == ["close", "close", "close"]


def test_plain_functions_are_called_as_they_come(handlers):
    """They have no life, and nothing is kept of them."""
    found = []
    for handler in (print, lambda record: None, "tests.unit.worker.test_slot:run", Plain().open):
        assert not has_life(handler)
    for handler in (Plain(), Plain, Managed(), AsyncManaged(), FrameHandler(Plain, 3)):
        assert has_life(handler)
    run(found.append)
    assert len(found) == 10
    assert not handlers


@pytest.mark.parametrize("kind", [Plain, Coroutines])
@pytest.mark.parametrize("wrong", [OSError("away"), SystemExit(3)])
def test_an_open_that_fails_costs_no_record(kind, wrong, handlers):
    """The slot starts nothing and says why; the next attempt opens another one."""
    report = run(kind(wrong))
    assert report.end.open_error == f"{type(wrong).__name__}: {wrong}"
    assert done(report) == []
    assert report.partitions[0].resume == 0
    assert not report.partitions[0].failed
    assert not handlers
    assert done(run(kind())) == list(range(10))
    assert words()[0] == "open"


def test_a_class_whose_constructor_fails_is_not_opened():
    """As `open` itself."""

    class Wrong(Plain):
        def __init__(self):
            raise ValueError("no")

    assert run(Wrong).end.open_error == "ValueError: no"


def test_an_open_that_does_not_end_fails(handlers, monkeypatch):
    """A coroutine is cancelled; the worker of any other one is ended, with the reason."""

    class Waits(Plain):
        async def open(self, slot):
            await asyncio.Event().wait()

    assert (
        run(Waits(), handler_timeout=0.05).end.open_error
        == "TimeoutError: it took longer than 0.05 s"
    )
    ended = threading.Event()

    class Hangs(Plain):
        def open(self, slot):
            assert ended.wait(PATIENCE)

    reports = []

    def end(report, *_):
        reports.append(report)
        ended.set()

    monkeypatch.setattr(open_handlers, "_SPARE", 0.0)
    monkeypatch.setattr(slot, "end_worker_with", end)
    run(Hangs(), handler_timeout=0.05)
    assert reports[0].end.open_error == "TimeoutError: it took longer than 0.05 s"
    assert reports[0].partitions[0].resume == 0


def test_an_open_that_took_too_long_starts_nothing_and_is_kept():
    """The batch may belong to somebody else by now."""

    class Slow(Plain):
        def open(self, slot):
            super().open(slot)
            object.__setattr__(runner._spec, "latest_start", 0.0)

    runner, batches = slot_of(Slow())
    report = runner.run(3, batches)
    assert report.end.late > 0
    assert words() == ["open"]
    assert done(run(Slow())) == list(range(10))
    assert words().count("open") == 1


def test_a_later_run_of_its_query_closes_a_handler():
    """Without a channel; another query has one of its own beside it."""
    run(Plain(), "r1", "q")
    run(Plain(), "r2", "other")
    EVENTS.clear()
    run(Plain(), "r3", "q")
    assert words() == ["close", "open", *["call"] * 10]
    EVENTS.clear()
    run(Plain(), "r2", "other")
    assert words() == ["call"] * 10


def test_a_handler_whose_query_has_ended_is_closed(handlers):
    """The driver closes its connection; this counts for each query by itself."""
    run(Plain(), "r1", "q")
    run(Plain(), "r2", "other")
    here, there = socket.socketpair()
    handlers._open["r1"].driver = here
    EVENTS.clear()
    handlers.close_ended()
    assert not EVENTS
    there.close()
    handlers.close_ended()
    assert words() == ["close"]
    assert list(handlers._open) == ["r2"]


def test_an_unused_handler_is_closed_before_spark_kills_its_worker(handlers):
    """Its time counts from the end of the last slot."""
    run(Plain())
    handlers._open["r1"].used_at -= open_handlers.UNUSED
    assert handlers.unused_in == 0
    run(Plain())
    assert 0 < handlers.unused_in <= open_handlers.UNUSED
    handlers.close_ended()
    assert "close" not in words()
    handlers._open["r1"].used_at -= open_handlers.UNUSED
    handlers.close_ended()
    assert words()[-1] == "close"
    assert open_handlers.UNUSED + open_handlers.CLOSE_TIME < 60


def test_without_reuse_of_workers_a_handler_is_closed_with_its_slot(monkeypatch, handlers):
    """Nothing runs in this process after the task."""
    monkeypatch.delenv("SPARK_REUSE_WORKER")
    run(Plain())
    assert words()[-1] == "close"
    assert not handlers


@pytest.mark.parametrize("kind", [Plain, Coroutines])
def test_an_error_of_close_is_logged(kind, handlers, caplog):
    """And nothing else; others are closed."""

    class Wrong(kind):
        def close(self, error):
            raise SystemExit("no")

    run(Wrong(), "r1", "q")
    run(Plain(), "r2", "other")
    EVENTS.clear()
    with caplog.at_level(logging.WARNING):
        handlers.close_all()
    assert words()[-1] == "close"
    assert "close of handler" in caplog.text
    assert not handlers


def test_a_handler_of_an_event_loop_that_has_ended_is_opened_again(caplog):
    """It cannot be closed there, which is logged."""
    run(Coroutines())
    loop = async_runner.event_loop()
    loop.call_soon_threadsafe(loop.stop)
    async_runner._loop = None
    EVENTS.clear()
    assert done(run(Coroutines())) == list(range(10))
    assert words() == ["open", *["call"] * 10]
    assert "event loop" in caplog.text
    loop.call_soon_threadsafe(loop.stop)


def test_a_worker_that_ends_itself_closes_its_handlers_with_the_error(monkeypatch):
    """As the library's own code has failed in it."""
    run(Plain())
    left = []
    monkeypatch.setattr(slot.os, "_exit", left.append)
    slot._exit("ZeroDivisionError: it is damaged", 71)
    assert left == [71]
    assert words()[-1] == "close"
    assert str(EVENTS[-1][1]) == "ZeroDivisionError: it is damaged"


class Worker:
    """A worker between two tasks."""

    def __init__(self, handlers, main=lambda infile, _: infile.read(1)):
        here, self.spark = socket.socketpair()
        self.infile = os.fdopen(os.dup(here.fileno()), "rb")
        here.close()
        self.main = between_tasks.closing(main, handlers)

    def waits(self):
        """Waits for a task and runs it."""
        return self.main(self.infile, None)


def test_a_worker_waits_for_its_next_task_and_closes_what_has_ended(handlers):
    """A task that is there begins at once, and closes nothing."""
    run(Plain())
    worker = Worker(handlers)
    worker.spark.send(b"12")
    worker.waits()
    assert "close" not in words()
    here, there = socket.socketpair()
    handlers._open["r1"].driver = here
    there.close()
    worker.infile.read(1)
    threading.Timer(0.1, worker.spark.send, [b"3"]).start()
    worker.waits()
    assert words()[-1] == "close"


def test_a_worker_whose_connection_spark_has_closed_closes_its_handlers(handlers, monkeypatch):
    """At once, and before PySpark finds out, which is an error to it."""
    monkeypatch.setattr(open_handlers, "UNUSED", PATIENCE)
    run(Plain())
    begun = time.monotonic()

    def main(infile, _):
        raise SystemExit(-1) from EOFError(infile.read(1))

    worker = Worker(handlers, main)
    worker.spark.close()
    with pytest.raises(SystemExit):
        worker.waits()
    assert EVENTS[-1] == ("close", None)
    assert time.monotonic() - begun < PATIENCE


def test_a_task_that_fails_closes_the_handlers_with_its_error(handlers):
    """The worker ends after it."""
    run(Plain())

    def main(*_):
        try:
            os.read(-1, 1)
        except OSError:
            sys.exit(-1)

    worker = Worker(handlers, main)
    worker.spark.send(b"1")
    with pytest.raises(SystemExit):
        worker.waits()
    assert isinstance(EVENTS[-1][1], OSError)


def test_spark_runs_tasks_by_way_of_what_closes_handlers(handlers, monkeypatch):
    """If its workers are reused; at the end of any other process `atexit` closes them."""
    at_exit, tasks = [], []
    monkeypatch.setattr(between_tasks, "HANDLERS", handlers)
    monkeypatch.setattr(between_tasks.atexit, "register", at_exit.append)
    pyspark = SimpleNamespace(main=lambda *files: tasks.append(files))
    monkeypatch.setitem(sys.modules, "pyspark.worker", pyspark)
    daemon = SimpleNamespace(worker_main=pyspark.main)  # as in Spark 4.0
    monkeypatch.setitem(sys.modules, "pyspark.daemon", daemon)
    monkeypatch.delenv("SPARK_REUSE_WORKER")
    before = pyspark.main
    CLOSE_AT_THE_END()
    assert pyspark.main is before
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    CLOSE_AT_THE_END()
    assert pyspark.main is not before
    assert daemon.worker_main is pyspark.main
    pyspark.main("infile", "outfile")
    assert tasks == [("infile", "outfile")]
    run(Plain())
    at_exit[0]()
    assert words()[-1] == "close"


SESSION_ENDS = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # As in a worker; nohup ignores it.
os.environ["SPARK_REUSE_WORKER"] = "1"
from coopconsume.worker import between_tasks, open_handlers
from tests.unit.worker import test_open_handlers as of

class Prints(of.Plain):
    def close(self, error):
        print("closed with", error, flush=True)

of.run(Prints())
between_tasks.closing(lambda *_: print("a task"), open_handlers.HANDLERS)(sys.stdin.buffer, None)
"""


def test_a_worker_that_waits_closes_its_handlers_at_the_end_of_the_session():
    """Spark ends it by SIGHUP."""
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", SESSION_ENDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
    )
    try:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            time.sleep(0.05)
            caught = [line for line in status.read_text().splitlines() if "SigCgt" in line]
            if int(caught[0].split()[1], 16) >> (signal.SIGHUP - 1) & 1:
                break
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        with contextlib.suppress(OSError):
            process.kill()
    assert out == b"closed with None\n"
    assert process.returncode == -signal.SIGHUP


def test_the_connection_to_the_driver_ends_with_the_query(monkeypatch):
    """Not with a batch; it gets no lease, and without the secret it is refused."""
    here = "127.0.0.1"
    server = ChannelServer(ChannelSpec(here, 0, b"s" * 32, 60.0), here, "r", lambda _: None)
    spec = server.spec()
    wrong = replace(spec, secret=b"x" * 32)
    assert watch_driver(wrong, "r", 3) is None
    watch = watch_driver(spec, "r", 3)
    server.forget(0)
    assert not server.connected
    watch.settimeout(0.2)
    with pytest.raises(TimeoutError):
        watch.recv(1)
    ended = []

    def close_handler():
        watch.settimeout(PATIENCE)
        ended.append(watch.recv(1))
        watch.close()

    worker = threading.Thread(target=close_handler)
    monkeypatch.setattr("coopconsume.worker.channel.server.ENDING", PATIENCE)
    server.close()
    assert not server.is_open
    worker.start()
    server.wait_for_workers()
    assert ended == [b""]
    worker.join()
    assert watch_driver(spec, "r", 3) is None


class Takes(Plain):
    """A constructor with an argument."""

    def __init__(self, url):
        super().__init__()
        self.url = url


class NotCalled:
    """No handler."""

    def open(self, slot):
        """Opens it."""


class Odd(Plain):
    """An `open` without the slot."""

    def open(self):
        """Opens it."""


class OddClose(Plain):
    """A `close` without the error."""

    def close(self):
        """Closes it."""


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (Takes, r"Takes\(\).*missing a required argument: 'url'; give an instance, as Takes\(…\)"),
        (NotCalled, "instances cannot be called"),
        (NotCalled(), "not callable"),
        (Odd(), r"open: it is called as open\(slot\)"),
        (OddClose, r"close: it is called as close\(self, error\)"),
    ],
)
def test_a_handler_whose_life_makes_no_sense_is_refused(handler, text):
    """At once, with what is wrong."""
    with pytest.raises(HandlerNotUsable, match=text):
        check_handler(handler)


@pytest.mark.parametrize(
    "handler",
    [
        Plain,
        Plain(),
        Coroutines,
        Takes("url"),
        Managed,
        FrameHandler(Plain, 5),
        f"{__name__}:Plain",
    ],
)
def test_a_class_or_an_object_with_a_life_is_taken(handler):
    """Also by its name."""
    check_handler(handler)


class Slots:
    """A handler without a dictionary; one attribute is not set."""

    __slots__ = ("absent", "client")

    def __init__(self, client):
        self.client = client

    def __call__(self, record):
        """Handles a record."""


class Deeper(Slots):
    """One with slots of a base class."""


@dataclasses.dataclass
class Secretive:
    """A handler without a life; its representation has all that it has."""

    token: str

    def __call__(self, record):
        """Handles a record."""


def test_what_cannot_be_pickled_is_named():
    """An attribute of an object, a variable of a function; and where to create it."""
    handler = Takes("url")
    handler.session = threading.Lock()
    with pytest.raises(
        HandlerNotUsable, match=r"handler\.session: TypeError: cannot pickle '_thread"
    ):
        check_handler(handler)
    lock = threading.Lock()

    def uses_it(record):
        return lock

    with pytest.raises(HandlerNotUsable, match=r"the variable lock: TypeError.*in open\(slot\)"):
        check_handler(uses_it)
    with pytest.raises(HandlerNotUsable, match=r"handler\.session"):
        check_handler(handler.open)
    given = Slots(lock)
    for handler in (given, given.__call__, Deeper(lock)):
        with pytest.raises(HandlerNotUsable, match=r"handler\.client: TypeError: cannot pickle"):
            check_handler(handler)
    for given, part in ((partial(print, lock), "1"), (partial(print, file=lock), "file")):
        with pytest.raises(HandlerNotUsable, match=rf"print .*: the argument {part}: TypeError"):
            check_handler(given)
    with pytest.raises(HandlerNotUsable, match="the variable lock: TypeError"):
        check_handler(partial(uses_it))


def test_what_cannot_be_pickled_of_a_programs_own_class_is_named():
    """It travels with the job: with its attributes, and the variables that its methods refer to."""
    lock = threading.Lock()

    class UsesIt(Callable):
        def __call__(self, record):
            assert UsesIt
            return lock

    class Below(UsesIt):
        """Nothing of its own."""

    class HasIt:
        client = lock

        def __call__(self, record):
            """Handle a record."""

    class TakesIt:
        def __call__(self, record, client=lock):
            """Handle a record."""

    variable, attribute, default = "the variable lock", r"handler\.client", "the default of client"
    parts = {UsesIt: variable, Below: variable, HasIt: attribute, TakesIt: default}
    for kind, part in parts.items():
        for given in (kind, kind()):
            with pytest.raises(HandlerNotUsable, match=f"{part}: TypeError: cannot pickle '_thr"):
                check_handler(given)


def test_no_part_is_named_if_none_by_itself_cannot_be_pickled():
    """Nor is one of those that all objects have."""

    class HasIt:
        def __call__(self, record):
            """Handle a record."""

    HasIt.__call__.lock = threading.Lock()
    with pytest.raises(HandlerNotUsable, match="cannot pickle '_thread") as caught:
        check_handler(HasIt())
    assert "__" not in str(caught.value).partition("TypeError")[0]


def test_a_handler_is_shown_without_its_attributes():
    """They may be secrets."""
    assert shown_handler(Takes("postgres://me:secret@host")) == "Takes"
    assert shown_handler(Secretive("secret")) == "Secretive"
    bound = partial(partial(Secretive.__call__, "secret"), other="secret")
    assert shown_handler(bound) == "Secretive.__call__"

    def bill(record, other, token=None):
        """It takes too much."""

    with pytest.raises(HandlerNotUsable, match=r"\(record, other, \*, token=…\)") as caught:
        check_handler(partial(bill, token="secret"))
    assert "secret" not in str(caught.value)
    assert shown_handler(FrameHandler(Plain, 5)) == "Plain"
    assert shown_handler("shop:Billing") == "shop:Billing"


def test_a_failed_open_says_so_by_its_type():
    """For those who hold handlers themselves."""
    runner, _ = slot_of(Plain(OSError("away")))
    with pytest.raises(OpenFailed, match="OSError: away"):
        open_handlers.HANDLERS.get(Plain(OSError("away")), runner._spec, 3, print)


async def _noted(record):
    """An async handler."""
    await asyncio.sleep(0)
    EVENTS.append(("call", record))


class ManagedCoroutine(Managed):
    """A context manager that returns an async handler."""

    def __init__(self):
        super().__init__(_noted)


class AsyncManagedCoroutine(ManagedCoroutine, AsyncManaged):
    """An async one that does."""


class AsyncCalled(Managed):
    """A context manager that returns nothing and is async itself."""

    def __init__(self):
        super().__init__(None)

    async def __call__(self, record):
        """Handles a record."""
        await _noted(record)


@pytest.mark.parametrize(
    "kind",
    [
        Plain, Coroutines, Managed, AsyncManaged, MixedLife, ManagedCoroutine,
        AsyncManagedCoroutine, AsyncCalled,
    ],
)  # fmt: skip
def test_a_recorded_handler_is_opened_and_closed(kind, handlers, tmp_path):
    """As `coopconsume.testing` runs it: as a slot does."""
    run(recorded(kind, tmp_path))
    handlers.close_all()
    assert words()[0] == "open"
    assert words()[-1] == "close"
    calls = list(read_history(tmp_path))
    assert [call.outcome for call in calls] == ["done"] * 10
    if kind not in (Managed, AsyncManaged):  # They call `print`.
        assert words().count("call") == 10
