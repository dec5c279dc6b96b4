"""Micro-batches into a fenced log of Kafka, as long as the job's run may write, each one once.

A micro-batch is one append: whole and in the log once, by an id made of the job's name and Spark's
number of the batch. A job writes its batches in order, so whatever is not above the last one that
the log has of the job is in it already.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from coopconsume.closing import Closing
from coopconsume.errors import InvalidOption
from coopconsume.errors.fenced import (
    AppendOutcomeUnknown,
    AppendRefused,
    BatchRefused,
    LogBlocked,
    LogUnavailable,
    ProducerFenced,
    SinkUnavailable,
)
from coopconsume.fenced.config import check_name
from coopconsume.fenced.log import Entry
from coopconsume.fenced.multi import MultiLogWriter, Write
from coopconsume.fenced.writer_config import WriterConfig
from coopconsume.kafka.partitioner import default_partition
from coopconsume.sinks.base import as_bytes, origin_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from coopconsume.fenced.kafka_engine import Engine
    from coopconsume.fenced.stamp import Visibility


_COLUMNS: Final = ("value", "key", "headers", "partition")
_ORIGIN: Final = ("_topic", "_partition", "_offset")


class FencedKafkaSink(Closing):
    """A function for `foreachBatch`: appends each micro-batch to a log once, if its run may write.

    Of several runs of a job the one with the highest epoch writes. A zombie's batch is refused, and
    nothing of it is in the log, also when both write at once; a batch that is written again, as
    after a crash, is recognised by its number and passed over. It serves as ``output`` of this
    library's jobs, too; what such a job does again after a crash comes under another commit's id,
    and the header ``coopconsume.origin`` shows duplicates.

    A batch goes by way of the driver: bound it by ``maxOffsetsPerTrigger``. It is one append, also
    to several partitions, each a log of its own: all of them have it or none. With
    ``visibility="filter"`` it is one append for each partition: after a crash in the middle some
    have the batch, until it is written again. A checkpoint that was created again numbers its
    batches from 0: give the job another name then.

    Example:
        >>> epoch = registry.own("jobs", {"orders": 1})["orders"].fence_epoch
        >>> sink = FencedKafkaSink(options, "orders-log", "orders", epoch)
        >>> stream.selectExpr("id as key", "to_json(struct(*)) as value").writeStream.foreachBatch(
        ...     sink
        ... ).start()

    Args:
        options, topic: As for `FencedWriter`.
        job: Name of the job, the same for all of its runs: 1 to 40 letters, digits or ``._-``.
        epoch: The run's epoch, such as a `Grant.fence_epoch`, above those of all earlier runs and
            of other writers of the log; None: the last one to acquire it writes.
        partition: The partition, or several, the same for all runs of the job; it takes all of them
            with the first batch.
        visibility: As for `FencedWriter`; in a filtered log a batch is one request at most.
        engine: As for `FencedWriter`; by its name, where Spark takes the sink to another process.
        timeout: Seconds that a batch may take, above 0.

    Raises:
        InvalidOption: An argument makes no sense.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        job: str,
        epoch: int | None = None,
        partition: int | Sequence[int] = 0,
        *,
        visibility: Visibility = "read_committed",
        engine: str | Engine | None = None,
        timeout: float = 30.0,
    ) -> None:
        check_name("job", job)
        chosen = (partition,) if isinstance(partition, int) else tuple(sorted(partition))
        if not chosen or chosen[0] < 0 or len(set(chosen)) < len(chosen):
            remedy = "give a number from 0, or several, each once"
            raise InvalidOption("partition", repr(partition), remedy)
        self.topic, self.partitions, self.job, self.epoch = topic, chosen, job, epoch
        self._options = dict(options)
        self._how: dict[str, Any] = {
            "visibility": visibility, "engine": engine, "timeout": timeout, "owner": job,
            "shared": False, "fence_owner": True,
        }  # fmt: skip
        if epoch is not None:
            self._how |= {"session": f"{job}:{epoch}", "epoch": epoch}
        WriterConfig(**self._how)
        #: Each has the partitions of one append.
        self._writers: dict[tuple[int, ...], MultiLogWriter] = {}
        #: Number of the last batch of the job that their logs have, as far as known.
        self._last: dict[tuple[int, ...], int] = {}
        self._lock = threading.Lock()

    def __call__(self, batch: DataFrame, batch_id: int | str) -> None:
        """Appends a micro-batch.

        Args:
            batch: The rows, in columns as Spark's Kafka sink has them: ``value``, and if wanted
                ``key`` (text or bytes) and ``headers``; others are left out. Of several partitions
                a row gets the one in its column ``partition``, else one by its key.
            batch_id: Spark's number of it, or the id of one of this library's commits.

        Raises:
            BatchRefused: Another run writes now: this one writes nothing any more.
            SinkUnavailable: It could not be written, or that is not known; call again.
            AppendRefused: A row makes no record, or the batch is too large for the log.
            InvalidOption: There is no column ``value``; or of the sink's options.
            EngineNotUsable, LogReplaced, LogCorrupt, NotAuthorized: As for `FencedWriter`.
        """
        with self._lock, self._refusing(batch_id):
            # A run that is over has to learn it from every batch, also from one that is there; and
            # the owner of the first log has the others, before either writes.
            self._open()
            left = [some for some in self._writers if not self._has(some, batch_id)]
            rows = entries_of(batch, self.partitions) if left else {}
            name, is_new = batch_name(self.job, batch_id), isinstance(batch_id, int)
            for some in left:
                writes = {(self.topic, p): Write(rows[p]) for p in some if p in rows}
                if writes:
                    self._writers[some].append(writes, batch_id=name, is_new=is_new)
                if isinstance(batch_id, int):
                    self._last[some] = batch_id

    @contextmanager
    def _refusing(self, batch_id: int | str) -> Iterator[None]:
        try:
            yield
        except ProducerFenced as error:
            place, current = f"{error.topic}-{error.partition}", error.current or error.epoch
            raise BatchRefused(place, self.job, error.epoch, current, batch_id) from error
        except (LogUnavailable, LogBlocked, AppendOutcomeUnknown) as error:
            place = f"{error.topic}-{error.partition}"
            raise SinkUnavailable(place, self.job, str(error)) from error

    def _open(self) -> None:
        """Takes the logs, or finds out whether another run has one of them by now."""
        if not self._writers:
            is_one = self._how["visibility"] == "read_committed"
            self._writers = {
                some: MultiLogWriter(self._options, [(self.topic, p) for p in some], **self._how)
                for some in ([self.partitions] if is_one else [(p,) for p in self.partitions])
            }
        for writer in self._writers.values():
            writer.acquire()
            writer.refresh()

    def _has(self, partitions: tuple[int, ...], batch: int | str) -> bool:
        """Whether a batch that has a number is there; of others only an append finds out."""
        if isinstance(batch, str):
            return False
        if partitions not in self._last:
            writer, prefix = self._writers[partitions], f"{self.job}:"
            found = [writer.last_batch(self.topic, p, prefix) for p in partitions]
            names = [None if last is None else last.batch_id for last in found]
            self._last[partitions] = max(map(number_of, names))
        return batch <= self._last[partitions]

    def close(self) -> None:
        """Closes the connections; the sink cannot be used again. Harmless when repeated."""
        with self._lock:
            for writer in self._writers.values():
                writer.close()

    def __getstate__(self) -> dict[str, Any]:  # all but connections
        return vars(self) | {"_writers": {}, "_last": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()


def batch_name(job: str, batch: int | str) -> str:
    """The id of a batch in the log; no number's begins as a text's, no job's as another's."""
    return f"{job}:{batch}" if isinstance(batch, int) else f"{job}.{batch}"


def number_of(name: str | None) -> int:
    """The number in the id of a batch; -1 for no number."""
    number = (name or "").rpartition(":")[2]
    return int(number) if number.isdecimal() else -1


def entries_of(batch: DataFrame, partitions: Sequence[int]) -> dict[int, list[Entry]]:
    """The records of a micro-batch for each partition, in the order of its rows.

    A key chooses a partition as in Kafka's producers (murmur2); without a key, the value does, so
    that a batch that is written again is dealt again in the same way.
    """
    if "value" not in batch.columns:
        raise InvalidOption("batch", f"columns {batch.columns}", "give a column value")
    wanted = [name for name in (*_COLUMNS, *_ORIGIN) if name in batch.columns]
    comes_from = set(_ORIGIN) <= set(wanted)
    found: dict[int, list[Entry]] = {}
    for row in batch.select(*wanted).toArrow().to_pylist():
        headers = [(each["key"], each["value"] or b"") for each in row.get("headers") or ()]
        if comes_from:
            headers.append(origin_header(row))
        entry = Entry(as_bytes(row["value"]), as_bytes(row.get("key")), headers)
        found.setdefault(_partition_of(entry, row, partitions), []).append(entry)
    return found


def _partition_of(entry: Entry, row: Mapping[str, Any], partitions: Sequence[int]) -> int:
    if len(partitions) == 1:
        return partitions[0]
    named: int | None = row.get("partition")
    if named is None:
        chosen = entry.key if entry.key is not None else entry.value or b""
        return partitions[default_partition(chosen, len(partitions))]
    if named not in partitions:
        raise AppendRefused(f"a row is for partition {named}; the sink writes to {partitions}")
    return named
