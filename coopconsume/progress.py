"""What a running job tells: counts, rates and states, in the shape of Spark's progress events."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.breaker import Breaker
    from coopconsume.plan import BatchPlan, Partition
    from coopconsume.report import SlotReport

_KEPT = 100
_SHOWN_RANGES = 5
_SHOWN_KEY_BYTES = 100


class Progress(dict[str, Any]):
    """One progress event: a dictionary, as in PySpark, with its JSON text."""

    @property
    def json(self) -> str:
        """The event on one line."""
        return json.dumps(self)

    @property
    def prettyJson(self) -> str:  # noqa: N802 - PySpark's name
        """The event, indented."""
        return json.dumps(self, indent=2)


class Meter:
    """Counts what the loop does; read from other threads.

    Args:
        identity: ``id``, ``runId`` and ``name`` of the query, put into every event.
        slots: How many slots there are.
        emit: Called with each event.
    """

    def __init__(
        self,
        identity: dict[str, Any],
        slots: int,
        emit: Callable[[Progress], None] | None,
    ) -> None:
        self._identity = identity
        self._epoch = 0
        self._emit = emit
        self._lock = threading.Lock()
        self._recent: deque[Progress] = deque(maxlen=_KEPT)
        self._began = self._last = time.time()
        self._batch = -1
        self._handled_before = 0
        self.totals = dict.fromkeys(
            ("handled", "done", "retries", "deadLetters", "failedBatches", "lostSlots"), 0
        )
        self.slots = [
            {"slot": s, "handled": 0, "failures": 0, "busySeconds": 0.0} for s in range(slots)
        ]
        self._phases: dict[str, float] = {}
        self.message = "Initializing"
        self.breaker: Breaker | None = None

    def joined(self, epoch: int) -> None:
        """The member works under another epoch."""
        self._epoch = epoch
        self.message = f"Working under epoch {epoch}"

    def launched(self, number: int, plan: BatchPlan) -> None:
        """A batch goes to Spark."""
        self._batch = number
        self.message = f"batch {number}: {plan.span} offsets on {len(plan.slots)} slots"

    def reported(self, report: SlotReport) -> None:
        """A slot is through with its part of a batch."""
        with self._lock:
            slot = self.slots[report.slot]
            slot["handled"] += report.handled
            slot["failures"] += report.failures
            slot["busySeconds"] = round(slot["busySeconds"] + report.busy, 3)
            self.totals["handled"] += report.handled
            self.totals["retries"] += report.failures - len(report.dead)
            self.totals["deadLetters"] += len(report.dead)

    def lost(self, _slot: int) -> None:
        """What a slot did is not known."""
        self.totals["lostSlots"] += 1

    def failed(self, text: str) -> None:
        """A batch's Spark job failed."""
        self.totals["failedBatches"] += 1
        self.message = text

    def batch_ended(self, seconds: float) -> None:
        """A batch's Spark job is over."""
        self._phases["batch"] = seconds

    def saved(
        self, offsets: int, took: tuple[float, float], partitions: Sequence[Partition]
    ) -> None:
        """A commit was answered: an event is made."""
        now = time.time()
        with self._lock:
            self.totals["done"] += offsets
            rows = self.totals["handled"] - self._handled_before
            self._handled_before = self.totals["handled"]
            span = max(now - self._last, 1e-6)
            self._last = now
            event = Progress(
                self._identity,
                timestamp=dt.datetime.fromtimestamp(now, dt.UTC).isoformat(timespec="milliseconds"),
                batchId=self._batch,
                epoch=self._epoch,
                numInputRows=rows,
                processedRowsPerSecond=round(rows / span, 1),
                durationMs={
                    "batch": round(self._phases.get("batch", 0.0) * 1000),
                    "outputs": round(took[0] * 1000),
                    "commit": round(took[1] * 1000),
                },
                totals=dict(self.totals),
                slots=[dict(slot) for slot in self.slots],
                circuitBreaker=self.breaker.describe(now) if self.breaker else None,
                partitions=[describe(partition, now) for partition in partitions],
            )
            self._recent.append(event)
        if self.breaker is None or self.breaker.state != "open":
            self.message = "Running"
        if self._emit is not None:
            self._emit(event)

    def ended(self, error: BaseException | None) -> None:
        """The loop is over."""
        self.message = f"Terminated with {error}" if error else "Stopped"

    @property
    def recent(self) -> list[Progress]:
        """The last events, oldest first."""
        with self._lock:
            return list(self._recent)


def describe(partition: Partition, now: float) -> dict[str, Any]:
    """The state of one partition for progress events and people."""
    done = partition.done
    top = partition.stable - 1 if done.last is None else done.last
    gaps = done.complement(partition.stable, top)
    first = [list(pair) for pair in itertools.islice(gaps, _SHOWN_RANGES)]
    blocker = partition.blocker()
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "stableOffset": partition.stable,
        "highestDone": top,
        "endOffset": partition.end,
        "lag": partition.end - partition.stable - len(done),
        "pending": partition.pending,
        "parked": len(partition.parked),
        "gapRanges": gaps.range_count,
        "firstGaps": first,
        "blocker": None
        if blocker is None
        else {
            "offset": blocker.offset,
            "key": None if blocker.key is None else _shown(blocker.key),
            "keyHash": blocker.key_hash,
            "attempts": blocker.attempts,
            "dueInSeconds": None if blocker.is_parked else round(max(0.0, blocker.due - now), 1),
            "error": blocker.error,
            "behind": len(blocker.behind),
        },
    }


def _shown(key: bytes) -> str:
    return key[:_SHOWN_KEY_BYTES].decode("utf-8", "backslashreplace")
