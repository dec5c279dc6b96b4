"""Stops calls to a service that is down, by destination. Task-side code."""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commits.secrets import hidden
from coopconsume.backoff import Backoff
from coopconsume.record import MAX_WAIT, Reject, Retry, exception_classes, usable_seconds
from coopconsume.worker.handler_answers import only_leaf

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType

log = logging.getLogger(__name__)

#: The longest pause, as a multiple of the first one.
_LONGEST = 10.0
#: The longest wait, in seconds, for the end of a trial call.
_TRIAL = 1.0
#: The most destinations that are kept, and how many of them are dropped if there are more.
_MOST = 10_000
_DROPPED = 1_000


class CircuitOpen(Retry):
    """A `CircuitBreaker` lets no call to a destination pass; its record is tried again later.

    It counts neither as an attempt of the record nor as a failure of the job.

    Args:
        after: Seconds until a call may pass.
        reason: Names the destination.
    """

    def __init__(self, after: float, reason: object) -> None:
        super().__init__(after, reason, counts=False)


@dataclass
class _Circuit:
    """The circuit of one destination.

    Attributes:
        pauses: The pauses so far; without any, it is closed.
        failures: Failed calls in a row.
        is_tried: Whether a call tries if the destination is there again.
    """

    pauses: Backoff
    failures: int = 0
    is_tried: bool = False

    @property
    def is_open(self) -> bool:
        """Whether no call passes but a trial."""
        return self.pauses.failures > 0


class CircuitBreaker:
    """Lets no calls to a destination pass for a while after its calls have failed in a row.

    A handler makes it in `open`, and each call in ``with breaker.to(destination):`` or ``async
    with``. A call fails if an exception leaves the block, `Retry` and the end by a time limit among
    them; `Reject` is about the record, so the call has succeeded. After ``failures`` failed calls
    in a row the circuit of the destination opens: entering the block raises `CircuitOpen`. After
    the pause one call tries. If it fails, the pause doubles, up to ten times the first one; a call
    that succeeds closes the circuit. Other destinations are not concerned. Each worker process has
    circuits of its own.

    Args:
        failures: Failed calls in a row that open a circuit, 1 or more.
        pause: Seconds of the first pause, above 0 and up to 3,153,600 (36.5 days).
        ignore: Exceptions that say nothing of the destination, with what derives from them.

    Raises:
        TypeError: ``ignore`` holds something else than exception classes.
        ValueError: ``failures`` or ``pause`` is out of its range.
    """

    def __init__(
        self,
        failures: int = 5,
        pause: float = 10.0,
        ignore: type[BaseException] | tuple[type[BaseException], ...] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(failures, int) or failures < 1:
            raise ValueError(f"CircuitBreaker(failures={failures!r}): give a number from 1 on")
        if not usable_seconds(pause) or pause > MAX_WAIT / _LONGEST:
            raise ValueError(
                f"CircuitBreaker(pause={pause!r}): give seconds above 0, at most "
                f"{MAX_WAIT / _LONGEST:.0f}"
            )
        self._most = failures
        self._pause = float(pause)
        self._ignore: tuple[type[BaseException], ...] = (
            CircuitOpen,
            *exception_classes("ignore", ignore),
        )
        self._clock = clock
        self._lock = threading.Lock()
        #: Of the destinations whose last call has failed.
        self._circuits: dict[Hashable, _Circuit] = {}

    def to(self, destination: Hashable) -> GuardedCall:
        """Returns the context of one call to a destination, plain or ``async``.

        Args:
            destination: What fails as one: a host, not an address with ids. It names the
                destination in logs, reasons and dead letters, an address without its login and its
                signatures. Of more than 10,000 destinations, those that failed first are forgotten.

        Raises:
            TypeError: It cannot be a key of a dictionary.
        """
        try:
            hash(destination)
        except TypeError:
            raise TypeError(
                f"CircuitBreaker.to() got a {type(destination).__name__}: give a text, such as the "
                "name of a host"
            ) from None
        return GuardedCall(self, destination)

    def is_open(self, destination: Hashable) -> bool:
        """Whether the circuit of a destination is open: no call passes, or one tries."""
        circuit = self._circuits.get(destination)
        return circuit is not None and circuit.is_open

    def begin(self, destination: Hashable) -> bool:
        """Begins a call; returns whether it is the trial of an open circuit.

        Raises:
            CircuitOpen: No call may pass.
        """
        if destination not in self._circuits:
            return False
        with self._lock:
            circuit = self._circuits.get(destination)
            if circuit is None or not circuit.is_open:
                return False
            wait = circuit.pauses.not_before - self._clock()
            if wait <= 0 and not circuit.is_tried:
                circuit.is_tried = True
                return True
        wait = wait if wait > 0 else min(_TRIAL, self._pause)
        # Not all records of the destination at once.
        wait *= 1 + 0.1 * random.random()  # noqa: S311 - no secret
        raise CircuitOpen(min(wait, MAX_WAIT), f"the circuit of {_shown(destination)} is open")

    def end(self, destination: Hashable, error: BaseException | None, *, is_trial: bool) -> None:
        """Ends a call.

        Args:
            destination: What was called.
            error: What has left the block; None: nothing.
            is_trial: Whether it was the trial of an open circuit.
        """
        error = None if error is None else only_leaf(error)
        has_succeeded = error is None or isinstance(error, Reject)
        is_news = not (has_succeeded or isinstance(error, self._ignore))
        if destination not in self._circuits and not is_news:
            return
        state = ""
        with self._lock:
            circuit = self._circuits.get(destination) or self._add(destination)
            if is_trial:
                circuit.is_tried = False
            elif circuit.is_open:
                return  # A call that began before the circuit has opened says nothing new.
            if has_succeeded:
                del self._circuits[destination]
                state = "closed" if is_trial else ""
            elif is_news:
                self._failed(circuit, is_trial=is_trial)
                state = f"open for {circuit.pauses.pause:g} s" if circuit.is_open else ""
        if state:
            log.warning("the circuit of %s is %s", _shown(destination), state)

    def _failed(self, circuit: _Circuit, *, is_trial: bool) -> None:
        circuit.failures += 1
        if is_trial or circuit.failures >= self._most:
            circuit.pauses.failed(self._clock())

    def _add(self, destination: Hashable) -> _Circuit:
        if len(self._circuits) >= _MOST:
            closed = [one for one, circuit in self._circuits.items() if not circuit.is_open]
            for one in (closed or [*self._circuits])[:_DROPPED]:
                del self._circuits[one]
        circuit = _Circuit(Backoff(self._pause, _LONGEST * self._pause))
        self._circuits[destination] = circuit
        return circuit


def _shown(destination: Hashable) -> str:
    return hidden(str(destination))


class GuardedCall:
    """One call to a destination, as the context that `CircuitBreaker.to` returns.

    Raises:
        RuntimeError: As it is entered: it is that of a call that has not ended.
    """

    __slots__ = ("_at_work", "_breaker", "_destination", "_is_trial")

    def __init__(self, breaker: CircuitBreaker, destination: Hashable) -> None:
        self._breaker = breaker
        self._destination = destination
        self._is_trial = False
        self._at_work = threading.Lock()

    def __enter__(self) -> None:
        if not self._at_work.acquire(blocking=False):
            raise RuntimeError(
                f"two calls to {self._destination} share what CircuitBreaker.to() has returned: "
                "write `with breaker.to(destination):` for each call"
            )
        try:
            self._is_trial = self._breaker.begin(self._destination)
        except BaseException:
            self._at_work.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._breaker.end(self._destination, error, is_trial=self._is_trial)
        finally:
            self._at_work.release()

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)
