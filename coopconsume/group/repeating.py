"""Repeats calls of the commit table while their outcome is unknown."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from commits import CommitLogUnavailable, CommitStoreBusy
from coopconsume.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between the first two attempts; each further pause is twice as long, up to the longest.
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0


def repeated(
    call: Callable[[], T], what: str, limit: float, over: threading.Event | None = None
) -> T:
    """Makes a call of the commit table, again and again while the table does not answer.

    Args:
        call: The call. It must be safe to repeat: a commit with its id, a claim or epoch with its
            nonce, a release.
        what: What the call does, for the log and the error.
        limit: Seconds after which no further attempt is made.
        over: Set from another thread if nobody needs the answer any more.

    Returns:
        The answer of the first attempt that has one.

    Raises:
        CommitLogUnavailable: No attempt had an answer; it names the attempts and the time.
        commits.CommitStoreBusy: Other writers came first at each attempt; nothing was written.
    """
    over = over or threading.Event()
    started, is_known = time.monotonic(), True
    backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, random.Random())  # noqa: S311 - no secret
    while True:
        try:
            return call()
        except (CommitLogUnavailable, CommitStoreBusy) as error:
            is_known = is_known and isinstance(error, CommitStoreBusy)
            took = time.monotonic() - started
            pause = backoff.failed(started + took)
            if over.is_set() or took + pause > limit:
                if is_known:
                    raise
                problem = error.problem if isinstance(error, CommitLogUnavailable) else str(error)
                tried = f"{backoff.failures} attempts in {took:.0f} s"
                raise CommitLogUnavailable(
                    error.target, error.operation, f"{what}: no answer after {tried}: {problem}"
                ) from error
            log.warning("%s: attempt %d failed, trying again: %s", what, backoff.failures, error)
            over.wait(pause)
