"""Handlers that record their calls: their outcomes are those that a job takes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from coopconsume.record import Record, Reject, Retry
from coopconsume.testing.faults import recorded
from coopconsume.testing.history import read_history
from tests.odd import ODD_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RECORD = Record("t", 0, 4, b"k", b"v", 0)


def yielding(*rows: object, raises: BaseException | None = None) -> Iterator[object]:
    """A handler that yields its rows."""
    yield from rows
    if raises is not None:
        raise raises


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (lambda: None, "done"),
        (lambda: {"n": 1}, "done"),
        (lambda: yielding({"n": 1}), "done"),
        (lambda: yielding({"n": 1}, Retry()), "retry"),
        (lambda: yielding({"n": 1}, raises=OSError("half way")), "retry"),
        (lambda: yielding(raises=Reject("no")), "reject"),
        (lambda: [{"n": 1}, Reject("no")], "reject"),
        (lambda: Reject, "reject"),
        (lambda: Retry(after=5), "retry"),
        (lambda: OSError("no"), "retry"),
    ],
)
def test_an_answer_is_recorded_as_a_job_takes_it(
    tmp_path: Path, answer: Callable[[], object], outcome: str
) -> None:
    """Also that of a handler that yields its rows: its call ends with the last one."""
    with suppress(OSError, Reject):
        recorded(lambda _: answer(), tmp_path)(RECORD)
    (call,) = read_history(tmp_path)
    assert call.outcome == outcome


@pytest.mark.parametrize("make", [make for make, _ in ODD_ERRORS])
def test_an_odd_error_ends_its_call(tmp_path: Path, make: Callable[[], BaseException]) -> None:
    """Raised or returned, the call is recorded as failed, and the error is passed on."""
    for number, raises in enumerate((True, False)):
        error = make()

        def handler(_: Record, error: BaseException = error, raises: bool = raises) -> object:
            if raises:
                raise error
            return error

        passed: object = None
        try:
            passed = recorded(handler, tmp_path / str(number))(RECORD)
        except BaseException as caught:  # noqa: BLE001 - SystemExit too
            passed = caught
        is_passed_on = passed is error  # Its class may raise, if it is asked.
        assert is_passed_on
        (call,) = read_history(tmp_path / str(number))
        assert call.outcome == "retry"
