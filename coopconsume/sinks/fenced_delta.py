"""Micro-batches into a Delta table, as long as the job's epoch is in force, each one once.

Delta keeps one number for each application that writes to a table (`txnAppId`, `txnVersion`), skips
silently what comes with an equal or lower one, and lets only one of two writers go on that change
the same application's number at once. Here that number is the epoch before the batch, so a job of
an earlier epoch is refused whatever it does; and as skipping is silent, the number is read back.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from commits.secrets import message_of
from commits.table_notes import notes_after
from coopconsume.classic import stream_id
from coopconsume.errors.fenced import BatchRefused, CheckpointReplaced, SinkUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame


_BATCHES: Final = 1 << 40
_EPOCHS: Final = 1 << 23  # both together are what a Delta version may be
_TRIES: Final = 20


@dataclass(frozen=True, order=True)
class SinkProgress:
    """What a table knows of a job: the epoch in force (0: none), and the number of its batches."""

    epoch: int = 0
    batches: int = 0

    @classmethod
    def of(cls, version: int | None) -> SinkProgress:
        """The mark that a `txnVersion` stands for."""
        return cls(*divmod(version or 0, _BATCHES))

    @property
    def version(self) -> int:
        """As a `txnVersion`: of two marks the later one has the greater."""
        return self.epoch * _BATCHES + self.batches


def decide(found: SinkProgress, epoch: int, batch: int) -> SinkProgress | None:
    """Returns the mark that a job has to write for a batch, by what the table knows of the job.

    With the same number of batches the mark opens an epoch, without rows. It is the mark that was
    found if the table has the batch, and None if the job's epoch is over.
    """
    if found.epoch > epoch:
        return None
    if found.epoch < epoch:
        # What is in the table may only be asked when earlier epochs cannot add to it any more.
        return SinkProgress(epoch, found.batches)
    return found if batch < found.batches else SinkProgress(epoch, batch + 1)


#: Delta's errors of writers that were in each other's way: of no common base.
_CONFLICT: Final = r"(Concurrent\w+|MetadataChanged|ProtocolChanged)Exception"


class FencedDeltaSink:
    """A function for `foreachBatch`: appends each micro-batch once, if the job's epoch is in force.

    Of several runs of a job the one with the highest epoch writes; a zombie's batch is refused
    before it is in the table, also when both write at once. The first batch under a new epoch
    opens it, by a commit without rows. Spark must write to the table by a path.

    A checkpoint that was created again numbers its batches from 0: they are refused. Give the job
    another name then. If the table has one batch only, the id of the stream that wrote it decides:
    that commit's ``userMetadata`` has it, as long as Delta keeps its history.

    Example:
        >>> epoch = registry.own("jobs", {"orders": 1})["orders"].fence_epoch
        >>> sink = FencedDeltaSink("/data/orders", "orders", epoch)
        >>> stream.writeStream.foreachBatch(sink).start()

    Args:
        path: Path or URI of the table; made by the first batch.
        job: Name of the job: the same for all of its runs, and of nobody else who writes there.
        epoch: The run's epoch, such as a `Grant.fence_epoch`: from 1 to 8,388,607.
        storage_options: For reading the table's marks from an object store.

    Raises:
        ValueError: If the epoch is out of range, or the name is empty.
    """

    def __init__(
        self, path: str, job: str, epoch: int, storage_options: Mapping[str, str] | None = None
    ) -> None:
        if not 1 <= epoch < _EPOCHS:
            raise ValueError(f"epoch must be from 1 to {_EPOCHS - 1}, not {epoch}")
        if not job:
            raise ValueError("job must have a name")
        self.path, self.job, self.epoch = str(path), job, epoch
        self._app = f"coopconsume.fenced.{job}"
        self._options = dict(storage_options) if storage_options else None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Writes a micro-batch, which has Spark's number ``batch_id``.

        Raises:
            BatchRefused: The job's epoch is over: this run writes nothing any more.
            CheckpointReplaced: The table has this batch and later ones. A stream repeats no more
                than its last batch, so this is another checkpoint.
            SinkUnavailable: It could not be written; call again.
        """
        problem = "others kept writing to it"
        for _ in range(_TRIES):
            found = self.mark()
            mark = decide(found, self.epoch, batch_id)
            if mark is None:
                raise BatchRefused(self.path, self.job, self.epoch, found.epoch, batch_id)
            if batch_id < found.batches - 1:
                raise CheckpointReplaced(self.path, self.job, batch_id, found.batches)
            if mark == found:
                if batch_id == 0:
                    self._check_stream(batch)
                return
            rows = batch if mark.batches > found.batches else batch.limit(0)
            try:
                self._append(rows, mark)
            except Exception as error:
                if not is_conflict(error):
                    raise
                problem = message_of(error)[:500]
        raise SinkUnavailable(self.path, self.job, problem)

    def mark(self) -> SinkProgress:
        """What the table knows of the job now; `SinkUnavailable` if it cannot be read."""
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return SinkProgress.of(self._table().transaction_version(self._app))
        except TableNotFoundError:
            return SinkProgress()
        except (DeltaError, OSError) as error:
            raise SinkUnavailable(self.path, self.job, message_of(error)[:500]) from error

    def _table(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.path, storage_options=self._options)

    def _append(self, rows: DataFrame, mark: SinkProgress) -> None:
        options: dict[str, str | int] = {"txnAppId": self._app, "txnVersion": mark.version}
        if mark.batches == 1:  # the first batch, or an epoch opened behind it
            options["userMetadata"] = json.dumps({self._app: stream_id(rows.sparkSession)})
        rows.write.format("delta").mode("append").options(**options).save(self.path)

    def _check_stream(self, batch: DataFrame) -> None:
        first, this = self._first_stream(), stream_id(batch.sparkSession)
        if first is not None and this is not None and first != this:
            raise CheckpointReplaced(self.path, self.job, 0, 1)

    def _first_stream(self) -> str | None:
        """The id of the stream that wrote batch 0; None if the table does not have it."""
        from deltalake.exceptions import DeltaError

        try:
            notes = notes_after(-1, self.path, self._options).values()
        except (DeltaError, OSError) as error:
            raise SinkUnavailable(self.path, self.job, message_of(error)[:500]) from error
        found = (words.get(self._app) for words in notes)
        return next((stream for stream in found if stream is not None), None)


def is_conflict(error: Exception) -> bool:
    """Whether Delta says that somebody else wrote at the same time.

    Its package for Python makes classes of these errors; without it they are PySpark's, with the
    name of Delta's class in the text.
    """
    named = re.fullmatch(_CONFLICT, type(error).__name__)
    return bool(named or re.search(rf"io\.delta\.exceptions\.{_CONFLICT}", str(error)))
