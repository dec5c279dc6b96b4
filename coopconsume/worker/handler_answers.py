"""What a handler answered, made safe: errors as text, waits as numbers, rows as Arrow takes them.

A handler may return or raise any object. Nothing here raises because of one, except where the
docstring says so; then the caller counts the error as the handler's own. Task-side code.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import isasyncgen, isawaitable, iscoroutine, isgenerator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coopconsume.errors import NotDecodable
from coopconsume.record import (
    Reject,
    Retry,
    RetryPolicy,
    checked_headers,
    reason_text,
    usable_seconds,
    with_added,
)
from coopconsume.values.conversion import is_null
from coopconsume.values.shown import ERROR_CHARS, clean, safely, shown

if TYPE_CHECKING:
    from types import TracebackType

    from coopconsume.record import Headers

_TRACE_CHARS = 8_000
_SHOWN_ERRORS = 3
#: Where the code lies that calls handlers.
_CALLERS = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(__file__).parents[1], Path(traceback.__file__).parent / "asyncio")
)
#: Groups in groups that are opened to find an error.
_NESTED_GROUPS = 100


@dataclass(frozen=True)
class FailedAttempt:
    """What a failed attempt comes to.

    Attributes:
        text: The reason, for people.
        wait: Seconds until the next attempt.
        is_rejected: Whether the handler rejected the record.
        is_given_up: Whether the record is not tried again.
        is_asked_for: Whether the handler asked for it by `Retry` or `Reject`, or the record does
            not decode: it says nothing of a service that handlers use.
        headers: All headers that handlers have added to the record by now.
        is_parked: Whether the key waits for a decision if the record is given up, whatever holds
            for others.
        is_counted: Whether the call counts as an attempt.
    """

    text: str
    wait: float
    is_rejected: bool
    is_given_up: bool
    is_asked_for: bool
    headers: Headers = ()
    is_parked: bool = False
    is_counted: bool = True


def verdict_on(
    error: BaseException, attempt: int, policy: RetryPolicy, added: Headers = ()
) -> FailedAttempt:
    """Decides what an attempt comes to that ended with an error, whatever the error is.

    Args:
        error: The error.
        attempt: The number of the attempt.
        policy: When records are tried again.
        added: The headers that earlier attempts have added.
    """
    error = only_leaf(error)
    is_retry, is_reject = _is_a(error, Retry), _is_a(error, Reject)
    text = error_text(error)
    wait = usable_seconds(safely(lambda: policy.delay(attempt)))
    if wait is None:
        wait = RetryPolicy().delay(attempt)
    if is_retry:
        after = safely(lambda: error.after)  # type: ignore[attr-defined]
        asked = usable_seconds(after)
        if asked is not None:
            wait = asked
        elif after is not None:
            odd = f"after={shown(after)} is not a number of seconds that a record can wait"
            text = f"{text} ({odd}; it waits as the retry policy says)"
        try:
            added = checked_headers(with_added(added, checked_headers(error.headers)))  # type: ignore[attr-defined]
        except BaseException as odd_headers:  # noqa: BLE001 - of a user's class
            text = f"{text} (no header is added: {error_text(odd_headers)})"
    is_bad = _is_a(error, NotDecodable)
    is_counted = not is_retry or safely(lambda: bool(error.counts)) is not False  # type: ignore[attr-defined]
    gives_up = is_counted and bool(safely(lambda: policy.gives_up(attempt, error)))
    gives_up = gives_up or is_reject
    gives_up = gives_up or (is_bad and policy.undecodable != "retry")
    return FailedAttempt(
        text,
        wait,
        is_rejected=is_reject,
        is_given_up=gives_up,
        is_asked_for=is_retry or is_reject or is_bad,
        headers=added,
        is_parked=is_bad and policy.undecodable == "park",
        is_counted=is_counted,
    )


def only_leaf(error: BaseException) -> BaseException:
    """Returns the one error inside exception groups, as `asyncio.TaskGroup` raises them."""
    for _ in range(_NESTED_GROUPS):
        inner = _members(error)
        if len(inner) != 1:
            break
        error = inner[0]
    return error


def _members(error: BaseException) -> tuple[BaseException, ...]:
    """Returns the errors of an exception group; none of any other error."""
    if not _is_a(error, BaseExceptionGroup):
        return ()
    # Asked of the base class, as a subclass may answer anything.
    found: tuple[BaseException, ...] | None
    found = safely(lambda: BaseExceptionGroup.exceptions.__get__(error))
    return found or ()


def error_text(error: BaseException) -> str:
    """Returns an error as one text for people, at most 500 characters that UTF-8 can hold."""
    inner = "; ".join(_one_text(one) for one in _members(error)[:_SHOWN_ERRORS])
    return (f"{_one_text(error)}: {inner}" if inner else _one_text(error))[:ERROR_CHARS]


def _one_text(error: BaseException) -> str:
    said = safely(lambda: str(error))
    name = clean(safely(lambda: type(error).__name__)) or "an error"
    if said is None:
        return f"{name} (its text cannot be shown)"
    if _is_a(error, Retry) or _is_a(error, Reject):
        return clean(said)
    text = clean(said)
    return f"{name}: {text}" if text else name


def trace_of(error: BaseException) -> str:
    """Returns the end of an error's trace, at most 8,000 characters that UTF-8 can hold.

    It begins with the handler: what has called it is of no use to who reads the trace.
    """
    lines = safely(lambda: traceback.format_exception(type(error), error, _of_handler(error)))
    if lines is None:
        return f"{error_text(error)} (its trace cannot be shown)"
    return clean("".join(lines)[-_TRACE_CHARS:], _TRACE_CHARS)


def _of_handler(error: BaseException) -> TracebackType | None:
    """Returns the trace of an error from the first frame that is the handler's.

    An error of the library itself, which has no such frame, keeps all of them, unless it only says
    something of the record.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_CALLERS):
        trace = trace.tb_next
    says_all = isinstance(error, NotDecodable)
    return error.__traceback__ if trace is None and not says_all else trace


