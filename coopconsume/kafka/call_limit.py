"""A time limit for calls to Kafka that is set while they are waited for."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds between two looks at the limit while a call runs.
_LOOK_EVERY: Final = 0.05


class CallLimit:
    """Says for how long answers of brokers are waited for: without a limit until one is set."""

    def __init__(self) -> None:
        self._until = math.inf

    def set(self, seconds: float) -> None:
        """Waits no longer than some seconds from now; the earliest limit counts."""
        self._until = min(self._until, time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until the limit; infinite without one."""
        return max(0.0, self._until - time.monotonic())


class NoAnswerInTime(Exception):
    """A call has not returned within its limit."""


def call_within(left: Callable[[], float], call: Callable[[], Any]) -> Any:
    """Calls a function in a thread of its own, and returns its answer.

    The caller is free at the limit, even if the limit is set while the call runs. The thread stays
    behind then until the call returns.

    Args:
        left: Returns the seconds until the limit.
        call: The function.

    Raises:
        NoAnswerInTime: The limit is over.
    """
    done = threading.Event()
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)
        finally:
            done.set()

    if left() <= 0:
        raise NoAnswerInTime
    threading.Thread(target=run, name="coopconsume-kafka-call", daemon=True).start()
    while not done.wait(min(_LOOK_EVERY, left())):
        if left() <= 0:
            raise NoAnswerInTime
    if errors:
        raise errors[0]
    return answers[0]
