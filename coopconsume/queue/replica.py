"""The state of one replica: a pure fold of its log. Its answer to a request is what the fold says.

No clock is read. A hold ends by a row: its holder settles the offsets, or ``expire`` says that it
was watched for its whole duration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges, PartitionCommits
from commits.offsets import MAX_OFFSET
from coopconsume.queue.incarnation import NOT_KNOWN
from coopconsume.queue.rows import (
    Beginning,
    Offsets,
    common,
    log_of,
    offsets_of,
    plain_log,
    plain_offsets,
    watched_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.queue.incarnation import LogIncarnation
    from coopconsume.queue.rows import ReplicaRow


NOBODY = ""
"""The holder of released offsets whose delay is not over."""


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    """The decision of a replica about the offsets of one request.

    Attributes:
        ok: Offsets that the requester holds now, or whose acknowledgement counts.
        nok: Offsets that another consumer holds, or of a partition that has not begun.
        tomb: Offsets that were done before.
    """

    ok: Offsets = field(default_factory=dict)
    nok: Offsets = field(default_factory=dict)
    tomb: Offsets = field(default_factory=dict)


@dataclass(slots=True)
class Hold:
    """Offsets that one request holds.

    Attributes:
        position: The position of the row in the log; it identifies the hold.
        holder: The id of the consumer; `NOBODY` for released offsets whose delay is not over.
        request: The number of its request.
        seconds: The duration, counted by each watcher from when it sees the row.
        offsets: The offsets that are still held.
        watched: The seconds for which it has lasted at least, as far as consumers have noted that.
    """

    position: int
    holder: str
    request: int
    seconds: float
    offsets: Offsets
    watched: float = 0.0


class _ReplicaPartition:
    """Done and held offsets of one partition, and delivery counts."""

    def __init__(
        self, done: PartitionCommits, log: LogIncarnation = NOT_KNOWN, epoch: int = -1
    ) -> None:
        self.done = done
        self.held = OffsetRanges()
        #: By number of deliveries from 1: the offsets that ended so many without being done.
        self.counts: dict[int, OffsetRanges] = {}
        #: The log whose offsets these are, and the latest leader epoch in which it was seen.
        self.log, self.epoch = log, epoch
        #: The ids of the topics of the same name before this one.
        self.past: tuple[str, ...] = ()
        #: Whether a consumer of an earlier version wrote the snapshot: it drops the identity.
        self.is_from_earlier = False

    def learn(self, log: LogIncarnation) -> None:
        """Take the log of a row behind a snapshot whose writer did not know it."""
        if self.is_from_earlier and self.log == NOT_KNOWN and not log.cut:
            self.log = log

    def is_of(self, log: LogIncarnation) -> bool:
        """Whether offsets of a log are offsets of this partition.

        Consumers of earlier versions do not write it. They know one log.
        """
        is_first = not self.past and not self.log.cut
        return log == self.log or (log == NOT_KNOWN and is_first)

    def keep_below(self, end: int) -> None:
        """Forget what was noted of offsets from one on: the log was cut there."""
        stable = min(self.done.stable_offset, end)
        self.done = PartitionCommits(stable, self.done.ranges.clip(0, end - 1), max_ranges=None)
        self.held = self.held.clip(0, end - 1)
        counts = {n: found.clip(0, end - 1) for n, found in self.counts.items()}
        self.counts = {n: found for n, found in counts.items() if found}

    def fresh(self, offsets: OffsetRanges) -> OffsetRanges:
        return offsets.clip(self.done.stable_offset, MAX_OFFSET) - self.done.ranges

    def finish(self, offsets: OffsetRanges) -> None:
        self.done.amend(offsets)
        self.held -= offsets
        counts = {n: found - offsets for n, found in self.counts.items()}
        self.counts = {n: found for n, found in counts.items() if found}

    def count(self, offsets: OffsetRanges) -> None:
        left = offsets
        counts: dict[int, OffsetRanges] = {}
        for n, found in self.counts.items():
            for level, part in ((n + 1, found & left), (n, found - left)):
                if part:
                    counts[level] = counts[level] | part if level in counts else part
            left -= found
        if left:
            counts[1] = counts[1] | left if 1 in counts else left
        self.counts = counts


class ReplicaState:
    """The state of one replica.

    Attributes:
        holds: The holds by position.
    """

    def __init__(self) -> None:
        self.holds: dict[int, Hold] = {}
        self._partitions: dict[int, _ReplicaPartition] = {}
        self._by_holder: dict[str, dict[int, Hold]] = {}
        #: By number of a replica: the identity of its log, and how often it was replaced.
        self.replicas: dict[int, tuple[str, int]] = {}

    @property
    def partitions(self) -> list[int]:
        """The partitions that have begun."""
        return sorted(self._partitions)

    def done(self, partition: int) -> PartitionCommits:
        """Return the done offsets of a partition; without a ``begin`` row it has none."""
        found = self._partitions.get(partition)
        return PartitionCommits(max_ranges=None) if found is None else found.done

    def log(self, partition: int) -> LogIncarnation | None:
        """Return the log whose offsets are noted for a partition; None if it has not begun."""
        found = self._partitions.get(partition)
        return None if found is None else found.log

    def epoch(self, partition: int) -> int:
        """Return the latest leader epoch in which the log was seen; -1 if it is not known."""
        found = self._partitions.get(partition)
        return -1 if found is None else found.epoch

    def past(self, partition: int) -> tuple[str, ...]:
        """Return the ids of the topics whose log this partition had before."""
        found = self._partitions.get(partition)
        return () if found is None else found.past

    def end(self, partition: int) -> int:
        """Return the offset behind all that is noted for a partition."""
        found = self._partitions.get(partition)
        if found is None:
            return 0
        noted = (found.done.ranges, found.held, *found.counts.values())
        lasts = [offsets.last + 1 for offsets in noted if offsets.last is not None]
        return max(found.done.stable_offset, *lasts, 0)

    def held(self, partition: int) -> OffsetRanges:
        """Return the offsets of a partition that somebody holds, released ones with a delay too."""
        found = self._partitions.get(partition)
        return OffsetRanges() if found is None else found.held

    def deliveries(self, partition: int) -> Mapping[int, OffsetRanges]:
        """Return the offsets that were handed out and not done, by the number of deliveries."""
        found = self._partitions.get(partition)
        return {} if found is None else found.counts

    def fold(self, position: int, row: ReplicaRow) -> ReplicaAnswer:
        """Apply the next row of the log.

        An offset counts for the log that the row names. A partition whose log is another one takes
        no part: its answer is `ReplicaAnswer.nok`.

        - ``begin``: the partitions begin with these offsets done. A second one has no effect,
          unless it names the log that the partition has until then, and another one that follows.
        - ``acquire``, ``renew``: done offsets are `ReplicaAnswer.tomb`, offsets of another holder
          `ReplicaAnswer.nok`; the requester holds all others from here on.
        - ``accept``, ``reject``: the offsets are done, except those that another consumer holds, or
          the same one by a later request.
        - ``tombstone``: the same, for offsets that are done on another replica or were deleted.
        - ``release``: the holder's holds of this request or earlier ones lose these offsets. With
          a delay, nobody can acquire them until a watcher appends ``expire``.
        - ``expire``: the holds at these positions end. Others have lasted for so many seconds.
        - ``snapshot``: has no effect here; see `restore`.

        Args:
            position: The position of the row in the log; positions grow.
            row: The row.
        """
        if row.kind in ("acquire", "renew"):
            return self._acquire(position, row)
        if row.kind in ("accept", "reject", "tombstone"):
            return self._accept(row)
        if row.kind == "release":
            self._release(position, row)
        elif row.kind == "expire":
            self._expire(row)
        elif row.kind == "begin":
            for partition, done in row.offsets.items():
                self._begin(partition, done, row)
            for number, (before, now) in row.replicas.items():
                known, times = self.replicas.get(number, (before, 0))
                if known == before != now:
                    self.replicas[number] = now, times + bool(before)
        return ReplicaAnswer(ok=dict(row.offsets))

    def _begin(self, p: int, done: OffsetRanges, row: ReplicaRow) -> None:
        log, beginning = row.log(p), row.beginnings.get(p, Beginning())
        partition = self._partitions.get(p)
        commits = PartitionCommits(beginning.start, done, max_ranges=None)
        if partition is None:
            self._partitions[p] = _ReplicaPartition(commits, log, beginning.epoch)
        elif partition.log == log:
            partition.epoch = max(partition.epoch, beginning.epoch)
        elif beginning.before == partition.log:
            is_same_topic = partition.log.topic_id == log.topic_id
            if beginning.keep_below > 0:
                partition.keep_below(beginning.keep_below)
                partition.log, partition.epoch = log, beginning.epoch
                self._end_holds(p)
                return
            new = self._partitions[p] = _ReplicaPartition(commits, log, beginning.epoch)
            new.past = partition.past + (() if is_same_topic else (partition.log.topic_id,))
            # A log that was cut while this replica was away: below the cut, which is not known
            # here, holders are at work. The holds of records that are gone expire.
            new.held = new.fresh(partition.held) if is_same_topic else OffsetRanges()
            self._end_holds(p)

    def _end_holds(self, p: int) -> None:
        """End the holds of offsets that the log of a partition does not hold any more."""
        held = self._partitions[p].held
        for hold in [*self.holds.values()]:
            if p in hold.offsets:
                self._shrink(hold, {p: hold.offsets[p] - held})

    def _of(self, p: int, row: ReplicaRow) -> _ReplicaPartition | None:
        """Return a partition if it has begun, and the row has offsets of its log."""
        partition = self._partitions.get(p)
        if partition is None:
            return None
        partition.learn(row.log(p))
        return partition if partition.is_of(row.log(p)) else None

    def _acquire(self, position: int, row: ReplicaRow) -> ReplicaAnswer:
        answer = ReplicaAnswer()
        mine = self._by_holder.get(row.holder, {})
        gained: Offsets = {}
        for p, wanted in row.offsets.items():
            partition = self._of(p, row)
            if partition is None:
                answer.nok[p] = wanted
                continue
            fresh = partition.fresh(wanted)
            free = fresh
            others = fresh & partition.held
            if others:
                others -= OffsetRanges.union(
                    hold.offsets[p] for hold in mine.values() if p in hold.offsets
                )
                free = fresh - others
            _put(answer.tomb, p, wanted - fresh)
            _put(answer.nok, p, others)
            _put(answer.ok, p, free)
            # A repeated old row must not take offsets away from a newer hold.
            for hold in mine.values():
                if p in hold.offsets and hold.request > row.request:
                    free -= hold.offsets[p]
            _put(gained, p, free)
        for hold in [*mine.values()]:
            self._shrink(hold, gained)
        self._add(Hold(position, row.holder, row.request, row.seconds, gained))
        return answer

    def _accept(self, row: ReplicaRow) -> ReplicaAnswer:
        answer = ReplicaAnswer()
        mine = self._older(row)
        mine += self._by_holder.get(NOBODY, {}).values()
        for p, offered in row.offsets.items():
            partition = self._of(p, row)
            if partition is None:
                answer.nok[p] = offered
                continue
            fresh = partition.fresh(offered)
            free = OffsetRanges.union(hold.offsets[p] for hold in mine if p in hold.offsets)
            others = fresh & (partition.held - free)
            _put(answer.tomb, p, offered - fresh)
            _put(answer.nok, p, others)
            _put(answer.ok, p, offered - others)
        self._finish(answer.ok, mine)
        return answer

    def _release(self, position: int, row: ReplicaRow) -> None:
        released: Offsets = {}
        offsets = {p: found for p, found in row.offsets.items() if self._of(p, row)}
        for hold in self._older(row):
            for p, lost in self._shrink(hold, offsets).items():
                released[p] = released[p] | lost if p in released else lost
        self._free(released, delivered=row.delivered)
        if row.seconds > 0:
            self._add(Hold(position, NOBODY, 0, row.seconds, released))

    def _older(self, row: ReplicaRow) -> list[Hold]:
        """Return the holds that a row of their holder may end: those of no later request."""
        mine = self._by_holder.get(row.holder, {}).values()
        return [hold for hold in mine if hold.request <= row.request]

    def _expire(self, row: ReplicaRow) -> None:
        for position in row.positions:
            hold = self.holds.get(position)
            if hold is not None:
                lost = self._shrink(hold, dict(hold.offsets))
                self._free(lost, delivered=hold.holder != NOBODY)
        for position, seconds in row.watched.items():
            if position in self.holds:
                hold = self.holds[position]
                hold.watched = max(hold.watched, seconds)

    def _finish(self, offsets: Mapping[int, OffsetRanges], holds: list[Hold]) -> None:
        for hold in holds:
            self._shrink(hold, offsets)
        for p, done in offsets.items():
            self._partitions[p].finish(done)

    def _free(self, offsets: Offsets, *, delivered: bool) -> None:
        for p, free in offsets.items():
            self._partitions[p].held -= free
            if delivered:
                self._partitions[p].count(free)

    def _add(self, hold: Hold) -> None:
        if not hold.offsets:
            return
        self.holds[hold.position] = hold
        self._by_holder.setdefault(hold.holder, {})[hold.position] = hold
        for p, offsets in hold.offsets.items():
            self._partitions[p].held |= offsets

    def _shrink(self, hold: Hold, offsets: Mapping[int, OffsetRanges]) -> Offsets:
        """Take offsets from a hold and return those that it had."""
        lost = common(hold.offsets, offsets)
        for p, gone in lost.items():
            left = hold.offsets[p] - gone
            if left:
                hold.offsets[p] = left
            else:
                del hold.offsets[p]
        if not hold.offsets and self.holds.pop(hold.position, None) is not None:
            mine = self._by_holder[hold.holder]
            del mine[hold.position]
            if not mine:
                del self._by_holder[hold.holder]
        return lost

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as JSON has it."""
        return {
            "partitions": {
                str(p): {
                    "stable": found.done.stable_offset,
                    "done": plain_offsets({p: found.done.ranges}),
                    "counts": {str(n): plain_offsets({p: at}) for n, at in found.counts.items()},
                    "log": plain_log(found.log),
                    "epoch": found.epoch,
                    "past": found.past,
                }
                for p, found in self._partitions.items()
            },
            "replicas": {str(n): found for n, found in self.replicas.items()},
            "holds": [
                [at, hold.holder, hold.request, hold.seconds, plain_offsets(hold.offsets)]
                for at, hold in self.holds.items()
            ],
            "watched": {str(at): hold.watched for at, hold in self.holds.items() if hold.watched},
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> ReplicaState:
        """Return the state that `snapshot` returned.

        Raises:
            ValueError, KeyError, TypeError: It has another form.
        """
        new = cls()
        for name, found in state["partitions"].items():
            p = int(name)
            done = offsets_of(found["done"]).get(p, OffsetRanges())
            partition = _ReplicaPartition(
                PartitionCommits(int(found["stable"]), done, max_ranges=None)
            )
            if "log" in found:  # earlier versions do not write it
                partition.log, partition.epoch = log_of(found["log"]), int(found["epoch"])
                partition.past = tuple(map(str, found["past"]))
            else:
                partition.is_from_earlier = True
            partition.counts = {int(n): offsets_of(at)[p] for n, at in found["counts"].items()}
            new._partitions[p] = partition
        for number, (identity, times) in state.get("replicas", {}).items():
            new.replicas[int(number)] = str(identity), int(times)
        for position, holder, request, seconds, offsets in state["holds"]:
            new._add(
                Hold(int(position), str(holder), int(request), float(seconds), offsets_of(offsets))
            )
        for position, watched in watched_of(state.get("watched", {})).items():
            new.holds[position].watched = watched
        return new


def _put(offsets: Offsets, partition: int, found: OffsetRanges) -> None:
    if found:
        offsets[partition] = found
