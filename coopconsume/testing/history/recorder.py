"""What each handler call writes about itself, outside Spark. Task-side: the standard library alone.

Every process appends to a file of its own, ``calls-<pid>-<random>.tsv``, one write a line, so that
nothing a process wrote is lost when it is killed. (It reaches the operating system, not the disk:
a machine that loses power loses more.)

Format, version 2. Lines of fourteen tab-separated fields; the first line names them (`COLUMNS`):

=========  ======================================================================
event      ``S`` when a call starts, ``E`` when it ends
call       number of the call within its process, from 0
ns         ``time.monotonic_ns()``: one clock for all processes of a machine
thread     native thread id
slot       number of the slot the call ran in
topic      the record's topic
partition  its partition
offset     its offset
attempt    the attempt that the handler got, from 1
key        the record's key in hexadecimal; ``-`` without a key, or if the handler gets it decoded
outcome    ``done``, ``retry``, ``reject``, or ``postponed``: a retry that counts as no attempt
error      what was raised, with everything but printable ASCII escaped; at most 200 characters
saw        with state: a fingerprint of the value that the handler found, ``-`` for none
left       with state: a fingerprint of the value that it left, if the outcome is ``done``
=========  ======================================================================

An ``S`` line has no ``outcome``, ``error`` and ``left``, an ``E`` line nothing from ``thread`` to
``key`` and no ``saw``. A
call without an ``E`` line was running when its process died. A last line without its newline is
torn and does not count.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from coopconsume.record import Reject, Retry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from coopconsume.record import Record

Outcome = Literal["done", "retry", "reject", "postponed"]


class SupportsGet(Protocol):
    """The state of a key, as a handler has it."""

    def get(self) -> Any:
        """Returns its value, or None."""


COLUMNS = (
    "event",
    "call",
    "ns",
    "thread",
    "slot",
    "topic",
    "partition",
    "offset",
    "attempt",
    "key",
    "outcome",
    "error",
    "saw",
    "left",
)
HEADER = ("\t".join(COLUMNS) + "\n").encode()
FILE_PREFIX = "calls-"
FILE_SUFFIX = ".tsv"
MAX_ERROR = 200
NO_STATE = "-"
"""The fingerprint of a key without state."""


@dataclass(frozen=True, slots=True)
class _Log:
    """The file of this process in one directory."""

    fd: int
    numbers: Iterator[int]


# One file for each process and directory, however often a recorder is unpickled there.
_logs: dict[str, _Log] = {}
_opening = threading.Lock()


def _after_fork() -> None:
    """A child writes no line into its parent's file, nor waits for a lock its parent held."""
    global _opening  # noqa: PLW0603 - a lock cannot be reset in place
    _opening = threading.Lock()
    for log in _logs.values():
        os.close(log.fd)
    _logs.clear()


os.register_at_fork(after_in_child=_after_fork)


def _open(directory: str) -> _Log:
    with _opening:
        if (log := _logs.get(directory)) is None:
            path = Path(directory)
            path.mkdir(parents=True, exist_ok=True)
            name = f"{FILE_PREFIX}{os.getpid()}-{secrets.token_hex(4)}{FILE_SUFFIX}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(path / name, flags, 0o644)
            _write(fd, HEADER, directory)
            log = _logs[directory] = _Log(fd, itertools.count())
    return log


def _write(fd: int, line: bytes, directory: str) -> None:
    if os.write(fd, line) != len(line):
        raise OSError(f"the history in {directory} took only part of a line: is the disk full?")


