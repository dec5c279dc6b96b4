"""Notes for how long a table has not answered."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from commits.errors import CommitLogUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


log = logging.getLogger(__name__)

#: Seconds without an answer that are worth a word.
LONG: Final = 3.0


class Silence:
    """The time since the first call of a table that it has not answered.

    One thread at a time calls the table; any thread may ask for `words`.

    Args:
        target: The table, for messages.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._since: float | None = None
        self._problem = ""

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """A call of the table; any end but `CommitLogUnavailable` is an answer."""
        begun = time.monotonic()
        self._since = begun if self._since is None else self._since
        try:
            yield
        except CommitLogUnavailable as error:
            self._problem = error.problem
            raise
        except BaseException:
            self._answered()
            raise
        self._answered()

    def words(self) -> str:
        """Return since when the table has not answered, and why; empty if that is not long."""
        since = self._since
        seconds = 0.0 if since is None else time.monotonic() - since
        if seconds < LONG:
            return ""
        return f"for {seconds:.0f} s: {self._problem or 'a request to it is under way'}"

    def _answered(self) -> None:
        since, self._since = self._since, None
        had_failed, self._problem = bool(self._problem), ""
        if since is not None and had_failed and time.monotonic() - since >= LONG:
            took = time.monotonic() - since
            log.warning("%s has answered again, after %.0f s", self._target, took)
