"""The verdict of a job on the partitions that it works on (pure); see `monitoring.verdict`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from coopconsume.group.owned import has_failed
from coopconsume.kafka.parked_keys import BehindParked
from coopconsume.monitoring.verdict import (
    Condition,
    FailedRecord,
    LostMember,
    RecordPlace,
    Verdict,
    verdicts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.group.owned import Failed
    from coopconsume.kafka.retention import ExpiringOffsets
    from coopconsume.monitoring.verdict import Pace
    from coopconsume.runtime.plan import Partition
    from coopconsume.runtime.status.waiting import Reason, WaitingFor

#: What a job waits for that other facts say better, or that belongs to its work.
_NOT_STALLED: Final[set[Reason]] = {
    "group", "handOver", "lostMember", "handlers", "retry", "decision", "otherMembers", "trigger",
    "newRecords", "nextBatch", "stop",
}  # fmt: skip
#: What a job waits for while its group rebalances.
_REBALANCING: Final[set[Reason]] = {"group", "handOver"}
#: The most parked records that a verdict names.
_NAMED: Final = 5


def job_verdict(
    group: str,
    partitions: Sequence[Partition],
    described: Sequence[Mapping[str, Any]],
    waiting: WaitingFor | None,
    pace: Pace | None = None,
    *,
    expiring: ExpiringOffsets | None = None,
    place: str = "",
) -> Verdict:
    """Returns the verdict of a job, from its own status.

    Partitions that nobody works on are not known to it.

    Args:
        group: The group id.
        partitions: The partitions of the job.
        described: The entry of each of them in progress.
        waiting: What the job waits for, if it commits nothing.
        pace: How fast its group works on them; None if that is not known.
        expiring: What retention deletes next of them, if there is any.
        place: The options of commands that name the cluster and the commit table.
    """
    now, reason = datetime.now(UTC), waiting.reason if waiting else None
    with_parked = [one for one, at in zip(partitions, described, strict=True) if at["parked"]]
    parked = [(one, record) for one in with_parked for record in one.supply.parked]
    keys = sum(not one.supply.shares_chunks for one, _ in parked)
    behind = sum(_behind(record) for _, record in parked)
    found = Condition(
        group,
        sum(max(0, at["lag"]) for at in described),
        is_rebalancing=reason in _REBALANCING,
        parked=[
            RecordPlace(one.topic, one.partition, record.offset, record.key)
            for one, record in parked[:_NAMED]
        ],
        parked_count=len(parked),
        parked_keys=keys,
        behind=BehindParked(behind) if keys else None,
        failed=[_failed(at) for at in described if _is_failed(at)],
        lost_member=_lost_member(described, now),
        stalled=waiting.message if waiting and waiting.reason not in _NOT_STALLED else "",
        expiring=expiring,
        # Why nothing is committed is known better from what it waits for.
        pace=pace if pace and pace.done else None,
        place=place,
    )
    return verdicts(found, now)[0]


def _behind(record: Failed) -> int:
    return len(getattr(record, "behind", ()))


def _is_failed(at: Mapping[str, Any]) -> bool:
    blocker = at["blocker"]
    if blocker is None or blocker["state"] != "failed":
        return False
    return has_failed(blocker["attempts"], blocker["error"])


def _failed(at: Mapping[str, Any]) -> FailedRecord:
    blocker = at["blocker"]
    place = RecordPlace(at["topic"], at["partition"], blocker["offset"], blocker["key"])
    return FailedRecord(place, blocker["attempts"], blocker["error"], blocker["dueInSeconds"])


def _lost_member(described: Iterable[Mapping[str, Any]], now: datetime) -> LostMember | None:
    waits = {f"{at['topic']}-{at['partition']}": at["inDoubtSeconds"] for at in described}
    names = [name for name, seconds in waits.items() if seconds > 0]
    if not names:
        return None
    longest = max(waits.values())
    return LostMember(longest, now + timedelta(seconds=longest), names)
