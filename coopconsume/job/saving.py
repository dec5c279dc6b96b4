"""What has come in since the last commit, and how it is written."""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commits import (
    CommitLogUnavailable,
    CommitStoreError,
    FencedMember,
    MaxIndividualCommitsReached,
    OffsetRanges,
    Pending,
)
from commits.model import PARKED_MS
from coopconsume.dead_letters.decisions import apply_decisions
from coopconsume.errors import CoopConsumeError
from coopconsume.sinks.base import Outputs, divided_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from commits import CommitResult
    from coopconsume.dead_letters.decisions import Decision
    from coopconsume.group.holding import Holding
    from coopconsume.group.owned import TopicPartition
    from coopconsume.job.batch import Work
    from coopconsume.monitoring.progress import Meter
    from coopconsume.plan import Partition, Waiting
    from coopconsume.task.report import DeadLetter, SlotReport

log = logging.getLogger(__name__)

_MIRROR_EVERY = 5.0
#: Seconds between looks at stable offsets that others move, too.
_LOOK_EVERY = 1.0
_LINGER = 0.1
_REFUSED_WAIT = 0.5
#: Seconds between attempts to publish what the group's coordinator did not take.
_PUBLISH_EVERY = 0.5
#: Seconds between looks at what was decided on parked records.
_DECIDE_EVERY = 2.0


@dataclass
class Unsaved:
    """What has come in since the last commit, beside the offsets that are done.

    Attributes:
        since: When the first of it came, on the monotonic clock; 0: nothing has.
        pending: Records that failed, for the commit log.
        dead: Records that were given up.
        outputs: Rows that handlers returned, with the partitions that they count by index.
    """

    since: float = 0.0
    pending: dict[TopicPartition, list[Pending]] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    outputs: list[tuple[tuple[tuple[str, int], ...], bytes]] = field(default_factory=list)

    def put_back(self, kept: Unsaved) -> None:
        """Take back what could not be written; newer words of failed records count."""
        for tp, pending in kept.pending.items():
            self.pending.setdefault(tp, [])[:0] = pending
        self.dead[:0] = kept.dead
        self.outputs[:0] = kept.outputs

    def divided(self, left: Mapping[TopicPartition, OffsetRanges]) -> tuple[Unsaved, Unsaved]:
        """What goes with a commit that leaves out some offsets, and what waits with them."""
        if not any(left.values()):
            return self, Unsaved()
        now, later = Unsaved(self.since, self.pending), Unsaved()
        for letter in self.dead:
            waits = letter.offset in left.get((letter.topic, letter.partition), OffsetRanges())
            (later if waits else now).dead.append(letter)
        for partitions, rows in self.outputs:
            for one, some in zip((now, later), divided_rows(partitions, rows, left), strict=True):
                if some is not None:
                    one.outputs.append((partitions, some))
        return now, later


@dataclass(frozen=True)
class Saved:
    """A commit that was answered.

    Attributes:
        offsets: What was committed, with the stable offset after it, of each partition.
        held: Partitions of which something done was not, as they have too many ranges.
        later: Failed records of partitions that were refused altogether, rows and letters of
            what is held.
        holes: What was proven never to be delivered.
        took: Seconds for dead letters and outputs, and for the commit log.
    """

    offsets: Mapping[TopicPartition, tuple[OffsetRanges, int]]
    holes: Mapping[TopicPartition, OffsetRanges]
    took: tuple[float, float]
    held: frozenset[TopicPartition] = frozenset()
    later: Unsaved = field(default_factory=Unsaved)


def save(
    holding: Holding,
    work: Work,
    offsets: Mapping[TopicPartition, OffsetRanges],
    holes: Mapping[TopicPartition, OffsetRanges],
    unsaved: Unsaved,
    commit_id: str,
) -> Saved:
    """Write dead letters and outputs, then the commit that they stand or fall with.

    What the limit on ranges does not let in is left out, and told.

    Raises:
        commits.FencedMember: Another member holds the group.
    """
    started = time.monotonic()
    fit = holding.affordable(offsets, holes)
    left = {tp: done - fit[tp] for tp, done in offsets.items()}
    now, later = unsaved.divided(left)
    # What is written stands or falls with the commit, so that must not be refused any more.
    is_written = False
    if now.dead and work.dead_letters:
        work.dead_letters.append(now.dead, holding.topic_ids, commit_id)
        is_written = True
    sink = work.outputs
    if sink is not None and (now.outputs or (sink.hears_all and any(fit.values()))):
        sink.write(Outputs(now.outputs, fit, holding.topic_ids, commit_id))
        is_written = True
    written = time.monotonic()
    results: Mapping[TopicPartition, CommitResult]
    try:
        results = holding.commit(
            fit, pending=now.pending, holes=holes, commit_id=commit_id, limited=not is_written
        )
    except MaxIndividualCommitsReached as error:
        # Other members were quicker.
        results = error.results or {}
    logged = time.monotonic()
    refused = {tp for tp, result in results.items() if result.status == "refused"}
    answered = {
        tp: (fit.get(tp, OffsetRanges()), result.stable_offset)
        for tp, result in results.items()
        if tp not in refused
    }
    held = frozenset(refused | {tp for tp, some in left.items() if some})
    later.pending = {tp: pending for tp, pending in now.pending.items() if tp in refused}
    return Saved(answered, holes, (written - started, logged - written), held, later)


