"""Finds the record of what a handler logs and prints, and keeps lines of it. Task-side code."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from coopconsume.record import Record, shown_key
from coopconsume.values.shown import clean, safely, shown
from coopconsume.worker.handler_lines import CallPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coopconsume.worker.handler_calls import End, Watcher
    from coopconsume.worker.handler_lines import LineBuffer

#: Characters of a line, and of all lines of a call, that are kept.
_LINE_CHARS = 500
_CHARS = 4_000
#: What a log record gets besides the key.
_FIELDS = ("topic", "partition", "offset", "attempt")
#: The first line of the note that an error gets.
_TITLE = "Last lines that the handler has logged and printed:"

#: The handler call that runs in this thread or task.
_call: ContextVar[_HandlerCall | None] = ContextVar("coopconsume_call", default=None)
#: Whether a filter was made in this process.
_has_filter = False


class RecordLogFilter(logging.Filter):
    """Adds the record of a handler call to what is logged in the call.

    Log records get the attributes ``topic``, ``partition``, ``offset``, ``key`` (as text, at most
    64 characters) and ``attempt``, unless ``extra`` has them. Outside of calls, and in
    calls of frame handlers, they are None. It lets all log records pass.

    Add it to a handler of `logging` in `open` of a handler of records, or as its module is
    imported: slots look as they begin a batch whether a filter was made.
    """

    def __init__(self) -> None:
        global _has_filter  # noqa: PLW0603 - calls note their records only if somebody asks
        super().__init__()
        _has_filter = True

    def __reduce__(self) -> tuple[type[RecordLogFilter], tuple[()]]:
        return RecordLogFilter, ()

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the attributes; returns True."""
        call = _call.get()
        of = None if call is None else call.record
        fields = {name: getattr(of, name, None) for name in _FIELDS}
        fields["key"] = None if of is None else shown_key(of.key)
        for name, value in fields.items():
            vars(record).setdefault(name, value)
        return True


class _HandlerCall:
    """A handler call.

    Args:
        given: Its record or its frame.
        lines: How many of its last lines it keeps.
        shown: Gets its lines, for the driver; None: nobody wants them.

    Attributes:
        record: Its record, as it is in Kafka; None: it has a frame.
    """

    __slots__ = ("_lines", "_open", "_place", "_shown", "record")

    def __init__(self, given: Any, lines: int, shown: LineBuffer | None) -> None:
        self.record: Record | None = given if isinstance(given, Record) else None
        self._lines: deque[str] = deque(maxlen=lines)
        self._shown = shown
        #: A handler may change a frame of pandas.
        self._place = None if shown is None else CallPlace.of(given)
        #: What was printed since the last end of a line.
        self._open = ""

    def add(self, line: str) -> None:
        """Keeps a line."""
        line = clean(line, _LINE_CHARS)
        self._lines.append(line)
        if self._shown is not None:
            self._shown.add(line, self._place)

    def print(self, text: str) -> None:
        """Keeps lines that are printed in parts."""
        *lines, rest = f"{self._open}{text}".split("\n")
        self._open = rest[:_LINE_CHARS]  # A progress bar may never end its line.
        for line in lines:
            self.add(line)

    def note(self, error: Any) -> None:
        """Notes the lines at an error, in place of those of another call."""
        if self._open:
            self.print("\n")
        if not (self._lines and isinstance(error, BaseException)):
            return
        text = "\n".join(self._lines)[-_CHARS:]
        safely(lambda: _annotate(error, f"{_TITLE}\n{text}"))


def _annotate(error: BaseException, note: str) -> None:
    others = [one for one in getattr(error, "__notes__", ()) if not one.startswith(_TITLE)]
    error.__notes__ = [*others, note]


def log_watcher(lines: int, shown: LineBuffer | None = None) -> Watcher | None:
    """Returns what notes the record of each call; None if nobody asks for it.

    Args:
        lines: The last lines that a call has logged and printed which its error has as a note.
        shown: Gets all lines, for the driver; None: nobody wants them.
    """
    wants_lines = lines > 0 or shown is not None
    if not (wants_lines or _has_filter):
        return None
    if wants_lines:
        _collect()

    def begin(given: Any) -> End:
        call = _HandlerCall(given, lines, shown)
        token = _call.set(call)

        def end(answer: Any) -> None:
            _call.reset(token)
            call.note(answer)

        return end

    return begin


def _collect() -> None:
    """Has calls get what is logged and printed in this process, besides what becomes of it now."""
    factory = logging.getLogRecordFactory()
    if not isinstance(factory, _Factory):
        # A handler of `logging` would take the place of the one that Python has without any.
        logging.setLogRecordFactory(_Factory(factory))
    if not isinstance(sys.stdout, _Printed):
        sys.stdout = _Printed(sys.stdout)


class _Within(threading.local):
    """Whether a thread is within our factory or our output.

    A library may have wrapped ours, and ours wraps that again: only the outer one keeps lines.
    """

    factory = False
    output = False


_within = _Within()


class _Factory:
    """Makes log records, and has calls keep their lines."""

    def __init__(self, factory: Callable[..., logging.LogRecord]) -> None:
        self._factory = factory

    def __call__(self, *args: Any, **more: Any) -> logging.LogRecord:
        call = _call.get()
        if call is None or _within.factory:
            return self._factory(*args, **more)
        _within.factory = True
        try:
            record = self._factory(*args, **more)
        finally:
            _within.factory = False
        text = safely(record.getMessage)
        text = shown(record.msg) if text is None else text
        call.add(f"{record.levelname} {record.name}: {text}")
        return record


class _Printed:
    """Standard output, which has calls keep their lines."""

    def __init__(self, stdout: Any) -> None:
        self._stdout = stdout

    def write(self, text: str) -> Any:
        """Writes text."""
        call = _call.get()
        if call is None or _within.output:
            return self._stdout.write(text)
        call.print(text)
        _within.output = True
        try:
            return self._stdout.write(text)
        finally:
            _within.output = False

    def writelines(self, texts: Iterable[str]) -> None:
        """Writes several texts."""
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)
