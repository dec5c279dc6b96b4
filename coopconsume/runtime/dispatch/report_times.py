"""When slots send progressive reports: just before commits, so that no record waits for both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coopconsume.worker.channel.spec import REPORT_EVERY

if TYPE_CHECKING:
    from coopconsume.runtime.commit.pace import CommitTime

#: Shortest usual interval between two reports of a slot, in seconds: in batches, in real time.
_APART: Final = (0.1, 0.04)
#: Seconds before a commit at which reports are sent: so long they may take to the loop. With 10 ms
#: more of them miss their commit; a second report for each commit costs the handlers more.
_BEFORE_COMMIT: Final = 0.02


class ReportTimes:
    """The times of progressive reports. Pure.

    A slot that has nothing to report at its time reports the next record in real time as soon as
    that is settled, in batches after the usual interval.

    Args:
        commit_interval: ``commitInterval``, in seconds.
        real_time: Whether the job has real-time runs.

    Attributes:
        every: Usual seconds between two reports of a slot: half of ``commitInterval`` and from 100
            to 200 ms, in real time a fifth and from 40 ms. After a crash, what a slot has not
            reported is repeated, as is what waits for the next append.
    """

    def __init__(self, commit_interval: float, *, real_time: bool = False) -> None:
        part = commit_interval / (5 if real_time else 2)
        self.every = min(REPORT_EVERY, max(_APART[real_time], part))

    def next_in(self, commit: CommitTime) -> float:
        """Returns the seconds until the next report of a slot: half to one and a half intervals.

        Reports of all slots come at the same instants, and one of these is just before each commit.

        Args:
            commit: When the next commit begins.
        """
        every = self.every
        # If a commit begins now, the report is for the one after.
        commit_in = commit.begins_in if commit.begins_in > 0 else commit.apart
        wait = (commit_in - _BEFORE_COMMIT) % every
        return wait if wait >= every / 2 else wait + every