def reason_of(reason: object) -> str:
    """Returns a reason, any object, as text of at most 500 characters that UTF-8 can hold."""
    text = safely(lambda: reason_text(reason))
    return shown(reason) if text is None else clean(text)


def as_rows(answer: Any, *, wanted: bool) -> list[Any] | BaseException | None:
    """Returns the output rows that a handler's answer holds, or the error that it is.

    Part of the handler's call: generators run here.

    Args:
        answer: What the handler returned.
        wanted: Whether there is an output. Without one, what is no error is ignored, as by
            PySpark's ``foreach``.

    Raises:
        BaseException: Whatever a generator raises.
        TypeError: The answer is a coroutine, which nobody has awaited; or there is an output, and
            the answer is neither a row nor several.
    """
    if answer is None or _is_error(answer):
        return _error_in(answer)
    _refuse_unawaited(answer)
    if isinstance(answer, Mapping):
        return [answer] if wanted else None
    if not wanted:
        if isgenerator(answer) or isinstance(answer, list | tuple):
            return next((found for one in answer if (found := _error_in(one)) is not None), None)
        return None
    if isinstance(answer, str | bytes | bytearray) or not isinstance(answer, Iterable):
        raise TypeError(
            f"the handler returned {shown(answer)} of type {type(answer).__name__}: with an output "
            "it returns None, a dictionary by column names, or several of them"
        )
    rows = list(answer)
    errors = (found for one in rows if (found := _error_in(one)) is not None)
    return next(errors, rows)


