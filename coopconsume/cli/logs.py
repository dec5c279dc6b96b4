"""The log output of a command: plain lines or JSON."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from coopconsume.monitoring.logs import JsonFormatter
from coopconsume.monitoring.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from coopconsume.worker.handler_lines import HandlerLine

log = logging.getLogger("coopconsume.run")
_handlers = logging.getLogger("coopconsume.handlers")

_STDOUT: Final = 1
_STDERR: Final = 2
#: Seconds for what processes that end have written last.
_LAST_LINES: Final = 2.0


def log_line(line: HandlerLine) -> None:
    """Logs what a handler has logged or printed, with the fields of its record or frame."""
    place = line.place
    fields = {} if place is None else vars(place) | {"lastOffset": place.last_offset}
    fields.pop("last_offset", None)
    _handlers.info("%s", line.text, extra=fields)


class _LineHandler(logging.Handler):
    """Passes log records on as text."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._to = write

    def emit(self, record: logging.LogRecord) -> None:
        """Formats a record and writes it."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - as every handler of logging
            self.handleError(record)
        else:
            self._to(text)


class TextScreen(Screen):
    """A screen that also shows warnings of the log, as lines, apart from its status.

    If the program has configured its logging, that is left alone. If the stream is standard error
    and a terminal, what others write to the terminal, such as handlers, Spark's JVM and Python's
    warnings, is shown above the status.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._others: list[_OtherOutput] = []
        if stream.isatty() and _is_standard_error(stream):
            with self._lock:  # Lines of others wait until the screen has the terminal.
                self._others = [_OtherOutput(number, self.above) for number in _on_terminal()]
                self._stream = self._others[0].stream
        self._handler = _LineHandler(self.line)
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(self._handler)

    def close(self) -> None:
        """Removes the status, and stops logging to the stream."""
        logging.getLogger().removeHandler(self._handler)
        super().close()
        # Standard error last: its stream is the screen's, to which the others pass on their lines.
        for others in reversed(self._others):
            others.close()


class LogScreen(Screen):
    """Logs the lines of a screen as JSON; progress events replace its status.

    The logs of all libraries become JSON, too, and if the stream is standard error, so does what
    others write there: the JVM of Spark, workers, libraries of C and Rust.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        is_shared = _is_standard_error(stream)
        self._others = _OtherOutput(_STDERR, _log_line) if is_shared else None
        super().__init__(stream if self._others is None else self._others.stream)
        handler = _LineHandler(super().line)
        handler.setFormatter(JsonFormatter())
        root, ours = logging.getLogger(), logging.getLogger("coopconsume")
        self._before = root.handlers, ours.level
        root.handlers = [handler]
        ours.setLevel(logging.INFO)
        logging.captureWarnings(capture=True)

    def line(self, text: str = "") -> None:
        """Logs a line."""
        if text:
            log.info(text)

    def status(self, text: str, *, force: bool = False) -> None:
        """Does nothing; progress events have the status."""

    def close(self) -> None:
        """Stops logging to the stream."""
        if self._others is not None:
            self._others.close()
        logging.captureWarnings(capture=False)
        logging.getLogger().handlers, level = self._before
        logging.getLogger("coopconsume").setLevel(level)


def _is_standard_error(stream: TextIO) -> bool:
    try:
        return stream.fileno() == _STDERR
    except OSError:  # It is in memory.
        return False


def _on_terminal() -> list[int]:
    """Returns the file descriptor of standard error, and that of output on the same terminal."""
    place = os.fstat(_STDERR).st_rdev
    is_shared = os.isatty(_STDOUT) and os.fstat(_STDOUT).st_rdev == place
    return [_STDERR, _STDOUT] if is_shared else [_STDERR]


class _OtherOutput:
    """Passes each line on that is written to the file descriptor of standard error or output.

    Args:
        descriptor: The file descriptor.
        take: Takes a line; called in one thread.

    Attributes:
        stream: What the file descriptor was before.
    """

    def __init__(self, descriptor: int, take: Callable[[str], object]) -> None:
        self._descriptor = descriptor
        self._take = take
        before = os.dup(descriptor)
        self.stream = os.fdopen(before, "w", encoding="utf-8", errors="backslashreplace")
        reads, writes = os.pipe()
        os.dup2(writes, descriptor)
        os.close(writes)
        self._reader = threading.Thread(target=self._pass_on, args=(reads,), daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Puts the file descriptor back; passes on what processes that have ended wrote last."""
        if self.stream.closed:
            return
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # it is closed, or nobody reads it
                stream.flush()
        os.dup2(self.stream.fileno(), self._descriptor)
        self._reader.join(_LAST_LINES)
        if not self._reader.is_alive():
            self.stream.close()

    def _pass_on(self, descriptor: int) -> None:
        with os.fdopen(
            descriptor, encoding="utf-8", errors="backslashreplace", newline="\n"
        ) as lines:
            for line in lines:
                # Of a progress bar, which writes each state over the one before, the last one.
                self._take(line.rstrip("\r\n").rpartition("\r")[2])


def _log_line(line: str) -> None:
    if line.strip():
        logging.getLogger("stderr").warning("%s", line.rstrip())
