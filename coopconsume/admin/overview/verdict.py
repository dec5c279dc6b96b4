"""The verdict on a described group (pure); `monitoring.verdict` has the rules."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from coopconsume.admin.offsets.status import FAILED, PARKED, since_of, time_of
from coopconsume.group.owned import kept_key
from coopconsume.kafka.parked_keys import BehindParked
from coopconsume.monitoring.verdict import (
    Condition,
    FailedRecord,
    LostMember,
    RecordPlace,
    verdicts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from coopconsume.admin.offsets.status import PartitionStatus
    from coopconsume.admin.overview import GroupOverview, InDoubtRange, PartitionOverview
    from coopconsume.monitoring.verdict import Pace, Verdict

_REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance")
#: The most parked records that a verdict names.
_NAMED: Final = 5


def group_verdicts(
    group: GroupOverview, now: datetime, pace: Pace | None = None
) -> tuple[Verdict, ...]:
    """Returns all that holds of a group, the most urgent first; at least one verdict.

    Args:
        group: The group.
        now: The current time.
        pace: How fast it works; None after a single look.
    """
    return verdicts(condition_of(group, now, pace), now)


def condition_of(group: GroupOverview, now: datetime, pace: Pace | None = None) -> Condition:
    """Returns what the overview of a group says of its condition; arguments as above."""
    partitions = group.partitions
    lost = [(one, count) for one in partitions if (count := _deleted(one))]
    open_ = [] if pace and pace.done else sorted(_open(group, now), key=lambda both: both[0])
    decided = {(d.topic, d.partition, d.offset) for d in group.decisions if d.status == "open"}
    parked = [
        (one, offset)
        for one in partitions
        for offset in one.parked
        if (one.topic, one.partition, offset) not in decided
    ]
    parked.sort(key=lambda both: -_behind_record(*both))
    return Condition(
        group.group,
        group.lag,
        [one.name for one in partitions if one.lag is None and not _is_empty(one)],
        group.is_worked_on,
        [*_without_owner(group)],
        group.last_active,
        group.is_worked_on and group.state in _REBALANCING,
        [_place(one, offset) for one, offset in parked[:_NAMED]],
        len(parked),
        0 if group.sharing else len({_lane(one, offset) for one, offset in parked}),
        parked_since=_first_of([since_of(one.pending[offset]) for one, offset in parked]),
        behind=_behind(partitions),
        behind_first=_behind_record(*parked[0]) if parked else 0,
        failed=[*_failed(partitions, now)],
        lost_member=_lost_member(partitions, now),
        open_since=open_[0][0] if open_ else None,
        open_records=[place for _, place in open_[:_NAMED]],
        deleted=sum(count for _, count in lost),
        deleted_of=[one.name for one, _ in lost],
        expiring=group.expiring,
        pace=pace,
        last_commit=group.last_commit,
        place=group.place,
        last_members=group.last_members,
    )


def lasting(partition: PartitionOverview, now: datetime) -> Iterator[tuple[InDoubtRange, float]]:
    """Yields the ranges that are still in doubt, and for how many seconds at most.

    One whose end is not known is left out: its seconds have begun before all that is known.
    """
    for doubt in partition.in_doubt:
        left = 0.0 if doubt.until is None else (doubt.until - now).total_seconds()
        if left > 0:
            yield doubt, left


def _is_empty(one: PartitionStatus) -> bool:
    return one.end_offset is not None and one.end_offset == (one.log_start or 0)


def _without_owner(group: GroupOverview) -> Iterator[tuple[str, int]]:
    """Yields partitions with records that nobody owns, while the group owns others."""
    if any(one.owners for one in group.partitions):
        for one in group.partitions:
            if one.lag and not one.owners:
                yield one.name, one.lag


def _place(one: PartitionStatus, offset: int) -> RecordPlace:
    blocker = one.blocker if offset == one.stable_offset else None
    key = kept_key(one.pending[offset]) if blocker is None else blocker.shown_key
    return RecordPlace(one.topic, one.partition, offset, key)


def _lane(one: PartitionStatus, offset: int) -> tuple[str, int, int, bool]:
    """Returns what a record holds back: its key, or itself alone without a key."""
    key_hash = one.pending[offset].key_hash
    return one.topic, one.partition, offset if key_hash is None else key_hash, key_hash is None


def _behind(partitions: Iterable[PartitionOverview]) -> BehindParked | None:
    """Returns the records behind parked ones; None if those of a partition were not counted."""
    found = [one.behind_parked for one in partitions if one.parked]
    counts = [one for one in found if one is not None]
    if len(counts) < len(found):
        return None
    return BehindParked(sum(one.records for one in counts), all(one.is_all for one in counts))


def _behind_record(one: PartitionOverview, offset: int) -> int:
    """Returns the records behind a parked one, as far as they were counted."""
    found, key_hash = one.behind_parked, one.pending[offset].key_hash
    return 0 if found is None or key_hash is None else found.keys.get(key_hash, 0)


def _first_of(times: Sequence[datetime | None]) -> datetime | None:
    """Returns the first of some times; None if one of them is not known."""
    known = [one for one in times if one is not None]
    return min(known, default=None) if len(known) == len(times) else None


def _open(group: GroupOverview, now: datetime) -> Iterator[tuple[datetime, RecordPlace]]:
    """Yields the first record of each partition on which members are at work, and since when.

    At the earliest that is when it was written, and when the group last committed or changed.
    """
    changes = [event.at for event in group.events if event.counted]
    changes += [] if group.last_commit is None else [group.last_commit]
    if not changes or not group.is_worked_on or group.state in _REBALANCING:
        return
    for one in group.partitions:
        record, blocker = one.record, one.blocker
        if record is None or record.written_ms is None or blocker is None or not one.owners:
            continue
        is_held = blocker.has_failed or blocker.state == PARKED or any(lasting(one, now))
        if not is_held and not blocker.deleted_by:
            at = max(*changes, time_of(record.written_ms))
            yield at, RecordPlace(one.topic, one.partition, blocker.offset, blocker.shown_key)


def _failed(partitions: Iterable[PartitionStatus], now: datetime) -> Iterator[FailedRecord]:
    """Yields the failed records that hold stable offsets, and are tried again."""
    for one in partitions:
        blocker = one.blocker if one.stable_offset in one.pending else None
        if blocker is not None and blocker.state == FAILED and blocker.has_failed:
            place = RecordPlace(one.topic, one.partition, blocker.offset, blocker.shown_key)
            due = None if blocker.due is None else (blocker.due - now).total_seconds()
            yield FailedRecord(
                place,
                blocker.attempts,
                blocker.error,
                due,
                blocker.failing_since,
                holds=one.lag is None or one.lag > len(one.pending),
            )


def _lost_member(partitions: Iterable[PartitionOverview], now: datetime) -> LostMember | None:
    found = [(one, doubt, left) for one in partitions for doubt, left in lasting(one, now)]
    if not found:
        return None
    _, doubt, left = max(found, key=lambda each: each[2])
    names = list(dict.fromkeys(one.name for one, _, _ in found))
    until = now + timedelta(seconds=left)
    return LostMember(left, until, names, until - timedelta(seconds=doubt.seconds))


def _deleted(one: PartitionStatus) -> int:
    """Returns the number of offsets below the start of the log that are not done."""
    if one.stable_offset is None or one.log_start is None or one.log_start <= one.stable_offset:
        return 0
    done = one.done.clip(one.stable_offset, one.log_start - 1)
    return one.log_start - one.stable_offset - len(done)
