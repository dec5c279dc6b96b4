"""Errors of the fenced writer.

Pulsar's PIP-68 has two words for a refusal: `ProducerFenced` is final, `ProducerBusy` temporary.
"""

from __future__ import annotations

from coopconsume.errors.base import DeclaredError


class FencedLogError(DeclaredError):
    """Base of every error of fenced logs.

    Errors about one log have its ``topic`` and ``partition``.

    Attributes:
        retriable: Whether the same call, made again unchanged, may succeed.
    """


class _LogError(FencedLogError):
    """An error about one log, a partition of a topic."""

    topic: str
    partition: int

    @property
    def _log(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetMismatch(_LogError):
    """The log goes on elsewhere than was expected: nothing of the append is in it (KIP-27).

    Attributes:
        expected: The number that was expected of the first record that is wrong; of a key the
            sequence number of its last record, None for no record.
        actual: What it is instead, by what was compared: the next offset, the next sequence
            number, or that of the key's last record.
        by: What was compared: ``offset``, ``sequence`` or ``key``.
        next_offset: Offset that the next record would get, as far as known.
        next_seq: Sequence number that the next record would get, as far as known.
        key: The key, if its last record was compared.
    """

    expected: int | None
    actual: int | None
    by: str = "offset"
    next_offset: int | None = None
    next_seq: int | None = None
    key: bytes | None = None
    message = (
        "nothing was appended to {_log}: expected {_difference} (next is offset {next_offset}, "
        "sequence {next_seq}). Read what was written meanwhile, and decide again"
    )

    @property
    def _difference(self) -> str:
        if self.key is None:
            return f"{self.by} {self.expected}, but next is {self.actual}"
        expected, actual = (
            "no record" if seq is None else f"sequence {seq}"
            for seq in (self.expected, self.actual)
        )
        return f"{expected} as the last one of key {self.key!r}, but found {actual}"


class ProducerFenced(_LogError):
    """Another owner has taken the log; this writer will never write to it again.

    Records that it was writing when it found out are not in the log.

    Attributes:
        epoch: The fence epoch of this writer; 0 if it had none yet.
        current: The epoch in force, as far as known.
        owner: Name of the log's owner, as far as known.
    """

    epoch: int = 0
    current: int | None = None
    owner: str | None = None
    message = (
        "the writer of {_log} with epoch {epoch} is fenced by {_by} (epoch {current}) permanently: "
        "read the log and acquire it by a new writer, or stop"
    )

    @property
    def _by(self) -> str:
        return "another owner" if self.owner is None else repr(self.owner)


class ProducerBusy(_LogError):
    """Another one holds the log, or waits for it before you: refused for now.

    Attributes:
        owner: Name of the one that holds it or waits first, as far as known.
        reason: Why, in words.
    """

    retriable = True
    owner: str | None = None
    reason: str = "it is held"
    message = "{_log} is not available now: {reason}{_by}. Try again later, or wait"

    @property
    def _by(self) -> str:
        return "" if self.owner is None else f" by {self.owner!r}"


class StaleGeneration(FencedLogError):
    """A claim names a lower generation than the one in force; nothing was changed.

    Attributes:
        group: The group that was claimed for.
        resource: The first resource that was refused.
        claimed: The generation that was claimed.
        current: The generation in force.
        refused: The claimed and the current generation of each resource that was refused.
    """

    group: str
    resource: str
    claimed: int
    current: int
    refused: dict[str, tuple[int, int]] | None = None
    message = (
        "{resource!r} of group {group!r} is at generation {current}, claimed was {claimed}{_more}; "
        "nothing was changed. Claim {current} or above, or 0 to start over"
    )

    def __post_init__(self) -> None:
        self.refused = self.refused or {self.resource: (self.claimed, self.current)}
        super().__post_init__()

    @property
    def _more(self) -> str:
        others = len(self.refused or ()) - 1
        return f" (and {others} more)" if others > 0 else ""


class LogBlocked(_LogError):
    """A transaction stays open; records above its start can be neither read nor decided.

    Attributes:
        stable: The last stable offset, where the transaction begins.
        end: The end of the log (its high watermark).
        producers: Ids of the producers with an open transaction, as far as known.
    """

    retriable = True
    stable: int
    end: int
    producers: tuple[int, ...] = ()
    message = (
        "{_log} is blocked at offset {stable} of {end} by an open transaction (producer ids: "
        "{_ids}). It ends by its timeout unless it hangs; `coopconsume log blocked {topic}` shows "
        "that, and how to end it"
    )

    @property
    def _ids(self) -> str:
        return ", ".join(map(str, self.producers)) or "not known"


class LogReplaced(_LogError):
    """The topic was deleted and created again: this is another log under the same name.

    Attributes:
        expected: Id of the topic that is meant.
        found: Id of the topic that is there; None if it does not exist.
    """

    expected: str
    found: str | None
    message = "{_log}{_problem}"

    @property
    def _problem(self) -> str:
        if self.found is None:
            return f": there is no topic {self.topic!r}. Check its name, or create it"
        return (
            f" is another log than before: topic id {self.found}, expected {self.expected}. If the "
            "topic was created again on purpose, use a new writer"
        )


class LogTruncated(_LogError):
    """Retention has removed records that a reader has not read yet.

    Attributes:
        expected: The next offset to read.
        start: The first offset that is kept.
    """

    expected: int
    start: int
    message = (
        "offsets {expected} to {_last} of {_log} were removed before they were read: retention "
        "keeps records from offset {start} on. Begin again from a copy of the state at offset "
        "{start} or above, with a new reader, and let the topic keep records longer"
    )

    @property
    def _last(self) -> int:
        return self.start - 1


class AppendOutcomeUnknown(_LogError):
    """Whether a batch is in the log could not be found out in time; it will be all or nothing.

    Attributes:
        batch_id: Id of the batch, for `FencedWriter.resolve`.
        offset: If the batch is in the log, it is at this offset or above.
        problem: What went wrong.
    """

    batch_id: str
    offset: int
    problem: str
    message = (
        "whether batch {batch_id} is in {_log} (at offset {offset} or above) is not known: "
        "{problem}. Ask by resolve(batch_id), or append it again with the same batch_id"
    )


class LogUnavailable(_LogError):
    """The log could not be reached or used in time; nothing was appended.

    Attributes:
        operation: What was tried.
        problem: What went wrong.
    """

    retriable = True
    operation: str
    problem: str
    message = "{operation} of {_log} failed: {problem}. Try again later"


class LogCorrupt(_LogError):
    """A log breaks the rules that its writers keep.

    Attributes:
        offset: Where.
        problem: What is wrong.
    """

    offset: int
    problem: str
    message = (
        "{_log} is not what fenced writers write, at offset {offset}: {problem}. Find out who else "
        "writes to it; `coopconsume log audit {topic}` lists the records, and `coopconsume log "
        "repair {topic}` accepts that records are lost"
    )


class AppendRefused(FencedLogError, ValueError):
    """An append that makes no sense; nothing was sent.

    Attributes:
        reason: Why, and what to do.
    """

    reason: str
    message = "{reason}"


class WriterNotOpen(_LogError):
    """A writer was used before `acquire`, or after `close`.

    Attributes:
        state: The writer's state, such as ``closed``.
    """

    state: str
    message = "the writer of {_log} is {state}: acquire the log first"


class EngineNotUsable(FencedLogError):
    """The Kafka client cannot be used.

    Attributes:
        engine: Its name.
        reason: Why, and what to do.
    """

    engine: str
    reason: str
    message = "engine {engine!r} cannot be used: {reason}"


class OwnershipUnavailable(FencedLogError):
    """The ownership store cannot be reached; whether it was changed is not known.

    Attributes:
        place: The Delta table or the Kafka log.
        operation: What was tried.
        problem: What went wrong.
    """

    retriable = True
    place: str
    operation: str
    problem: str
    message = (
        "{operation} of the ownership store {place} failed: {problem}. Try again later; what was "
        "asked for may have been granted"
    )


class OwnershipFormat(FencedLogError):
    """A table or a log that is no ownership store, or one of another version.

    Attributes:
        place: The Delta table or the Kafka log.
        found: What it contains.
        expected: What an ownership store contains.
    """

    place: str
    found: str
    expected: str
    message = (
        "{place} is no ownership store that can be read: found {found}, expected {expected}. Name "
        "another place, or use a version that reads it"
    )


class BatchRefused(FencedLogError):
    """A micro-batch of a job's run that another run has replaced; this run cannot write again.

    Attributes:
        path: The Delta table, or the log of Kafka.
        job: The job.
        epoch: The epoch of this run.
        current: The epoch in force.
        batch_id: Spark's number of the batch, or the id of a commit.
    """

    path: str
    job: str
    epoch: int
    current: int
    batch_id: int | str
    message = (
        "batch {batch_id} of job {job!r} is refused by {path}: its run has epoch {epoch}, in force "
        "is {current}. Stop this run: another one goes on"
    )


class CheckpointReplaced(FencedLogError):
    """A micro-batch has a number far below the last one: the stream's checkpoint is another one.

    Attributes:
        path: The Delta table.
        job: The job.
        batch_id: Spark's number of the batch.
        batches: Number of batches of the job that the table has.
    """

    path: str
    job: str
    batch_id: int
    batches: int
    message = (
        "{path} has batches 0 to {_last} of job {job!r}, and the stream writes batch {batch_id}: "
        "its checkpoint was created again or restored. Give the job another name, or the stream "
        "the checkpoint that it had"
    )

    @property
    def _last(self) -> int:
        return self.batches - 1


class SinkUnavailable(FencedLogError):
    """A micro-batch could not be written to a Delta table or a log, or those could not be read.

    Attributes:
        path: The Delta table, or the log of Kafka.
        job: The job.
        problem: What went wrong.
    """

    retriable = True
    path: str
    job: str
    problem: str
    message = (
        "job {job!r} cannot write to {path}: {problem}. The same batch may be written again: it "
        "will be there once"
    )
