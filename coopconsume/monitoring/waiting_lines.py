"""Lines on standard error that say what the job of a program waits for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from coopconsume.monitoring.listener import QueryListener

if TYPE_CHECKING:
    from coopconsume.monitoring.listener import QueryProgressEvent


class WaitingLines(QueryListener):
    """Writes what a query waits for, in one line, if it still does at the next event.

    Without commits, events come when the reason changes and every ten seconds. A reason is written
    once, until another one is written.

    Args:
        group: The group id, which begins a line.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._reason = self._written = ""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - PySpark's name
        """Writes what the query waits for if the event before had the same reason."""
        before, self._reason = self._reason, ""
        waiting = event.progress["waitingFor"]
        if waiting is None:
            return
        self._reason = waiting["reason"]
        if self._reason != before or self._reason == self._written:
            return
        self._written = self._reason
        if sys.stderr is not None:
            sys.stderr.write(f"coopconsume, group {self._group}: {waiting['message']}\n")
            sys.stderr.flush()
