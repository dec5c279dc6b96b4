"""Errors of the fenced writer.

Two words of Pulsar's PIP-68 are kept apart: `ProducerFenced` is for good, `ProducerBusy` for now.
"""

from __future__ import annotations

from coopconsume.errors.base import CoopConsumeError


class FencedLogError(CoopConsumeError):
    """Base of every error of fenced logs.

    Attributes:
        retriable: Whether the same call, made again unchanged, may succeed.
    """


class _LogError(FencedLogError):
    """What is about one log, a partition of a topic."""

    def __init__(self, topic: str, partition: int, *more: object) -> None:
        super().__init__(topic, partition, *more)
        self.topic = topic
        self.partition = partition

    @property
    def _log(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetMismatch(_LogError):
    """The log goes on elsewhere than was expected: nothing of the append is in it (KIP-27).

    Attributes:
        topic: The topic.
        partition: The partition.
        expected: The number that was expected of the first record that is wrong.
        actual: What it is instead: of an offset the next offset, of a sequence the next sequence
            number; None if the log could not be asked any more.
        by: What was compared: ``offset`` or ``sequence``.
        next_offset: Offset that the next record would get, as far as known; else None.
        next_seq: Sequence number that the next record would get, as far as known; else None.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        expected: int,
        actual: int | None,
        by: str = "offset",
        next_offset: int | None = None,
        next_seq: int | None = None,
    ) -> None:
        super().__init__(topic, partition, expected, actual, by, next_offset, next_seq)
        self.expected = expected
        self.actual = actual
        self.by = by
        self.next_offset = next_offset
        self.next_seq = next_seq

    def __str__(self) -> str:
        return (
            f"nothing was appended to {self._log}: expected {self.by} {self.expected}, but next is "
            f"{_known(self.actual)} (offset {_known(self.next_offset)}, sequence "
            f"{_known(self.next_seq)}). Read what was written meanwhile, and decide again"
        )


class ProducerFenced(_LogError):
    """Another owner has taken the log; this writer will never write to it again.

    What it was writing when it learnt this is not in the log.

    Attributes:
        topic: The topic.
        partition: The partition.
        epoch: The fence epoch of this writer; 0 if it had none yet.
        current: The epoch in force, as far as known; else None.
        owner: Who has the log now, as far as known.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        epoch: int = 0,
        current: int | None = None,
        owner: str | None = None,
    ) -> None:
        super().__init__(topic, partition, epoch, current, owner)
        self.epoch = epoch
        self.current = current
        self.owner = owner

    def __str__(self) -> str:
        by = "another owner" if self.owner is None else repr(self.owner)
        return (
            f"the writer of {self._log} with epoch {self.epoch} is fenced by {by} (epoch "
            f"{_known(self.current)}), for good: read the log and acquire it by a new writer, or "
            "stop"
        )


class ProducerBusy(_LogError):
    """Somebody holds the log, or waits for it before you: refused for now.

    Attributes:
        topic: The topic.
        partition: The partition.
        owner: Who holds it or waits first, as far as known.
        reason: Why, in words.
    """

    retriable = True

    def __init__(
        self, topic: str, partition: int, owner: str | None = None, reason: str = "it is held"
    ) -> None:
        super().__init__(topic, partition, owner, reason)
        self.owner = owner
        self.reason = reason

    def __str__(self) -> str:
        who = "" if self.owner is None else f" by {self.owner!r}"
        return f"{self._log} is not to be had now: {self.reason}{who}. Try again later, or wait"


