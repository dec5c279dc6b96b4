"""Decisions of operators on parked records, and how the member that owns the records applies them.

A decision is a setting in the commit log: it needs no epoch, so it can be made with and without a
running job. The owner of the record's key applies it: it commits that the record is retried or
done, removes the decision, and continues with the key. A crash in between repeats nothing:
decisions apply only to records that the log has as parked, and the next member removes others.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from commits import OffsetRanges, Pending
from coopconsume.kafka.identity import is_other_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from commits import CommitStore
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import Failed

log = logging.getLogger(__name__)

Action = Literal["replay", "discard"]
_PREFIX = "deadLetter"


@dataclass(frozen=True)
class Decision:
    """What is to become of a parked record.

    Attributes:
        topic, partition, offset: Which record.
        action: ``replay``: it is tried again, from its first attempt on. ``discard``: it is done.
        topic_id: The id of its topic; empty if it is not known.
    """

    topic: str
    partition: int
    offset: int
    action: Action
    topic_id: str = ""

    def setting(self, group: str) -> str:
        """Returns the name under which the commit log keeps it."""
        return f"{_PREFIX}/{group}/{self.partition}/{self.offset}"


def decide(store: CommitStore, group: str, decisions: Iterable[Decision]) -> None:
    """Writes decisions, all in one append; the last one on a record counts, until it is taken.

    Raises:
        commits.CommitStoreError: The log cannot be written.
    """
    at_ms = int(time.time() * 1000)
    store.set_settings(
        (one.topic, one.setting(group),
         {"action": one.action, "topic_id": one.topic_id, "at_ms": at_ms})
        for one in decisions
    )  # fmt: skip


def decided(store: CommitStore, group: str, topics: Iterable[str]) -> list[Decision]:
    """Returns the decisions on records of some topics that no member has applied yet."""
    start = f"{_PREFIX}/{group}/"
    found = []
    for topic in sorted(set(topics)):
        for name, value in store.settings(topic).items():
            place = name.removeprefix(start).split("/") if name.startswith(start) else ()
            if len(place) == 2 and all(number.isdigit() for number in place):  # noqa: PLR2004
                partition, offset = map(int, place)
                topic_id = value.get("topic_id", "")
                found.append(Decision(topic, partition, offset, value["action"], topic_id))
    return found


def apply_decisions(
    assignment: EpochAssignment,
    parked: Sequence[tuple[TopicPartition, Failed]],
    commit_ids: Iterator[str],
) -> list[Decision]:
    """Writes the decisions on parked records into the commit log, in one commit.

    Decisions on records that are not parked any more, or of a topic that was deleted since, are
    taken away.

    Args:
        assignment: What is owned.
        parked: The parked records of it.
        commit_ids: Ids for commits.

    Returns:
        The decisions that hold from now on.

    Raises:
        commits.FencedMember: The epoch or the membership is not in force.
        commits.CommitStoreError: The log cannot be read or written.
    """
    group = assignment.options.group_id
    waiting = {(*tp, record.offset): record for tp, record in parked}
    found = decided(assignment.store, group, (topic for topic, _ in assignment.owned))
    in_log = assignment.store.pending(group) if found else {}
    taken = []
    stale = []
    offsets: dict[TopicPartition, OffsetRanges] = {}
    pending: dict[TopicPartition, list[Pending]] = {}
    for one in found:
        record = waiting.get((one.topic, one.partition, one.offset))
        if record is None:
            logged = in_log.get((one.topic, one.partition), {}).get(one.offset)
            if logged is None or not logged.is_parked:  # Else it is another member's.
                stale.append(one)
            continue
        if is_other_topic(one.topic_id, assignment.topic_ids.get(one.topic, "")):
            log.warning("the %s of %s-%d@%d is dropped: its topic was deleted since",
                        one.action, one.topic, one.partition, one.offset)  # fmt: skip
            stale.append(one)
            continue
        tp = one.topic, one.partition
        taken.append(one)
        if one.action == "replay":
            again = Pending(
                one.offset, record.key_hash, 0, 0, record.error,
                headers=record.headers, key=record.key,
            )  # fmt: skip
            pending.setdefault(tp, []).append(again)
        else:
            offsets[tp] = offsets.get(tp, OffsetRanges()) | OffsetRanges([(one.offset, one.offset)])
    if taken:
        assignment.commit(offsets, pending=pending, commit_id=next(commit_ids))
        for one in taken:
            log.info("%s of %s-%d@%d", one.action, one.topic, one.partition, one.offset)
    assignment.store.set_settings((one.topic, one.setting(group), None) for one in [*stale, *taken])
    return taken
