"""The verdict of a job on the partitions that it works on (pure); see `monitoring.verdict`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from commits.model import has_failed
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
    from coopconsume.runtime.status.waiting import OldestCall, Reason, WaitingFor

#: What a job waits for that other facts say better, or that belongs to its work.
_NOT_STALLED: Final[set[Reason]] = {
    "group", "handOver", "lostMember", "handlers", "retry", "decision", "otherMembers", "trigger",
    "newRecords", "nextBatch", "stop",
}  # fmt: skip
#: What a job waits for while its group rebalances.
_REBALANCING: Final[set[Reason]] = {"group", "handOver"}
#: What a job waits for if Kafka or the commit table does not answer.
_AWAY: Final[set[Reason | None]] = {"kafka", "commitLog"}
#: The most parked records that a verdict names.
_NAMED: Final = 5


def job_verdict(
    group: str,
    partitions: Sequence[Partition],
    described: Sequence[Mapping[str, Any]],
    waiting: WaitingFor | None,
    pace: Pace | None = None,
    *,
    now: float,
    call: OldestCall | None = None,
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
        now: The time on the clock of the partitions.
        call: The handler call that has run for longest, if it is known.
        expiring: What retention deletes next of them, if there is any.
        place: The options of commands that name the cluster and the commit table.
    """
    here, reason = datetime.now(UTC), waiting.reason if waiting else None
    parked = _parked(partitions, described)
    keys = sum(not one.supply.shares_chunks for one, _ in parked)
    held = sum(at["behindParked"] for at in described)
    lag = sum(max(0, at["lag"]) for at in described)
    hangs = call if reason == "handlers" else None
    found = Condition(
        group,
        lag,
        is_rebalancing=reason in _REBALANCING,
        parked=[
            RecordPlace(one.topic, one.partition, record.offset, record.key)
            for one, record in parked[:_NAMED]
        ],
        parked_count=len(parked),
        parked_keys=keys,
        parked_since=_first_of([record.since for _, record in parked], now, here),
        # What is behind them may not have been read yet.
        behind=BehindParked(held) if keys and (held or lag <= len(parked)) else None,
        behind_first=behind(parked[0][1]) if parked else 0,
        failed=[_failed(at, here) for at in described if _is_failed(at)],
        lost_member=_lost_member(described, here),
        stalled=waiting.message if waiting and waiting.reason not in _NOT_STALLED else "",
        is_away=reason in _AWAY,
        open_since=_ago(hangs.seconds, here) if hangs else None,
        open_records=[RecordPlace(*hangs.place)] if hangs else (),
        is_running=True,
        expiring=expiring,
        # Why nothing is committed is known better from what it waits for.
        pace=pace if pace and pace.done else None,
        place=place,
    )
    return verdicts(found, here)[0]


def _parked(
    partitions: Sequence[Partition], described: Sequence[Mapping[str, Any]]
) -> list[tuple[Partition, Failed]]:
    """Returns the parked records, those that hold most first."""
    with_parked = [one for one, at in zip(partitions, described, strict=True) if at["parked"]]
    parked = [(one, record) for one in with_parked for record in one.supply.parked]
    return sorted(parked, key=lambda both: -behind(both[1]))


def _first_of(times: Sequence[float | None], now: float, here: datetime) -> datetime | None:
    """Returns the first of some times; None if one of them is not known."""
    known = [now - since for since in times if since is not None]
    return _ago(max(known), here) if known and len(known) == len(times) else None


def _ago(seconds: float, now: datetime) -> datetime:
    return now - timedelta(seconds=seconds)


def behind(record: Failed) -> int:
    """Returns the number of the known records behind a parked one."""
    return len(getattr(record, "behind", ()))


def _is_failed(at: Mapping[str, Any]) -> bool:
    blocker = at["blocker"]
    if blocker is None or blocker["state"] != "failed":
        return False
    return has_failed(blocker["attempts"], blocker["error"])


def _failed(at: Mapping[str, Any], now: datetime) -> FailedRecord:
    blocker = at["blocker"]
    place = RecordPlace(at["topic"], at["partition"], blocker["offset"], blocker["key"])
    seconds = blocker["failingSeconds"]
    return FailedRecord(
        place,
        blocker["attempts"],
        blocker["error"],
        blocker["dueInSeconds"],
        None if seconds is None else _ago(seconds, now),
        holds=blocker["behind"] > 0,
    )


def _lost_member(described: Iterable[Mapping[str, Any]], now: datetime) -> LostMember | None:
    waits = {f"{at['topic']}-{at['partition']}": at["inDoubtSeconds"] for at in described}
    names = [name for name, seconds in waits.items() if seconds > 0]
    if not names:
        return None
    longest = max(waits.values())
    return LostMember(longest, now + timedelta(seconds=longest), names)
