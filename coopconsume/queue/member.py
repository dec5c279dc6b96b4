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

from collections import deque
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from commits import OffsetRanges, PartitionCommits
from commits.offsets import MAX_OFFSET
from coopconsume.backoff import Backoff
from coopconsume.queue.hold_watch import HoldWatch
from coopconsume.queue.incarnation import NOT_KNOWN
from coopconsume.queue.replica import ReplicaAnswer, ReplicaState
from coopconsume.queue.rows import (
    MOST_LISTED,
    Beginning,
    Kind,
    Offsets,
    ReplicaRow,
    common,
    minus,
    union,
)
from coopconsume.queue.source_log import keep_below
from coopconsume.queue.timing import MARGIN, QuorumLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from coopconsume.queue.incarnation import LogIncarnation
    from coopconsume.queue.source_log import SourceLog


Settlement: TypeAlias = Literal["accept", "reject", "release", "renew"]

_WINDOW, _WIDEST = 10_000, 1 << 30
#: Pauses after requests without a majority, in multiples of the time limit of a quorum.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 8.0
_KEPT_SENT = 1_000


class AppendRow(NamedTuple):
    """An instruction: append a row to the log of a replica. It may be lost or repeated.

    Attributes:
        replica: The number of the replica, from 0.
        row: The row.
    """

    replica: int
    row: ReplicaRow


@dataclass(frozen=True, slots=True)
class Granted:
    """The result of an acquisition.

    Attributes:
        offsets: The offsets that this consumer holds; possibly none.
        until: The end of the hold on this consumer's clock.
    """

    offsets: Offsets
    until: float


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


