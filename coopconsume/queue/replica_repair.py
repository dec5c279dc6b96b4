"""Repairs replicas that lack what is done on others. Pure: the caller passes the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.queue.requests import AppendRow
from coopconsume.queue.rows import common, without

if TYPE_CHECKING:
    from collections.abc import Collection
    from random import Random

    from coopconsume.queue.replica_set import ReplicaSet
    from coopconsume.queue.requests import Requests
    from coopconsume.queue.rows import Offsets


class ReplicaRepair:
    """What each replica lacked at the last comparison, and when the next one is due.

    A comparison moves both. What a replica lacks at two comparisons in a row, it gets as a
    ``tombstone``; so rows that are on their way are not repeated.

    Args:
        replicas: The replicas.
        requests: The requests of the consumer.
        hold: The duration of a hold in seconds: comparisons are about as far apart.
        random: The source of jitter.
    """

    def __init__(
        self, replicas: ReplicaSet, requests: Requests, hold: float, random: Random
    ) -> None:
        self._replicas = replicas
        self._requests = requests
        self._hold = hold
        self._random = random
        self._missing: list[Offsets] = [{} for _ in replicas.states]
        self._due: float | None = None

    def tick(self, now: float) -> list[AppendRow]:
        """Compare the replicas if that is due."""
        is_due = self._due is not None and now >= self._due
        if self._due is None or is_due:
            self._due = now + self._hold * (0.5 + self._random.random())
        return self.compare() if is_due else []

    def compare(self) -> list[AppendRow]:
        """Write tombstones to replicas that lack them at two comparisons in a row."""
        rows = []
        for replica, state in enumerate(self._replicas.states):
            missing: Offsets = {}
            for partition in state.partitions:
                if not self._replicas.has(state, partition):
                    continue
                done = state.done(partition)
                lacking = self._replicas.done_from(partition, done.stable_offset) - done.ranges
                if lacking:
                    missing[partition] = lacking
            lasting = common(missing, self._missing[replica])
            self._missing[replica] = missing
            if lasting:
                rows.append(AppendRow(replica, self._requests.row("tombstone", 0, lasting)))
        return rows

    def next_due(self) -> float | None:
        """Return when `tick` compares replicas; None before its first call."""
        return self._due

    def forget(self, partitions: Collection[int]) -> None:
        """Forget partitions whose log was replaced."""
        self._missing = [without(missing, partitions) for missing in self._missing]
