"""The acknowledgements of one consumer, until a majority has decided on them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from coopconsume.queue.rows import at_least, common, minus, union

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from commits import OffsetRanges
    from coopconsume.queue.own_holds import OwnHolds
    from coopconsume.queue.replica import ReplicaAnswer
    from coopconsume.queue.replica_set import ReplicaSet
    from coopconsume.queue.requests import AppendRow, Requests
    from coopconsume.queue.rows import Offsets, ReplicaRow


Settlement: TypeAlias = Literal["accept", "reject", "release", "renew"]


@dataclass(slots=True)
class Settled:
    """The progress of an acknowledgement.

    Attributes:
        row: The row that asks for it.
        done: Offsets for which a majority has counted it.
        refused: Offsets that a majority did not count: another consumer holds them. For
            ``renew`` also offsets that are done, or that no majority has renewed in time.
        until: For ``renew``: the end of the hold on this consumer's clock.
        again: When it is repeated where no answer came.
        answers: The answers by the number of the replica.
    """

    row: ReplicaRow
    done: Offsets = field(default_factory=dict)
    refused: Offsets = field(default_factory=dict)
    until: float = 0.0
    again: float = 0.0
    answers: dict[int, ReplicaAnswer] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether the fate of each offset is known."""
        return not minus(minus(self.row.offsets, self.done), self.refused)

    def is_late(self, now: float) -> bool:
        """Whether answers grant nothing any more, because the renewed hold would have ended."""
        return self.row.kind == "renew" and now >= self.until


class Acknowledgements:
    """The acknowledgements that are not complete.

    `start` adds one. Answers of replicas count for it (`take`), and `tick` repeats it where no
    answer came, until the fate of each offset is known: a majority has counted it, or cannot any
    more.
    A renewal that counts moves the holds of the consumer.

    Args:
        replicas: The replicas.
        requests: The requests of the consumer.
        holds: The holds of the consumer.
    """

    def __init__(self, replicas: ReplicaSet, requests: Requests, holds: OwnHolds) -> None:
        self._replicas = replicas
        self._requests = requests
        self._holds = holds
        self._settling: dict[int, Settled] = {}

    def start(
        self, kind: Settlement, offsets: Offsets, now: float, delay: float, *, is_delivered: bool
    ) -> tuple[Settled, list[AppendRow]]:
        """Start an acknowledgement; `QueueMember.settle` has the arguments."""
        request = self._requests.new_number()
        seconds = self._holds.seconds if kind == "renew" else delay
        delivered = kind == "release" and is_delivered
        row = self._requests.row(kind, request, offsets, seconds, delivered=delivered)
        until = self._holds.usable_until(now) if kind == "renew" else 0.0
        settled = Settled(row, until=until, again=now + self._requests.repeat_after)
        self._settling[request] = settled
        return settled, self._requests.send_to_all(row, now)

    def take(self, replica: int, row: ReplicaRow, answer: ReplicaAnswer, now: float) -> None:
        """Take the answer of a replica to a row of this consumer."""
        settled = self._settling.get(row.request)
        if settled is not None and row.kind == settled.row.kind:
            settled.answers[replica] = answer
            self._count(settled, now)

    def tick(self, now: float) -> list[AppendRow]:
        """End renewals that are late; repeat what is due where no answer came."""
        rows: list[AppendRow] = []
        for settled in [*self._settling.values()]:
            if settled.is_late(now):
                self._count(settled, now)
            elif now >= settled.again:
                settled.again = now + self._requests.repeat_after
                count = len(self._replicas.states)
                silent = [r for r in range(count) if r not in settled.answers]
                rows += [self._requests.send(replica, settled.row, now) for replica in silent]
        return rows

    def next_due(self) -> float | None:
        """Return when `tick` has something to do; None if nothing is known."""
        return min((settled.again for settled in self._settling.values()), default=None)

    def forget(self, partitions: Collection[int]) -> None:
        """Refuse what concerns partitions whose log was replaced."""
        for settled in [*self._settling.values()]:
            gone = {p: lost for p, lost in settled.row.offsets.items() if p in partitions}
            settled.refused = union(settled.refused, minus(gone, settled.done))
            if settled.is_complete:
                del self._settling[settled.row.request]

    def offsets(self) -> list[Mapping[int, OffsetRanges]]:
        """Return the offsets of each acknowledgement."""
        return [settled.row.offsets for settled in self._settling.values()]

    def of(self, partition: int) -> list[OffsetRanges]:
        """Return the offsets of a partition that are acknowledged now, of its present log."""
        rows = [settled.row for settled in self._settling.values()]
        return [
            row.offsets[partition]
            for row in rows
            if partition in row.offsets and self._is_current(partition, row)
        ]

    def _is_current(self, partition: int, row: ReplicaRow) -> bool:
        """Whether a row is about the log of a partition that this consumer works on."""
        return row.log(partition) == self._replicas.log(partition)

    def _count(self, settled: Settled, now: float) -> None:
        row, answers = settled.row, settled.answers.values()
        if settled.is_late(now):
            settled.refused = minus(row.offsets, settled.done)
        else:
            settled.done = common(self._replicas.by_majority(answers), row.offsets)
            needed = len(self._replicas.states) - self._replicas.majority + 1
            lost = [union(a.nok, a.tomb) if row.kind == "renew" else a.nok for a in answers]
            settled.refused = minus(at_least(needed, lost), settled.done)
        if settled.is_complete:
            del self._settling[row.request]
            held = {p: found for p, found in settled.done.items() if self._is_current(p, row)}
            if row.kind == "renew" and held:
                self._holds.renew(settled.until, held)
