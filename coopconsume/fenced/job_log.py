"""Fenced logs as the runs of a job write them: each micro-batch once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.fenced.epochs import EpochSource
from coopconsume.fenced.multi import MultiLogWriter, Write
from coopconsume.fenced.writer import FencedWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.fenced.log import Entry, LogId


def batch_name(job: str, batch: int | str) -> str:
    """The id under which a batch is in the log: a number of Spark's, or a commit of this library.

    No number's id begins as a text's does, and no other job's as this one's.
    """
    return f"{job}:{batch}" if isinstance(batch, int) else f"{job}.{batch}"


def number_of(name: str | None) -> int:
    """The number in the id of a batch; -1 for no number."""
    number = "" if name is None else name.rpartition(":")[2]
    return int(number) if number.isdecimal() else -1


def _last_number(writer: FencedWriter, job: str) -> int:
    """Number of the last batch of a job that a log has; -1 if it has none."""
    found = writer.last_batch(batch_name(job, 0)[:-1])
    return number_of(None if found is None else found.batch_id)


class JobLog:
    """A log, as one run of a job writes it. Methods fail as those of `FencedWriter` do."""

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        partition: int,
        job: str,
        more: Mapping[str, Any],
    ) -> None:
        self._writer = FencedWriter(options, topic, partition, **more)
        self.partitions = (partition,)
        self._job = job
        self._last: int | None = None

    def open(self) -> None:
        """Takes the log, or finds out whether another run has it by now."""
        if not self._writer.is_open:
            self._writer.acquire()
        self._writer.refresh()

    def has(self, batch: int | str) -> bool:
        """Whether a batch that has a number is there; of others only `append` finds out."""
        if isinstance(batch, str):
            return False
        if self._last is None:
            self._last = _last_number(self._writer, self._job)
        return batch <= self._last

    def append(self, rows: Mapping[int, Sequence[Entry]], batch: int | str) -> None:
        """Appends the rows of a batch for which `has` is False."""
        is_new = isinstance(batch, int)
        for some in rows.values():
            self._writer.append(some, batch_id=batch_name(self._job, batch), is_new=is_new)
        if isinstance(batch, int):
            self._last = batch

    def close(self) -> None:
        """Closes the connections."""
        self._writer.close()


class JobLogs:
    """Several logs, as one run of a job writes them: a batch to all of them or to none.

    A `FencedWriter` takes each log; then a `MultiLogWriter` writes in their place.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        partitions: Sequence[int],
        job: str,
        more: Mapping[str, Any],
    ) -> None:
        self.partitions = partitions
        self._topic, self._job = topic, job
        self._owners = {p: FencedWriter(options, topic, p, **more) for p in partitions}
        self._writer = MultiLogWriter(
            options, [(topic, p) for p in partitions], epochs=_Owned(self._owners),
            engine=more["engine"], timeout=more["timeout"],
        )  # fmt: skip
        self._is_open = False
        self._last = -1

    def open(self) -> None:
        """Takes the logs, or finds out whether another run has one of them by now."""
        if self._is_open:
            self._writer.refresh()
            return
        for owner in self._owners.values():
            owner.acquire()
        self._writer.acquire()
        self._last = max(_last_number(owner, self._job) for owner in self._owners.values())
        self._is_open = True
        for owner in self._owners.values():
            owner.close()

    def has(self, batch: int | str) -> bool:
        """Whether a batch that has a number is there; of others only `append` finds out."""
        return isinstance(batch, int) and batch <= self._last

    def append(self, rows: Mapping[int, Sequence[Entry]], batch: int | str) -> None:
        """Appends the rows of a batch for which `has` is False."""
        writes = {(self._topic, partition): Write(some) for partition, some in rows.items()}
        if writes:
            is_new = isinstance(batch, int)
            self._writer.append(writes, batch_id=batch_name(self._job, batch), is_new=is_new)
        if isinstance(batch, int):
            self._last = batch

    def close(self) -> None:
        """Closes the connections."""
        for owner in self._owners.values():
            owner.close()
        self._writer.close()


class _Owned(EpochSource):
    """Asks the owner of each log whether the log is still its own."""

    def __init__(self, owners: Mapping[int, FencedWriter]) -> None:
        self._owners = owners

    def join(self, log: LogId) -> None:
        """Raises `ProducerFenced` if the log has another owner."""
        self._owners[log.partition].refresh()
