"""Errors of handlers, sessions, polled records and outputs."""

from __future__ import annotations

from coopconsume.errors.base import CoopConsumeError, OffsetsError, ReasonError

_HANDLERS = (
    "give a function or callable object of one argument that can be pickled (open files and "
    "connections inside it), or module:function"
)


class HandlerNotUsable(CoopConsumeError, ValueError):
    """A handler cannot be found, called or sent to Spark's workers.

    Attributes:
        handler: A description of the handler.
        cause: Why it cannot be used.
        remedy: What to do.
    """

    def __init__(self, handler: str, cause: str, remedy: str = _HANDLERS) -> None:
        super().__init__(handler, cause, remedy)
        self.handler = handler
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"handler {self.handler} cannot be used: {self.cause}; {self.remedy}"


class HandlerFailed(ReasonError):
    """A handler failed or returned a result with which the job cannot continue.

    Attributes:
        reason: The cause, the record and the remedy.
    """


class SessionUnusable(ReasonError):
    """The Spark session cannot run batches of a job.

    Attributes:
        reason: What is wrong, and what to do.
    """


class RealTimeUnavailable(CoopConsumeError):
    """A job cannot run in real time where it was started.

    Attributes:
        cause: What is missing.
        remedy: What to do.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"the job cannot run in real time: {self.cause}; {self.remedy}"


class NotPolled(OffsetsError, ValueError):
    """A call settles offsets that this consumer has not returned or that are settled already.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: First such offset.
        last: Last such offset.
    """

    def __str__(self) -> str:
        return (
            f"{self._offsets} were not polled by this consumer, or are settled already: commit, "
            "retry and reject only rows that poll() returned since the last assignment, within "
            "maxPollInterval of the call before; "
            "commit({partition: offset}) commits all of them below an offset"
        )


class TableUnusable(CoopConsumeError, ValueError):
    """A Delta table for outputs or dead letters cannot be written.

    Args:
        what: The kind of table.
        path: Its path.
        cause: Why it cannot be written.
    """

    def __init__(self, what: str, path: str, cause: str) -> None:
        super().__init__(what, path, cause)
        self.what = what
        self.path = path
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.what} at {self.path}: {self.cause}; give another path, or move the old table"


class OutputNotWritten(CoopConsumeError):
    """Outputs or dead letters could not be written; their records are not committed.

    Attributes:
        what: The kind of data.
        where: The table or topic.
        cause: Why they could not be written.
    """

    retriable = True

    def __init__(self, what: str, where: str, cause: str) -> None:
        super().__init__(what, where, cause)
        self.what = what
        self.where = where
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"{self.what} could not be written to {self.where} ({self.cause}): their records are "
            "not committed and stay pending; check the destination"
        )


class OutputRefused(OutputNotWritten):
    """The destination refuses these outputs or dead letters; a retry does not help.

    The attributes are those of `OutputNotWritten`.
    """

    retriable = False

    def __str__(self) -> str:
        return (
            f"{self.what} were refused by {self.where} ({self.cause}): their records are not "
            "committed and stay pending; change the limits of the destination and start the job "
            "again"
        )


class AlreadyClosed(CoopConsumeError):
    """The consumer or query is closed.

    Attributes:
        what: Its description.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is closed: create a new one"


class PollWokenUp(CoopConsumeError):
    """Another thread has called ``wakeup`` (Kafka's ``WakeupException``). Nothing is lost."""

    retriable = True

    def __str__(self) -> str:
        return "wakeup() ended this poll: stop polling, or poll again"


class OutputsNotPublished(CoopConsumeError):
    """Rows that wait for a transaction could not be written to their topic. No row is lost.

    Attributes:
        where: The table in which they wait, or the topic.
        cause: Why they could not be written.
    """

    retriable = True

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(where, cause)
        self.where = where
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"outputs could not be published ({self.where}: {self.cause}): their records are "
            "committed and the outputs still wait; check the destination"
        )
