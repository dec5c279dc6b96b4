"""Micro-batches into a fenced log of Kafka, as long as the job's run may write, each one once.

A micro-batch is one append: whole and in the log once, by an id made of the job's name and Spark's
number of the batch. A job writes its batches in order, so whatever is not above the last one that
the log has of the job is in it already.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from coopconsume.errors import InvalidOption
from coopconsume.fenced.errors import (
    AppendOutcomeUnknown,
    BatchRefused,
    LogBlocked,
    LogUnavailable,
    ProducerFenced,
    SinkUnavailable,
)
from coopconsume.fenced.log import Entry
from coopconsume.fenced.writer import FencedWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from coopconsume.fenced.engine import Engine
    from coopconsume.fenced.log import Visibility

__all__ = ["FencedKafkaSink", "batch_name", "number_of"]

_JOB: Final = re.compile(r"[A-Za-z0-9._-]{1,40}")
_COLUMNS: Final = ("value", "key", "headers")
_ORIGIN: Final = ("_topic", "_partition", "_offset")


def batch_name(job: str, batch: int | str) -> str:
    """The id under which a batch is in the log: a number of Spark's, or a commit of this library.

    No number's id begins as a text's does, and no other job's as this one's.
    """
    return f"{job}:{batch}" if isinstance(batch, int) else f"{job}.{batch}"


def number_of(name: str | None) -> int:
    """The number in the id of a batch; -1 if there is none."""
    number = "" if name is None else name.rpartition(":")[2]
    return int(number) if number.isdecimal() else -1


class FencedKafkaSink:
    """A function for `foreachBatch`: appends each micro-batch to a log once, if its run may write.

    Of several runs of a job the one with the highest epoch writes. A zombie's batch is refused, and
    nothing of it is in the log, also when both write at once; a batch that is written again, as
    after a crash, is recognised by its number and passed over. It serves as ``output`` of this
    library's jobs, too; what such a job does again after a crash comes under another commit's id,
    and the header ``coopconsume.origin`` tells what is there twice.

    A batch is one append, and goes by way of the driver: bound it by ``maxOffsetsPerTrigger``. A
    checkpoint made anew numbers its batches from 0: give the job another name then.

    Example:
        >>> epoch = registry.own("jobs", {"orders": 1})["orders"].fence_epoch
        >>> sink = FencedKafkaSink(options, "orders-log", "orders", epoch)
        >>> stream.selectExpr("id as key", "to_json(struct(*)) as value").writeStream.foreachBatch(
        ...     sink
        ... ).start()

    Args:
        options: As for `FencedWriter`.
        topic: The topic; it must exist.
        job: Name of the job, the same for all of its runs: 1 to 40 letters, digits or ``._-``.
        epoch: The run's epoch, such as a `Grant.fence_epoch`, above those of all earlier runs and
            of other writers of the log; None: whoever comes last writes.
        partition: The partition.
        visibility: As for `FencedWriter`; in a filtered log a batch is one request at most.
        engine: As for `FencedWriter`; by its name, where Spark takes the sink to another process.
        timeout: Seconds that a batch may take, above 0.

    Raises:
        InvalidOption: The name or the epoch makes no sense.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        job: str,
        epoch: int | None = None,
        partition: int = 0,
        *,
        visibility: Visibility = "read_committed",
        engine: str | Engine = "kafka-python",
        timeout: float = 30.0,
    ) -> None:
        if _JOB.fullmatch(job) is None:
            raise InvalidOption("job", repr(job), "give 1 to 40 letters, digits or ._-")
        if epoch is not None and epoch < 1:
            raise InvalidOption("epoch", repr(epoch), "give a number above 0")
        self.topic, self.partition, self.job, self.epoch = topic, partition, job, epoch
        self._options = dict(options)
        self._more: dict[str, Any] = {
            "visibility": visibility, "engine": engine, "timeout": timeout, "owner": job
        }  # fmt: skip
        if epoch is not None:
            self._more |= {"session": f"{job}:{epoch}", "epoch": epoch}
        self._writer: FencedWriter | None = None
        self._last: int | None = None
        self._lock = threading.Lock()

    def __call__(self, batch: DataFrame, batch_id: int | str) -> None:
        """Append a micro-batch.

        Args:
            batch: The rows, in columns as Spark's Kafka sink has them: ``value``, and if wanted
                ``key`` (text or bytes) and ``headers``; others are left out.
            batch_id: Spark's number of it, or the id of one of this library's commits.

        Raises:
            BatchRefused: Another run writes now: this one writes nothing any more.
            SinkUnavailable: It could not be written, or that is not known; call again.
            AppendRefused: A row makes no record, or the batch is too large for the log.
            InvalidOption: There is no column ``value``; or of the sink's options.
            EngineNotUsable, LogReplaced, LogCorrupt, NotAuthorized: As for `FencedWriter`.
        """
        with self._lock:
            try:
                self._append(batch, batch_id)
            except ProducerFenced as error:
                epoch, current = error.epoch, error.current or error.epoch
                raise BatchRefused(self._place, self.job, epoch, current, batch_id) from error
            except (LogUnavailable, LogBlocked, AppendOutcomeUnknown) as error:
                raise SinkUnavailable(self._place, self.job, str(error)) from error

    def _append(self, batch: DataFrame, batch_id: int | str) -> None:
        writer = self._open()
        # A run that is over has to hear of it with every batch, also with one that is there.
        writer.refresh()
        if isinstance(batch_id, int):
            if self._last is None:
                found = writer.last_batch(batch_name(self.job, 0)[:-1])
                self._last = number_of(None if found is None else found.batch_id)
            if batch_id <= self._last:
                return
        rows = entries_of(batch)
        if rows:
            writer.append(rows, batch_id=batch_name(self.job, batch_id))
        if isinstance(batch_id, int):
            self._last = batch_id

    def _open(self) -> FencedWriter:
        if self._writer is None:
            self._writer = FencedWriter(
                self._options, self.topic, self.partition, **self._more
            )  # fmt: skip
        return self._writer if self._writer.is_open else self._writer.acquire()

    @property
    def _place(self) -> str:
        return f"{self.topic}-{self.partition}"

    def close(self) -> None:
        """Close the connections; for good, and harmless when repeated."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()

    def __enter__(self) -> Self:
        """Returns the sink."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """What goes along to where Spark calls it: all but connections."""
        return vars(self) | {"_writer": None, "_last": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The reverse."""
        vars(self).update(state)
        self._lock = threading.Lock()


def entries_of(batch: DataFrame) -> list[Entry]:
    """The records of a micro-batch, in the order of its rows.

    Raises:
        InvalidOption: It has no column ``value``.
    """
    from coopconsume.sinks.topic import ORIGIN_HEADER

    if "value" not in batch.columns:
        raise InvalidOption("batch", f"columns {batch.columns}", "give a column value")
    wanted = [name for name in (*_COLUMNS, *_ORIGIN) if name in batch.columns]
    comes_from = set(_ORIGIN) <= set(wanted)
    rows = []
    for row in batch.select(*wanted).toArrow().to_pylist():
        headers = [(each["key"], each["value"] or b"") for each in row.get("headers") or ()]
        if comes_from:
            origin = f"{row['_topic']}-{row['_partition']}@{row['_offset']}"
            headers.append((ORIGIN_HEADER, origin.encode()))
        rows.append(Entry(_bytes(row["value"]), _bytes(row.get("key")), headers))
    return rows


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
