"""``coopconsume records``."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from coopconsume.admin.records.tables import next_decision, record_table, step_lines
from coopconsume.cli.decision_options import deciding, with_place
from coopconsume.cli.exit_codes import EXIT_CODES, example, reported
from coopconsume.cli.place import Shown, shown, with_admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coopconsume.admin.client import Admin
    from coopconsume.admin.records.actions import FailedRecord, RecordAdmin, RecordChoice
    from coopconsume.admin.tables import Part
    from coopconsume.runtime.decided_by import DecidedBy
    from coopconsume.runtime.decisions import Decision, RecordAction

_PLACE = "--bootstrap-servers localhost:9092 --commit-table /data/commits"


def _chosen(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a `RecordAdmin` and a `RecordChoice` to a command."""

    @click.argument("group")
    @with_admin
    @with_place(
        key="Only records with this key, or ordering key.",
        error="Only records with this text in the last error.",
    )
    @functools.wraps(command)
    def with_choice(
        group: str, admin: Admin, place: dict[str, Any], error: str | None, **given: Any
    ) -> Any:
        from coopconsume.admin.records.actions import RecordChoice

        choice = RecordChoice(**place, error=error)
        return command(records=admin.records(group), choice=choice, **given)

    return with_choice


_deciding = deciding(_chosen, "records", "All failed records.")


@click.group(epilog=EXIT_CODES)
def records() -> None:
    """List a group's failed records, and retry, park or skip them, also while jobs run."""


@records.command("list", epilog=example("coopconsume records list shop", _PLACE))
@reported
@_chosen
@shown
def list_(*, records: RecordAdmin, choice: RecordChoice) -> Shown:
    """List the records that have failed and are not done, with open decisions on them.

    A record that a slot retries by itself is here once the slot has given it back: in batches
    within batchTime, in real time at the end of the slot's run.
    """
    found = records.records(choice)

    def document() -> list[dict[str, Any]]:
        return [_plain(one) for one in found]

    def parts() -> Iterator[Part]:
        now = datetime.now(UTC)
        yield record_table(found, now, is_worked_on=records.is_worked_on() is not False)

    hint = next_decision(found, records.group, records.place)
    return Shown(document, parts() if found else ["no failed records"], hint=hint)


@records.command(
    epilog=example("coopconsume records retry shop --partition 0 --offset 17 --execute", _PLACE)
)
@_deciding
def retry(*, records: RecordAdmin, choice: RecordChoice, by: DecidedBy, execute: bool) -> Shown:
    """Try records again now, whatever their back-off.

    A parked record begins with attempt 1. An attempt that is in flight counts as the retry.
    """
    return _decide("retry", records, choice, by, execute=execute)


@records.command(epilog=example("coopconsume records park shop --key customer-7 --execute", _PLACE))
@_deciding
def park(*, records: RecordAdmin, choice: RecordChoice, by: DecidedBy, execute: bool) -> Shown:
    """Stop trying records; the later records of their keys wait for a further decision.

    A job with a place for dead letters writes one.
    """
    return _decide("park", records, choice, by, execute=execute)


@records.command(
    epilog=example(
        'coopconsume records skip shop --offset 17 --reason "order was cancelled" --execute', _PLACE
    )
)
@_deciding
def skip(*, records: RecordAdmin, choice: RecordChoice, by: DecidedBy, execute: bool) -> Shown:
    """Mark records as done without their handler; their keys continue.

    A job with a place for dead letters writes one.
    """
    return _decide("skip", records, choice, by, execute=execute)


def _decide(
    action: RecordAction, records: RecordAdmin, choice: RecordChoice, by: DecidedBy, *,
    execute: bool,
) -> Shown:  # fmt: skip
    steps = records.plan(action, choice)
    if execute:
        records.carry_out(steps, by)
    document = {
        "action": action, "executed": execute, "by": by.name, "reason": by.reason,
        "failed": [_plain(one) for one in steps.failed],
        "parked": [_plain(one) for one in steps.parked],
        "unchanged": [_plain(one) for one in steps.unchanged],
    }  # fmt: skip

    def parts() -> Iterator[str]:
        yield from step_lines(
            steps, executed=execute, is_worked_on=records.is_worked_on() if execute else None
        )

    return Shown(lambda: document, parts())


def _plain(one: FailedRecord) -> dict[str, Any]:
    return {
        "topic": one.topic, "topic_id": one.topic_id, "partition": one.partition,
        "offset": one.offset, "key": one.key, "key_hash": one.key_hash, "state": one.state,
        "attempts": one.attempts, "since": one.since and one.since.isoformat(),
        "due": one.due and one.due.isoformat(), "error": one.error,
        "decision": one.decision and _decision(one.decision),
    }  # fmt: skip


def _decision(one: Decision) -> dict[str, Any]:
    at = one.by.at
    return {
        "action": one.action, "at": at and at.isoformat(), "by": one.by.name,
        "reason": one.by.reason,
    }  # fmt: skip