class Recorder:
    """Writes the history of handler calls into a directory.

    Safe to use from many threads, to pickle and to keep in a module: the file is opened by the
    first call in each process. An event costs about two microseconds.

    Args:
        directory: Where the files go; made when missing.
    """

    __slots__ = ("directory",)

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = str(Path(directory).absolute())

    def __repr__(self) -> str:
        return f"Recorder({self.directory!r})"

    def __reduce__(self) -> tuple[type[Recorder], tuple[str]]:
        return Recorder, (self.directory,)

    def call(self, record: Record, slot: int = 0, state: SupportsGet | None = None) -> RecordedCall:
        """A context that writes the start of a handler call as it opens and its end as it closes.

        An exception that leaves it makes the outcome what `outcome_of` returns, and passes on. For
        an answer that is returned, call `RecordedCall.settle`.

        Args:
            record: The record.
            slot: The number of the slot.
            state: The state that the handler is given; its value is recorded before and after.
        """
        return RecordedCall(self, record, slot, state)

    def started(self, record: Record, slot: int = 0, saw: str = "") -> int:
        """Write that a handler call starts now.

        Args:
            record: The record.
            slot: The number of the slot.
            saw: The `fingerprint` of the state of its key; empty: the handler has no state.

        Returns:
            The number of the call, for `finished` in the same process.

        Raises:
            OSError: The directory or its file cannot be written.
        """
        now = time.monotonic_ns()
        log = _logs.get(self.directory) or _open(self.directory)
        number = next(log.numbers)
        # Where the handler gets a decoded key, its bytes are not known here.
        key = record.key if isinstance(record.key, bytes) else None
        line = (
            f"S\t{number}\t{now}\t{threading.get_native_id()}\t{slot}\t{record.topic}"
            f"\t{record.partition}\t{record.offset}\t{record.attempt}"
            f"\t{'-' if key is None else key.hex()}\t\t\t{saw}\t\n"
        )
        _write(log.fd, line.encode(), self.directory)
        return number

    def finished(
        self, number: int, outcome: Outcome = "done", error: str = "", left: str = ""
    ) -> None:
        """Write that the call ``number`` of this process has ended.

        Args:
            number: What `started` returned.
            outcome: How it ended.
            error: Why it is not done.
            left: The `fingerprint` of the state that it left, if it is done.

        Raises:
            OSError: The file cannot be written.
        """
        now = time.monotonic_ns()
        log = _logs.get(self.directory) or _open(self.directory)
        text = error.encode("unicode_escape").decode("ascii")[:MAX_ERROR] if error else ""
        line = f"E\t{number}\t{now}\t\t\t\t\t\t\t\t{outcome}\t{text}\t\t{left}\n"
        _write(log.fd, line.encode(), self.directory)

    def close(self) -> None:
        """Close this process's file, when no call is running; a later call opens a new one."""
        with _opening:
            if log := _logs.pop(self.directory, None):
                os.close(log.fd)


class RecordedCall:
    """One handler call being recorded; made by `Recorder.call`."""

    __slots__ = ("_error", "_number", "_outcome", "_record", "_recorder", "_slot", "_state")

    def __init__(
        self, recorder: Recorder, record: Record, slot: int, state: SupportsGet | None = None
    ) -> None:
        self._recorder = recorder
        self._record = record
        self._slot = slot
        self._state = state
        self._outcome: Outcome = "done"
        self._error = ""

    def settle(self, outcome: Outcome, error: str = "") -> None:
        """Sets the outcome of a call that ends without an exception."""
        self._outcome, self._error = outcome, error

    def __enter__(self) -> Self:
        self._number = self._recorder.started(self._record, self._slot, self._seen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._outcome = outcome_of(error)
            self._error = f"{kind.__name__}: {_text_of(error)}"
        left = self._seen() if self._outcome == "done" else ""
        self._recorder.finished(self._number, self._outcome, self._error, left)

    def _seen(self) -> str:
        return "" if self._state is None else fingerprint(self._state.get())


def outcome_of(error: BaseException | None) -> Outcome:
    """Returns the outcome of a call that ends with an error."""
    if issubclass(type(error), Reject):
        return "reject"
    return "postponed" if issubclass(type(error), Retry) and not error.counts else "retry"  # type: ignore[union-attr]


def _text_of(error: BaseException | None) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - of a user's class
        return "(its text cannot be shown)"


def fingerprint(value: Any) -> str:
    """Returns 16 characters that are the same for equal values of a state; ``-`` for None.

    A value that is read back from a state is equal to the one that was set, whatever the schema:
    whole numbers are equal to their floats, tuples to lists, and a column that is None to none.
    """
    if value is None:
        return NO_STATE
    return hashlib.blake2b(repr(_plain(value)).encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = [(_plain(key), _plain(one)) for key, one in value.items() if one is not None]
        return sorted(items, key=repr)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, bool) else value
