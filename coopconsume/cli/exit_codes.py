"""The exit codes of commands, and errors as one sentence instead of a traceback."""

from __future__ import annotations

import functools
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commits import CorruptCommitLog, FencedMember
from coopconsume.errors import CoopConsumeError, DataLoss, HandlerNotUsable, OptionError
from coopconsume.errors.base import sentence_of
from coopconsume.errors.fenced import ProducerFenced, StaleGeneration
from coopconsume.interrupts import interruptible
from coopconsume.monitoring.logs import JsonFormatter
from coopconsume.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("coopconsume.run")

OK = 0
FAILED = 1
USAGE = 2
FENCED = 3
DATA_LOSS = 4
INTERRUPTED = 130

#: Shown under every --help.
EXIT_CODES = """\b
Exit codes:
  0    success, or the job was stopped in order (Ctrl-C, SIGTERM)
  1    failure
  2    wrong usage: an unknown or invalid option, or a handler that cannot be used
  3    fenced: another member owns the group or log, and commits of this one do not count
  4    data loss: records or parts of the commit log are missing
  130  interrupted (a second Ctrl-C): left at once, records in flight are processed again
"""


def example(*lines: str) -> str:
    """Returns the epilog of a command's --help: an example call and the exit codes."""
    shown = " \\\n".join(f"  {'    ' * (i > 0)}{line}" for i, line in enumerate(lines))
    return f"\b\nExample:\n{shown}\n\n{EXIT_CODES}"


_BY_KIND: tuple[tuple[type[Exception], int], ...] = (
    (OptionError, USAGE),
    (HandlerNotUsable, USAGE),
    (FencedMember, FENCED),
    (ProducerFenced, FENCED),
    (StaleGeneration, FENCED),
    (DataLoss, DATA_LOSS),
    (CorruptCommitLog, DATA_LOSS),
    (CoopConsumeError, FAILED),
)


def exit_code(error: BaseException) -> int:
    """Returns the exit code for an error."""
    return next((code for kind, code in _BY_KIND if isinstance(error, kind)), FAILED)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def reported(command: Callable[..., int | None]) -> Callable[..., None]:
    """Makes a command end with its exit code and report its errors in one sentence.

    The command returns its exit code, or None for 0. It gets the option ``--debug``, which shows
    tracebacks. SIGTERM raises KeyboardInterrupt, as Ctrl-C does, unless it is ignored; signals
    that come together do so once.
    """

    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(command)
    def run(*args: Any, debug: bool, **kwargs: Any) -> None:
        if not debug:
            # The error that follows describes a failed connection better than kafka-python's log.
            logging.getLogger("kafka").setLevel(logging.CRITICAL)
            # So does the one that follows a lost JVM; py4j logs that by the root logger.
            logging.getLogger().addFilter(_is_not_of_py4j)
        else:
            # Who reads groups in the background adds the trace to its warnings.
            logging.getLogger("coopconsume.admin").setLevel(logging.DEBUG)
        try:
            with interruptible():
                code = command(*args, **kwargs) or OK
            sys.stdout.flush()
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:
            code = _reader_has_gone()
        except click.ClickException as error:
            if kwargs.get("log_format") != "json":
                raise
            _echo_error(error, as_json=True)
            code = error.exit_code
        except Exception as error:  # noqa: BLE001 - each error is reported here
            if debug:
                traceback.print_exc()
            _echo_error(error, as_json=kwargs.get("log_format") == "json")
            code = exit_code(error)
        sys.exit(code)

    return run


def _reader_has_gone() -> int:
    """Lets a command end quietly whose output nobody reads any more, as with ``| head``."""
    # What is left in the buffer must not be written as the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK


def _echo_error(error: Exception, *, as_json: bool) -> None:
    if as_json:
        code = error.exit_code if isinstance(error, click.ClickException) else exit_code(error)
        facts = {"errorClass": type(error).__name__, "exitCode": code}
        record = log.makeRecord(
            log.name, logging.ERROR, "", 0, "%s", (_sentence(error),), None, extra=facts
        )
        click.echo(JsonFormatter().format(record), err=True)
    else:
        click.echo(printable(f"coopconsume: {_sentence(error)}"), err=True)


def _sentence(error: Exception) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    shown = sentence_of(error)
    return shown if isinstance(error, CoopConsumeError) else f"{shown} (--debug shows where)"
