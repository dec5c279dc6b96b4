"""Time limits of calls to Kafka."""

from __future__ import annotations

import math
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Seconds for which a client waits for an answer, a new connection included.
_CLIENT: Final = 20.0
#: Seconds for an answer also at the end of the time: with it an error can name its cause.
_LEAST: Final = 1.0
#: Seconds between two looks at the limit while a call runs.
_LOOK_EVERY: Final = 0.05
_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.2


def monotonic() -> float:
    """Seconds on a clock that never steps."""
    return time.monotonic()


class Deadline:
    """Some seconds from now on; within its block the thread waits for no answer beyond them."""

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

    def __enter__(self) -> None:
        _here.deadlines = (*getattr(_here, "deadlines", ()), self)

    def __exit__(self, *_: object) -> None:
        _here.deadlines = _here.deadlines[:-1]


_here = threading.local()


def time_left() -> float:
    """Returns the seconds that the calling thread has for an answer of a broker, at least 1."""
    return max(_LEAST, min((d.left for d in getattr(_here, "deadlines", ())), default=math.inf))


class CallLimit(Deadline):
    """A deadline that is set while answers of brokers are waited for: none until then."""

    def __init__(self) -> None:
        super().__init__(math.inf)

    def set(self, seconds: float) -> None:
        """Waits no longer than some seconds from now; the earliest limit counts."""
        self._until = min(self._until, time.monotonic() + seconds)


class NoAnswerInTime(TimeoutError):
    """A call has not returned within its limit."""

    def __init__(self, call: Callable[[], Any]) -> None:
        name = getattr(getattr(call, "func", call), "__name__", "a call")
        super().__init__(f"no answer to {name} in time")


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
        raise NoAnswerInTime(call)
    threading.Thread(target=run, name="coopconsume-kafka-call", daemon=True).start()
    while not done.wait(min(_LOOK_EVERY, left())):
        if left() <= 0:
            raise NoAnswerInTime(call)
    if errors:
        raise errors[0]
    return answers[0]


def call_in_time(call: Callable[..., T], *args: Any, **how: Any) -> T:
    """Calls a function of a client, which waits for at most 20 s, within `time_left`.

    Raises:
        NoAnswerInTime: The time is over.
    """
    deadline = Deadline(time_left())
    if deadline.seconds > _CLIENT:
        return call(*args, **how)
    found: T = call_within(lambda: deadline.left, partial(call, *args, **how))
    return found
