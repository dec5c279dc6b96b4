"""Listeners of a query, with the names of PySpark's ``StreamingQueryListener``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


class Progress(dict[str, Any]):
    """A progress event: a dictionary, as in PySpark, with its JSON text."""

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
    """A query has started.

    Attributes:
        id: Id of the query; it is the same after a restart.
        runId: Id of this run.
        name: The ``queryName``, if it has one.
        groupId: The ``kafka.group.id``.
        clientId: The ``kafka.client.id``, which names the member; its default has the
            application, the host and the process id.
        timestamp: Time of the start in ISO 8601.
    """

    id: str
    runId: str  # noqa: N815 - PySpark's name
    name: str | None
    groupId: str  # noqa: N815
    clientId: str  # noqa: N815
    timestamp: str


@dataclass(frozen=True)
class QueryProgressEvent:
    """A commit is complete, what the job waits for has changed, or ten seconds have passed.

    Attributes:
        progress: The value of ``query.lastProgress``.
    """

    progress: Progress


@dataclass(frozen=True)
class QueryIdleEvent:
    """The query has no records to process; reported every ten seconds.

    Attributes:
        id: Id of the query; it is the same after a restart.
        runId: Id of this run.
        timestamp: Time of the event in ISO 8601.
    """

    id: str
    runId: str  # noqa: N815
    timestamp: str


@dataclass(frozen=True)
class QueryTerminatedEvent:
    """A query has terminated.

    Attributes:
        id: Id of the query; it is the same after a restart.
        runId: Id of this run.
        exception: The error that terminated it, as text; None if it was stopped or is drained.
        isAborted: Whether it was left at once by `CooperativeQuery.abort`.
    """

    id: str
    runId: str  # noqa: N815
    exception: str | None
    isAborted: bool = False  # noqa: N815


class QueryListener:
    """Receives the events of a query. Override the methods that you need.

    The query calls all methods but ``onQueryStarted`` in its own thread, so keep them short.
    Exceptions are logged and do not affect the query.
    """

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - PySpark's name
        """Called when the query starts, before ``start()`` returns."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Called when the query has made progress."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Called while the query has no records to process."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Called when the query has terminated."""
