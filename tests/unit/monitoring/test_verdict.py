"""The verdict on a group, state by state."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from coopconsume.kafka.parked_keys import BehindParked
from coopconsume.kafka.retention import ExpiringOffsets
from coopconsume.monitoring.verdict import (
    LEVELS,
    Condition,
    FailedRecord,
    LostMember,
    Pace,
    RecordPlace,
    Verdict,
    verdict_document,
    verdicts,
)

NOW = datetime(2026, 11, 30, 4, 30, tzinfo=UTC)
SEVEN = RecordPlace("orders", 0, 7, "customer-7")
PARKED = {"parked": [SEVEN], "parked_count": 2, "parked_keys": 2}
HELD = FailedRecord(SEVEN, 4, "ValueError: card\ndeclined", 6.2)
FAILED_ONCE = FailedRecord(RecordPlace("t", 1, 9), 1, "no")
MIDNIGHT = datetime(2026, 11, 30, tzinfo=UTC)


def expiring(records: int, seconds: float, *partitions: int) -> ExpiringOffsets:
    """Returns what retention deletes of the topic orders."""
    return ExpiringOffsets(records, seconds, tuple(("orders", one) for one in partitions or (0,)))


def found(**known: Any) -> tuple[Verdict, ...]:
    """Returns what holds of the group shop."""
    return verdicts(Condition("shop", **known), NOW)


@pytest.mark.parametrize(
    ("known", "level", "reason", "sentence"),
    [
        ({}, "ok", "done", "All done"),
        ({"is_worked_on": False}, "ok", "done", "All done"),
        ({"lag": 1}, "working", "working", "Working: 1 record not done"),
        ({"lag": 25_654}, "working", "working", "Working: 25,654 records not done"),
        # A single look: a killed member is listed for some time.
        (
            {"lag": 808, "last_commit": NOW - timedelta(seconds=11)},
            "working", "working", "Working: 808 records not done, the last commit was 11 s ago",
        ),
        (
            {"lag": 808, "last_commit": NOW - timedelta(seconds=1)},
            "working", "working", "Working: 808 records not done",
        ),
        (
            {"lag": 800, "pace": Pace(12, 2, 4)},
            "working", "working", "Working, done in 80 s",
        ),
        (
            {"lag": 800, "pace": Pace(12, 30, 30)},
            "working", "working",
            "Working, not catching up: 12 records done and 30 new in a second",
        ),
        # It keeps up, and is a few seconds of work behind.
        ({"lag": 90, "pace": Pace(12, 12, 30)}, "working", "working",
         "Working: 90 records not done"),
        ({"lag": 90, "pace": Pace(0, 0, 30)}, "waiting", "stalled",
         "No commit for 30 s: 90 records not done"),
        # Commits come in bursts.
        ({"lag": 90, "pace": Pace(0, 0, 4)}, "working", "working", "Working: 90 records not done"),
        # What is not done has come within this time: before, the group had nothing to do.
        ({"lag": 90, "pace": Pace(0, 3, 30)}, "working", "working",
         "Working: 90 records not done"),
        ({"lag": 91, "pace": Pace(0, 3, 30)}, "waiting", "stalled",
         "No commit for 30 s: 91 records not done"),
        # A single look, at a record that could have been done.
        (
            {"lag": 90, "open_since": NOW - timedelta(seconds=26)},
            "waiting", "stalled", "No commit since 04:29:34 UTC: 90 records not done",
        ),
        (
            {"lag": 90, "open_since": NOW - timedelta(seconds=24)},
            "working", "working", "Working: 90 records not done",
        ),
        (
            {"lag": 90, "open_since": MIDNIGHT, "open_records": [SEVEN], "is_running": True},
            "waiting", "stalled",
            "The handler of customer-7 (orders-0@7) runs since 00:00:00 UTC: 90 records not done",
        ),
        (
            {"unknown": ["Orders-0", "b-1", "b-2", "b-3"]},
            "waiting", "unknown",
            ("No lag is known of Orders-0, b-1, b-2, 1 more, which have no committed offset or "
            "cannot be seen"),
        ),
        (
            {"lag": 116, **PARKED, "behind": BehindParked(114)},
            "action", "decision", "2 keys wait for your decision: 114 records behind them",
        ),
        (
            {"lag": 9, "parked": [SEVEN], "parked_count": 1, "parked_keys": 1,
             "behind": BehindParked(1, is_all=False)},
            "action", "decision",
            "1 key waits for your decision: at least 1 record behind customer-7 (orders-0@7)",
        ),
        (
            {"lag": 9, **PARKED}, "action", "decision",
            "2 keys wait for your decision, the first is customer-7 (orders-0@7)",
        ),
        (
            {"lag": 2, **PARKED, "behind": BehindParked(0)}, "action", "decision",
            ("2 keys wait for your decision, the first is customer-7 (orders-0@7), nothing behind "
            "them"),
        ),
        (
            {"lag": 9, **PARKED, "behind": BehindParked(0, is_all=False)}, "action", "decision",
            "2 keys wait for your decision, the first is customer-7 (orders-0@7)",
        ),
        (
            {"lag": 116, **PARKED, "behind": BehindParked(114), "behind_first": 100},
            "action", "decision",
            ("2 keys wait for your decision: 114 records behind them, 100 of these behind "
            "customer-7 (orders-0@7)"),
        ),
        (
            {"lag": 1, "parked": [RecordPlace("t", 1, 9)], "parked_count": 1, "parked_keys": 1,
             "behind": BehindParked(0)},
            "action", "decision", "1 key waits for your decision: t-1@9, nothing behind it",
        ),
        (
            {"lag": 116, **PARKED, "behind": BehindParked(114), "parked_since": MIDNIGHT},
            "action", "decision",
            "2 keys wait for your decision since 00:00:00 UTC: 114 records behind them",
        ),
        (
            {"lag": 9, **PARKED, "parked_keys": 0},
            "action", "decision",
            "2 records wait for your decision, the first is customer-7 (orders-0@7)",
        ),
        (
            {"lag": 484, "is_worked_on": False, "last_active": NOW - timedelta(minutes=12)},
            "action", "nobody",
            ("Nobody has worked on this group since 04:18:00 UTC: 484 records wait. If you run its "
            "job, start it again"),
        ),
        (
            {"lag": 484, "is_worked_on": False, "last_active": NOW - timedelta(minutes=12),
             "last_members": ["shop-etl7-4711", "shop-etl8-12"]},
            "action", "nobody",
            ("Nobody has worked on this group since 04:18:00 UTC: 484 records wait. If you run its "
            "job, start it again; it ran last as shop-etl7-4711, shop-etl8-12"),
        ),
        (
            {"lag": 1, "is_worked_on": False, "last_active": NOW - timedelta(hours=12)},
            "action", "nobody",
            ("Nobody has worked on this group since 2026-11-29 16:30:00 UTC: 1 record waits. "
            "If you run its job, start it again"),
        ),
        (
            {
                "lag": 40, "is_worked_on": False, "parked_count": 1, "parked_keys": 1,
                "behind": BehindParked(39),
            },
            "action", "decision", "1 key waits for your decision: 39 records behind it",
        ),
        (
            {"lag": 42, "is_worked_on": False, "parked_count": 1, "behind": BehindParked(39)},
            "action", "nobody",
            "Nobody works on this group: 42 records wait. If you run its job, start it",
        ),
        (
            {"unknown": ["a-0"], "is_worked_on": False},
            "action", "nobody",
            ("Nobody works on this group: no lag is known of a-0, which has no committed offset or "
            "cannot be seen. If you run its job, start it"),
        ),
        (
            {"lag": 20, "without_owner": [("old-0", 5), ("old-1", 7)]},
            "action", "nobody",
            ("Nobody works on old-0, old-1: 12 records wait. Start a member that subscribes to "
            "their topics"),
        ),
        (
            {"lag": 5, "failed": [HELD]},
            "waiting", "failed",
            "Held by customer-7 (orders-0@7): ValueError: card declined (attempt 4, next in 6 s)",
        ),
        (
            {"lag": 5, "failed": [replace(HELD, holds=False)]},
            "waiting", "failed",
            ("Failed, with nothing behind it so far: customer-7 (orders-0@7): ValueError: card "
            "declined (attempt 4, next in 6 s)"),
        ),
        (
            {"lag": 5, "failed": [replace(HELD, holds=False), FAILED_ONCE]},
            "waiting", "failed", "Held by t-1@9, and by 1 other record: no (attempt 1)",
        ),
        (
            {"lag": 5, "failed": [FailedRecord(RecordPlace("t", 1, 9), 1, "no"), HELD]},
            "waiting", "failed",
            ("Held by customer-7 (orders-0@7), and by 1 other record: ValueError: card declined "
            "(attempt 4, next in 6 s)"),
        ),
        (
            {"lag": 5, "failed": [replace(HELD, since=MIDNIGHT - timedelta(hours=2))]},
            "waiting", "failed",
            ("Held by customer-7 (orders-0@7) since 2026-11-29 22:00:00 UTC: ValueError: card "
            "declined (attempt 4, next in 6 s)"),
        ),
        (
            {"lag": 5, "failed": [FailedRecord(RecordPlace("t", 1, 9), 1, "no")]},
            "waiting", "failed", "Held by t-1@9: no (attempt 1)",
        ),
        # No failed call of it counts.
        (
            {"lag": 5, "failed": [FailedRecord(RecordPlace("t", 1, 9), 0, "is down", 9.0)]},
            "waiting", "failed", "Held by t-1@9: is down (postponed, next in 9 s)",
        ),
        (
            {"lag": 5, "lost_member": LostMember(
                12.3, NOW + timedelta(seconds=12), ["t-0"], NOW - timedelta(seconds=3)
            )},
            "waiting", "lostMember",
            ("Waiting for a lost member since 04:29:57 UTC, until 04:30:12 UTC (12 s): it did not "
            "hand over its key ranges of t-0, and its handlers may still run. Nobody has to act. "
            "To wait for less next time, lower leaseGrace, or handlerTimeout if its slots have no "
            "channel to the driver"),
        ),
        (
            {"lost_member": LostMember(9, NOW + timedelta(seconds=9), ["t-0", "t-1"])},
            "waiting", "lostMember",
            ("Waiting for a lost member until 04:30:09 UTC (9 s): it did not hand over its key "
            "ranges of t-0, t-1, and its handlers may still run. Nobody has to act. To wait for "
            "less next time, lower leaseGrace, or handlerTimeout if its slots have no channel to "
            "the driver"),
        ),
        (
            {"lag": 5, "is_rebalancing": True},
            "waiting", "rebalancing",
            "Rebalancing: its members join a new generation, 5 records not done. Nobody has to act",
        ),
        (
            {"lag": 5, "stalled": "paused by pause(): resume() continues"},
            "waiting", "stalled", "Paused by pause(): resume() continues",
        ),
        (
            {"lag": 5, "deleted": 3, "deleted_of": ["orders-0", "orders-1"]},
            "danger", "deleted",
            ("Retention has deleted 3 offsets of orders-0, orders-1 that were not done. With "
            "failOnDataLoss=false a job continues above them"),
        ),
        (
            {"lag": 500, "expiring": expiring(120, 3 * 3_600, 7, 0, 1, 2, 3)},
            "danger", "retention",
            ("Within 3 h, retention deletes up to 120 records of orders-7, orders-0, orders-1, 2 "
            "more that are not done. Raise retention.ms, or work faster"),
        ),
        (
            {"lag": 500, "expiring": expiring(1, 60), **PARKED},
            "danger", "retention",
            ("Within 60 s, retention deletes up to 1 record of orders-0 that is not done. Raise "
            "retention.ms, work faster, or decide on parked records"),
        ),
    ],
)  # fmt: skip
def test_each_state_has_its_sentence(
    known: dict[str, Any], level: str, reason: str, sentence: str
) -> None:
    """Its level, its reason for programs, and numbers and times as they are known."""
    first = found(**known)[0]
    assert (first.level, first.reason, first.sentence) == (level, reason, sentence)


def test_the_most_urgent_one_comes_first() -> None:
    """All that holds is there; work goes on beside what is urgent, and all is never done then."""
    everything = {
        "lag": 900, **PARKED, "behind": BehindParked(98), "failed": [HELD], "deleted": 1,
        "deleted_of": ["orders-0"], "expiring": expiring(5, 60), "without_owner": [("t-9", 2)],
        "is_rebalancing": True,
        "lost_member": LostMember(9, NOW, ["t-0"]), "stalled": "paused by pause()",
    }  # fmt: skip
    all_found = found(**everything, pace=Pace(10, 0, 30))
    assert [one.reason for one in all_found] == [
        "deleted", "retention", "nobody", "decision", "lostMember", "rebalancing", "failed",
        "stalled", "working",
    ]  # fmt: skip
    severities = [one.severity for one in all_found]
    assert severities == sorted(severities, reverse=True)
    assert set(severities) == {1, 2, 3, 4}
    assert [one.severity for one in found()] == [LEVELS.index("ok")] == [0]
    assert [one.reason for one in found(**everything | {"is_worked_on": False})][2:4] == [
        "nobody", "decision",
    ]  # fmt: skip


def test_what_waits_for_a_decision_is_not_to_be_done() -> None:
    """The records behind parked ones do not count in the time until all is done."""
    known = {"lag": 900, **PARKED, "behind": BehindParked(98), "pace": Pace(10, 0, 30)}
    assert [one.sentence for one in found(**known)][1:] == ["Working, done in 80 s"]
    alone = found(**known | {"lag": 100, "pace": Pace(0, 0, 30)})
    assert [one.reason for one in alone] == ["decision"], "the group waits for nothing else"
    stuck = found(**known | {"pace": Pace(0, 0, 30)})
    assert stuck[1].sentence == "Working: 800 records not done", "why is said above"


@pytest.mark.parametrize(
    ("known", "is_lost"),
    [
        ({"pace": Pace(10, 0, 30)}, False),
        ({"pace": Pace(1, 0, 30)}, True),
        ({"pace": Pace(10, 10, 30)}, True),
        ({"pace": Pace(10, 0, 30), **PARKED}, True),
        ({}, True),
    ],
)
def test_retention_is_no_danger_for_what_is_done_before(
    known: dict[str, Any], is_lost: bool
) -> None:
    """A record that waits for a decision is not done in time."""
    shown = found(lag=800, expiring=expiring(120, 100), **known)
    assert (shown[0].level == "danger") == is_lost


def test_times_have_the_zone_that_they_are_given_in() -> None:
    """The date is that of this zone, too."""
    there = timezone(timedelta(hours=2))
    late = found(lag=1, is_worked_on=False, last_active=NOW.astimezone(there))
    assert "since 06:30:00 UTC+02:00:" in late[0].sentence
    before = datetime(2026, 11, 29, 23, 30, tzinfo=UTC).astimezone(there)
    seen = found(lag=1, is_worked_on=False, last_active=before)[0].sentence
    assert "since 01:30:00 UTC+02:00:" in seen


@pytest.mark.parametrize(
    ("due", "is_worked_on", "words"),
    [
        (-60.0, False, "next when a job runs"), (-60.0, True, "next in 0 s"),
        (90.0, False, "next in 90 s"),
    ],
)  # fmt: skip
def test_what_is_due_waits_for_a_job_if_nobody_works(
    due: float, is_worked_on: bool, words: str
) -> None:
    """It is not tried in 0 s, however long ago it was due."""
    held = [replace(HELD, due=due)]
    sentences = [one.sentence for one in found(lag=1, is_worked_on=is_worked_on, failed=held)]
    assert [one for one in sentences if one.endswith(f"(attempt 4, {words})")]


def test_a_verdict_names_the_next_command_and_the_records() -> None:
    """A group id is quoted for a shell; JSON has the others in a list."""
    first, *_ = verdicts(Condition("my shop", lag=5, **PARKED), NOW)
    assert first.command == "coopconsume records list 'my shop'"
    placed = Condition("my shop", lag=5, place="--commit-table '/my commits'", **PARKED)
    assert verdicts(placed, NOW)[0].command == f"{first.command} --commit-table '/my commits'"
    assert first.records == (SEVEN,)
    held = replace(HELD, since=MIDNIGHT)
    document = json.loads(json.dumps(verdict_document(found(lag=5, failed=[held]))))
    assert document["level"] == "waiting"
    assert document["command"] == "coopconsume records list shop"
    assert document["records"] == [
        {"topic": "orders", "partition": 0, "offset": 7, "key": "customer-7"}
    ]
    assert document["since"] == "2026-11-30T00:00:00+00:00"
    assert [(one["reason"], one["since"]) for one in document["others"]] == [("working", None)]


@pytest.mark.parametrize(
    ("known", "command"),
    [
        ({"lag": 1, "is_worked_on": False}, "groups describe shop"),
        ({"unknown": ["a-0"], "is_worked_on": False}, "groups describe shop"),
        ({"lag": 20, "without_owner": [("old-0", 5)]}, "groups describe shop"),
        ({"lag": 9, **PARKED}, "records list shop"),
        ({"lag": 5, "deleted": 3, "deleted_of": ["orders-0"]}, "lag shop"),
        ({"lag": 5, "expiring": expiring(1, 60)}, "lag shop"),
        ({"lag": 5, "expiring": expiring(1, 60), **PARKED}, "records list shop"),
        ({"lag": 5, "failed": [HELD]}, "records list shop"),
        ({"lag": 90, "open_since": MIDNIGHT}, "lag shop"),
        ({"lag": 90, "pace": Pace(0, 0, 30)}, "lag shop"),
        ({"lag": 5, "stalled": "waiting for Kafka: no broker", "is_away": True}, "doctor"),
        ({"unknown": ["a-b-0", "a-b-1", "c-0"]}, "topics describe a-b c"),
    ],
)
def test_what_somebody_has_to_do_has_its_command(known: dict[str, Any], command: str) -> None:
    """It ends with the options that it needs here, of a cluster and a table."""
    shown = found(place="--commit-table /t", **known)[0]
    assert shown.command == f"coopconsume {command} --commit-table /t"


@pytest.mark.parametrize(
    "known",
    [
        {"lag": 5, "lost_member": LostMember(9, NOW, ["t-0"])},
        {"lag": 5, "is_rebalancing": True},
    ],
)
def test_a_wait_that_ends_by_itself_asks_nobody_to_act(known: dict[str, Any]) -> None:
    """It says so, and has no command."""
    shown = found(**known)[0]
    assert "Nobody has to act" in shown.sentence
    assert shown.command == ""


@pytest.mark.parametrize(
    ("known", "since"),
    [
        ({"lag": 5, "lost_member": LostMember(9, NOW, ["t-0"], MIDNIGHT)}, MIDNIGHT),
        ({"lag": 1, "is_worked_on": False, "last_active": MIDNIGHT}, MIDNIGHT),
        ({"lag": 9, **PARKED, "parked_since": MIDNIGHT}, MIDNIGHT),
        ({"lag": 9, "failed": [replace(HELD, since=MIDNIGHT)]}, MIDNIGHT),
        ({"lag": 9, "open_since": MIDNIGHT}, MIDNIGHT),
        ({"lag": 9, "failed": [HELD]}, None),
        ({"lag": 9}, None),
    ],
)
def test_a_verdict_says_since_when_if_that_is_known(
    known: dict[str, Any], since: datetime | None
) -> None:
    """In its sentence for people, and as a time for programs."""
    first = found(**known)[0]
    assert first.since == since
    assert ("since 00:00:00 UTC" in first.sentence) == (since is not None)


def test_a_hang_is_named_beside_keys_that_wait_for_a_decision() -> None:
    """They do not explain it: their records are not those that could have been done."""
    known = {"lag": 900, **PARKED, "open_since": MIDNIGHT, "open_records": [SEVEN]}
    reasons = [one.reason for one in found(**known)]
    assert reasons == ["decision", "stalled"], "nor do they work"
    assert found(**known)[1].records == (SEVEN,)
