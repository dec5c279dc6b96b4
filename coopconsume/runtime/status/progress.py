"""Progress of a running job: counts, rates and states, in the shape of Spark's progress events."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from coopconsume.monitoring.listener import (
    Progress,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from coopconsume.monitoring.pace import Course
from coopconsume.runtime.status.latency import CommitLatency
from coopconsume.runtime.status.retention_watch import open_offsets
from coopconsume.runtime.status.verdict import behind, job_verdict
from coopconsume.worker.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commits.model import TopicPartition
    from coopconsume.kafka.retention import ExpiringOffsets, RetentionForecast
    from coopconsume.monitoring.line_display import LineDisplay
    from coopconsume.monitoring.listener import QueryListener
    from coopconsume.runtime.dispatch.circuit_breaker import JobCircuitBreaker
    from coopconsume.runtime.events import CommitAnswered
    from coopconsume.runtime.plan import BatchPlan, Partition
    from coopconsume.runtime.status.waiting import OldestCall, WaitingFor
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

_KEPT = 100
#: Seconds without a commit after which an event is made all the same.
_IDLE_EVERY = 10.0
#: Seconds without a commit after which a job has something that it waits for; less than the span
#: of the rate on the status line, so that a rate of 0 has a reason.
_QUIET = 2.0
_SUMS = ("lag", "pending", "parked", "behindParked", "gapRanges", "outputsWaiting")
#: What the last event shows of the records that a job leaves.
_LEFT = ("pending", "parked", "behindParked")
_SHOWN_RANGES = 5


class Meter:
    """Counts what the loop does; read from other threads.

    Args:
        identity: ``id``, ``runId``, ``name``, ``groupId`` and ``clientId`` of the query, put into
            every event.
        slots: How many slots there are.
        listeners: Get each event.
        lines: Shows what handlers log and print; None: nothing does.
        place: The options of commands that name the cluster and the commit table.
    """

    def __init__(
        self,
        identity: dict[str, Any],
        slots: int,
        listeners: Sequence[QueryListener] = (),
        lines: LineDisplay | None = None,
        place: str = "",
    ) -> None:
        self._identity, self._place = identity, place
        self._epoch = 0
        self._listeners = tuple(listeners)
        self._lines = lines
        self._lock = threading.Lock()
        self._recent: deque[Progress] = deque(maxlen=_KEPT)
        self._last = time.monotonic()
        self._batch = -1
        self._before: dict[str, int] = {}
        self._course = Course()
        self._launched: dict[int, float] = {}
        #: The states of partitions without anything left to do, as they were last described.
        self._quiet: dict[tuple[str, int], tuple[tuple[object, ...], dict[str, Any]]] = {}
        self.totals = dict.fromkeys(
            (
                "handled", "filtered", "done", "retries", "deadLetters", "failedBatches",
                "lostSlots", "cacheHits", "cacheMisses", "brokerBytes", "rebalances",
            ), 0
        )  # fmt: skip
        self.slots = [
            {"slot": s, "handled": 0, "failures": 0, "busySeconds": 0.0} for s in range(slots)
        ]
        self._phases: dict[str, float] = {}
        self._calls = Histogram()
        self._starts = Histogram()
        #: Times from the timestamps of records to their commits.
        self.latency = CommitLatency()
        #: Seconds for which the running slot that is silent for longest has reported nothing.
        self.silent = 0.0
        #: The handler call that has run for longest; None: none takes long.
        self.oldest_call: OldestCall | None = None
        self._notified = time.monotonic()
        self._done_at = time.monotonic()
        self.message = "Initializing"
        #: What the job waits for; None while it commits records.
        self.waiting: WaitingFor | None = None
        self.breaker: JobCircuitBreaker | None = None
        #: Why slots have no channel to the driver; empty if they have one, or need none yet.
        self.channel_error = ""
        #: What retention deletes next, and when that was foreseen.
        self._forecast: tuple[RetentionForecast | None, float] = None, 0.0
        self._is_paused = False
        #: ``batch`` or ``realTime``.
        self.mode = "batch"

    @property
    def title(self) -> str:
        """Name of the query, else of its group."""
        return str(self._identity["name"] or self._identity["groupId"])

    def started(self) -> None:
        """Reports the start of the query."""
        self._notify("onQueryStarted", QueryStartedEvent(**self._identity, timestamp=_iso()))

    def joined(self, epoch: int) -> None:
        """Takes the change to another epoch."""
        self._epoch = epoch
        self.totals["rebalances"] += 1
        self.message = f"Working under epoch {epoch}"

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was committed for some seconds."""
        return time.monotonic() - self._done_at > _QUIET

    @property
    def has_handled(self) -> bool:
        """Whether the job has handled, filtered or committed anything yet."""
        names = ("handled", "filtered", "done", "retries", "deadLetters")
        return any(self.totals[name] for name in names)

    def waits(self, found: WaitingFor | None, partitions: Sequence[Partition]) -> None:
        """Notes what the job waits for; makes an event if that is of another kind than before."""
        before, self.waiting = self.waiting, found
        if found is None:
            if before is not None and self.message == before.message:
                self.message = "Running"
            return
        self.message = found.message
        is_late = time.monotonic() - self._notified >= _IDLE_EVERY
        if before is None or before.reason != found.reason or is_late:
            self._make_event(partitions)

    def foresees(self, forecast: RetentionForecast | None) -> None:
        """Takes what retention deletes next."""
        self._forecast = forecast, time.monotonic()

    def launched(self, number: int, plan: BatchPlan) -> None:
        """Takes the start of a batch."""
        self._batch = number
        self._launched[number] = time.monotonic()
        what = f"{plan.span} offsets" if plan.reads else "real time"
        self.message = f"batch {number}: {what} on {len(plan.slots)} slots"

    def reported(self, report: SlotReport, names: Sequence[TopicPartition]) -> None:
        """Takes what a slot reports; partitions by their index in names."""
        if self._lines is not None and report.lines is not None:
            self._lines.take(report.lines)
        for i, outcome in report.partitions.items():
            self.latency.done(names[i], outcome)
        with self._lock:
            self._starts.merge(report.stats.starts)
            self._calls.merge(report.stats.calls)
            slot = self.slots[report.slot]
            slot["handled"] += report.stats.handled
            slot["failures"] += report.stats.failures
            slot["busySeconds"] = round(slot["busySeconds"] + report.stats.busy, 3)
            self.totals["handled"] += report.stats.handled
            self.totals["filtered"] += report.stats.filtered
            self.totals["cacheHits"] += report.stats.reads.hits
            self.totals["cacheMisses"] += report.stats.reads.misses
            self.totals["brokerBytes"] += report.stats.reads.broker_bytes
            self.totals["retries"] += report.stats.failures - len(report.dead)
            self.totals["deadLetters"] += len(report.dead)
            launched = self._launched.get(report.batch)
            if report.stats.busy and launched is not None:
                # Before its first handler a slot waits for Spark to read, hash, shuffle and sort.
                self._took("read", time.monotonic() - launched - report.stats.busy)
                self._took("handlers", report.stats.busy)

    def _took(self, phase: str, seconds: float) -> None:
        """Keeps the longest time of a phase since the last event."""
        self._phases[phase] = max(self._phases.get(phase, 0.0), seconds)

    def paused(self, *, is_paused: bool) -> None:
        """Handlers do not start, or they start again."""
        self._is_paused = is_paused

    def lost(self, _slot: int) -> None:
        """Counts a lost slot."""
        self.totals["lostSlots"] += 1

    def failed(self, text: str) -> None:
        """Takes the failure of a batch's Spark job."""
        self.totals["failedBatches"] += 1
        self.message = text

    def batch_ended(self, number: int, seconds: float) -> None:
        """Takes the end of a batch's Spark job."""
        with self._lock:
            self._launched.pop(number, None)
            self._took("batch", seconds)

    def committed(self, answer: CommitAnswered) -> None:
        """Takes the answer to a commit; `progressed` makes the event."""
        for where, (offsets, stable) in answer.offsets.items():
            self.latency.committed(where, offsets, stable, answer.answered_at)

    def progressed(
        self, offsets: int, took: tuple[float, float], partitions: Sequence[Partition]
    ) -> None:
        """Makes an event of an answered commit."""
        if offsets:
            self._done_at, self.waiting = time.monotonic(), None
        with self._lock:
            self.totals["done"] += offsets
            self._took("outputs", took[0])
            self._took("commit", took[1])
        if self.waiting is None:
            self.message = "Running"
        self._make_event(partitions)

    def parked(self, partitions: Sequence[Partition]) -> None:
        """Makes an event, as other records are parked than before."""
        self._make_event(partitions)

    def leaves(self, partitions: Sequence[Partition]) -> None:
        """Makes an event at the end, unless the last one shows what the job leaves."""
        now = time.monotonic()
        with self._lock:
            shown = self._recent[-1] if self._recent else dict.fromkeys(_LEFT, 0)
            left = [self._described(one, now) for one in partitions]
        if any(sum(at[name] for at in left) != shown[name] for name in _LEFT):
            self._make_event(partitions)

    def idle(self, partitions: Sequence[Partition]) -> None:
        """Makes an event if nothing was committed for long."""
        if time.monotonic() - self._notified < _IDLE_EVERY:
            return
        self._make_event(partitions)
        if all(partition.is_drained for partition in partitions):
            self._notify(
                "onQueryIdle",
                QueryIdleEvent(self._identity["id"], self._identity["runId"], _iso()),
            )

    def _make_event(self, partitions: Sequence[Partition]) -> None:
        now = time.monotonic()
        with self._lock:
            span = max(now - self._last, 1e-6)
            self._last = self._notified = now
            new = {name: n - self._before.get(name, 0) for name, n in self.totals.items()}
            self._before = dict(self.totals)
            partitions_now = [self._described(partition, now) for partition in partitions]
            call = self.oldest_call
            group = self._identity["groupId"]
            sums = {name: sum(p[name] for p in partitions_now) for name in _SUMS}
            offsets = {
                (p["topic"], p["partition"]): (p["endOffset"] - p["lag"], p["endOffset"])
                for p in partitions_now
            }
            self._course.add(now, offsets, sums["lag"], sums["pending"])
            pace = self._course.pace
            verdict = job_verdict(
                group, partitions, partitions_now, self.waiting, pace, now=now, call=call,
                expiring=self._expiring(partitions, now), place=self._place,
            )  # fmt: skip
            event = Progress(
                self._identity,
                timestamp=_iso(),
                batchId=self._batch,
                mode=self.mode,
                epoch=self._epoch,
                numInputRows=new["handled"],
                inputRowsPerSecond=self._course.samples[-1].new_rate,
                processedRowsPerSecond=round(new["handled"] / span, 1),
                numFilteredRows=new["filtered"],
                numRetries=new["retries"],
                numDeadLetters=new["deadLetters"],
                durationMs={
                    phase: round(max(0.0, self._phases.get(phase, 0.0)) * 1000)
                    for phase in ("read", "handlers", "batch", "outputs", "commit")
                },
                handlerTimes=self._calls.describe(),
                startLatency=self._starts.describe(),
                commitLatency=self.latency.take().describe(),
                silentSeconds=round(self.silent, 1),
                oldestHandler=call.describe() if call else None,
                oldestHandlerSeconds=round(call.seconds, 1) if call else 0.0,
                totals=dict(self.totals),
                slots=[dict(slot) for slot in self.slots],
                message=self.message,
                waitingFor=self.waiting.describe() if self.waiting else None,
                isPaused=self._is_paused,
                channelError=self.channel_error,
                circuitBreaker=self.breaker.describe(now) if self.breaker else None,
                verdict=verdict.to_dict(),
                verdictSeverity=verdict.severity,
                partitions=partitions_now,
                **sums,
            )
            self._phases, self._calls, self._starts = {}, Histogram(), Histogram()
            self._recent.append(event)
        self._notify("onQueryProgress", QueryProgressEvent(event))

    def _expiring(self, partitions: Sequence[Partition], now: float) -> ExpiringOffsets | None:
        forecast, since = self._forecast
        if forecast is None:
            return None
        return forecast.expiring(open_offsets(partitions), now - since)

    def _described(self, partition: Partition, now: float) -> dict[str, Any]:
        """The state of a partition; of one with nothing left to do the last one, if it holds."""
        at = partition.topic, partition.partition
        if not partition.ledger.is_quiet:
            self._quiet.pop(at, None)
            return describe(partition, now)
        # All that `describe` shows of a partition without work left depends on these alone.
        state = (
            partition,
            partition.ledger.stable,
            partition.ledger.end,
            partition.ledger.log_ranges,
            partition.ledger.unpublished,
            partition.supply.owns_first,
        )
        known = self._quiet.get(at)
        if known is None or known[0] != state:
            known = self._quiet[at] = state, describe(partition, now)
        return known[1]

    def _notify(self, what: str, event: object) -> None:
        for listener in self._listeners:
            try:
                getattr(listener, what)(event)
            except Exception:
                log.exception("a listener failed in %s", what)

    def ended(self, error: BaseException | None) -> None:
        """Takes the end of the loop."""
        self.message = f"Terminated with {error}" if error else "Stopped"
        text = f"{type(error).__name__}: {error}" if error else None
        is_aborted = isinstance(error, InterruptedError)
        ids = self._identity["id"], self._identity["runId"]
        event = QueryTerminatedEvent(*ids, text, is_aborted)
        self._notify("onQueryTerminated", event)
        if self._lines is not None:
            self._lines.close()

    @property
    def recent(self) -> list[Progress]:
        """The last events, oldest first."""
        with self._lock:
            return list(self._recent)


