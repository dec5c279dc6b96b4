"""The Spark jobs of batches and real-time runs, each in a thread of its own."""

from __future__ import annotations

import logging
import math
import pickle
import time
from typing import TYPE_CHECKING, Final

from coopconsume.classic import interrupt, open_mailbox
from coopconsume.runtime.dispatch.daemon_pool import DaemonPool
from coopconsume.runtime.dispatch.latest_start import LatestStart
from coopconsume.runtime.events import BatchEnded, SlotReported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.job_context import JobContext
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

#: Young batches at once: slots that are free meanwhile share the next one, which is read once.
BATCHES_AT_ONCE: Final = 2
_INTERRUPT_EVERY: Final = 1.0


class SparkJobs:
    """Has Spark run jobs, and end them. Final reports and the ends of jobs come as events.

    Args:
        context: The job.
        leases: Has slots start nothing more.

    Attributes:
        latest_start: Until when the slots of a job may start.
    """

    def __init__(self, context: JobContext, leases: SlotLeases) -> None:
        self._spark = context.spark
        self._leases = leases
        self._post = context.events.post
        self._send = open_mailbox(
            context.spark, lambda data: self._post(SlotReported(_report(data)))
        )
        # Without a mailbox it is Spark Connect, which goes on without its client.
        self.latest_start = LatestStart(context.slots, is_limited=self._send is None)
        # Every slot may be a straggler in a batch of its own, and keep a record of another one.
        self._threads = DaemonPool(2 * context.slots + BATCHES_AT_ONCE, "coopconsume-batch")

    def start(self, run: Run) -> None:
        """Starts the Spark job of a run."""
        self._threads.submit(self._run, run)

    def close(self) -> None:
        """Starts nothing more."""
        self._threads.close()

    def interrupt_all(self, runs: Iterable[Run]) -> None:
        """Has Spark end all of some runs."""
        for run in runs:
            run.interrupt_at = -math.inf
            self._interrupt_if_due(run)

    def interrupt_overdue(self, runs: Iterable[Run]) -> None:
        """Has Spark end what was given up, once it is due, and what never starts anything.

        Again and again: a batch that Spark still plans has no job yet that could be interrupted.
        """
        for run in runs:
            self._interrupt_if_due(run)

    def _interrupt_if_due(self, run: Run) -> None:
        now = time.monotonic()
        if run.is_withdrawn and run.interrupt_at is None:
            run.interrupt_at = now
        if run.interrupt_at is not None and now >= run.interrupt_at:
            run.interrupt_at = now + _INTERRUPT_EVERY
            try:
                interrupt(self._spark, run.tag)
            except Exception:
                log.debug("could not interrupt batch %d", run.number, exc_info=True)

    # -- in a thread of its own

    def _run(self, run: Run) -> None:
        try:
            rows = run.kind.execute(run, self._send)
        except BaseException as error:  # noqa: BLE001 - reported to the loop
            unconnected = self._unconnected(run)
            self._post(BatchEnded(run.number, error=error, unconnected=unconnected))
        else:
            reports = {slot: _report(data) if data else None for slot, data in rows.items()}
            self._post(BatchEnded(run.number, reports))

    def _unconnected(self, run: Run) -> frozenset[int]:
        """Stops the slots of a failed batch; returns those that never connected.

        A slot with a channel starts nothing before it has connected, and nothing without a lease.
        So it does not matter where the job failed, nor whether tasks of it still run or start: an
        exception does not say whether all tasks have ended, and Spark's status lags behind.
        """
        if run.channel is None:
            return frozenset()
        at = {(run.number, slot) for slot in run.plan.slots}
        return frozenset(slot for _, slot in self._leases.stop(at))


def _report(data: bytes) -> SlotReport:
    report: SlotReport = pickle.loads(data)  # noqa: S301 - from our own workers
    return report
