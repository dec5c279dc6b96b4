"""The slots of a job on the driver, and what moves each on. Pure.

A slot is in a batch or a real-time run by a `SlotTask`, and between them a `JobSlot`. It is in one
of these states. While it is *keeping*, it also is in one of the others, with another run.

| State | Where it is kept | Entered by | Left by |
| --- | --- | --- | --- |
| free | no active task, no pause in `JobSlot` | the start, or the end of another state | a run |
| starting | an active task that has no lease yet | `Dispatcher.launch` | its first lease; a stop |
| at work | an active task, by `ChannelServer.has_met` | its first lease | a request; its end |
| stopped | ``is_stopped`` | `SlotRequests`; its last report says so | its end |
| withdrawn | ``is_withdrawn`` | a stop before its first lease | `BatchEnded` |
| keeping | ``SlotTask.kept`` | `SlotProgressed` that gives records back | its end |
| ended | ``has_ended`` | `SlotReported`, or `BatchEnded` without a report | |
| lost | ``JobSlot.barred_until`` | an end without a report of what it did | time |
| failing | ``JobSlot.failing_until`` | a report with an error that leaves nothing in doubt | time |

Without a channel no slot is withdrawn, stopped before its end, or keeping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commits import OffsetRanges
    from coopconsume.worker.report import SlotReport


@dataclass
class SlotTask:
    """A slot in a run, from the run's start to its own end.

    Times are on the monotonic clock.
    """

    slot: int
    #: Whether it has made its final report, or is lost.
    has_ended: bool = False
    #: Whether it was stopped, and starts no more records.
    is_stopped: bool = False
    #: Whether it was stopped before it can have started any record.
    is_withdrawn: bool = False
    #: The records that it keeps of those that it has given back, by partition; None: it has given
    #: nothing back.
    kept: dict[int, OffsetRanges] | None = None
    #: The number of the last progressive report that was taken.
    seq: int = 0
    #: The process id of its worker, by its progressive reports; 0: unknown.
    pid: int = 0
    #: Handler calls in its progressive reports.
    handled: int = 0
    #: When it last reported progress, or was asked for relief.
    heard_at: float | None = None
    #: When it was first seen to be connected.
    met_at: float | None = None
    #: When it was last asked to give back records.
    asked_at: float = -math.inf
    #: Its long handler call: part, offset and start; None: none takes long.
    call: tuple[int, int, float] | None = None

    @property
    def is_active(self) -> bool:
        """Whether its slot is in this run alone: it has not ended and has given nothing back."""
        return not self.has_ended and self.kept is None

    @property
    def is_keeping(self) -> bool:
        """Whether handlers may work on the records that it has kept."""
        return not self.has_ended and self.kept is not None

    def progressed(self, report: SlotReport, now: float) -> None:
        """Notes that a progressive report is taken."""
        self.seq, self.pid = report.seq, report.pid
        self.handled += report.stats.handled
        if report.has_progress:
            self.heard_at = now