def describe(partition: Partition, now: float) -> dict[str, Any]:
    """Returns the state of one partition for progress events, as the commit log has it."""
    committed = partition.ledger.committed
    top = partition.ledger.stable - 1 if committed.last is None else committed.last
    firsts, lasts = committed.gap_bounds(partition.ledger.stable, top)  # They may be very many.
    shown = zip(firsts[:_SHOWN_RANGES].tolist(), lasts[:_SHOWN_RANGES].tolist(), strict=True)
    blocker = partition.blocker(now)
    age = round(partition.ledger.stable_age(now), 1)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "ownsFirst": partition.supply.owns_first,
        "sharesChunks": partition.supply.shares_chunks,
        "stableOffset": partition.ledger.stable,
        "highestDone": top,
        "endOffset": partition.ledger.end,
        "lag": partition.ledger.end - partition.ledger.stable - len(committed),
        "pending": partition.supply.pending,
        "parked": len(partition.supply.parked),
        "behindParked": sum(map(behind, partition.supply.parked)),
        "gapRanges": len(firsts),
        "firstGaps": [*map(list, shown)],
        "inDoubtSeconds": round(max(0.0, partition.in_doubt(now)), 1),
        "ranges": partition.ledger.ranges,
        "isCrowded": partition.ledger.is_at_limit,
        "outputsWaiting": partition.ledger.outputs_waiting,
        "outputsError": partition.ledger.unpublished[1] if partition.ledger.unpublished else None,
        "stableAgeSeconds": 0.0 if blocker is None else age,
        "blockerAttempts": 0 if blocker is None else blocker["attempts"],
        "blocker": None if blocker is None else blocker | {"ageSeconds": age},
    }


def _iso() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