@dataclass(slots=True)
class _Acquisition:
    request: int
    asked: Offsets
    #: The replicas that were asked, the local one first.
    replicas: list[int]
    until: float
    deadline: float
    answers: dict[int, ReplicaAnswer] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether the local replica has answered."""
        return self.replicas[0] in self.answers


class QueueMember:
    """The state machine of one consumer.

    Args:
        holder: The unique id of this consumer; a restarted consumer needs a new one.
        replicas: The number of replicas.
        hold: The duration of a hold in seconds.
        random: The source of jitter.
        local: The replica that is asked first.

    Attributes:
        states: The state of each replica, as far as its log was read.
        limit: The quorum time limit.
    """

    def __init__(
        self, holder: str, replicas: int, hold: float, random: Random, *, local: int = 0
    ) -> None:
        self.holder = holder
        self.states = [ReplicaState() for _ in range(replicas)]
        self.limit = QuorumLimit(hold)
        self._hold = hold
        self._local = local
        self._majority = replicas // 2 + 1
        self._random = random
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, random)
        self._request = 0
        self._silent: set[int] = set()
        self._acquisition: _Acquisition | None = None
        self._granted: deque[Granted] = deque()
        self._settling: dict[int, Settled] = {}
        #: Offsets that are not asked for before a time: they had no majority, or are held by this
        #: consumer.
        self._waiting: list[tuple[float, Offsets]] = []
        self._mine: list[tuple[float, Offsets]] = []
        self._sent: dict[tuple[int, int], float] = {}
        self._watches = [HoldWatch(holder, random, state, 0.0) for state in self.states]
        self._missing: list[Offsets] = [{} for _ in range(replicas)]
        self._compare_at: float | None = None
        #: The logs whose records this consumer hands out.
        self._logs: dict[int, LogIncarnation] = {}

    # What a replica's log says.

    def restore(self, replica: int, state: ReplicaState, now: float) -> None:
        """Replace the state of a replica by that of a snapshot in its log."""
        self.states[replica] = state
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
        state = self.states[replica]
        answer = state.fold(position, row)
        self._silent.discard(replica)
        self._watches[replica].take(position, row, now)
        if row.holder != self.holder:
            return []
        sent = self._sent.pop((replica, row.request), None)
        if sent is not None:
            self.limit.answered(now - sent)
        found = self._acquisition
        if found is not None and found.request == row.request and row.kind == "acquire":
            return self._answered(found, replica, answer, now)
        settling = self._settling.get(row.request)
        if settling is not None and row.kind == settling.row.kind:
            settling.answers[replica] = answer
            self._count(settling, now)
        return []

    # What the caller wants.

    def follow(self, found: Mapping[int, SourceLog]) -> set[int]:
        """Work on the logs that were found; whatever concerns another log of theirs ends here.

        Returns:
            The partitions whose log is another one than before.
        """
        changed = {p for p, source in found.items() if self._logs.get(p, source.log) != source.log}
        self._logs |= {p: source.log for p, source in found.items()}
        if not changed:
            return changed

        def rest(offsets: Offsets) -> Offsets:
            return {p: left for p, left in offsets.items() if p not in changed}

        if self._acquisition is not None:
            self._acquisition.asked = rest(self._acquisition.asked)
        self._granted = deque(Granted(rest(one.offsets), one.until) for one in self._granted)
        self._waiting = [(at, rest(offsets)) for at, offsets in self._waiting]
        self._mine = [(at, rest(offsets)) for at, offsets in self._mine]
        self._missing = [rest(missing) for missing in self._missing]
        for settled in [*self._settling.values()]:
            gone = {p: lost for p, lost in settled.row.offsets.items() if p in changed}
            settled.refused = union(settled.refused, minus(gone, settled.done))
            if settled.is_complete:
                del self._settling[settled.row.request]
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
                done = self._beginning(replica, partition, source, readable)
                if done is not None:
                    offsets[partition], beginnings[partition] = done
            if offsets:
                row = self._row("begin", 0, offsets, beginnings=beginnings)
                rows.append(AppendRow(replica, row))
        return rows

    def _beginning(
        self, replica: int, partition: int, source: SourceLog, readable: set[int]
    ) -> tuple[OffsetRanges, Beginning] | None:
        """Return what is done as a partition begins on a replica, and how; None if it has begun."""
        state = self.states[replica]
        log = state.log(partition)
        if log == source.log:
            is_news = source.epoch > state.epoch(partition)
            return (OffsetRanges(), Beginning(source.epoch)) if is_news else None
        if log is not None:
            end = keep_below(self.states, log, partition, source, MAX_OFFSET)
            if end:
                return OffsetRanges(), Beginning(source.epoch, log, end)
            if log.topic_id == source.log.topic_id and log.cut > source.log.cut:
                return None  # seen in the log of this replica after the last look
        known = [s for s in self.states if s.log(partition) == source.log]
        read = [r for r in readable if self.states[r].log(partition) == source.log]
        if known and len(read) < self._majority and len(readable) < len(self.states):
            return None
        done = _all_done(known, partition) if known else PartitionCommits(source.start)
        if done.stable_offset > MOST_LISTED:
            return done.ranges, Beginning(source.epoch, log, start=done.stable_offset)
        below = OffsetRanges([(0, done.stable_offset - 1)] if done.stable_offset else [])
        return below | done.ranges, Beginning(source.epoch, log)

    def has_begun(self, partitions: Iterable[int]) -> bool:
        """Return whether a majority of the replicas has these partitions."""
        wanted = set(partitions)
        begun = [state for state in self.states if all(self._has(state, p) for p in wanted)]
        return len(begun) >= self._majority

    def _has(self, state: ReplicaState, partition: int) -> bool:
        """Whether a replica has the log that this consumer works on."""
        return state.log(partition) == self._logs.get(partition, NOT_KNOWN)

    def _is_of(self, partition: int, row: ReplicaRow) -> bool:
        """Whether a row is about the log of a partition that this consumer works on."""
        return row.log(partition) == self._logs.get(partition, NOT_KNOWN)

    def states_of(self, partition: int) -> list[ReplicaState]:
        """Return the replicas that have the log of a partition that this consumer works on."""
        return [state for state in self.states if self._has(state, partition)]

    @property
    def is_acquiring(self) -> bool:
        """Whether an acquisition has no result yet."""
        return self._acquisition is not None

    def acquire(self, limit: int, ends: Mapping[int, int], now: float) -> list[AppendRow]:
        """Start to acquire free offsets, the lowest ones first. `granted` has the result.

        Args:
            limit: The largest number of offsets.
            ends: The end of each partition: the first offset that does not exist yet.
            now: This consumer's monotonic time in seconds.

        Returns:
            The rows to append; without an acquisition if nothing is free.
        """
        if self._acquisition is not None:
            return []
        rows = self._end_mine(now)
        local = self._first()
        wanted = self._candidates(local, limit, ends, now)
        if not wanted:
            return rows
        self._request += 1
        until = now + self._hold * (1 - MARGIN)
        self._acquisition = _Acquisition(
            self._request, wanted, [local], until, min(until, now + self._repeat_after())
        )
        return [*rows, self._send(local, self._acquire_row(self._request, wanted), now)]

    def granted(self) -> Granted | None:
        """Return the next result of `acquire`, once; None if there is no new one."""
        return self._granted.popleft() if self._granted else None

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
        self._request += 1
        seconds = self._hold if kind == "renew" else delay
        delivered = kind == "release" and is_delivered
        row = self._row(kind, self._request, offsets, seconds, delivered=delivered)
        until = now + self._hold * (1 - MARGIN) if kind == "renew" else 0.0
        settled = Settled(row, until=until, again=now + self._repeat_after())
        self._settling[self._request] = settled
        # The acquisition in flight may ask for them again if the hold has ended here. Its answers
        # may be older than this row, so it does not grant them any more.
        if self._acquisition is not None:
            self._acquisition.asked = minus(self._acquisition.asked, offsets)
        self._granted = deque(
            Granted(minus(found.offsets, offsets), found.until) for found in self._granted
        )
        if kind != "renew":
            self._mine = [(at, minus(held, offsets)) for at, held in self._mine]
        return settled, [self._send(replica, row, now) for replica in range(len(self.states))]

    def tombstone(self, offsets: Offsets) -> list[AppendRow]:
        """Mark offsets as done where nobody holds them: their records were deleted."""
        row = self._row("tombstone", 0, offsets)
        return [AppendRow(replica, row) for replica in range(len(self.states))]

    def tick(self, now: float) -> list[AppendRow]:
        """Do what is due at a time: end requests, repeat them, expire holds, compare replicas."""
        rows = self._end_mine(now)
        self._waiting = [(at, offsets) for at, offsets in self._waiting if at > now]
        found = self._acquisition
        if found is not None and now >= found.deadline:
            self._silent.update(r for r in found.replicas if r not in found.answers)
            more = self._ask(found, len(self.states), now) if found.is_local else []
            rows += more or self._decide(found, now)
        for settling in [*self._settling.values()]:
            if settling.is_late(now):
                self._count(settling, now)
            elif now >= settling.again:
                settling.again = now + self._repeat_after()
                silent = [r for r in range(len(self.states)) if r not in settling.answers]
                rows += [self._send(replica, settling.row, now) for replica in silent]
        for replica, watch in enumerate(self._watches):
            found_rows = watch.rows(now, self._repeat_after())
            rows += [AppendRow(replica, row) for row in found_rows]
        if self._compare_at is None:
            self._compare_at = now + self._hold * (0.5 + self._random.random())
        elif now >= self._compare_at:
            self._compare_at = now + self._hold * (0.5 + self._random.random())
            rows += self._compare()
        return rows

    def leave(self, now: float) -> list[AppendRow]:
        """Note for how long holds were watched, so that others count on. Call it last."""
        return [
            AppendRow(replica, row)
            for replica, watch in enumerate(self._watches)
            for row in watch.last_rows(now)
        ]

    def next_due(self) -> float | None:
        """Return when `tick` has something to do; None if nothing is known."""
        times = [] if self._acquisition is None else [self._acquisition.deadline]
        times += [settling.again for settling in self._settling.values()]
        times += [due for watch in self._watches if (due := watch.next_due()) is not None]
        times += [until for until, _ in self._waiting]
        if self._compare_at is not None:
            times.append(self._compare_at)
        return min(times, default=None)

    # What is known.

    def done(self, partition: int) -> tuple[int, OffsetRanges]:
        """Return the stable offset of a partition over all replicas, and the done ones above it."""
        states = self.states_of(partition)
        if not states:
            return 0, OffsetRanges()
        done = _all_done(states, partition)
        return done.stable_offset, done.ranges

    def deliveries(self, partition: int, offset: int) -> int:
        """Return how often a record was handed out before without being done, as far as known.

        A delivery counts on each replica that saw its end. The highest count is returned.
        """
        counts = (
            n
            for state in self.states_of(partition)
            for n, found in state.deliveries(partition).items()
            if offset in found
        )
        return max(counts, default=0)

    # The rest is private.

    def _first(self) -> int:
        """Return the local replica, or the next one that is not silent and has all logs."""
        n = len(self.states)
        order = [(self._local + i) % n for i in range(n)]
        return min(order, key=lambda r: (self._lacks_logs(r), r in self._silent))

    def _lacks_logs(self, replica: int) -> bool:
        """Whether a replica does not have all logs that this consumer works on."""
        state = self.states[replica]
        return any(state.log(partition) != log for partition, log in self._logs.items())

    def _send(self, replica: int, row: ReplicaRow, now: float) -> AppendRow:
        if len(self._sent) >= _KEPT_SENT:
            del self._sent[next(iter(self._sent))]
        self._sent.setdefault((replica, row.request), now)
        return AppendRow(replica, row)

    def _repeat_after(self) -> float:
        return max(4 * self.limit.seconds, self._hold / 20)

    def _row(
        self,
        kind: Kind,
        request: int,
        offsets: Offsets,
        seconds: float = 0.0,
        *,
        delivered: bool = False,
        beginnings: Mapping[int, Beginning] | None = None,
    ) -> ReplicaRow:
        """Return a row about offsets of the logs that this consumer works on."""
        logs = {p: self._logs.get(p, NOT_KNOWN) for p in offsets}
        topic_id = next((log.topic_id for log in logs.values()), "")
        cuts = {p: log.cut for p, log in logs.items() if log.cut}
        return ReplicaRow(
            kind, self.holder, request, offsets, seconds, delivered,
            topic_id=topic_id, cuts=cuts, beginnings=beginnings or {},
        )  # fmt: skip

    def _acquire_row(self, request: int, offsets: Offsets) -> ReplicaRow:
        return self._row("acquire", request, offsets, self._hold)

    def _candidates(self, local: int, limit: int, ends: Mapping[int, int], now: float) -> Offsets:
        state = self.states[local]
        found: Offsets = {}
        for partition, end in sorted(ends.items()):
            if not self._has(state, partition) or limit <= 0:
                continue
            busy = state.held(partition)
            for until, offsets in (*self._waiting, *self._mine):
                if until > now and partition in offsets:
                    busy |= offsets[partition]
            for settling in self._settling.values():
                if partition in settling.row.offsets and self._is_of(partition, settling.row):
                    busy |= settling.row.offsets[partition]
            chosen = self._lowest(state, partition, busy, limit, end)
            if chosen:
                found[partition] = chosen
                limit -= len(chosen)
        return found

    def _lowest(
        self, state: ReplicaState, partition: int, busy: OffsetRanges, limit: int, end: int
    ) -> OffsetRanges:
        """Return the lowest offsets that are neither done nor busy, at most `limit` of them."""
        done = state.done(partition)
        first, chosen = done.stable_offset, OffsetRanges()
        width = max(_WINDOW, limit)
        while first < end and len(chosen) < limit:
            last = min(first + width - 1, end - 1)
            free = done.uncommitted(first, last) - busy
            wanted = limit - len(chosen)
            chosen |= free.head(wanted)
            first = last + 1
            width = min(2 * width, _WIDEST)  # free offsets may be far apart
        return chosen

    def _answered(
        self, found: _Acquisition, replica: int, answer: ReplicaAnswer, now: float
    ) -> list[AppendRow]:
        if replica in found.answers:
            return []
        found.answers[replica] = answer
        rows: list[AppendRow] = []
        if len(found.answers) == 1 and found.is_local:
            found.asked = common(answer.ok, found.asked)
            if found.asked:
                rows = self._ask(found, self._majority - 1, now)
        elif tomb := common(answer.tomb, found.asked):
            row = self._row("tombstone", found.request, tomb)
            rows.append(AppendRow(found.replicas[0], row))
        # Further answers cannot change a majority for all offsets.
        if not minus(found.asked, self._by_majority(found.answers.values())):
            return rows + self._decide(found, now)
        if len(found.answers) == len(found.replicas):
            rows += self._ask(found, len(self.states), now) or self._decide(found, now)
        return rows

    def _ask(self, found: _Acquisition, count: int, now: float) -> list[AppendRow]:
        """Asks so many more replicas, those that are not silent first; none if its time is over."""
        others = [r for r in range(len(self.states)) if r not in found.replicas]
        chosen = sorted(others, key=self._silent.__contains__)[:count]
        if not chosen or now >= found.until:
            return []
        found.replicas += chosen
        found.deadline = min(found.until, now + self.limit.seconds)
        row = self._acquire_row(found.request, found.asked)
        return [self._send(replica, row, now) for replica in chosen]

    def _by_majority(self, answers: Iterable[ReplicaAnswer]) -> Offsets:
        return _at_least(self._majority, [answer.ok for answer in answers])

    def _decide(self, found: _Acquisition, now: float) -> list[AppendRow]:
        self._acquisition = None
        granted: Offsets = {}
        if found.is_local and now < found.until:
            granted = common(self._by_majority(found.answers.values()), found.asked)
            for answer in found.answers.values():
                granted = minus(granted, answer.tomb)
        self._granted.append(Granted(granted, found.until))
        if granted:
            self._mine.append((found.until + self._hold * MARGIN, granted))
        left = minus(found.asked, granted)
        if not left:
            self._backoff.succeeded()
            return []
        pause = self.limit.seconds * self._backoff.failed(now)
        self._waiting.append((now + pause, left))
        row = self._row("release", found.request, left)
        return [AppendRow(replica, row) for replica in found.replicas]

    def _count(self, settled: Settled, now: float) -> None:
        row, answers = settled.row, settled.answers.values()
        if settled.is_late(now):
            settled.refused = minus(row.offsets, settled.done)
        else:
            settled.done = common(self._by_majority(answers), row.offsets)
            needed = len(self.states) - self._majority + 1
            lost = [union(a.nok, a.tomb) if row.kind == "renew" else a.nok for a in answers]
            settled.refused = minus(_at_least(needed, lost), settled.done)
        if settled.is_complete:
            del self._settling[row.request]
            held = {p: found for p, found in settled.done.items() if self._is_of(p, row)}
            if row.kind == "renew" and held:
                self._mine = [(at, minus(earlier, held)) for at, earlier in self._mine]
                self._mine.append((settled.until + self._hold * MARGIN, held))

    def _end_mine(self, now: float) -> list[AppendRow]:
        """Ends own holds that are over, as their watchers do.

        A replica that has not seen an ``expire`` by now would extend them if they were acquired
        again, and would not count the delivery.
        """
        ended: Offsets = {}
        for until, offsets in self._mine:
            if until <= now:
                ended = union(ended, offsets)
        self._mine = [(at, offsets) for at, offsets in self._mine if at > now and offsets]
        later: list[Mapping[int, OffsetRanges]] = [held for _, held in self._mine]
        later += [settling.row.offsets for settling in self._settling.values()]
        for kept in later:
            ended = minus(ended, kept)
        if not ended:
            return []
        self._request += 1  # its answers are no answers to an acknowledgement
        row = self._row("release", self._request, ended, delivered=True)
        return [AppendRow(replica, row) for replica in range(len(self.states))]

    def _compare(self) -> list[AppendRow]:
        """Write tombstones to replicas that lack them at two comparisons in a row."""
        rows = []
        for replica, state in enumerate(self.states):
            missing: Offsets = {}
            for partition in state.partitions:
                if not self._has(state, partition):
                    continue
                done = state.done(partition)
                others = self._done(self.states_of(partition), partition, done.stable_offset)
                lacking = others - done.ranges
                if lacking:
                    missing[partition] = lacking
            lasting = common(missing, self._missing[replica])
            self._missing[replica] = missing
            if lasting:
                rows.append(AppendRow(replica, self._row("tombstone", 0, lasting)))
        return rows

    def _done(self, states: Iterable[ReplicaState], partition: int, start: int) -> OffsetRanges:
        """Return what is done on at least one replica, from an offset on; a part if it is much."""
        whole = OffsetRanges()
        for state in states:
            done = state.done(partition)
            if done.stable_offset > start:
                whole |= OffsetRanges([(start, min(done.stable_offset, start + MOST_LISTED) - 1)])
            whole |= done.ranges
        return whole.clip(start, whole.last or 0)


def _all_done(states: Iterable[ReplicaState], partition: int) -> PartitionCommits:
    """Return what is done on at least one replica."""
    done = [state.done(partition) for state in states]
    stable = max(one.stable_offset for one in done)
    return PartitionCommits(stable, OffsetRanges.union(one.ranges for one in done), max_ranges=None)


def _at_least(count: int, found: list[Offsets]) -> Offsets:
    """Return the offsets that at least `count` of the sets contain."""
    if len(found) <= count:  # the common case of an answer that decides
        return reduce(common, found) if len(found) == count else {}
    levels: list[Offsets] = [{} for _ in range(count + 1)]
    for offsets in found:
        for n in range(count, 1, -1):
            levels[n] = union(levels[n], common(levels[n - 1], offsets))
        levels[1] = union(levels[1], offsets)
    return levels[count]
