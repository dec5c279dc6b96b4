"""Errors of the sources of a real-time slot."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from coopconsume.worker.handler_answers import error_text

if TYPE_CHECKING:
    from collections.abc import Iterator


class ReadFailed(Exception):
    """A source cannot continue: it cannot read the log that the run knows at the offset."""


@contextmanager
def opening() -> Iterator[None]:
    """Turns an error with which a source opens into one of the source.

    It is one of the environment, such as a missing file or package, or too many open sockets: the
    worker is not damaged, and batches may go on in it.

    Raises:
        ReadFailed: Something failed.
    """
    try:
        yield
    except ReadFailed:
        raise
    except Exception as error:
        raise ReadFailed(f"it cannot open its source: {error_text(error)}") from error