def due_ms(delay: float) -> int:
    """Returns the time some seconds from now as the log has it; infinity stands for parked."""
    return PARKED_MS if delay == math.inf else int((time.time() + delay) * 1000)


class Saver:
    """Commits what came in, one commit at a time, in a thread of its own.

    Every method is the loop's to call; what the thread has to say comes back through ``post``.

    Args:
        holding: What is owned, and the way to commit it.
        work: Where dead letters and outputs go.
        partitions: What the loop knows of them.
        meter: Takes note of commits.
        commit_ids: Ids for commits, told apart from all others of the group.
        post: Has a function called in the loop.
    """

    def __init__(
        self,
        holding: Holding,
        work: Work,
        partitions: Sequence[Partition],
        meter: Meter,
        commit_ids: Iterator[str],
        post: Callable[..., None],
    ) -> None:
        self._holding = holding
        self._work = work
        self._partitions = {(p.topic, p.partition): p for p in partitions}
        self._meter = meter
        self._ids = commit_ids
        self._post = post
        self._unsaved = Unsaved()
        self._mirror_at = -math.inf if holding.primary.has_unpublished else time.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-commit")
        self._again_at = 0.0
        self.is_busy = False
        self._decisions_at = -math.inf
        #: Partitions of which something done waits, as they have too many ranges.
        self.held: frozenset[TopicPartition] = frozenset()

    @property
    def has_all(self) -> bool:
        """Whether all that came in is committed, and decisions were looked at once."""
        unsaved = bool(self._open())
        unlooked = self._decisions_at == -math.inf and (self._work.park or bool(self._parked()))
        waits = self._unsaved.since or unsaved or unlooked or self._holding.primary.has_unpublished
        return not (self.is_busy or waits)

    @property
    def has_all_it_can(self) -> bool:
        """Whether all that came in is committed, or cannot be as there are too many ranges."""
        return self.has_all or bool(self.held and not self.is_busy and not self._unsaved.since)

    @property
    def has_more_than_offsets(self) -> bool:
        """Whether rows or letters wait with offsets that did not fit."""
        return bool(self._unsaved.outputs or self._unsaved.dead)

    @property
    def due(self) -> float | None:
        """When the next commit is due, on the monotonic clock; None: not known."""
        since = self._unsaved.since
        return since + _LINGER if since and not self.is_busy else None

    def take(self, report: SlotReport, parts: Sequence[Partition], now: float) -> None:
        """Take what a slot reported, beside the offsets that its partitions took.

        Args:
            report: The report.
            parts: The partitions that it counts by index.
            now: The time, on the monotonic clock.
        """
        unsaved = self._unsaved
        unsaved.since = unsaved.since or now
        for i, outcome in report.partitions.items():
            if outcome.failed:
                unsaved.pending.setdefault((parts[i].topic, parts[i].partition), []).extend(
                    Pending(f.offset, f.key_hash, f.attempts, due_ms(f.delay), f.error)
                    for f in outcome.failed
                )
        unsaved.dead += report.dead
        if report.outputs is not None:
            unsaved.outputs.append((tuple((p.topic, p.partition) for p in parts), report.outputs))

    def amend(self, partition: Partition, holes: OffsetRanges) -> None:
        """Offsets of a partition are proven never to be delivered."""
        partition.amend(holes)
        self._unsaved.since = self._unsaved.since or time.monotonic()

    def save(self, *, more_to_come: bool) -> None:
        """Commit what came in, or let it gather a moment if more is about to come."""
        if self.is_busy:
            return
        if time.monotonic() - self._decisions_at > _DECIDE_EVERY:
            parked = self._parked()
            # At the start, too: what an earlier process has taken must not be taken again.
            if parked or (self._work.park and self._decisions_at == -math.inf):
                self._run(self._decide, parked)
                return
            self._decisions_at = time.monotonic()
        for partition in self._busy():
            found = partition.holes()
            if found:
                self.amend(partition, found)
        if not (self._unsaved.since or self._open()):
            if time.monotonic() - self._mirror_at > self._mirror_every():
                self._run(self._mirror)
            return
        if self.held and not self._unsaved.since and time.monotonic() < self._again_at:
            return  # Nothing came that could make room.
        # With what is to come there will be fewer ranges, too.
        if more_to_come and time.monotonic() - self._unsaved.since < _LINGER:
            return
        offsets = {(p.topic, p.partition): p.unsaved for p in self._open() if p.unsaved}
        holes = {(p.topic, p.partition): p.unsaved_holes for p in self._open() if p.unsaved_holes}
        unsaved, self._unsaved = self._unsaved, Unsaved()
        self._run(self._commit, offsets, holes, unsaved, next(self._ids))

    def _mirror_every(self) -> float:
        if self._holding.primary.has_unpublished:
            return _PUBLISH_EVERY
        return _LOOK_EVERY if self._holding.is_shared else _MIRROR_EVERY

    def close(self, *, well: bool) -> None:
        """Let the running commit end; if the job ended well, Kafka's offsets follow the log."""
        self._holding.stop_repeating()
        if not well:
            self._holding.primary.stop_publishing()
        self._thread.shutdown(wait=True)
        if well:
            self._holding.primary.write_quietly(force=True)

    def _busy(self) -> list[Partition]:
        return [p for p in self._partitions.values() if not p.is_quiet]

    def _open(self) -> list[Partition]:
        return [p for p in self._busy() if p.unsaved or p.unsaved_holes]

    def _parked(self) -> list[tuple[TopicPartition, Waiting]]:
        return [((p.topic, p.partition), waiting) for p in self._busy() for waiting in p.parked]

    def _run(self, call: Callable[..., None], *args: Any) -> None:
        self.is_busy = True
        self._thread.submit(call, *args)

    # -- in the committing thread

    def _commit(
        self,
        offsets: Mapping[TopicPartition, OffsetRanges],
        holes: Mapping[TopicPartition, OffsetRanges],
        unsaved: Unsaved,
        commit_id: str,
    ) -> None:
        try:
            saved = save(self._holding, self._work, offsets, holes, unsaved, commit_id)
        except BaseException as error:  # noqa: BLE001 - told to the loop
            self._post(self._failed, error)
        else:
            self._post(self._saved, saved)
            self._write_primary()

    def _mirror(self) -> None:
        stable: Mapping[TopicPartition, int] = {}
        try:
            stable = self._holding.refresh()
        except Exception as error:  # noqa: BLE001 - the next look may do
            log.warning("the commit log could not be read for now: %s", error)
        else:
            self._write_primary()
        self._post(self._mirrored, stable)

    def _write_primary(self) -> None:
        if not self._holding.primary.publishes:
            self._holding.primary.write_quietly()
            return
        try:
            self._holding.primary.write()
        except CommitLogUnavailable as error:
            log.warning("outputs are published later: %s", error)
        except BaseException as error:  # noqa: BLE001 - told to the loop
            self._post(self._failed, error)

    def _decide(self, parked: Sequence[tuple[TopicPartition, Waiting]]) -> None:
        applied: list[Decision] = []
        try:
            applied = apply_decisions(self._holding, parked, self._ids)
        except FencedMember as error:
            self._post(self._failed, error)
            return
        except Exception as error:  # noqa: BLE001 - the next look may do
            log.warning("decisions on parked records could not be taken for now: %s", error)
        self._post(self._decided, applied)

    # -- its answers, in the loop

    def _decided(self, applied: Sequence[Decision]) -> None:
        self.is_busy = False
        self._decisions_at = time.monotonic()
        for decision in applied:
            partition = self._partitions[decision.topic, decision.partition]
            act = partition.replay if decision.action == "replay" else partition.discard
            act(decision.offset, time.monotonic())
            stable = self._holding.owned[decision.topic, decision.partition].stable
            partition.saved(OffsetRanges(), stable, OffsetRanges())

    def _mirrored(self, stable: Mapping[TopicPartition, int]) -> None:
        for tp, offset in stable.items():
            if offset != self._partitions[tp].stable:
                self._partitions[tp].saved(OffsetRanges(), offset, OffsetRanges())
        if self._holding.is_shared:
            self._count_ranges(stable)
        self._mirror_at = time.monotonic()
        self.is_busy = False

    def _saved(self, saved: Saved) -> None:
        self.is_busy = False
        for tp, (offsets, stable) in saved.offsets.items():
            holes = saved.holes.get(tp, OffsetRanges())
            self._partitions[tp].saved(offsets, stable, holes)
        self._count_ranges({*saved.offsets, *saved.held})
        self.held = saved.held
        if saved.held:
            # Kept until gaps below are done and it fits.
            self._again_at = time.monotonic() + _REFUSED_WAIT
            self._unsaved.put_back(saved.later)
        count = sum(len(offsets) for offsets, _ in saved.offsets.values())
        self._meter.saved(count, saved.took, list(self._partitions.values()))

    def _count_ranges(self, places: Iterable[TopicPartition]) -> None:
        for tp in places:
            partition, owned = self._partitions[tp], self._holding.owned[tp]
            partition.log_ranges, partition.log_last = owned.range_count, owned.last_committed

    def _failed(self, error: BaseException) -> None:
        self.is_busy = False
        if not isinstance(error, CommitStoreError | CoopConsumeError):
            log.error("a commit failed: %s", error)
        raise error