class StaleGeneration(FencedLogError):
    """A claim names a lower generation than the one in force; nothing was changed.

    Attributes:
        group: The group that was claimed for.
        resource: The resource.
        claimed: The generation that was claimed.
        current: The generation in force.
        refused: Where several resources were claimed, both generations of each that was refused.
    """

    def __init__(
        self,
        group: str,
        resource: str,
        claimed: int,
        current: int,
        refused: dict[str, tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(group, resource, claimed, current, refused)
        self.refused = refused or {resource: (claimed, current)}
        self.group = group
        self.resource = resource
        self.claimed = claimed
        self.current = current

    def __str__(self) -> str:
        more = f" (and {len(self.refused) - 1} more)" if len(self.refused) > 1 else ""
        return (
            f"{self.resource!r} of group {self.group!r} is at generation {self.current}, claimed "
            f"was {self.claimed}{more}; nothing was changed. Claim {self.current} or above, or 0 "
            "to start over"
        )


class LogBlocked(_LogError):
    """A transaction stays open, so that what lies above it cannot be read or decided.

    Attributes:
        topic: The topic.
        partition: The partition.
        stable: The last stable offset, where the transaction begins.
        end: The end of the log (its high watermark).
        producers: Ids of the producers with an open transaction, as far as known.
    """

    retriable = True

    def __init__(
        self, topic: str, partition: int, stable: int, end: int, producers: tuple[int, ...] = ()
    ) -> None:
        super().__init__(topic, partition, stable, end, producers)
        self.stable = stable
        self.end = end
        self.producers = producers

    def __str__(self) -> str:
        ids = ", ".join(map(str, self.producers)) or "not known"
        return (
            f"{self._log} is blocked at offset {self.stable} of {self.end} by an open transaction "
            f"(producer ids: {ids}). It ends by its timeout; `coopconsume log blocked {self.topic}`"
            " tells more, and how to end it"
        )


class LogReplaced(_LogError):
    """The topic was deleted and made anew: this is another log under the same name.

    Attributes:
        topic: The topic.
        partition: The partition.
        expected: Id of the topic that is meant.
        found: Id of the topic that is there; None if there is none.
    """

    def __init__(self, topic: str, partition: int, expected: str, found: str | None) -> None:
        super().__init__(topic, partition, expected, found)
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        if self.found is None:
            return f"{self._log}: there is no topic {self.topic!r}. Check its name, or create it"
        return (
            f"{self._log} is another log than before: topic id {_known(self.found)}, expected "
            f"{self.expected}. If it was meant to be made anew, use a new writer"
        )


class LogTruncated(_LogError):
    """Retention has removed records that a reader has not read yet.

    Attributes:
        topic: The topic.
        partition: The partition.
        expected: Offset from which on records were to be read.
        start: The first offset that is kept.
    """

    def __init__(self, topic: str, partition: int, expected: int, start: int) -> None:
        super().__init__(topic, partition, expected, start)
        self.expected = expected
        self.start = start

    def __str__(self) -> str:
        return (
            f"offsets {self.expected} to {self.start - 1} of {self._log} are gone before they were "
            f"read: retention keeps records from offset {self.start} on. Begin again from a copy "
            f"of the state at offset {self.start} or above, with a new reader, and let the topic "
            "keep records longer"
        )


class AppendOutcomeUnknown(_LogError):
    """Whether a batch is in the log could not be found out in time; it will be all or nothing.

    Attributes:
        topic: The topic.
        partition: The partition.
        batch_id: Id of the batch, for `FencedWriter.resolve`.
        offset: The batch is at this offset or above, if at all.
        problem: What went wrong.
    """

    def __init__(
        self, topic: str, partition: int, batch_id: str, offset: int, problem: str
    ) -> None:
        super().__init__(topic, partition, batch_id, offset, problem)
        self.batch_id = batch_id
        self.offset = offset
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"whether batch {self.batch_id} is in {self._log} (at offset {self.offset} or above) "
            f"is not known: {self.problem}. Ask by resolve(batch_id), or append it again with the "
            "same batch_id"
        )


class LogUnavailable(_LogError):
    """The log could not be reached or used in time; nothing was appended.

    Attributes:
        topic: The topic.
        partition: The partition.
        operation: What was tried.
        problem: What went wrong.
    """

    retriable = True

    def __init__(self, topic: str, partition: int, operation: str, problem: str) -> None:
        super().__init__(topic, partition, operation, problem)
        self.operation = operation
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.operation} of {self._log} failed: {self.problem}. Try again later"


class LogCorrupt(_LogError):
    """A log breaks the rules that its writers keep.

    Attributes:
        topic: The topic.
        partition: The partition.
        offset: Where.
        problem: What is wrong.
    """

    def __init__(self, topic: str, partition: int, offset: int, problem: str) -> None:
        super().__init__(topic, partition, offset, problem)
        self.offset = offset
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"{self._log} is not what fenced writers write, at offset {self.offset}: "
            f"{self.problem}. Find out who else writes to it; `coopconsume log audit {self.topic}` "
            "tells all"
        )


