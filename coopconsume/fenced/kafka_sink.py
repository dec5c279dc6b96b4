"""Micro-batches into a fenced log of Kafka, as long as the job's run may write, each one once.

A micro-batch is one append: whole and in the log once, by an id made of the job's name and Spark's
number of the batch. A job writes its batches in order, so whatever is not above the last one that
the log has of the job is in it already.
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from coopconsume.closing import Closing
from coopconsume.errors import InvalidOption
from coopconsume.errors.fenced import (
    AppendOutcomeUnknown,
    BatchRefused,
    LogBlocked,
    LogUnavailable,
    ProducerFenced,
    SinkUnavailable,
)
from coopconsume.fenced.batch_rows import entries_of
from coopconsume.fenced.job_log import JobLog, JobLogs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from coopconsume.fenced.engine import Engine
    from coopconsume.fenced.log import Visibility


_JOB: Final = re.compile(r"[A-Za-z0-9._-]{1,40}")


class FencedKafkaSink(Closing):
    """A function for `foreachBatch`: appends each micro-batch to a log once, if its run may write.

    Of several runs of a job the one with the highest epoch writes. A zombie's batch is refused, and
    nothing of it is in the log, also when both write at once; a batch that is written again, as
    after a crash, is recognised by its number and passed over. It serves as ``output`` of this
    library's jobs, too; what such a job does again after a crash comes under another commit's id,
    and the header ``coopconsume.origin`` shows duplicates.

    A batch goes by way of the driver: bound it by ``maxOffsetsPerTrigger``. It is one append, also
    to several partitions, each a log of its own: one transaction has it in all of them
    or in none. With ``visibility="filter"`` it is one append for each partition: after a crash in
    the middle some have the batch, until it is written again and the others get theirs. A
    checkpoint that was created again numbers its batches from 0: give the job another name then.

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
            of other writers of the log; None: the last one to acquire it writes.
        partition: The partition, or several, the same for all runs of the job; it takes all of them
            with the first batch.
        visibility: As for `FencedWriter`; in a filtered log a batch is one request at most.
        engine: As for `FencedWriter`; by its name, where Spark takes the sink to another process.
        timeout: Seconds that a batch may take, above 0.

    Raises:
        InvalidOption: The name, the epoch or the partitions make no sense.
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
        engine: str | Engine = "kafka-python",
        timeout: float = 30.0,
    ) -> None:
        if _JOB.fullmatch(job) is None:
            raise InvalidOption("job", repr(job), "give 1 to 40 letters, digits or ._-")
        if epoch is not None and epoch < 1:
            raise InvalidOption("epoch", repr(epoch), "give a number above 0")
        chosen = (partition,) if isinstance(partition, int) else tuple(sorted(partition))
        if not chosen or chosen[0] < 0 or len(set(chosen)) < len(chosen):
            remedy = "give a number from 0, or several, each once"
            raise InvalidOption("partition", repr(partition), remedy)
        self.topic, self.partitions, self.job, self.epoch = topic, chosen, job, epoch
        self._options = dict(options)
        self._more: dict[str, Any] = {
            "visibility": visibility, "engine": engine, "timeout": timeout, "owner": job,
            "fence_owner": True,
        }  # fmt: skip
        if epoch is not None:
            self._more |= {"session": f"{job}:{epoch}", "epoch": epoch}
        self._targets: list[JobLog | JobLogs] = []
        self._lock = threading.Lock()

    def __call__(self, batch: DataFrame, batch_id: int | str) -> None:
        """Append a micro-batch.

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
        with self._lock:
            # A run that is over has to learn it from every batch, also from one that is there; and
            # the owner of the first log has the others, before either writes.
            left: list[JobLog | JobLogs] = []
            for target in self._all_targets():
                with self._refusing(target, batch_id):
                    target.open()
                    left += [] if target.has(batch_id) else [target]
            rows = entries_of(batch, self.partitions) if left else {}
            for target in left:
                with self._refusing(target, batch_id):
                    target.append({p: rows[p] for p in target.partitions if p in rows}, batch_id)

    @contextmanager
    def _refusing(self, target: JobLog | JobLogs, batch_id: int | str) -> Iterator[None]:
        several = len(target.partitions) > 1
        place = self.topic if several else f"{self.topic}-{target.partitions[0]}"
        try:
            yield
        except ProducerFenced as error:
            epoch, current = error.epoch, error.current or error.epoch
            raise BatchRefused(place, self.job, epoch, current, batch_id) from error
        except (LogUnavailable, LogBlocked, AppendOutcomeUnknown) as error:
            raise SinkUnavailable(place, self.job, str(error)) from error

    def _all_targets(self) -> list[JobLog | JobLogs]:
        if not self._targets:
            where = self._options, self.topic
            if len(self.partitions) > 1 and self._more["visibility"] == "read_committed":
                self._targets = [JobLogs(*where, self.partitions, self.job, self._more)]
            else:
                self._targets = [JobLog(*where, p, self.job, self._more) for p in self.partitions]
        return self._targets

    def close(self) -> None:
        """Closes the connections; the sink cannot be used again. Harmless when repeated."""
        with self._lock:
            for target in self._targets:
                target.close()

    def __getstate__(self) -> dict[str, Any]:
        """What goes along to where Spark calls it: all but connections."""
        return vars(self) | {"_targets": [], "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The reverse."""
        vars(self).update(state)
        self._lock = threading.Lock()
