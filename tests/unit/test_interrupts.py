"""What Ctrl-C and SIGTERM do while a command or a query is waited for."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from coopconsume.interrupts import Interrupt, interruptible

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers are as they were after each test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_later_signal_interrupts_again() -> None:
    """A second Ctrl-C leaves at once."""
    now = 7.0
    interrupt = Interrupt(lambda: now)
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    interrupt()
    now += 1.0
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def _of_pyspark(*_: object) -> None:
    raise AssertionError("all Spark jobs are cancelled")


_of_pyspark.__module__ = "pyspark.core.context"


@pytest.mark.parametrize(
    ("number", "handler"),
    [
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGINT, _of_pyspark),
        (signal.SIGTERM, signal.SIG_DFL),
    ],
)
def test_a_signal_interrupts_and_its_handler_comes_back(number, handler) -> None:
    """PySpark's handler, too, does not run meanwhile."""
    signal.signal(number, handler)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)
    assert signal.getsignal(number) is handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_the_program_has_set_stays(number) -> None:
    """A handler of its own, and that it ignores a signal."""
    seen = []
    signal.signal(number, lambda *_: seen.append(number))
    with suppress(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)
    assert seen == [number]
    signal.signal(number, signal.SIG_IGN)
    with interruptible():
        assert signal.getsignal(number) is signal.SIG_IGN


def test_another_thread_has_no_signals() -> None:
    """A query may be waited for in any thread."""
    waited = []

    def wait() -> None:
        with interruptible():
            waited.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert waited == [signal.SIG_DFL]
