"""Errors of handlers, sessions, polled records and outputs."""

from __future__ import annotations

from coopconsume.errors.base import DeclaredError, OffsetsError, ReasonError

_HANDLERS = (
    "give a function or callable object of one argument that can be pickled (open files and "
    "connections inside it), or module:function"
)


class HandlerNotUsable(DeclaredError, ValueError):
    """A handler cannot be found, called or sent to Spark's workers.

    Attributes:
        handler: A description of the handler.
        cause: Why it cannot be used.
        remedy: What to do.
    """

    message = "handler {handler} cannot be used: {cause}; {remedy}"

    handler: str
    cause: str
    remedy: str = _HANDLERS


class HandlerFailed(ReasonError):
    """A handler failed or returned a result with which the job cannot continue.

    Attributes:
        reason: The cause, the record and the remedy.
    """


class HandlerNotOpened(DeclaredError):
    """A handler could not be opened in a slot, in one attempt after another. No record is lost.

    Attributes:
        handler: A description of the handler.
        cause: The error of the last attempt.
    """

    message = (
        "handler {handler} cannot be opened: {cause}. Remove the cause and start the job again; "
        "nothing is lost"
    )

    handler: str
    cause: str


class SlotFailed(DeclaredError):
    """Slots of a job fail in one batch after another, for a cause outside of the handler.

    Attributes:
        cause: The error of the last one.
    """

    message = (
        "slots of the job fail again and again, and no record is handled: {cause}. Remove the "
        "cause and start the job again; nothing is lost"
    )

    cause: str


class SessionUnusable(ReasonError):
    """The Spark session cannot run batches of a job.

    Attributes:
        reason: What is wrong, and what to do.
    """


class RealTimeUnavailable(DeclaredError):
    """A job cannot run in real time where it was started.

    Attributes:
        cause: What is missing.
        remedy: What to do.
    """

    message = "the job cannot run in real time: {cause}; {remedy}"

    cause: str
    remedy: str


class NotPolled(OffsetsError, ValueError):
    """A call settles offsets that this consumer has not returned or that are settled already.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: First such offset.
        last: Last such offset.
    """

    message = (
        "{_offsets} were not polled by this consumer, or are settled already: commit, retry and "
        "reject only rows that poll() returned since the last assignment, within maxPollInterval "
        "of the call before; commit({{partition: offset}}) commits all of them below an offset"
    )


class TableUnusable(DeclaredError, ValueError):
    """A Delta table for outputs or dead letters cannot be written.

    Args:
        what: The kind of table.
        path: Its path.
        cause: Why it cannot be written.
    """

    message = "{what} at {path}: {cause}; give another path, or move the old table"

    what: str
    path: str
    cause: str


class OutputNotWritten(DeclaredError):
    """Outputs or dead letters could not be written; their records are not committed.

    Attributes:
        what: The kind of data.
        where: The table or topic.
        cause: Why they could not be written.
    """

    retriable = True
    message = (
        "{what} could not be written to {where} ({cause}): their records are not committed and "
        "stay pending; check the destination"
    )

    what: str
    where: str
    cause: str


class OutputRefused(OutputNotWritten):
    """The destination refuses these outputs or dead letters; a retry does not help.

    The attributes are those of `OutputNotWritten`.
    """

    retriable = False
    message = (
        "{what} were refused by {where} ({cause}): their records are not committed and stay "
        "pending; change the limits of the destination and start the job again"
    )


class AlreadyClosed(DeclaredError):
    """The consumer or query is closed.

    Attributes:
        what: Its description.
    """

    message = "{what} is closed: create a new one"

    what: str


class PollWokenUp(DeclaredError):
    """Another thread has called ``wakeup`` (Kafka's ``WakeupException``). Nothing is lost."""

    retriable = True
    message = "wakeup() ended this poll: stop polling, or poll again"


class OutputsNotPublished(DeclaredError):
    """Rows that wait for a transaction could not be written to their topic. No row is lost.

    Attributes:
        where: The table in which they wait, or the topic.
        cause: Why they could not be written.
    """

    retriable = True
    message = (
        "outputs could not be published ({where}: {cause}): their records are committed and the "
        "outputs still wait; check the destination"
    )

    where: str
    cause: str


class NotDecodable(DeclaredError, ValueError):
    """The key or the value of a record does not decode as its handler declares it.

    Attributes:
        field: ``key`` or ``value``, with the path to the part that is wrong, as far as it is known.
        reason: What is wrong with it, in one line.
    """

    message = "{field}: {reason}"

    field: str
    reason: str
