"""Listeners of a query, with the names of PySpark's ``StreamingQueryListener``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


class Progress(dict[str, Any]):
    """One progress event: a dictionary, as in PySpark, with its JSON text."""

    @property
    def json(self) -> str:
        """The event on one line."""
        return json.dumps(self)

    @property
    def prettyJson(self) -> str:  # noqa: N802 - PySpark's name
        """The event, indented."""
        return json.dumps(self, indent=2)


@dataclass(frozen=True)
class QueryStartedEvent:
    """A query begins.

    Attributes:
        id: The same over restarts.
        runId: Of this run alone.
        name: As given by ``queryName``.
        groupId: ``kafka.group.id``.
        timestamp: In ISO 8601.
    """

    id: str
    runId: str  # noqa: N815 - PySpark's name
    name: str | None
    groupId: str  # noqa: N815
    timestamp: str


@dataclass(frozen=True)
class QueryProgressEvent:
    """A commit was answered, or ten seconds have passed since the last event.

    Attributes:
        progress: What ``query.lastProgress`` says now.
    """

    progress: Progress


@dataclass(frozen=True)
class QueryIdleEvent:
    """There is nothing to do; told every ten seconds.

    Attributes:
        id: The same over restarts.
        runId: Of this run alone.
        timestamp: In ISO 8601.
    """

    id: str
    runId: str  # noqa: N815
    timestamp: str


@dataclass(frozen=True)
class QueryTerminatedEvent:
    """A query has ended.

    Attributes:
        id: The same over restarts.
        runId: Of this run alone.
        exception: What ended it, as text; None: it was stopped or is drained.
    """

    id: str
    runId: str  # noqa: N815
    exception: str | None


class QueryListener:
    """Is told what a query does; override what is of interest.

    All but ``onQueryStarted`` is called in the query's own thread: keep it short. What it raises is
    logged and harms nothing.
    """

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - PySpark's name
        """The query begins; called before ``start()`` returns."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """There is news."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """There is nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The query has ended."""
