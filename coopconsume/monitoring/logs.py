"""A JSON log formatter and a listener that logs the events of a query."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from coopconsume.monitoring.listener import QueryListener

if TYPE_CHECKING:
    from coopconsume.monitoring.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
log = logging.getLogger("coopconsume.query")


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON with the field names of PySpark's logger.

    Fields: ``ts``, ``level``, ``logger``, ``msg``; ``context`` with the values of ``extra``;
    ``exception`` with ``class``, ``msg`` and ``stacktrace``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        fields: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        context = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if context:
            fields["context"] = context
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = {
                "class": record.exc_info[0].__name__,
                "msg": str(record.exc_info[1]),
                "stacktrace": self.formatException(record.exc_info).splitlines(),
            }
        return json.dumps(fields, default=str)


class LoggingListener(QueryListener):
    """Logs a query's events under ``coopconsume.query``, with all numbers as ``extra``."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - PySpark's name
        """Log the start of the query."""
        log.info("query started", extra={"query": vars(event)})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Log the progress of the query."""
        waiting = event.progress["waitingFor"]
        why = f", {waiting['message']}" if waiting else ""
        log.info("query progress%s", why, extra={"progress": dict(event.progress)})

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Log the end of the query and its error."""
        level = logging.ERROR if event.exception else logging.INFO
        log.log(level, "query terminated", extra={"query": vars(event)})
