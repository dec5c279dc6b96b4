"""Writes what a job's loop sees and decides to a file, one JSON object a line, for developers.

A line is an event (see `coopconsume.runtime.events`), an observation or a decision. ``at`` is the
time on the monotonic clock, ``run`` the run of the job. Nothing that could be secret is written:
no keys, values, headers, outputs or states, no texts of errors, no options but numbers and flags.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from assignors import KeyRange, Share
from commits import OffsetRanges
from coopconsume.decoding import Decoding
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.runtime.events import JobEvent, Reply
from coopconsume.worker.report import unpack_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from commits import AcquireRequest
    from commits.model import TopicPartition
    from coopconsume.options import Options
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.runtime.plan import BatchPlan

log = logging.getLogger(__name__)

#: The environment variable that names the file.
VARIABLE: Final = "COOPCONSUME_TRACE"
#: Fields whose texts are names of this library or of topics.
_NAMES: Final = frozenset({"topic", "ordering", "sharing", "stopped", "what", "action"})
#: Fields of bytes that hold offsets.
_OFFSETS: Final = frozenset({"done", "filtered", "read"})


@dataclass(frozen=True)
class JobStarted(JobEvent):
    """The loop starts.

    Attributes:
        slots: Spark tasks side by side.
        lease: Seconds of a slot's lease; None: slots have no channel.
        options: The options of the consumer; numbers and flags are written.
        job_spec: What the job does; likewise.
    """

    slots: int
    lease: float | None
    options: Options
    job_spec: JobSpec


@dataclass(frozen=True)
class TurnBegun(JobEvent):
    """A turn of the loop begins."""


@dataclass(frozen=True)
class EpochSeen(JobEvent):
    """The work goes on under an epoch."""

    number: int


@dataclass(frozen=True)
class EndsRead(JobEvent):
    """Where the logs end."""

    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class StartsRead(JobEvent):
    """Where logs begin that no longer have all records that are not done."""

    starts: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class BatchWithheld(JobEvent):
    """No batch starts in this turn.

    Attributes:
        is_confirmed: Whether the epoch is confirmed, and the next owners would not wait for long
            enough.
    """

    is_confirmed: bool


@dataclass(frozen=True)
class BatchStarted(JobEvent):
    """A batch is given to Spark.

    Attributes:
        batch: Its number.
        now: The time it was planned for, on the monotonic clock.
        plan: What is read, and what each slot may start.
    """

    batch: int
    now: float
    plan: BatchPlan


@dataclass(frozen=True)
class CommitStarted(JobEvent):
    """A commit is given to the committing thread.

    Attributes:
        offsets: The done offsets.
        holes: The offsets at which there is no record.
        pending: Of each partition, the failed records: offset, attempts.
        request: What it asks for of a cooperative epoch.
    """

    offsets: Mapping[TopicPartition, OffsetRanges]
    holes: Mapping[TopicPartition, OffsetRanges]
    pending: Mapping[TopicPartition, Sequence[tuple[int, int]]]
    request: AcquireRequest | None = None


@dataclass(frozen=True)
class JobEnded(JobEvent):
    """The loop has ended; with an error, its class is written."""

    error: BaseException | None


class Trace:
    """Writes lines; without a function that takes them, nothing.

    Args:
        run: Names the run of the job in each line.
        write: Takes a line.
        close: Ends the trace.
    """

    def __init__(
        self,
        run: str = "",
        write: Callable[[str], object] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._run = run
        self._write = write
        self.close = close

    @classmethod
    def from_environment(cls, run: str) -> Trace:
        """Appends to the file that `VARIABLE` names; a new file is readable by this user alone."""
        path = os.environ.get(VARIABLE, "")
        if not path:
            return cls(run)
        try:
            file = open(path, "ab", buffering=0, opener=partial(os.open, mode=0o600))  # noqa: SIM115
        except OSError as error:
            log.warning("%s: %s. The job runs without a trace", VARIABLE, error)
            return cls(run)
        # Each line in one write: other runs may append to the same file.
        return cls(run, lambda line: file.write(line.encode()), file.close)

    def write(self, event: JobEvent) -> None:
        """Writes an event, an observation or a decision."""
        if self._write is None:
            return
        line = {"at": time.monotonic(), "run": self._run, "kind": type(event).__name__}
        try:
            self._write(json.dumps(line | _fields(event), separators=(",", ":")) + "\n")
        except OSError as error:
            log.warning("%s: %s. The trace ends here", VARIABLE, error)
            self._write = None


def _fields(value: Any) -> dict[str, Any]:
    return {
        field.name: plain(getattr(value, field.name), field.name)
        for field in fields(value)
        if not isinstance(getattr(value, field.name), Reply)
    }


def plain(value: Any, name: str = "") -> Any:  # noqa: C901, PLR0912 - one match
    """Returns a value as JSON data, without anything that could be secret.

    Args:
        value: Any value of an event.
        name: The name of its field; of texts and bytes with other names than those that are known
            to be harmless, only whether they are empty is returned.
    """
    match value:
        case None | bool() | int():
            found: Any = value
        case float():
            found = value if math.isfinite(value) else str(value)
        case str():
            found = value if name in _NAMES else bool(value)
        case bytes() if name in _OFFSETS:
            found = plain(OffsetRanges.from_offsets(unpack_offsets(value).to_numpy()))
        case OffsetRanges():
            found = [list(pair) for pair in value]
        case BaseException():
            found = type(value).__name__
        case bytes():
            found = bool(value)
        case EpochAssignment():
            found = _assignment(value)
        case KeyRange() | Share():
            found = {field: plain(one, field) for field, one in value._asdict().items()}
        case Decoding():
            found = list(value.declared)
        case Mapping():
            found = {_key(key): plain(one, name) for key, one in value.items()}
        case Sequence() | set() | frozenset():
            found = [plain(one, name) for one in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            found = _fields(value)
        case _:
            found = type(value).__name__
    return found


def _key(key: Any) -> str:
    """A slot, an index, or a topic and partition."""
    return f"{key[0]}-{key[1]}" if isinstance(key, tuple) else str(key)


def _assignment(assignment: EpochAssignment) -> dict[str, Any]:
    return {
        "epoch": assignment.epoch.number,
        "owned": {
            _key(tp): {
                "topic": owned.topic,
                "partition": owned.partition,
                "ranges": owned.ranges,
                "stable": owned.stable,
                "committed": plain(owned.committed),
                "pending": [plain(one) for one in owned.pending],
                "range_count": owned.range_count,
                "last_committed": owned.last_committed,
                "max_ranges": owned.max_ranges,
                "in_doubt": [(*one, until) for one, until in assignment.in_doubt.ranges(tp)],
            }
            for tp, owned in sorted(assignment.owned.items())
        },
    }
