"""Decisions on parked and failed records."""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable

from commits import CommitStore, OffsetRanges, PartitionCommits, Pending
from commits.model import PARKED_MS
from coopconsume.admin.records.actions import decision_on, failed_records
from coopconsume.errors import InvalidOption
from coopconsume.group.owned import Failed
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.runtime.decisions import (
    KEPT,
    Decision,
    apply_decisions,
    decide,
    decided,
    open_decisions,
    outcome_of,
    record_decisions,
)
from coopconsume.runtime.plan import Waiting
from coopconsume.runtime.plan.decided_records import DecidedRecords
from coopconsume.runtime.plan.failed_records import FailedRecords
from coopconsume.runtime.poll.answers import take_decisions
from coopconsume.runtime.poll.retry_buffer import RetryBuffer

if TYPE_CHECKING:
    from pathlib import Path

    from coopconsume.group.epoch_assignment import EpochAssignment

TP = ("t", 0)


def test_a_decision_on_a_deleted_topic_is_dropped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic was created again, and has a parked record at the same offset; that stays."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = store.open_epoch("g", {"m": [TP]}, previous=None)
    store.start("g", epoch, "m", {TP: 0})
    log = {TP: [Pending(offset, 33, 2, PARKED_MS, "no") for offset in (3, 5)]}
    store.commit("g", epoch, "m", {}, pending=log)

    def commit(offsets: dict[tuple[str, int], OffsetRanges], **kept: Any) -> None:
        store.commit("g", epoch, "m", offsets, **kept)

    assignment = cast(
        "EpochAssignment",
        SimpleNamespace(
            options=SimpleNamespace(group_id="g"), store=store, owned={TP: None},
            topic_ids={"t": "new"}, commit=commit,
        ),
    )  # fmt: skip
    parked = [(TP, Waiting(offset, 33, 2, float("inf"), "no")) for offset in (3, 5)]
    ids = (f"decided-{number}" for number in count())
    decide(
        store,
        "g",
        [Decision(*TP, 3, "discard", "old"), of_the_new := Decision(*TP, 5, "replay", "new")],
    )
    with caplog.at_level(logging.WARNING, "coopconsume"):
        assert apply_decisions(assignment, parked, ids) == [of_the_new]
        assert apply_decisions(assignment, parked[:1], ids) == []
    assert [record.getMessage() for record in caplog.records] == [
        "the discard of t-0@3 is dropped: its topic was deleted since"
    ]
    assert decided(store, "g", ["t"]) == []
    assert store.pending("g")[TP][3].is_parked


# -- decisions on failed records


