"""`RecordAdmin`: lists the failed records of a group and writes decisions on them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from assignors import key_hash
from coopconsume.admin.offsets.reading import unknown_group
from coopconsume.admin.offsets.status import since_of
from coopconsume.admin.place_choice import PlaceChoice
from coopconsume.admin.working import is_worked_on
from coopconsume.command_place import command_place
from coopconsume.group.owned import kept_key
from coopconsume.kafka.connection import Connection
from coopconsume.options import Options
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.runtime.decisions import Decision, decide, decided, record_decisions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from commits import CommitStore, Pending
    from coopconsume.runtime.decisions import Action, RecordAction

#: What a decision on a failed record is to a parked one, which waits for nothing else.
_ON_PARKED: Final[Mapping[RecordAction, Action]] = {"retry": "replay", "skip": "discard"}


@dataclass(frozen=True)
class FailedRecord:
    """A record that has failed and is not done, as the commit table has it.

    Attributes:
        topic, topic_id, partition, offset: The position of the record.
        key: Its key, or its ordering key, as the commit table shortens it; None if it has none, or
            keys are not kept.
        key_hash: The hash that it is dealt by.
        state: ``failed``: it waits for its next attempt. ``parked``: it waits for a decision.
        attempts: The failed attempts.
        due: When it is tried again, by the clock of the member that wrote it; None if it is parked.
        error: The last error.
        decision: The open decision on it; None without one.
        since: When it failed first or was parked, by the clock of the member that wrote it; None
            if the commit table does not say.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    key: str | None
    key_hash: int | None
    state: Literal["failed", "parked"]
    attempts: int
    due: datetime | None
    error: str
    decision: Decision | None
    since: datetime | None = None

    @property
    def name(self) -> str:
        """Its position as text."""
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True)
class RecordChoice(PlaceChoice):
    """A filter of failed records; a condition that is None matches all.

    Attributes:
        topic, partition, first, last: As in `PlaceChoice`.
        key: The key, or the ordering key, that records are dealt by.
        error: Text that the last error contains, in any case.
    """

    key: bytes | None = None
    error: str | None = None

    def takes(self, record: FailedRecord) -> bool:
        """Returns whether a record matches."""
        return (
            self.takes_place(record.topic, record.partition, record.offset)
            and (self.key is None or key_hash(self.key) == record.key_hash)
            and (self.error is None or self.error.lower() in record.error.lower())
        )


@dataclass(frozen=True)
class RecordSteps:
    """The steps of a decision.

    Attributes:
        action: The decision.
        failed: Records that wait for their next attempt.
        parked: Records that wait for a decision.
        unchanged: Parked records that are to be parked.
    """

    action: RecordAction
    failed: tuple[FailedRecord, ...] = ()
    parked: tuple[FailedRecord, ...] = ()
    unchanged: tuple[FailedRecord, ...] = ()


