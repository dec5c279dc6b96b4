"""Lines on standard error that say what the job of a program waits for, and what it leaves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from coopconsume.monitoring.listener import QueryListener
from coopconsume.texts import counted

if TYPE_CHECKING:
    from coopconsume.monitoring.listener import (
        Progress,
        QueryProgressEvent,
        QueryTerminatedEvent,
    )


def left_behind(event: Progress) -> str:
    """Returns what waits for a decision at the end of a job, and the next command; empty: nothing.

    Args:
        event: The last progress event.
    """
    if not event["parked"]:
        return ""
    verb, them = ("waits", "it") if event["parked"] == 1 else ("wait", "them")
    behind = event["behindParked"]
    held = f" with {counted(behind, 'record')} behind {them}" if behind else ""
    # Parked records come first in the verdict of a job, or belong to what comes before them.
    command = event["verdict"]["command"]
    then = f"; next: {command}" if command else ""
    return f"{event['parked']:,} {verb} for your decision{held}{then}"


class WaitingLines(QueryListener):
    """Writes what a query waits for, in one line, if it still does at the next event.

    Without commits, events come when the reason changes and every ten seconds. A reason is written
    once, until another one is written. The last line says what waits for a decision.

    Args:
        group: The group id, which begins a line.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._reason = self._written = ""
        self._last: Progress | None = None

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - PySpark's name
        """Writes what the query waits for if the event before had the same reason."""
        self._last = event.progress
        before, self._reason = self._reason, ""
        waiting = event.progress["waitingFor"]
        if waiting is None:
            return
        self._reason = waiting["reason"]
        if self._reason != before or self._reason == self._written:
            return
        self._written = self._reason
        self._write(waiting["message"])

    def onQueryTerminated(self, _event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Writes what the query has done, if it leaves something that waits for a decision."""
        left = "" if self._last is None else left_behind(self._last)
        if self._last is not None and left:
            self._write(f"ended: {counted(self._last['totals']['done'], 'record')} done, {left}")

    def _write(self, line: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(f"coopconsume, group {self._group}: {line}\n")
            sys.stderr.flush()