class AppendRefused(FencedLogError, ValueError):
    """An append that makes no sense; nothing was sent.

    Attributes:
        reason: Why, and what to do.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class WriterNotOpen(_LogError):
    """A writer was used before `acquire`, or after `close`.

    Attributes:
        topic: The topic.
        partition: The partition.
        state: What it is instead of open.
    """

    def __init__(self, topic: str, partition: int, state: str) -> None:
        super().__init__(topic, partition, state)
        self.state = state

    def __str__(self) -> str:
        return f"the writer of {self._log} is {self.state}: acquire the log first"


class EngineNotUsable(FencedLogError):
    """The Kafka client that was to write cannot be used.

    Attributes:
        engine: Its name.
        reason: Why, and what to do.
    """

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(engine, reason)
        self.engine = engine
        self.reason = reason

    def __str__(self) -> str:
        return f"engine {self.engine!r} cannot be used: {self.reason}"


class OwnershipUnavailable(FencedLogError):
    """The place that keeps who owns what cannot be reached; whether it was changed is not known.

    Attributes:
        place: The Delta table or the Kafka log.
        operation: What was tried.
        problem: What went wrong.
    """

    retriable = True

    def __init__(self, place: str, operation: str, problem: str) -> None:
        super().__init__(place, operation, problem)
        self.place = place
        self.operation = operation
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"{self.operation} of the ownership store {self.place} failed: {self.problem}. "
            "Try again later; what was asked for may have been granted"
        )


class OwnershipFormat(FencedLogError):
    """The place that should keep who owns what holds something else.

    Attributes:
        place: The Delta table or the Kafka log.
        found: What is there.
        expected: What should be there.
    """

    def __init__(self, place: str, found: str, expected: str) -> None:
        super().__init__(place, found, expected)
        self.place = place
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"{self.place} is no ownership store of this version: found {self.found}, expected "
            f"{self.expected}. Name another place, or use a version that knows it"
        )


class BatchRefused(FencedLogError):
    """A micro-batch of a job's run that another run has replaced; this run may not write any more.

    Attributes:
        path: The Delta table, or the log of Kafka.
        job: The job.
        epoch: The epoch of this run.
        current: The epoch in force.
        batch_id: Spark's number of the batch, or the id of a commit.
    """

    def __init__(self, path: str, job: str, epoch: int, current: int, batch_id: int | str) -> None:
        super().__init__(path, job, epoch, current, batch_id)
        self.path = path
        self.job = job
        self.epoch = epoch
        self.current = current
        self.batch_id = batch_id

    def __str__(self) -> str:
        return (
            f"batch {self.batch_id} of job {self.job!r} is refused by {self.path}: its run has "
            f"epoch {self.epoch}, in force is {self.current}. Stop this run: another one goes on"
        )


class CheckpointReplaced(FencedLogError):
    """A micro-batch has a number far below the last one: the stream's checkpoint is another one.

    Attributes:
        path: The Delta table.
        job: The job.
        batch_id: Spark's number of the batch.
        batches: Number of batches of the job that the table has.
    """

    def __init__(self, path: str, job: str, batch_id: int, batches: int) -> None:
        super().__init__(path, job, batch_id, batches)
        self.path = path
        self.job = job
        self.batch_id = batch_id
        self.batches = batches

    def __str__(self) -> str:
        return (
            f"{self.path} has batches 0 to {self.batches - 1} of job {self.job!r}, and the stream "
            f"writes batch {self.batch_id}: its checkpoint was created again or restored. Give the "
            "job another name, or the stream the checkpoint that it had"
        )


class SinkUnavailable(FencedLogError):
    """A micro-batch could not be written to a Delta table or a log, or what is there not be read.

    Attributes:
        path: The Delta table, or the log of Kafka.
        job: The job.
        problem: What went wrong.
    """

    retriable = True

    def __init__(self, path: str, job: str, problem: str) -> None:
        super().__init__(path, job, problem)
        self.path = path
        self.job = job
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"job {self.job!r} cannot write to {self.path}: {self.problem}. The same batch may be "
            "written again: it will be there once"
        )


def _known(value: object) -> str:
    return "not known" if value is None else str(value)