class RecordAdmin:
    """Lists the failed records of a group, and retries, parks or skips them.

    A decision is written to the commit table, whether jobs run or not. The member that owns the
    key applies it: at once if a job runs, else when the next job starts. If a handler is at work on
    the record, that attempt counts first: a record that it finishes is done.

    Args:
        options: As for `CooperativeConsumer`.
        spark: The session, needed for a commit table in a catalog.

    Raises:
        OptionError, BrokerUnreachable, commits.CommitStoreError: As for a consumer.
    """

    def __init__(self, options: Mapping[str, Any], *, spark: SparkSession | None = None) -> None:
        self._options = Options.parse(options)
        with Connection(self._options, spark=spark) as at:
            self._store = at.store

    def records(self, choice: RecordChoice | None = None) -> list[FailedRecord]:
        """Returns the records that have failed and are not done, by partition and offset.

        Args:
            choice: Which records; by default all.

        Raises:
            GroupNotFound: The commit table does not know the group.
        """
        group = self._options.group_id
        if group not in self._store.groups():
            raise unknown_group(self._options, self._store)
        chosen = choice or RecordChoice()
        return [one for one in failed_records(self._store, group) if chosen.takes(one)]

    @property
    def group(self) -> str:
        """The group id."""
        return self._options.group_id

    @property
    def place(self) -> str:
        """The options of commands that name its cluster and its commit table, without secrets."""
        return command_place(self._options, self._store.target)

    def is_worked_on(self) -> bool | None:
        """Returns whether the group has members or claims, which apply decisions at once.

        None if that is not known: its coordinator does not answer, or this user has no right to
        describe the group.

        Raises:
            commits.CommitStoreError: The commit table cannot be read.
        """
        return is_worked_on(self._options, self._store)

    def decisions(self) -> list[Decision]:
        """Returns the open decisions, and the newest ones that have an outcome."""
        return group_decisions(self._store, self._options.group_id)

    def plan(self, action: RecordAction, choice: RecordChoice) -> RecordSteps:
        """Returns the steps of a decision on some records (dry run)."""
        found = self.records(choice)
        parked = tuple(one for one in found if one.state == "parked")
        failed = tuple(one for one in found if one.state == "failed")
        if action == "park":
            return RecordSteps(action, failed, unchanged=parked)
        return RecordSteps(action, failed, parked)

    def carry_out(self, steps: RecordSteps, by: DecidedBy | None = None) -> None:
        """Writes a decision to the commit table, in one append.

        A parked record is retried from its first attempt on.

        Args:
            steps: The steps.
            by: Who decides, and why; by default the user of this process.

        Raises:
            commits.CommitStoreError: The commit table cannot be written.
        """
        by = by or DecidedBy.now()
        actions: list[tuple[FailedRecord, Action | RecordAction]] = [
            *((one, steps.action) for one in steps.failed),
            *((one, _ON_PARKED[steps.action]) for one in steps.parked),
        ]
        decide(
            self._store,
            self._options.group_id,
            [decision_on(one, action, by) for one, action in actions],
        )


def decision_on(record: FailedRecord, action: Action | RecordAction, by: DecidedBy) -> Decision:
    """Returns a decision on a record, as it has failed up to now."""
    due_ms = None if record.due is None else round(record.due.timestamp() * 1000)
    return Decision(
        record.topic, record.partition, record.offset, action, record.topic_id, by,
        record.attempts, due_ms=due_ms,
    )  # fmt: skip


def failed_records(store: CommitStore, group: str) -> list[FailedRecord]:
    """Returns the failed records of a group as the commit table has them."""
    ids, found = store.topic_ids(group), sorted(store.pending(group).items())
    decisions = {
        one.place: one
        for one in _all_decisions(store, group, {topic for (topic, _), _ in found})
        if one.status == "open"
    }
    return [
        _record(tp, ids.get(tp, ""), pending, decisions.get((*tp, offset)))
        for tp, records in found
        for offset, pending in sorted(records.items())
    ]


def group_decisions(store: CommitStore, group: str) -> list[Decision]:
    """Returns the decisions on the records of a group: the open ones, then the newest others."""
    found = _all_decisions(store, group, {topic for topic, _ in store.state(group)})
    return sorted(found, key=lambda one: (one.status != "open", -one.by.at_ms, one.place))


def _all_decisions(store: CommitStore, group: str, topics: Iterable[str]) -> list[Decision]:
    chosen = set(topics)
    return [*record_decisions(store, group, chosen), *decided(store, group, chosen)]


def _record(
    tp: tuple[str, int], topic_id: str, pending: Pending, decision: Decision | None
) -> FailedRecord:
    due = None if pending.is_parked else datetime.fromtimestamp(pending.due_ms / 1000, UTC)
    return FailedRecord(
        tp[0], topic_id, tp[1], pending.offset, kept_key(pending), pending.key_hash,
        "parked" if pending.is_parked else "failed", pending.attempts, due, pending.error, decision,
        since=since_of(pending),
    )  # fmt: skip