def opened(tmp_path: Path, failed: list[Pending], *, done: OffsetRanges | None = None) -> Any:
    """The assignment of a group with failed records, over a commit table of its own."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = store.open_epoch("g", {"m": [TP]}, previous=None, topic_ids={"t": "id"})
    store.start("g", epoch, "m", {TP: 0})
    store.commit("g", epoch, "m", {TP: done or OffsetRanges()}, pending={TP: failed})

    def commit(offsets: dict[tuple[str, int], OffsetRanges], **kept: Any) -> None:
        store.commit("g", epoch, "m", offsets, **kept)

    return SimpleNamespace(
        options=SimpleNamespace(group_id="g"), store=store, commit=commit,
        owned={TP: SimpleNamespace(uses_chunks=False)}, topic_ids={"t": "id"},
    )  # fmt: skip


def made(offset: int, action: Any, at_ms: int = 1, **more: Any) -> Decision:
    """A decision of an operator on a record that has failed twice."""
    by = DecidedBy("alice@db1", "fixed in 1.2", at_ms)
    return Decision(*TP, offset, action, "id", by, attempts=2, **more)


@pytest.mark.parametrize(
    ("action", "pending", "outcome"),
    [
        ("retry", Pending(3, 33, 2, 50, "no"), "open"),
        ("retry", Pending(3, 33, 3, 50, "no"), "retried"),
        ("retry", Pending(3, 33, 3, PARKED_MS, "no"), "retried"),
        ("park", Pending(3, 33, 3, 50, "no"), "open"),
        ("park", Pending(3, 33, 3, PARKED_MS, "no"), "parked"),
        ("skip", Pending(3, 33, 3, 50, "no"), "open"),
        ("skip", Pending(3, 33, 3, PARKED_MS, "no"), "open"),
        ("skip", None, "dropped"),
    ],
)
def test_a_decision_is_open_until_the_commit_log_has_its_outcome(
    action: Any, pending: Pending | None, outcome: str
) -> None:
    """By any commit: of a handler that was in flight, or of the slot that gave it up."""
    found = {} if pending is None else {3: pending}
    assert outcome_of(made(3, action, due_ms=50), PartitionCommits(3), found) == outcome
    assert outcome_of(made(3, action), PartitionCommits(3), found) == outcome
    for done in (PartitionCommits(4), PartitionCommits(2, [(3, 3)])):
        assert outcome_of(made(3, action), done, found) == "done"


def test_the_outcome_of_a_decision_is_noted_with_who_decided_and_why(tmp_path: Path) -> None:
    """An open one is returned at each look; one of a deleted topic is dropped."""
    at = opened(tmp_path, [Pending(o, 33, 2, 50, "no") for o in (3, 5, 7)])
    other = replace(made(7, "skip"), topic_id="old")
    decide(at.store, "g", [made(3, "skip"), made(5, "retry"), other])
    assert sorted((one.offset, one.action) for one in open_decisions(at)) == [
        (3, "skip"), (5, "retry")
    ]  # fmt: skip
    at.commit({TP: OffsetRanges([(3, 3)])}, pending={TP: [Pending(5, 33, 3, 90, "no")]})
    assert open_decisions(at) == []
    found = {one.offset: one for one in record_decisions(at.store, "g", ["t"])}
    assert {o: one.status for o, one in found.items()} == {3: "done", 5: "retried", 7: "dropped"}
    assert (found[3].by, found[3].attempts) == (DecidedBy("alice@db1", "fixed in 1.2", 1), 2)
    assert found[3].settled_ms > 0


def test_the_last_decision_on_a_record_counts(tmp_path: Path) -> None:
    """Also if two operators decided at once, and neither has seen the decision of the other."""
    at = opened(tmp_path, [Pending(3, 33, 2, 50, "no")])
    decide(at.store, "g", [made(3, "skip")])
    decide(at.store, "g", [made(3, "retry", 2)])
    assert [one.action for one in record_decisions(at.store, "g", ["t"])] == ["retry"]
    late = made(3, "park", 1, id="unseen")
    at.store.set_setting(late.setting("g"), late.to_setting(), topic="t")
    assert [one.action for one in open_decisions(at)] == ["retry"]
    at.commit({}, pending={TP: [Pending(3, 33, 3, 90, "no")]})
    assert open_decisions(at) == [], "the other one is not applied after it"
    statuses = {one.action: one.status for one in record_decisions(at.store, "g", ["t"])}
    assert statuses == {"retry": "retried", "park": "replaced"}


def test_an_outcome_does_not_overwrite_a_decision_that_comes_meanwhile(tmp_path: Path) -> None:
    """The operator decides between the member's look and its note."""
    at = opened(tmp_path, [Pending(3, 33, 3, 50, "no")])
    decide(at.store, "g", [made(3, "retry")])
    write = at.store.set_settings

    def meanwhile(settings: Any) -> None:
        at.store.set_settings = write
        decide(at.store, "g", [replace(made(3, "skip", 2), attempts=3)])
        write(settings)

    at.store.set_settings = meanwhile
    assert open_decisions(at) == []
    assert [one.action for one in open_decisions(at)] == ["skip"]


