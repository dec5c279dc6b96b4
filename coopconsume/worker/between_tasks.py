"""Closes handlers between the tasks of a Python worker of Spark, and at its end.

Spark's daemon calls `pyspark.worker.main` in a worker for each task, and the worker waits in it
for the task. In this time Spark ends a worker by SIGHUP, at the end of the session, or closes its
connection. A worker that is in the middle of a task, or is killed, closes nothing. Task-side code.
"""

from __future__ import annotations

import atexit
import functools
import os
import selectors
import signal
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from coopconsume.worker.open_handlers import HANDLERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader

    from coopconsume.worker.open_handlers import OpenHandlers

    Main = Callable[[Any, Any], None]


class _HungUp(BaseException):
    """Spark ends the worker."""


def is_reused() -> bool:
    """Whether this worker process runs further tasks (``spark.python.worker.reuse``)."""
    return "SPARK_REUSE_WORKER" in os.environ


@cache
def close_at_the_end() -> None:
    """Has handlers closed between tasks and at the end of this process; once a process."""
    atexit.register(HANDLERS.close_all)
    worker = sys.modules.get("pyspark.worker")
    if worker is None or not is_reused():
        return
    main = worker.main
    run = closing(main, HANDLERS)
    # The daemon of Spark 4.0 has a name of its own for it.
    for module, name in (
        (worker, "main"),
        (sys.modules.get("pyspark.daemon"), "worker_main"),
        (sys.modules["__main__"], "worker_main"),
    ):
        if getattr(module, name, None) is main:
            setattr(module, name, run)


def closing(main: Main, handlers: OpenHandlers) -> Main:
    """Returns a function that runs a task, and closes handlers before if they are not used.

    Args:
        main: Waits for a task and runs it.
        handlers: Those of this process.
    """

    @functools.wraps(main)
    def run(infile: BufferedReader, outfile: Any) -> None:
        try:
            if handlers:
                _wait_for_task(infile, handlers)
            main(infile, outfile)
        except BaseException as error:
            # PySpark passes an error on to Spark, and exits.
            is_exit = isinstance(error, SystemExit)
            handlers.close_all(error.__context__ if is_exit else error)
            raise

    return run


def _wait_for_task(infile: BufferedReader, handlers: OpenHandlers) -> None:
    """Waits until a task begins or no handler is open any more; closes those that are over."""
    is_hung_up = is_waiting = False

    def hang_up(*_: object) -> None:
        nonlocal is_hung_up
        is_hung_up = True
        if is_waiting:  # Else a handler is being closed, and is not interrupted.
            raise _HungUp

    before = signal.signal(signal.SIGHUP, hang_up)
    try:
        while handlers and not is_hung_up:
            is_waiting = True
            try:
                begins = _wait(infile, handlers)
            finally:
                is_waiting = False
            if begins and infile.peek(1):
                return
            if begins:  # Spark has closed the connection.
                handlers.close_all()
            handlers.close_ended()
    except _HungUp:
        is_hung_up = True
    finally:
        if is_hung_up:
            handlers.close_all()
        signal.signal(signal.SIGHUP, before)
        if is_hung_up:
            signal.raise_signal(signal.SIGHUP)  # to this thread, so it comes before a task


def _wait(infile: BufferedReader, handlers: OpenHandlers) -> bool:
    """Waits until a task begins, a query ends or a handler is unused; whether a task begins."""
    with selectors.DefaultSelector() as selector:
        selector.register(infile, selectors.EVENT_READ)
        for driver in handlers.drivers:
            selector.register(driver, selectors.EVENT_READ)
        return any(key.fileobj is infile for key, _ in selector.select(handlers.unused_in))
