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


DEFAULT = pytest.mark.parametrize(
    ("number", "handler"),
    [
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGINT, _of_pyspark),
        (signal.SIGTERM, signal.SIG_DFL),
    ],
)


@DEFAULT
def test_a_signal_interrupts_a_wait(number, handler) -> None:
    """PySpark's handler, too, does not run meanwhile. Without a signal it comes back."""
    signal.signal(number, handler)
    with interruptible():
        pass
    assert signal.getsignal(number) is handler
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)


@DEFAULT
def test_a_wait_after_an_interrupted_one_is_interrupted_too(number, handler) -> None:
    """And the handler from before both comes back."""
    signal.signal(number, handler)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)
    with interruptible():
        pass
    assert signal.getsignal(number) is handler


def test_signals_together_do_not_interrupt_what_a_program_does_at_its_end(monkeypatch) -> None:
    """`timeout` sends two. A later one is handled as before the wait."""
    seen, now = [], [7.0]
    monkeypatch.setattr(Interrupt.__init__, "__defaults__", (lambda: now[0],))
    pyspark = lambda *_: seen.append("all Spark jobs are cancelled")  # noqa: E731
    pyspark.__module__ = "pyspark.core.context"
    signal.signal(signal.SIGINT, pyspark)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert not seen
    now[0] += 1.0
    signal.raise_signal(signal.SIGINT)
    assert seen
    assert signal.getsignal(signal.SIGINT) is pyspark


@pytest.mark.parametrize("when", ["install", "uninstall"])
def test_a_signal_while_handlers_are_set_interrupts_and_leaves_none_behind(
    monkeypatch, when
) -> None:
    """Between any two steps."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    set_handler, calls = signal.signal, []

    def interrupted(number, handler):
        found = set_handler(number, handler)
        calls.append(number)
        if len(calls) == {"install": 1, "uninstall": 3}[when]:
            signal.raise_signal(signal.SIGINT if when == "install" else signal.SIGTERM)
        return found

    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt), interruptible():
        pass
    with interruptible():
        pass
    assert {number: signal.getsignal(number) for number in before} == before


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
