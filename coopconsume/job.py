"""The loop of a job: plan, run batches on Spark, settle what slots report, commit.

One thread decides. Everything else (Spark jobs, commits, users) puts events in its queue:

    Spark task ends ── report ─┐
    Spark job ends ─── ended ──┼──> loop: settle ──> plan the next batch for slots that are free
    commit answered ── saved ──┤              └────> commit what came in, one commit at a time
    user ───────────── stop ───┘

A slot is in one batch at a time and gets its next work as soon as it has reported, while slower
ones still run; so one stuck key costs its slot and nothing else.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import queue
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commits import CommitStoreError, MaxIndividualCommitsReached, OffsetRanges, Pending
from coopconsume.classic import open_mailbox
from coopconsume.errors import CoopConsumeError, HandlerFailed
from coopconsume.plan import BatchPlan, Limits, Partition, plan_batch
from coopconsume.progress import Meter
from coopconsume.report import BatchSpec, SlotReport
from coopconsume.slot import REPORT_SCHEMA, SlotRunner
from coopconsume.source import Span, Wanted, batch_frame, present_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from assignors import KeyRange
    from coopconsume.membership import Membership, TopicPartition
    from coopconsume.record import RetryPolicy
    from coopconsume.report import DeadLetter, Ordering
    from coopconsume.sinks import DeadLetterTable, OutputTable

log = logging.getLogger(__name__)

#: Batches at once: one runs, the next takes over the slots that are back.
BATCHES_AT_ONCE = 2
#: Offsets in the first batch; it grows and shrinks with how long batches take.
FIRST_WINDOW = 20_000
LARGEST_WINDOW = 1_000_000
LARGEST_BYTES = 256 << 20
_IDLE_WAIT = 0.2
_ENDS_EVERY = 0.5
_STARTS_EVERY = 10.0
_MIRROR_EVERY = 5.0
#: Offsets that are looked at for holes at a time.
AUDIT_SPAN = 50_000
_COMMIT_LINGER = 0.1
_FAILED_BATCHES = 3


@dataclass(frozen=True)
class Work:
    """What a job does with records, and how.

    Attributes:
        handler: A function of a `Record`, or ``module:function``.
        concurrency: Handlers at once in a slot.
        ordering: ``key``, ``partition`` or ``none``.
        policy: When failed records are tried again.
        dead_letters: Where records go that are given up; None: none is.
        outputs: Where rows go that handlers return; None: they are dropped.
        interval: Seconds between the starts of batches at least.
        available_now: Stop once everything that was there at the start is settled.
    """

    handler: Any
    concurrency: int
    ordering: Ordering
    policy: RetryPolicy
    dead_letters: DeadLetterTable | None
    outputs: OutputTable | None
    interval: float
    available_now: bool


@dataclass
class _Running:
    number: int
    plan: BatchPlan
    waiting: set[int]
    started: float
    tag: str
    first_report: float | None = None
    rows: int = 0
    timed_out: bool = False


@dataclass
class _Unsaved:
    """What has come in since the last commit."""

    since: float = 0.0
    pending: dict[TopicPartition, list[Pending]] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    outputs: list[tuple[tuple[tuple[str, int], ...], bytes]] = field(default_factory=list)


class Job:
    """A running job: the loop's thread and what it knows.

    Args:
        spark: The session.
        membership: What is owned, and the way to commit it.
        work: What to do.
        slots: Spark tasks side by side.
        meter: Takes note of what happens, for progress.
    """

    def __init__(
        self, spark: SparkSession, membership: Membership, work: Work, slots: int, meter: Meter
    ) -> None:
        self._spark = spark
        self._membership = membership
        self._options = membership.options
        self._work = work
        self._slots = slots
        self._meter = meter
        self._events: queue.Queue[Callable[[], None]] = queue.Queue()
        self._send = open_mailbox(spark, lambda data: self._post(self._reported, data))
        self._run_id = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._commits = itertools.count()
        self._busy: dict[int, int] = {}
        self._barred: dict[int, float] = {}
        self._running: dict[int, _Running] = {}
        self._unsaved = _Unsaved()
        self._saving = False
        self._window = FIRST_WINDOW
        self._record_bytes = 0.0
        self._ends_at = self._starts_at = self._batch_at = 0.0
        self._mirror_at = time.monotonic()
        self._failed_in_a_row = 0
        self._stopping = False
        self._audited: dict[int, OffsetRanges] = {}
        self._auditing = False
        self._target: dict[TopicPartition, int] | None = None
        self._waiters: list[tuple[dict[TopicPartition, int], threading.Event]] = []
        self._batches = ThreadPoolExecutor(BATCHES_AT_ONCE, thread_name_prefix="coopconsume-batch")
        self._audits = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-audit")
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-commit")
        self.partitions = self._make_partitions()
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="coopconsume-loop", daemon=True)

    def _make_partitions(self) -> list[Partition]:
        partitions = []
        for part, (_, owned) in enumerate(sorted(self._membership.owned.items())):
            partition = Partition(
                part, owned.topic, owned.partition,
                stable=owned.stable, committed=owned.committed,
                shares=_deal(owned.ranges, self._slots, part, self._work.ordering),
                ordering=self._work.ordering, whole=owned.is_whole,
            )  # fmt: skip
            partition.restore(owned.pending)
            partitions.append(partition)
        return partitions

    # -- for the user's thread

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Let what is in flight end, commit it, and leave; returns when that is done."""
        self._post(self._stop)
        self.ended.wait()
        self._thread.join()

    def abort(self) -> None:
        """Leave at once: running tasks are interrupted, what they did is not committed."""
        self._post(self._abort)
        self.ended.wait(10.0)

    @property
    def batches_running(self) -> int:
        """Batches that Spark works on now."""
        return len(self._running)

    def wait_for_available(self) -> None:
        """Wait until everything that is in the topics now is done and committed."""
        done = threading.Event()
        ends = self._membership.cluster.ends(self._membership.owned)
        self._post(self._waiters.append, (ends, done))
        while not done.wait(0.1) and not self.ended.is_set():
            pass

    # -- the loop

    def _post(self, call: Callable[..., None], *args: Any) -> None:
        self._events.put(lambda: call(*args))

    def _main(self) -> None:
        try:
            self._refresh_ends(force=True)
            if self._work.available_now:
                self._target = {(p.topic, p.partition): p.end for p in self.partitions}
            while not self._finished():
                self._refresh_ends()
                self._save()
                self._launch()
                self._take_events(self._patience())
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks the query
            self.error = error
            log.debug("the loop ended", exc_info=True)
        finally:
            self._close()

    def _take_events(self, timeout: float) -> None:
        try:
            event = self._events.get(timeout=timeout)
            while True:
                event()
                event = self._events.get_nowait()
        except queue.Empty:
            pass

    def _patience(self) -> float:
        now = time.time()
        waits = [_IDLE_WAIT]
        waits += [due - now for p in self.partitions if (due := p.next_due()) is not None]
        waits += [at - now for at in self._barred.values()]
        if self._busy and len(self._busy) < self._slots and len(self._running) < BATCHES_AT_ONCE:
            waits.append(0.05)
        if self._unsaved.since and not self._saving:
            waits.append(self._unsaved.since + _COMMIT_LINGER - now)
        return max(0.005, min(waits))

    def _finished(self) -> bool:
        idle = not self._running and not self._saving and not self._has_unsaved() and not self._barred
        for ends, event in list(self._waiters):
            if all(p.stable >= ends.get((p.topic, p.partition), 0) for p in self.partitions):
                event.set()
                self._waiters.remove((ends, event))
        if self._stopping:
            return not self._running and not self._saving and not self._has_unsaved()
        return idle and self._target is not None and all(p.is_drained for p in self.partitions)

    def _stop(self) -> None:
        self._stopping = True

    def _abort(self) -> None:
        self._interrupt()
        raise InterruptedError("the job was told to leave at once")

    def _interrupt(self) -> None:
        for running in self._running.values():
            try:
                self._spark.interruptTag(running.tag)
            except Exception:  # noqa: BLE001 - the session may be gone already
                log.debug("could not interrupt batch %d", running.number, exc_info=True)

    def _close(self) -> None:
        self._interrupt()
        self._batches.shutdown(wait=False, cancel_futures=True)
        self._audits.shutdown(wait=False, cancel_futures=True)
        self._saver.shutdown(wait=True)
        if self.error is None:
            try:
                self._membership.mirror(force=True)
            except Exception as error:  # noqa: BLE001 - the log has it; Kafka's copy may lag
                log.warning("the primary offsets could not be written: %s", error)
        self._meter.ended(self.error)
        self.ended.set()
        for _, event in self._waiters:
            event.set()

    def _refresh_ends(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if now - self._starts_at > _STARTS_EVERY:
            self._starts_at = now
            self._check_starts()
        if self._target is not None or (not force and now - self._ends_at < _ENDS_EVERY):
            return
        self._ends_at = now
        try:
            ends = self._membership.cluster.ends(self._membership.owned)
        except CoopConsumeError as error:
            if force:
                raise
            log.warning("%s", error)
            return
        for partition in self.partitions:
            partition.end = max(partition.end, ends[partition.topic, partition.partition])

    def _check_starts(self) -> None:
        passed = self._membership.check_log_starts()
        for partition in self.partitions:
            start = passed.get((partition.topic, partition.partition))
            if start is not None:
                partition.log_start(start)

    # -- batches

    def _launch(self) -> None:
        now = time.time()
        self._barred = {slot: at for slot, at in self._barred.items() if at > now}
        if self._stopping or len(self._running) >= BATCHES_AT_ONCE:
            return
        if now - self._batch_at < self._work.interval:
            return
        for running in self._running.values():
            # Slots come back one by one: wait a moment, so that most go into one batch.
            since, taken = running.first_report, now - running.started
            if running.waiting and (since is None or now - since < min(1.0, 0.05 + taken / 4)):
                return
        free = [s for s in range(self._slots) if s not in self._busy and s not in self._barred]
        limits = Limits(
            self._allowed_window(),
            self._options.max_pending,
            max(1, self._options.max_num_ranges * 8 // 10),
        )
        plan = plan_batch(self.partitions, free, now, limits) if free else None
        if plan is None:
            return
        number = next(self._numbers)
        tag = f"coopconsume-{self._run_id}-{number}"
        self._running[number] = _Running(number, plan, set(plan.slots), now, tag)
        self._busy |= dict.fromkeys(plan.slots, number)
        self._batch_at = now
        self._meter.launched(number, plan)
        self._batches.submit(self._run_batch, number, plan, tag)

    def _allowed_window(self) -> int:
        window = self._window
        if self._record_bytes:
            window = min(window, max(1, int(LARGEST_BYTES / self._record_bytes)))
        return min(window, self._options.max_offsets_per_trigger or window)

    def _run_batch(self, number: int, plan: BatchPlan, tag: str) -> None:
        """In a thread of its own: one Spark job."""
        try:
            self._spark.addTag(tag)
            try:
                rows = self._batch_rows(number, plan)
            finally:
                self._spark.removeTag(tag)
        except BaseException as error:  # noqa: BLE001 - told to the loop
            self._post(self._batch_ended, number, {}, error)
        else:
            self._post(self._batch_ended, number, rows, None)

    def _batch_rows(self, number: int, plan: BatchPlan) -> dict[int, bytes | None]:
        parts = sorted(plan.wanted)
        index = {part: i for i, part in enumerate(parts)}
        chosen = [self.partitions[part] for part in parts]
        work = {s: {index[p]: w for p, w in of.items()} for s, of in plan.work.items()}
        spec = BatchSpec(
            batch=number,
            partitions=tuple((p.topic, p.partition) for p in chosen),
            slots=plan.slots,
            work=work,
            ordering=self._work.ordering,
            concurrency=self._work.concurrency,
            batch_time=self._options.batch_time,
            handler_timeout=self._options.handler_timeout,
            headers=self._options.include_headers,
        )
        frame = batch_frame(
            self._spark,
            self._options,
            [
                Span(self.partitions[r.part].topic, self.partitions[r.part].partition, r.first, r.last)
                for r in plan.reads
            ],
            [
                Wanted(
                    p.topic, p.partition, plan.wanted[p.part],
                    tuple(
                        (key_range, slot)
                        for slot in plan.slots
                        if p.part in plan.work[slot]
                        for key_range in p.shares[slot].ranges
                    ),
                )
                for p in chosen
            ],
            plan.slots,
            self._options.min_partitions or self._slots,
        )  # fmt: skip
        schema = self._work.outputs.schema if self._work.outputs else None
        runner = SlotRunner(
            spec,
            self._work.handler,
            self._work.policy,
            schema,
            dead_letters=self._work.dead_letters is not None,
            send=self._send,
        )
        rows = frame.mapInArrow(runner, REPORT_SCHEMA).collect()  # type: ignore[arg-type]
        return {row.slot: None if row.report is None else bytes(row.report) for row in rows}

    def _reported(self, data: bytes) -> None:
        report: SlotReport = pickle.loads(data)  # noqa: S301 - from our own workers
        running = self._running.get(report.batch)
        if running is None or report.slot not in running.waiting:
            return  # A second run of a task, or a batch that was given up.
        running.waiting.discard(report.slot)
        now = time.time()
        if report.unknown:
            self._lost(running, report.slot, now)
            return
        running.first_report = running.first_report or now
        running.rows += report.rows
        running.timed_out |= report.timed_out
        self._busy.pop(report.slot, None)
        if report.rows:
            self._record_bytes = report.value_bytes / report.rows
        self._take_in(running, report, now)
        self._meter.reported(report)
        if report.fatal:
            raise HandlerFailed(report.fatal)

    def _take_in(self, running: _Running, report: SlotReport, now: float) -> None:
        parts = sorted(running.plan.wanted)
        unsaved = self._unsaved
        unsaved.since = unsaved.since or now
        for i, outcome in report.partitions.items():
            partition = self.partitions[parts[i]]
            partition.reported(report.slot, outcome, now)
            if outcome.failed:
                unsaved.pending.setdefault((partition.topic, partition.partition), []).extend(
                    Pending(f.offset, f.key_hash, f.attempts, int((now + f.delay) * 1000), f.error)
                    for f in outcome.failed
                )
        unsaved.dead += report.dead
        if report.outputs is not None:
            names = tuple((self.partitions[p].topic, self.partitions[p].partition) for p in parts)
            unsaved.outputs.append((names, report.outputs))

    def _lost(self, running: _Running, slot: int, now: float) -> None:
        """A slot's outcome is not known: its work waits until the batch's life is surely over."""
        self._busy.pop(slot, None)
        self._barred[slot] = now + self._options.batch_life
        for part in running.plan.work[slot]:
            self.partitions[part].unknown(slot)
        self._meter.lost(slot)

    def _batch_ended(
        self, number: int, rows: Mapping[int, bytes | None], error: BaseException | None
    ) -> None:
        running = self._running[number]
        for data in rows.values():
            if data is not None:
                self._reported(data)
        for slot in sorted(running.waiting):
            running.waiting.discard(slot)
            if error is None and slot not in rows:
                # Spark found the slot's rows to be none and ran no task for it.
                self._reported_nothing(running, slot)
            else:
                self._lost(running, slot, time.time())
        del self._running[number]
        if error is not None:
            self._batch_failed(running, error)
        else:
            self._failed_in_a_row = 0
            self._resize(running)
        self._meter.batch_ended(number, time.time() - running.started)

    def _reported_nothing(self, running: _Running, slot: int) -> None:
        from coopconsume.report import PartitionReport

        parts = sorted(running.plan.wanted)
        seen = {parts.index(part): PartitionReport() for part in running.plan.work[slot]}
        self._busy.pop(slot, None)
        report = SlotReport(running.number, slot, partitions=seen)
        self._take_in(running, report, time.time())

    def _batch_failed(self, running: _Running, error: BaseException) -> None:
        text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        log.warning("batch %d failed, its slots are planned again: %s", running.number, text)
        self._failed_in_a_row = 0 if running.rows else self._failed_in_a_row + 1
        self._meter.failed(text)
        self._starts_at = 0.0  # Perhaps records were deleted under it.
        if self._failed_in_a_row >= _FAILED_BATCHES:
            raise error

    def _resize(self, running: _Running) -> None:
        took = time.time() - running.started
        if running.timed_out:
            self._window = max(self._slots, min(self._window, 2 * running.rows))
        elif took < self._options.batch_time / 4 and running.plan.span >= self._window // 2:
            self._window = min(LARGEST_WINDOW, self._window * 8)

    # -- commits

    def _has_unsaved(self) -> bool:
        return bool(self._unsaved.since) or any(p.unsaved for p in self.partitions)

    def _audit(self) -> None:
        """Where other members share a partition, look at what holds its stable offset back.

        An offset that all our shares have passed belongs to another member, or is a hole: then it
        is not in the log. The owner of hash 0 looks, and commits the holes.
        """
        for partition in self.partitions:
            owned = self._membership.owned[partition.topic, partition.partition]
            first = partition.first_open()
            if (
                self._auditing
                or partition.whole
                or not owned.owns_first
                or first in self._audited.get(partition.part, OffsetRanges())
            ):
                continue
            unclaimed = partition.unclaimed(first, first + AUDIT_SPAN - 1)
            if first in unclaimed:
                last = min(partition.position, first + AUDIT_SPAN) - 1
                self._auditing = True
                self._audits.submit(self._look, partition, first, last)

    def _look(self, partition: Partition, first: int, last: int) -> None:
        """In a thread of its own: which offsets are in the log."""
        try:
            span = Span(partition.topic, partition.partition, first, last)
            present = present_offsets(self._spark, self._options, span, 1)
        except Exception as error:  # noqa: BLE001 - looked at again later
            log.warning(
                "could not look for holes in %s-%d: %s", partition.topic, partition.partition, error
            )
            self._post(self._looked, partition, OffsetRanges(), OffsetRanges())
        else:
            looked = OffsetRanges([(first, last)])
            self._post(self._looked, partition, looked, looked - present)

    def _looked(self, partition: Partition, looked: OffsetRanges, holes: OffsetRanges) -> None:
        self._auditing = False
        self._audited[partition.part] = looked
        if holes:
            partition.amend(holes)
            self._unsaved.since = self._unsaved.since or time.time()

    def _save(self) -> None:
        self._audit()
        if self._saving:
            return
        for partition in self.partitions:
            holes = partition.holes()
            if holes:
                partition.amend(holes)
                self._unsaved.since = self._unsaved.since or time.time()
        if not self._has_unsaved():
            if time.monotonic() - self._mirror_at > _MIRROR_EVERY:
                self._saving = True
                self._saver.submit(self._mirror)
            return
        partly = any(r.waiting and r.first_report for r in self._running.values())
        if partly and time.time() - self._unsaved.since < _COMMIT_LINGER:
            return
        unsaved, self._unsaved = self._unsaved, _Unsaved()
        offsets = {
            (p.topic, p.partition): p.unsaved for p in self.partitions if p.unsaved
        } | {tp: OffsetRanges() for tp in unsaved.pending if not self._partition(tp).unsaved}
        self._saving = True
        self._saver.submit(self._commit, offsets, unsaved)

    def _partition(self, tp: TopicPartition) -> Partition:
        return next(p for p in self.partitions if (p.topic, p.partition) == tp)

    def _commit(self, offsets: dict[TopicPartition, OffsetRanges], unsaved: _Unsaved) -> None:
        """In the committing thread: dead letters and outputs, then the log, then the primary."""
        started = time.time()
        commit_id = f"{self._run_id}-{next(self._commits)}"
        member = self._membership
        try:
            if unsaved.dead and self._work.dead_letters:
                self._work.dead_letters.append(unsaved.dead, member.topic_ids, commit_id)
            if unsaved.outputs and self._work.outputs:
                self._work.outputs.append(unsaved.outputs, member.topic_ids, commit_id)
            written = time.time()
            results = member.commit(offsets, pending=unsaved.pending, commit_id=commit_id)
            saved = {tp: (done, results[tp].stable_offset) for tp, done in offsets.items()}
            logged = time.time()
        except MaxIndividualCommitsReached as error:
            self._post(self._refused, unsaved, error)
        except BaseException as error:  # noqa: BLE001 - told to the loop
            self._post(self._commit_failed, error)
        else:
            self._post(self._saved, saved, (written - started, logged - written))
            self._mirror_quietly()

    def _mirror(self) -> None:
        self._mirror_quietly()
        self._post(self._mirrored)

    def _mirror_quietly(self) -> None:
        try:
            self._membership.mirror()
        except Exception as error:  # noqa: BLE001 - the log has it; Kafka's copy may lag
            log.warning("the primary offsets could not be written, trying again: %s", error)

    def _mirrored(self) -> None:
        self._mirror_at = time.monotonic()
        self._saving = False

    def _saved(
        self, saved: Mapping[TopicPartition, tuple[OffsetRanges, int]], took: tuple[float, float]
    ) -> None:
        self._saving = False
        for tp, (offsets, stable) in saved.items():
            self._partition(tp).saved(offsets, stable)
        self._meter.saved(sum(len(offsets) for offsets, _ in saved.values()), took, self.partitions)

    def _refused(self, unsaved: _Unsaved, error: MaxIndividualCommitsReached) -> None:
        # Nothing was written: kept until gaps below are done and it fits.
        log.warning("%s", error)
        self._saving = False
        self._unsaved.since = time.time()
        for tp, pending in unsaved.pending.items():
            self._unsaved.pending.setdefault(tp, []).extend(pending)
        # What was written beside the refused commit never counts; it goes with the next one.
        self._unsaved.dead += unsaved.dead
        self._unsaved.outputs += unsaved.outputs
        time.sleep(_IDLE_WAIT)

    def _commit_failed(self, error: BaseException) -> None:
        self._saving = False
        if not isinstance(error, CommitStoreError | CoopConsumeError):
            log.error("a commit failed: %s", error)
        raise error


def _deal(
    ranges: tuple[KeyRange, ...], slots: int, part: int, ordering: Ordering
) -> list[tuple[int, tuple[KeyRange, ...]]]:
    """The key ranges of a partition that each slot gets."""
    if ordering == "partition":
        return [(part % slots, ranges)]
    dealt: dict[int, list[KeyRange]] = {}
    for key_range in ranges:
        # A range may be narrower than there are slots.
        for slot, piece in enumerate(key_range.split(min(slots, key_range.size))):
            dealt.setdefault(slot, []).append(piece)
    return [(slot, tuple(pieces)) for slot, pieces in dealt.items()]
