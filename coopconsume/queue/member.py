"""The protocol of one consumer of a queue. Pure: rows and times in, rows to append out.

A consumer first acquires offsets on one replica, its local one. For what it got there it asks as
many others as make a majority, and the rest of them once it has an answer that is not enough, or
none in time. It may use the offsets that a majority granted and none of these reports done. Every
consumer also watches the holds of all replicas and appends ``expire`` for the overdue ones.

Invariants:

1. An offset that is done on a replica stays done there.
2. A hold on a replica ends by a row of its holder whose request is not older than the hold, or by
   ``expire`` once consumers have watched it for its whole duration. No other row makes its
   offsets done: neither ``accept`` nor ``tombstone`` of another consumer, and no late or repeated
   row of the holder. A ``tombstone`` without a request, which copies what is done on another
   replica, ends no hold.
3. A consumer uses a hold for a part of its duration, counted from before its first row (`MARGIN`).
   As long as clock rates differ by less than that, it stops before any ``expire``. Once the whole
   duration is over it ends the hold itself, so that a replica counts the delivery before the same
   consumer acquires the offset again.
4. A consumer does not acquire offsets that it is acknowledging. Offsets that it acknowledges while
   it acquires them are withdrawn from the acquisition.

Nothing that was acknowledged with success is handed out later. Assume that A's acknowledgement has
a majority, and B's acquisition too. They have a replica in common. If A's row is first there, the
answer to B is ``TOMB``, and B hands out nothing (1). If B's row is first there, B's hold has ended
before A's row counted (2). Either its time was over, and B hands out nothing any more (3). Or B
itself has settled the offset: after it was handed out, or its acquisition has ended without the
offset (4). If A is B, the acquisition began after the acknowledgement was complete (4), and its
rows are later on a majority.

No two consumers have an offset at once: the later one of two acquisitions gets ``NOK`` on the
common replica, unless the hold of the earlier one has ended, and its holder does not use it then
(2, 3).

Nothing is lost: an offset becomes done only if a consumer has acknowledged it, or has found no
record there. A consumer that dies leaves holds, which expire, and perhaps tombstones on a minority.
Other consumers copy these to the replicas that lack them, once nobody holds the offset there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.queue.acknowledgements import Acknowledgements
from coopconsume.queue.acquisitions import Acquisitions
from coopconsume.queue.hold_watch import HoldWatch
from coopconsume.queue.own_holds import OwnHolds
from coopconsume.queue.replica_repair import ReplicaRepair
from coopconsume.queue.replica_set import ReplicaSet
from coopconsume.queue.requests import AppendRow, Requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from coopconsume.queue.acknowledgements import Settled, Settlement
    from coopconsume.queue.acquisitions import Granted
    from coopconsume.queue.replica import ReplicaState
    from coopconsume.queue.rows import Beginning, Offsets, ReplicaRow
    from coopconsume.queue.source_log import SourceLog


class QueueMember:
    """The state machine of one consumer.

    Rows of the replicas' logs (`take`), calls and the time (`tick`) move its parts: `ReplicaSet`
    is what the replicas say, `Acquisitions` what this consumer asks for, `OwnHolds` what it has,
    and `Acknowledgements` what it gives back. `HoldWatch` ends the holds of others, and
    `ReplicaRepair` has the replicas agree on what is done.

    Args:
        holder: The unique id of this consumer; a restarted consumer needs a new one.
        replicas: The number of replicas.
        hold: The duration of a hold in seconds.
        random: The source of jitter.
        local: The replica that is asked first.

    Attributes:
        holder: The id of this consumer.
        replicas: The replicas.
    """

    def __init__(
        self, holder: str, replicas: int, hold: float, random: Random, *, local: int = 0
    ) -> None:
        self.holder = holder
        self.replicas = ReplicaSet(replicas)
        self._random = random
        self._requests = Requests(holder, hold, self.replicas)
        self._holds = OwnHolds(hold)
        self._acknowledgements = Acknowledgements(self.replicas, self._requests, self._holds)
        self._acquisitions = Acquisitions(
            self.replicas, self._requests, self._holds, self._acknowledgements, random, local=local
        )
        self._watches = [HoldWatch(holder, random, state, 0.0) for state in self.replicas.states]
        self._repair = ReplicaRepair(self.replicas, self._requests, hold, random)

    # What a replica's log says.

    def restore(self, replica: int, state: ReplicaState, now: float) -> None:
        """Replace the state of a replica by that of a snapshot in its log."""
        self.replicas.states[replica] = state
        self._watches[replica] = HoldWatch(self.holder, self._random, state, now)

    def take(self, replica: int, position: int, row: ReplicaRow, now: float) -> list[AppendRow]:
        """Take the next row of a replica's log.

        Args:
            replica: The number of the replica.
            position: The position of the row.
            row: The row.
            now: This consumer's monotonic time in seconds when the row was read.

        Returns:
            The rows to append.
        """
        answer = self.replicas.states[replica].fold(position, row)
        self._acquisitions.heard_from(replica)
        self._watches[replica].take(position, row, now)
        if row.holder != self.holder:
            return []
        self._requests.answered(replica, row.request, now)
        self._acknowledgements.take(replica, row, answer, now)
        return self._acquisitions.take(replica, row, answer, now)

    # What the caller wants.

    def follow(self, found: Mapping[int, SourceLog]) -> set[int]:
        """Work on the logs that were found; whatever concerns another log of theirs ends here.

        Returns:
            The partitions whose log is another one than before.
        """
        changed = self.replicas.follow(found)
        if changed:
            for part in (self._acquisitions, self._holds, self._repair, self._acknowledgements):
                part.forget(changed)
        return changed

    def begin(self, found: Mapping[int, SourceLog], readable: Iterable[int]) -> list[AppendRow]:
        """Begin partitions on the replicas that do not have them, or have another log of theirs.

        A replica without a partition grants nothing there. So a replica that lost its log learns
        what is done on the others before its answers count. A majority of the others must have the
        partition and be read for that, or all replicas must be read: each acknowledgement that the
        replica may have lost is on one of these.

        Args:
            found: The logs of the partitions.
            readable: The replicas whose logs were read up to their ends.
        """
        self.follow(found)
        rows = []
        readable = set(readable)
        for replica in sorted(readable):
            offsets: Offsets = {}
            beginnings: dict[int, Beginning] = {}
            for partition, source in found.items():
                done = self.replicas.beginning(replica, partition, source, readable)
                if done is not None:
                    offsets[partition], beginnings[partition] = done
            if offsets:
                row = self._requests.row("begin", 0, offsets, beginnings=beginnings)
                rows.append(AppendRow(replica, row))
        return rows

    @property
    def is_acquiring(self) -> bool:
        """Whether an acquisition has no result yet."""
        return self._acquisitions.is_acquiring

    def acquire(self, limit: int, ends: Mapping[int, int], now: float) -> list[AppendRow]:
        """Start to acquire free offsets, the lowest ones first. `granted` has the result.

        Args:
            limit: The largest number of offsets.
            ends: The end of each partition: the first offset that does not exist yet.
            now: This consumer's monotonic time in seconds.

        Returns:
            The rows to append; without an acquisition if nothing is free.
        """
        if self._acquisitions.is_acquiring:
            return []
        return [*self._end_holds(now), *self._acquisitions.start(limit, ends, now)]

    def granted(self) -> Granted | None:
        """Return the next result of `acquire`, once; None if there is no new one."""
        return self._acquisitions.granted()

    def settle(
        self,
        kind: Settlement,
        offsets: Offsets,
        now: float,
        delay: float = 0.0,
        *,
        is_delivered: bool = True,
    ) -> tuple[Settled, list[AppendRow]]:
        """Acknowledge offsets that this consumer was granted.

        Args:
            kind: ``accept`` and ``reject``: done. ``release``: anybody may have them.
                ``renew``: hold them for another full duration.
            offsets: The offsets.
            now: This consumer's monotonic time in seconds.
            delay: For ``release``: the seconds for which nobody gets them.
            is_delivered: For ``release``: whether they were handed out.

        Returns:
            The progress, which later calls of `take` update, and the rows to append.
        """
        settled, rows = self._acknowledgements.start(
            kind, offsets, now, delay, is_delivered=is_delivered
        )
        self._acquisitions.withdraw(offsets)
        if kind != "renew":
            self._holds.remove(offsets)
        return settled, rows

    def tombstone(self, offsets: Offsets) -> list[AppendRow]:
        """Mark offsets as done where nobody holds them: their records were deleted."""
        return self._requests.append_to_all(self._requests.row("tombstone", 0, offsets))

    def tick(self, now: float) -> list[AppendRow]:
        """Do what is due at a time: end requests, repeat them, expire holds, compare replicas."""
        rows = self._end_holds(now)
        rows += self._acquisitions.tick(now)
        rows += self._acknowledgements.tick(now)
        for replica, watch in enumerate(self._watches):
            expired = watch.rows(now, self._requests.repeat_after)
            rows += [AppendRow(replica, row) for row in expired]
        return rows + self._repair.tick(now)

    def leave(self, now: float) -> list[AppendRow]:
        """Note for how long holds were watched, so that others count on. Call it last."""
        return [
            AppendRow(replica, row)
            for replica, watch in enumerate(self._watches)
            for row in watch.last_rows(now)
        ]

    def next_due(self) -> float | None:
        """Return when `tick` has something to do; None if nothing is known."""
        times = [watch.next_due() for watch in self._watches]
        times += [self._acquisitions.next_due(), self._acknowledgements.next_due()]
        times.append(self._repair.next_due())
        return min((due for due in times if due is not None), default=None)

    def _end_holds(self, now: float) -> list[AppendRow]:
        """End own holds that are over, as their watchers do.

        A replica that has not seen an ``expire`` by now would extend them if they were acquired
        again, and would not count the delivery.
        """
        ended = self._holds.end(now, self._acknowledgements.offsets())
        if not ended:
            return []
        number = self._requests.new_number()  # its answers are no answers to an acknowledgement
        return self._requests.append_to_all(
            self._requests.row("release", number, ended, delivered=True)
        )
