"""Batches that fail side by side are one failure; an error is summarised by its main line."""

from __future__ import annotations

import pytest

from coopconsume.runtime.settle.batch_failures import BatchFailures, reason

PY4J = "An error occurred while calling o181.collectToPython."
PYTHON = "An exception was thrown from the Python worker. Please see the stack trace below."


def test_batches_that_fail_together_count_once() -> None:
    """One lost executor takes several batches with it; the next ones started after it."""
    failures = BatchFailures()
    assert failures.failed(1.0, 5.0, handled=False) == 1
    assert failures.failed(2.0, 5.1, handled=False) == 1
    assert failures.failed(4.9, 5.2, handled=False) == 1
    assert failures.failed(5.3, 6.0, handled=False) == 2
    assert failures.failed(6.1, 7.0, handled=False) == 3


def test_records_handled_or_a_batch_done_reset_the_count() -> None:
    """Only failures without any progress in between add up."""
    failures = BatchFailures()
    assert failures.failed(1.0, 2.0, handled=False) == 1
    assert failures.failed(3.0, 4.0, handled=True) == 0
    assert failures.failed(5.0, 6.0, handled=False) == 1
    failures.succeeded()
    assert failures.failed(7.0, 8.0, handled=False) == 1


def test_a_batch_that_fails_with_the_first_one_is_a_first_one() -> None:
    """It was started before that failed, and says nothing more."""
    failures = BatchFailures()
    assert failures.is_first(1.0)
    failures.failed(1.0, 5.0, handled=False)
    assert failures.is_first(4.9)
    assert not failures.is_first(5.1)
    failures.failed(5.1, 6.0, handled=False)
    assert not failures.is_first(5.9)
    failures.succeeded()
    assert failures.is_first(7.0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{PY4J}\n: SparkException: Job aborted\n\tat o", "SparkException: Job aborted"),
        (f"{PYTHON}\nTraceback:\n  File\nOSError: no disk\n\n", "OSError: no disk"),
        ("\n  [INTERNAL_ERROR] no\nmore", "[INTERNAL_ERROR] no"),
        (f"{PY4J}\n", "RuntimeError"),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_says_what_went_wrong(text: str, line: str) -> None:
    """Py4J's first line names a call, and PySpark's a stack trace, not a reason."""
    assert reason(RuntimeError(text)) == line
