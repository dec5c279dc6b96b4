"""Limits of plans; partitions near the limit of ranges: warnings, and requests to rebalance. Pure.

A partition is *at its limit* from 80 % of ``maxNumRanges`` on, or if as many outputs wait as
``maxOutputsWaiting`` allows: no new records of it are read, only its gaps. What was read before is
handled and committed, so a partition may have more ranges than ``maxNumRanges``. If that lasts, the
member asks for a rebalance (KIP-X), as the owner of the gaps may be stuck.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits.model import has_failed
from coopconsume.texts import failures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commits.model import TopicPartition
    from coopconsume.runtime.plan import Partition


#: Shortest interval between two requests to rebalance, in seconds.
ASK_EVERY = 60.0
#: Shortest interval between two warnings of one partition, in seconds.
SAY_EVERY = 60.0


@dataclass(frozen=True)
class Limits:
    """The limits of a plan; a partition's own limit on ranges applies as well.

    Attributes:
        window: Offsets in a batch.
        max_pending: Pending records of a partition, and records that wait behind them.
        handlers: Handlers side by side, of all slots.
    """

    window: int
    max_pending: int
    handlers: int = 1


def read_limit(max_ranges: int) -> int:
    """Returns the number of ranges from which on no new records are read."""
    return max(1, max_ranges * 8 // 10)


@dataclass
class LimitWatch:
    """Warns of partitions at their limit, and says when a rebalance is due.

    Attributes:
        patience: Seconds without a move of a stable offset at the limit until a rebalance is due.
    """

    patience: float
    _said_at: dict[TopicPartition, float] = field(default_factory=dict)
    _stuck: dict[TopicPartition, tuple[int, float]] = field(default_factory=dict)
    _asked_at: float = float("-inf")

    def look(self, partitions: Iterable[Partition], now: float) -> list[str]:
        """Returns warnings of partitions at their limit, each at most once in `SAY_EVERY` seconds.

        Args:
            partitions: What is known of the partitions.
            now: Seconds on any clock.
        """
        said = []
        for partition in partitions:
            tp = (partition.topic, partition.partition)
            if (
                partition.ledger.is_at_limit
                and now - self._said_at.get(tp, float("-inf")) >= SAY_EVERY
            ):
                self._said_at[tp] = now
                said.append(limit_warning(partition, now))
        return said

    def ask(self, partitions: Iterable[Partition], now: float) -> str | None:
        """Returns why a rebalance is due; None if it is not.

        Args:
            partitions: What is known of the partitions.
            now: Seconds on any clock.
        """
        stuck = {}
        for partition in partitions:
            tp = (partition.topic, partition.partition)
            if partition.ledger.ranges >= partition.ledger.max_ranges:
                stable, since = self._stuck.get(tp, (-1, now))
                since = since if stable == partition.ledger.stable else now
                stuck[tp] = partition.ledger.stable, since
        self._stuck = stuck
        due = [tp for tp, (_, since) in stuck.items() if now - since >= self.patience]
        if not due or now - self._asked_at < ASK_EVERY:
            return None
        self._asked_at = now
        topic, number = min(due)
        return (
            f"{topic}-{number} has as many ranges as maxNumRanges allows, and its stable offset "
            f"{stuck[topic, number][0]} does not move"
        )


def limit_warning(partition: Partition, now: float) -> str:
    """Returns a warning of a partition at its limit: how full it is, what blocks it.

    Args:
        partition: What is known of the partition.
        now: The time, on the monotonic clock.
    """
    ledger = partition.ledger
    much = f"{ledger.ranges:,} committed ranges"
    limit = f"maxNumRanges is {ledger.max_ranges:,}"
    name = f"{partition.topic}-{partition.partition}"
    if ledger.has_outputs_enough and ledger.unpublished:
        return (
            f"{name} has the outputs of {ledger.outputs_waiting:,} records waiting, "
            f"maxOutputsWaiting is {ledger.max_outputs_waiting:,}: nothing new is read until "
            f"they are published. The last attempt failed: {ledger.unpublished[1]}"
        )
    if ledger.has_outputs_enough:
        much = f"the outputs of {ledger.outputs_waiting:,} records waiting"
        limit = f"maxOutputsWaiting is {ledger.max_outputs_waiting:,}"
    return (
        f"{name} has {much} above its stable offset, {limit}: "
        f"nothing new is read until gaps are done. It is blocked by {blocked_by(partition, now)}"
    )


def blocked_by(partition: Partition, now: float) -> str:
    """Describes the blocker of the stable offset."""
    blocker = partition.blocker(now)
    if blocker is None:
        return "nothing"
    states = {
        "failed": "which waits for its next attempt",
        "parked": "which is parked until an operator replays or discards it",
        "in flight": f"which slot {blocker['slot']} processes",
        "to do": "which has not started",
        "elsewhere": "which belongs to another member, or is not in the log",
    }
    words = f"offset {blocker['offset']}, {states[blocker['state']]}"
    if not has_failed(blocker["attempts"], blocker["error"]):
        return words
    key = f"{blocker['key']!r}, " if blocker["key"] is not None else ""
    return (
        f"{words} (key {key}hash {blocker['keyHash']}), and {failures(blocker['attempts'])}: "
        f"{blocker['error']}"
    )