def test_of_decisions_with_an_outcome_the_newest_are_kept(tmp_path: Path) -> None:
    """A group that decides every day does not fill the state of the commit log."""
    at = opened(tmp_path, [], done=OffsetRanges([(0, 2 * KEPT)]))
    for first in (0, KEPT):
        decide(at.store, "g", [made(first + n, "skip", 1 + first + n) for n in range(KEPT)])
        assert open_decisions(at) == []
        decide(at.store, "other", [made(first, "skip")])
    kept = record_decisions(at.store, "g", ["t"])
    assert [one.offset for one in kept] == list(range(KEPT, 2 * KEPT))
    assert len(record_decisions(at.store, "other", ["t"])) == 2, "of another group"


def test_a_record_that_was_parked_before_it_could_be_skipped_is_discarded(tmp_path: Path) -> None:
    """Once the commit log has it as parked; before, the commit that parks it is on its way."""
    at = opened(tmp_path, [Pending(3, 33, 2, 50, "no")])
    decide(at.store, "g", [made(3, "skip")])
    parked, ids = [(TP, Waiting(3, 33, 3, float("inf"), "no"))], iter("ab")
    assert apply_decisions(at, parked, ids) == []
    at.commit({}, pending={TP: [Pending(3, 33, 3, PARKED_MS, "no")]})
    assert [one.action for one in apply_decisions(at, parked, ids)] == ["skip"]
    assert at.store.state("g")[TP].ranges.pairs() == [(3, 3)]
    assert [one.status for one in record_decisions(at.store, "g", ["t"])] == ["done"]


def test_members_of_earlier_versions_ignore_decisions_on_failed_records(tmp_path: Path) -> None:
    """They take away what they know as a decision on a record that is not parked."""
    at = opened(tmp_path, [Pending(3, 33, 2, 50, "no")])
    decide(at.store, "g", [made(3, "skip")])
    (name,) = at.store.settings("t")
    # All that they look at has this prefix, the partition and the offset.
    assert not name.startswith("deadLetter/")
    rows = DeltaTable(str(tmp_path / "commits")).to_pyarrow_table().to_pylist()
    (row,) = (row for row in rows if name in (row["detail"] or ""))
    assert (row["format"], row["kind"]) == (1, "setting"), "as for the decisions that they know"
    assert CommitStore.open(tmp_path / "commits").pending("g")[TP][3].attempts == 2
    assert [one.action for one in open_decisions(at)] == ["skip"]


@pytest.mark.parametrize(
    ("name", "reason", "said"),
    [
        ("", "", "option by"),
        ("a" * 101, "", "101 characters; give at most 100"),
        (None, "r" * 301, "301 characters; give at most 300"),
        (None, "two\nlines", "one line of printable text"),
        ("half \ud83d", "", "one line of printable text"),
    ],
)
def test_who_decides_and_why_is_text_of_bounded_length(
    name: str | None, reason: str, said: str
) -> None:
    """It is kept in the commit table, and shown in tables of one line."""
    with pytest.raises(InvalidOption, match=said):
        DecidedBy.now(name, reason)
    by = DecidedBy.now()
    assert "@" in by.name
    assert by.at_ms > 0


@pytest.mark.parametrize("action", ["retry", "park", "skip"])
def test_a_record_waits_on_while_a_handler_may_be_at_work_on_it(action: Any) -> None:
    """Of a slot that is lost, or keeps the record, or while its letter is not written."""
    decided_records = DecidedRecords()
    decided_records.take([made(3, action)])
    held = [
        Waiting(3, 33, 2, 90.0, "no", may_run_until=50.0),
        Waiting(3, 33, 2, 90.0, "no", is_running=True),
        Waiting(3, 33, 2, 90.0, "no", is_undelivered=True),
        Waiting(3, 33, 2, 90.0, "no", is_trying=True),
        Waiting(3, 33, 2, float("inf"), "no"),
        Waiting(4, 33, 2, 90.0, "no"),
    ]
    decided_records.hasten(held, 40.0)
    assert [one.due for one in held] == [90.0, 90.0, 90.0, 90.0, float("inf"), 90.0]
    decided_records.hasten(held[:1], 51.0)
    assert held[0].due == 51.0
    again = Waiting(3, 33, 2, 90.0, "no")
    decided_records.hasten([again], 60.0)
    assert again.due == 90.0, "each decision makes its record due once"


