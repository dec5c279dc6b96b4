"""Failed records and decisions on them as text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from coopconsume.admin.records.actions import FailedRecord, RecordSteps
from coopconsume.admin.records.tables import next_decision, record_table, step_lines
from coopconsume.admin.tables import cell
from coopconsume.runtime.decisions import Decision

NOW = datetime(2026, 11, 30, 4, 30, tzinfo=UTC)
ONCE = FailedRecord(
    topic="my orders", topic_id="", partition=0, offset=7, key="k", key_hash=7, state="failed",
    attempts=1, due=NOW + timedelta(seconds=6), error="no", decision=None,
)  # fmt: skip
OFTEN = replace(ONCE, offset=8, attempts=4, due=NOW - timedelta(hours=1))
PARKED = replace(ONCE, offset=9, attempts=2, state="parked", due=None)
DECIDED = replace(PARKED, decision=Decision("my orders", 0, 9, "replay"))


@pytest.mark.parametrize(
    ("records", "offset", "others"),
    [
        ((ONCE, OFTEN), 8, "skip or park"),
        ((ONCE, OFTEN, PARKED), 9, "skip"),
        ((ONCE, DECIDED), 7, "skip or park"),
    ],
)
def test_the_next_command_is_for_the_most_urgent_record_without_a_decision(
    records: tuple[FailedRecord, ...], offset: int, others: str
) -> None:
    """A parked record waits for nothing else; it is quoted for a shell."""
    command, rest = next_decision(records, "shop", "--commit-table /t").splitlines()
    assert command == (
        "next: coopconsume records retry shop --topic 'my orders' --partition 0 "
        f"--offset {offset} --commit-table /t"
    )
    assert rest == f"{others} in place of retry; --execute applies it"


def test_no_command_is_next_if_all_is_decided() -> None:
    """Or if nothing has failed."""
    assert next_decision([DECIDED], "shop", "") == next_decision([], "shop", "") == ""


@pytest.mark.parametrize(
    ("is_worked_on", "expected"),
    [(True, ["6 s", "0 s", "-"]), (False, ["6 s", "when a job runs", "-"])],
)
def test_what_is_due_waits_for_a_job(is_worked_on: bool, expected: list[str]) -> None:
    """A table says so, as the verdict does."""
    table = record_table([ONCE, OFTEN, PARKED], NOW, is_worked_on=is_worked_on)
    column = table.titles.index("due in")
    assert [cell(row[column]) for row in table.rows] == expected


@pytest.mark.parametrize(
    ("is_worked_on", "who"),
    [
        (True, "the job that runs applies it in about 2 s"),
        (False, "no job runs, so the next one to start applies it"),
        (None, "a job that runs applies it in about 2 s, otherwise the next one to start"),
    ],
)
def test_a_decision_that_was_written_down_says_who_applies_it(
    is_worked_on: bool | None, who: str
) -> None:
    """It is no deed: the record is retried by a job, not by the command."""
    steps = RecordSteps("retry", (ONCE,), (PARKED,))
    *lines, last = step_lines(steps, executed=True, is_worked_on=is_worked_on)
    assert lines == [
        "my orders-0@7: will be retried",
        "my orders-0@9: will be retried from its first attempt on",
    ]
    assert last == f"2 records: the decision was written down; {who}"
    unchanged = RecordSteps("park", unchanged=(PARKED,))
    assert step_lines(unchanged, executed=True)[-1] == "0 records"
