"""Time limits of calls to Kafka."""

from __future__ import annotations

import math
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds between two looks at the limit while a call runs.
_LOOK_EVERY: Final = 0.05
_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.2


def monotonic() -> float:
    """Seconds on a clock that never steps."""
    return time.monotonic()


class Deadline:
    """Some seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._pauses = 0
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; never below 0."""
        return max(0.0, self._until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether none are left."""
        return self.left == 0.0

    def pause(self) -> None:
        """Sleeps a little, longer each time, and not as long as others do."""
        self._pauses += 1
        longest = min(_LONGEST_PAUSE, _PAUSE * 2 ** min(self._pauses, 10), self.left)
        time.sleep(random.uniform(0, longest))  # noqa: S311 - only to get out of step


class CallLimit(Deadline):
    """A deadline that is set while answers of brokers are waited for: none until then."""

    def __init__(self) -> None:
        super().__init__(math.inf)

    def set(self, seconds: float) -> None:
        """Waits no longer than some seconds from now; the earliest limit counts."""
        self._until = min(self._until, time.monotonic() + seconds)


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