def test_a_call_that_does_not_count_is_a_retry(tmp_path: Path) -> None:
    """Only its due time shows it; so its decision skips no later back-off, nor after a restart."""
    at = opened(tmp_path, [Pending(3, 33, 2, 50_000, "down")])
    (record,) = failed_records(at.store, "g")
    decide(at.store, "g", [decision_on(record, "retry", DecidedBy.now())])
    (decision,) = open_decisions(at)
    assert (decision.attempts, decision.due_ms) == (2, 50_000)
    decided_records = DecidedRecords()
    decided_records.take([decision])
    as_before, again = (
        Failed.of(Pending(3, 33, 2, due_ms, "down"), 0.0, 0) for due_ms in (50_000, 90_000)
    )
    assert decided_records.makes_due(as_before)
    assert not decided_records.makes_due(again)
    at.commit({}, pending={TP: [Pending(3, 33, 2, 90_000, "down")]})
    assert open_decisions(at) == []
    assert [one.status for one in record_decisions(at.store, "g", ["t"])] == ["retried"]


def test_a_decision_of_an_earlier_version_goes_by_attempts(tmp_path: Path) -> None:
    """It does not say when its record was due."""
    at = opened(tmp_path, [Pending(3, 33, 2, 50_000, "no")])
    decide(at.store, "g", [made(3, "retry")])
    assert "due_ms" not in next(iter(at.store.settings("t").values()))
    at.commit({}, pending={TP: [Pending(3, 33, 2, 90_000, "no")]})
    (decision,) = open_decisions(at)
    decided_records = DecidedRecords()
    decided_records.take([decision])
    assert decided_records.makes_due(Failed.of(Pending(3, 33, 2, 90_000, "no"), 0.0, 0))
    at.commit({}, pending={TP: [Pending(3, 33, 3, 95_000, "no")]})
    assert open_decisions(at) == []


def test_an_attempt_that_was_in_flight_counts_as_the_retry() -> None:
    """It has failed after the decision: the record waits as its policy says."""
    decided_records = DecidedRecords()
    decided_records.take([made(3, "retry")])
    failed = Waiting(3, 33, 3, 90.0, "no")
    decided_records.hasten([failed], 40.0)
    assert failed.due == 90.0
    assert not decided_records.given_up(OffsetRanges([(3, 3)]), FailedRecords())


@pytest.mark.parametrize("action", ["retry", "park", "skip"])
def test_decisions_on_polled_records_are_taken_as_the_user_polls(
    tmp_path: Path, action: Any
) -> None:
    """The record waits in this process: it comes again, waits on, or is committed."""
    at = opened(tmp_path, [Pending(o, 33, 2, 50, "no") for o in (3, 5)])
    decide(at.store, "g", [made(3, action)])
    retries = RetryBuffer([Failed(o, 33, 2, math.inf if o == 5 else 1e12, "no") for o in (3, 5)])
    done: list[Any] = []
    session: Any = SimpleNamespace(
        lock=nullcontext(), places_of=lambda _: {TP: SimpleNamespace(retries=retries)},
        retries=lambda *_: retries, committed=lambda _, offsets: done.append(offsets),
    )  # fmt: skip
    assert take_decisions(session, at, iter("abc"))
    found = retries.waiting(3)
    assert found is not None
    if action == "retry":
        assert found.due < 1e12
        at.commit({}, pending={TP: [Pending(3, 33, 3, 90, "no")]})
    elif action == "park":
        assert found.is_parked
        assert at.store.pending("g")[TP][3].is_parked
    else:
        assert done == [{TP: OffsetRanges([(3, 3)])}]
        assert at.store.state("g")[TP].ranges.pairs() == [(3, 3)]
    assert not take_decisions(session, at, iter("abc"))
    (noted,) = record_decisions(at.store, "g", ["t"])
    assert noted.status == {"retry": "retried", "park": "parked", "skip": "done"}[action]
    other = retries.waiting(5)
    assert other is not None
    assert other.is_parked
