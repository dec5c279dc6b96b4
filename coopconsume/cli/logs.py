"""The log output of a command: plain lines or JSON."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

from coopconsume.monitoring.logs import JsonFormatter
from coopconsume.monitoring.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

log = logging.getLogger("coopconsume.run")

_STDERR: Final = 2
#: Seconds for what processes that end have written last.
_LAST_LINES: Final = 2.0


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

    If the program has configured its logging, that is left alone.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._handler = _LineHandler(self.line)
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(self._handler)

    def close(self) -> None:
        """Removes the status, and stops logging to the stream."""
        logging.getLogger().removeHandler(self._handler)
        super().close()


class LogScreen(Screen):
    """Logs the lines of a screen as JSON; progress events replace its status.

    The logs of all libraries become JSON, too, and if the stream is standard error, so does what
    others write there: the JVM of Spark, workers, libraries of C and Rust.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._others = _OtherOutput() if _is_standard_error(stream) else None
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


class _OtherOutput:
    """Logs each line that is written to the file descriptor of standard error.

    Attributes:
        stream: What standard error was before.
    """

    def __init__(self) -> None:
        self.stream = os.fdopen(os.dup(_STDERR), "w", encoding="utf-8", errors="backslashreplace")
        reads, writes = os.pipe()
        os.dup2(writes, _STDERR)
        os.close(writes)
        self._reader = threading.Thread(target=_log_lines, args=(reads,), daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Puts standard error back, and logs what processes that have ended wrote last."""
        sys.stderr.flush()
        os.dup2(self.stream.fileno(), _STDERR)
        self._reader.join(_LAST_LINES)


def _log_lines(descriptor: int) -> None:
    with os.fdopen(descriptor, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            if line.strip():
                logging.getLogger("stderr").warning("%s", line.rstrip())
