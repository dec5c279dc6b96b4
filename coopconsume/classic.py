"""The one module that touches ``sparkContext``: what only a classic session can do.

On a classic session a slot's report reaches the driver as its *task* ends, through an accumulator.
On Spark Connect there is none; reports then come with the job's result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    Send = Callable[[bytes], None]


def is_classic(session: SparkSession) -> bool:
    """Whether the session has a driver-side JVM of its own."""
    from pyspark.sql import SparkSession as Classic

    return isinstance(session, Classic) and type(session).__module__ == "pyspark.sql.session"


def cores(session: SparkSession) -> int | None:
    """Tasks that the session runs side by side; None where it does not tell."""
    return int(session.sparkContext.defaultParallelism) if is_classic(session) else None


class _Mailbox:
    """An accumulator parameter whose additions, on the driver, go to a callback."""

    def __init__(self, receive: Callable[[bytes], None] | None) -> None:
        self._receive = receive

    def __reduce__(self) -> tuple[type[_Mailbox], tuple[None]]:
        return _Mailbox, (None,)

    def zero(self, _value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, held: list[bytes], more: list[bytes]) -> list[bytes]:  # noqa: N802
        if self._receive is None:
            held.extend(more)
        else:
            for payload in more:
                self._receive(payload)
        return held


class _Sender:
    """Adds a report to the accumulator; picklable, used in tasks."""

    def __init__(self, accumulator: Any) -> None:
        self._accumulator = accumulator

    def __call__(self, payload: bytes) -> None:
        self._accumulator.add([payload])


def open_mailbox(session: SparkSession, receive: Callable[[bytes], None]) -> Send | None:
    """A function for tasks whose argument reaches ``receive`` on the driver as the task ends.

    Returns:
        None on a session without accumulators.
    """
    if not is_classic(session):
        return None
    param: Any = _Mailbox(receive)
    return _Sender(session.sparkContext.accumulator([], param))