def outcomes_of(answer: Any, count: int) -> list[Any] | BaseException | None:
    """Returns a frame handler's answer as one outcome a row, each as a handler of one record gives.

    Part of the handler's call: generators run here. An error stands for all rows, None says that
    all are done. Of a column, and of a list, null and true are done; false and texts ask for
    another try. A pandas column answers by its index, so it may be sorted.

    Raises:
        BaseException: Whatever a generator raises.
        TypeError, ValueError: The answer makes no sense.
    """
    if answer is None or _is_error(answer):
        return _error_in(answer)
    _refuse_unawaited(answer)
    is_frame = hasattr(answer, "columns")
    if is_frame or isinstance(answer, Mapping | set | frozenset | str | bytes | bytearray):
        raise TypeError(
            f"the frame handler returned {'a frame' if is_frame else shown(answer)} of type "
            f"{type(answer).__name__}: give None, a list with an outcome for each row (an output "
            "row is a dictionary), or a column"
        )
    cells = _cells_of(answer)
    if cells is None:
        # One more than there are rows is enough: it may have no end.
        outcomes = [_of_cell(cell) for cell in islice(answer, count + 1)]
    else:
        outcomes = [_of_cell(cell, in_column=True) for cell in cells]
    if len(outcomes) != count:
        answered = f"more than {count}" if len(outcomes) > count else f"{len(outcomes)}"
        raise ValueError(f"the frame handler answered {answered} times for {count} rows")
    return outcomes if cells is None else _by_index(answer, outcomes)


def _cells_of(answer: Any) -> list[Any] | None:
    """Returns the cells of a column of Arrow, pandas, NumPy or Polars; None of anything else."""
    for name in ("to_pylist", "tolist"):
        if hasattr(answer, name) and not isinstance(answer, list | tuple):
            found = getattr(answer, name)()
            break
    else:
        if not hasattr(answer, "__array__"):
            return None
        found = answer.__array__().tolist()
    if not isinstance(found, list):
        raise TypeError(f"the frame handler returned {shown(answer)}: give an outcome for each row")
    return found


def _by_index(answer: Any, outcomes: list[Any]) -> list[Any]:
    """Returns the outcomes of a column in the order of the frame's rows.

    Raises:
        ValueError: It is a pandas column whose index does not name each row once.
    """
    if not hasattr(answer, "reindex"):
        return outcomes  # Only pandas has an index.
    labels = answer.index.tolist()
    rows = range(len(outcomes))
    at = dict(zip(labels, outcomes, strict=True))
    if len(at) != len(rows) or any(row not in at for row in rows):
        raise ValueError(
            f"the frame handler returned a column with the index {shown(labels)}: a column answers "
            f"by its index, which is 0 to {len(rows) - 1}, as in the frame; give such an index, or "
            "a list"
        )
    return [at[row] for row in rows]


def _of_cell(cell: Any, *, in_column: bool = False) -> Any:
    is_flag = type(cell).__name__ in ("bool", "bool_")  # NumPy's among them
    if (is_flag and cell) or is_null(cell):
        return None
    if in_column and isinstance(cell, float) and math.isnan(cell):  # pandas' null
        return None
    if is_flag or isinstance(cell, str):
        return Retry(reason=cell if isinstance(cell, str) else "")
    if not in_column and (_is_error(cell) or isinstance(cell, Iterable) or _is_unawaited(cell)):
        return cell  # As a handler of one record gives it.
    where = "'s column holds" if in_column else " answered for a row"
    return TypeError(
        f"the frame handler{where} {shown(cell)}: give null or true for done, false or a text to "
        "try again" + ("" if in_column else ", an output row, Retry, Reject or another exception")
    )


def _is_error(one: Any) -> bool:
    """Whether a value is an exception, or the class of one."""
    return isinstance(one, BaseException) or (
        isinstance(one, type) and issubclass(one, BaseException)
    )


def _error_in(one: Any) -> BaseException | None:
    """Returns the error that one of several rows is, or None."""
    if not _is_error(one):
        return None
    return one if isinstance(one, BaseException) else one()


def _is_unawaited(answer: Any) -> bool:
    return isasyncgen(answer) or isawaitable(answer)


def _refuse_unawaited(answer: Any) -> None:
    if iscoroutine(answer):
        answer.close()
        raise TypeError("the handler returned a coroutine: define it by async def")
    if _is_unawaited(answer):
        raise TypeError(
            f"the handler returned {shown(answer)}, which nothing awaits: define the handler by "
            "async def, and return rows instead of yielding them"
        )


def _is_a(error: BaseException, kind: type) -> bool:
    """Whether an error is of a class; its own class may lie or raise when asked."""
    return bool(safely(lambda: isinstance(error, kind)))
