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
from typing import TYPE_CHECKING, Any

from commits import CommitStoreError, MaxIndividualCommitsReached, OffsetRanges, Pending
from coopconsume.batch import Running, Work, run_batch
from coopconsume.classic import open_mailbox
from coopconsume.errors import BrokerUnreachable, CoopConsumeError, DataLoss, HandlerFailed
from coopconsume.plan import Limits, Partition, deal, plan_batch
from coopconsume.report import PartitionReport, SlotReport
from coopconsume.saving import Saved, Unsaved, save
from coopconsume.source import Span, present_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from coopconsume.membership import Membership, TopicPartition
    from coopconsume.progress import Meter

log = logging.getLogger(__name__)

#: Batches at once of which no slot is back yet; those that wait for stragglers are not counted.
BATCHES_AT_ONCE = 2
#: Offsets in the first batch where the size of records is not known, and where it is.
FIRST_WINDOW = 20_000
FIRST_WINDOW_OF_KNOWN = 1_000_000
LARGEST_WINDOW = 2_000_000
#: Bytes of keys and values in a batch.
LARGEST_BYTES = 256 << 20
#: How much smaller records may be on the brokers' disks than they are, by compression.
_COMPRESSED = 2.0
_IDLE_WAIT = 0.2
_ENDS_EVERY = 0.5
_STARTS_EVERY = 10.0
_MIRROR_EVERY = 5.0
#: Offsets that are looked at for holes at a time.
AUDIT_SPAN = 50_000
_COMMIT_LINGER = 0.1
_FAILED_BATCHES = 3


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
        self._running: dict[int, Running] = {}
        self._unsaved = Unsaved()
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
        # Every slot may be a straggler in a batch of its own.
        self._batches = ThreadPoolExecutor(
            slots + BATCHES_AT_ONCE, thread_name_prefix="coopconsume-batch"
        )
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
                shares=deal(owned.ranges, self._slots, part, self._work.ordering),
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
            self._size_first_window()
            if self._work.available_now:
                self._target = {(p.topic, p.partition): p.end for p in self.partitions}
            while not self._finished():
                self._refresh_ends()
                self._save()
                self._launch()
                self._take_events(self._patience())
        except BaseException as error:
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
        if self._busy and len(self._busy) < self._slots:
            waits.append(0.05)
        if self._unsaved.since and not self._saving:
            waits.append(self._unsaved.since + _COMMIT_LINGER - now)
        return max(0.02, min(waits))

    def _finished(self) -> bool:
        idle = (
            not self._running and not self._saving and not self._has_unsaved() and not self._barred
        )
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
            except Exception:
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
        try:
            if time.monotonic() - self._starts_at > _STARTS_EVERY:
                self._check_starts()
                self._starts_at = time.monotonic()
            recent = time.monotonic() - self._ends_at < _ENDS_EVERY
            if self._target is not None or (recent and not force):
                return
            ends = self._membership.cluster.ends(self._membership.owned)
        except BrokerUnreachable as error:
            if force:
                raise
            log.warning("%s; trying again", error)
            return
        self._ends_at = time.monotonic()
        for partition in self.partitions:
            end = ends[partition.topic, partition.partition]
            if end < partition.end:
                # Brokers never tell a lower end (KIP-207) unless the log was cut; what is written
                # there next has offsets that were done before. The next start looks into it.
                raise DataLoss(partition.topic, partition.partition, end, partition.end - 1)
            partition.end = end

    def _check_starts(self) -> None:
        done = {(p.topic, p.partition): p.done for p in self.partitions}
        passed = self._membership.check_log_starts(done)
        for partition in self.partitions:
            start = passed.get((partition.topic, partition.partition))
            if start is not None:
                partition.log_start(start)

    # -- batches

    def _size_first_window(self) -> None:
        size = self._membership.cluster.record_bytes(self._membership.owned)
        if size is not None:
            self._record_bytes = size * _COMPRESSED
            self._window = FIRST_WINDOW_OF_KNOWN

    def _launch(self) -> None:
        now = time.time()
        self._barred = {slot: at for slot, at in self._barred.items() if at > now}
        if self._stopping or now - self._batch_at < self._work.interval:
            return
        young = 0
        for running in self._running.values():
            since, taken = running.first_report, now - running.started
            if since is None:
                young += 1
            elif running.waiting and now - since < min(2.0, 0.1 + taken / 2):
                # Slots come back one by one: wait a moment, so that most go into one batch.
                return
        if young >= BATCHES_AT_ONCE:
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
        running = Running(number, plan, set(plan.slots), now, tag)
        self._running[number] = running
        self._busy |= dict.fromkeys(plan.slots, number)
        self._batch_at = now
        self._meter.launched(number, plan)
        self._batches.submit(self._run_batch, running)

    def _allowed_window(self) -> int:
        window = self._window
        if self._record_bytes:
            window = min(window, max(1, int(LARGEST_BYTES / self._record_bytes)))
        return min(window, self._options.max_offsets_per_trigger or window)

    def _run_batch(self, running: Running) -> None:
        """In a thread of its own: one Spark job."""
        slices = self._options.min_partitions or self._slots
        try:
            rows = run_batch(
                self._spark, self._options, self._work, running, self.partitions, slices, self._send
            )
        except BaseException as error:  # noqa: BLE001 - told to the loop
            self._post(self._batch_ended, running, {}, error)
        else:
            self._post(self._batch_ended, running, rows, None)

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
        running.handled += report.handled
        running.rate += report.handled / max(report.busy, 0.001)
        running.timed_out |= report.timed_out
        self._busy.pop(report.slot, None)
        if report.rows:
            self._record_bytes = report.value_bytes / report.rows
        self._take_in(running, report, now)
        self._meter.reported(report)
        if not running.waiting:
            self._resize(running)
        if report.fatal:
            raise HandlerFailed(report.fatal)

    def _take_in(self, running: Running, report: SlotReport, now: float) -> None:
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

    def _lost(self, running: Running, slot: int, now: float) -> None:
        """A slot's outcome is not known: its work waits until the batch's life is surely over."""
        self._busy.pop(slot, None)
        self._barred[slot] = now + self._options.batch_life
        for part in running.plan.work[slot]:
            self.partitions[part].unknown(slot)
        self._meter.lost(slot)

    def _batch_ended(
        self, running: Running, rows: Mapping[int, bytes | None], error: BaseException | None
    ) -> None:
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
        del self._running[running.number]
        if error is not None:
            self._batch_failed(running, error)
        else:
            self._failed_in_a_row = 0
        self._meter.batch_ended(time.time() - running.started)

    def _reported_nothing(self, running: Running, slot: int) -> None:

        parts = sorted(running.plan.wanted)
        seen = {parts.index(part): PartitionReport() for part in running.plan.work[slot]}
        self._busy.pop(slot, None)
        report = SlotReport(running.number, slot, partitions=seen)
        self._take_in(running, report, time.time())

    def _batch_failed(self, running: Running, error: BaseException) -> None:
        text = next(
            (line for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        log.warning("batch %d failed, its slots are planned again: %s", running.number, text)
        self._failed_in_a_row = 0 if running.handled else self._failed_in_a_row + 1
        self._meter.failed(text)
        self._starts_at = 0.0  # Perhaps records were deleted under it.
        if self._failed_in_a_row >= _FAILED_BATCHES:
            raise error

    def _resize(self, running: Running) -> None:
        """The next window is what the slots can handle in half a time box, as they were seen to."""
        if running.timed_out:
            self._window = max(self._slots, min(self._window, 2 * running.handled))
        elif running.plan.span >= self._window // 2:
            fits = int(running.rate * self._options.batch_time / 2)
            self._window = min(LARGEST_WINDOW, max(self._window, min(fits, self._window * 64)))

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
        many = self._options.max_num_ranges_to_commit
        few = all(p.unsaved.range_count < many for p in self.partitions)
        if partly and few and time.time() - self._unsaved.since < _COMMIT_LINGER:
            return
        unsaved, self._unsaved = self._unsaved, Unsaved()
        offsets = {(p.topic, p.partition): p.unsaved for p in self.partitions if p.unsaved} | {
            tp: OffsetRanges() for tp in unsaved.pending if not self._partition(tp).unsaved
        }
        self._saving = True
        self._saver.submit(self._commit, offsets, unsaved)

    def _partition(self, tp: TopicPartition) -> Partition:
        return next(p for p in self.partitions if (p.topic, p.partition) == tp)

    def _commit(self, offsets: dict[TopicPartition, OffsetRanges], unsaved: Unsaved) -> None:
        """In the committing thread."""
        commit_id = f"{self._run_id}-{next(self._commits)}"
        try:
            saved = save(self._membership, self._work, offsets, unsaved, commit_id)
        except MaxIndividualCommitsReached as error:
            self._post(self._refused, unsaved, error)
        except BaseException as error:  # noqa: BLE001 - told to the loop
            self._post(self._commit_failed, error)
        else:
            self._post(self._saved, saved)
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

    def _saved(self, saved: Saved) -> None:
        self._saving = False
        for tp, (offsets, stable) in saved.offsets.items():
            self._partition(tp).saved(offsets, stable)
        count = sum(len(offsets) for offsets, _ in saved.offsets.values())
        self._meter.saved(count, saved.took, self.partitions)

    def _refused(self, unsaved: Unsaved, error: MaxIndividualCommitsReached) -> None:
        # Nothing was committed: kept until gaps below are done and it fits.
        log.warning("%s", error)
        self._saving = False
        self._unsaved.put_back(unsaved)
        time.sleep(_IDLE_WAIT)

    def _commit_failed(self, error: BaseException) -> None:
        self._saving = False
        if not isinstance(error, CommitStoreError | CoopConsumeError):
            log.error("a commit failed: %s", error)
        raise error
