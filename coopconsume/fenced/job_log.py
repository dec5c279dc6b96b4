"""One fenced log as the runs of a job write it: each micro-batch once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.fenced.log import Entry
    from coopconsume.fenced.writer import FencedWriter


def batch_name(job: str, batch: int | str) -> str:
    """The id under which a batch is in the log: a number of Spark's, or a commit of this library.

    No number's id begins as a text's does, and no other job's as this one's.
    """
    return f"{job}:{batch}" if isinstance(batch, int) else f"{job}.{batch}"


def number_of(name: str | None) -> int:
    """The number in the id of a batch; -1 if there is none."""
    number = "" if name is None else name.rpartition(":")[2]
    return int(number) if number.isdecimal() else -1


class JobLog:
    """A log, as one run of a job writes it. Methods fail as those of `FencedWriter` do.

    Args:
        writer: Of the log.
        job: Name of the job.
    """

    def __init__(self, writer: FencedWriter, job: str) -> None:
        self._writer = writer
        self._job = job
        self._last: int | None = None

    def open(self) -> None:
        """Take the log, or hear whether it is another run's by now."""
        if not self._writer.is_open:
            self._writer.acquire()
        self._writer.refresh()

    def has(self, batch: int | str) -> bool:
        """Whether a batch that has a number is in the log; of others only `append` finds out."""
        if isinstance(batch, str):
            return False
        if self._last is None:
            found = self._writer.last_batch(batch_name(self._job, 0)[:-1])
            self._last = number_of(None if found is None else found.batch_id)
        return batch <= self._last

    def append(self, rows: Sequence[Entry], batch: int | str) -> None:
        """Append a batch that the log has not, as far as `has` can tell."""
        if rows:
            self._writer.append(
                rows, batch_id=batch_name(self._job, batch), is_new=isinstance(batch, int)
            )
        if isinstance(batch, int):
            self._last = batch

    def close(self) -> None:
        """Close the connections."""
        self._writer.close()
