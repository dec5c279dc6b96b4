"""A log as far as it was read: its end, and its state by its records."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from coopconsume.errors.fenced import (
    EngineNotUsable,
    LogBlocked,
    LogCorrupt,
    LogReplaced,
    LogTruncated,
    LogUnavailable,
)
from coopconsume.fenced.core import Position
from coopconsume.fenced.deadline import monotonic
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.fold import Fold, SequenceGap, hash_of, repaired_by
from coopconsume.fenced.log import LogId
from coopconsume.fenced.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from coopconsume.fenced.core import LastSeqs
    from coopconsume.fenced.deadline import Deadline
    from coopconsume.fenced.engine import Engine
    from coopconsume.fenced.fold import Owner, Verdict
    from coopconsume.fenced.log import Appended, Raw

T = TypeVar("T")

#: Records that are read first to learn the state at an offset, and how much more each time after.
_TAIL: Final = 64
_FACTOR: Final = 8
#: Looks at a blocked log after which its open transactions are ended, if that is allowed.
_UNBLOCK: Final = frozenset({2, 8, 32, 128})


def open_engine(engine: str | Engine, settings: Settings, timeout: float) -> Engine:
    """Returns an engine by its name; an engine is returned as it is.

    Raises:
        EngineNotUsable: There is no such engine, or it is not installed.
    """
    if not isinstance(engine, str):
        return engine
    if engine == "kafka-python":
        from coopconsume.fenced.kafka_engine import KafkaPythonEngine

        return KafkaPythonEngine(settings, timeout)
    if engine == "confluent-kafka":
        from coopconsume.fenced.confluent_engine import ConfluentEngine

        return ConfluentEngine(settings, timeout)
    raise EngineNotUsable(engine, "there is no such engine; give kafka-python or confluent-kafka")


@contextmanager
def looking_at(
    options: Mapping[str, Any],
    topic: str,
    partition: int,
    engine: str | Engine,
    timeout: float,
    *,
    compacted: bool | None = None,
) -> Iterator[tuple[LogView, Engine]]:
    """Opens a log and its client for a block.

    Raises:
        LogReplaced: There is no such topic.
        LogUnavailable: Kafka does not answer.
        OptionError, EngineNotUsable: As for `FencedWriter`.
    """
    client = open_engine(engine, Settings.parse(options), timeout)
    view = LogView(client, topic, partition, compacted=compacted)
    try:
        with view.reporting("reading"):
            view.identify()
            yield view, client
    finally:
        client.close()


class LogView:
    """A log as far as it was read. Any call may end in `EngineDoubt`.

    Attributes:
        log: The log, once it was looked up.
        fold: State of the log at `offset`.
        offset: How far it was read; -1 before.
        known_from: Offset from which on it was read without a gap; -1 before.
        identified_at: When the topic's id was looked up the last time, by `monotonic`.
        repaired: Offsets of batches that count although records before them are missing.
        gaps: Descriptions of gaps that nobody has accepted, by the offset behind each.
        passes_gaps: Whether reading goes on behind such a gap.
        on_passed: Called with each record that does not count, and why.
    """

    def __init__(
        self, engine: Engine, topic: str, partition: int, *, compacted: bool | None = None
    ) -> None:
        self.log = LogId(topic, "", partition)
        self.repaired: set[int] = set()
        self.gaps: dict[int, str] = {}
        self.passes_gaps = False
        self.on_passed: Callable[[Raw, Verdict], None] | None = None
        #: Offsets whose ``open`` records were searched for accepted gaps.
        self._searched = range(0)
        self.fold = Fold(repaired=self.repaired)
        self.offset = -1
        self.known_from = -1
        self.identified_at = -inf
        #: A fold that reads batch ids and keys from the log's start on, and how far it is.
        self._index: tuple[Fold, int] | None = None
        self._engine = engine
        self._compacted = compacted

    @contextmanager
    def reporting(self, operation: str) -> Iterator[None]:
        """Raises a doubt within the block as an error for users.

        Raises:
            LogUnavailable: Kafka did not answer, or not in time.
            CoopConsumeError: The error of a doubt that has one, such as `NotAuthorized`.
        """
        try:
            yield
        except EngineDoubt as doubt:
            log = self.log
            error = LogUnavailable(log.topic, log.partition, operation, doubt.problem)
            raise doubt.refusal or error from doubt

    @property
    def position(self) -> Position:
        """The next offset and sequence number, as far as known."""
        return Position(self.offset, self.fold.next_seq or 0)

    @property
    def is_known(self) -> bool:
        """Whether the state at `offset` is known."""
        return self.offset >= 0 and self.fold.next_seq is not None

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted, as far as known."""
        return bool(self._compacted)

    def identify(self) -> None:
        """Looks up the topic; the first call stores its id.

        Raises:
            LogReplaced: It is not the one of the first time, or the topic does not exist.
        """
        topic, partition = self.log.topic, self.log.partition
        found = self._engine.topic_id(topic)
        if self.log.topic_id and found != self.log.topic_id:
            raise LogReplaced(topic, partition, self.log.topic_id, found)
        if found is None:
            raise LogReplaced(topic, partition, "any", None)
        self.log = LogId(topic, found, partition)
        self.identified_at = monotonic()
        if self._compacted is None:
            self._compacted = self._engine.is_compacted(topic)

    def decided_end(self, deadline: Deadline) -> int:
        """Waits until everything below the present end of the log is decided; returns that end.

        Raises:
            LogBlocked: A transaction stays open below it.
        """
        topic, partition = self.log.topic, self.log.partition
        ends = self._engine.ends(topic, partition)
        end, attempt = ends.end, 0
        while ends.stable < end:
            attempt += 1
            if deadline.is_over:
                producers = self._engine.open_transactions(topic, partition)
                raise LogBlocked(topic, partition, ends.stable, end, tuple(producers))
            deadline.pause(attempt)
            if attempt in _UNBLOCK:
                self._end_transactions(deadline)
            ends = self._engine.ends(topic, partition)
        return end

    def _end_transactions(self, deadline: Deadline) -> None:
        """Ends transactions that block the log; a reader ends none."""

    def find_state(self, end: int, deadline: Deadline) -> None:
        """Reads epoch and next sequence number from the end of the log, not from all of it."""
        known_from, fold = self.fold_back(end, deadline, _is_known)
        if fold.next_seq is None:
            # Retention has left no record that counts: no number can have passed the log's start.
            fold, known_from = self._fold(known_from), end
        self.fold, self.offset, self.known_from = fold, end, known_from

    def fold_back(
        self,
        end: int,
        deadline: Deadline,
        is_enough: Callable[[Fold], bool],
        *,
        since: int = 0,
        on_batch: Callable[[Fold, Appended | None], None] = lambda *_: None,
    ) -> tuple[int, Fold]:
        """Folds the last records of a log, and more and more of them until they are enough.

        Args:
            end: Offset up to which the log is read.
            deadline: When to give up.
            is_enough: Called with the fold of each part.
            since: Offset from which on the log is read at most.
            on_batch: Called with None at the start of a part, then with each batch that counts.

        Returns:
            The offset at which the last part begins, and its fold.
        """
        start = max(since, self._engine.start(self.log.topic, self.log.partition))
        span = _TAIL
        while True:
            first = max(start, end - span)
            fold = self.fold_from(first)
            on_batch(fold, None)
            for batch in self.batches(fold, first, end, deadline):
                on_batch(fold, batch)
            if first == start or is_enough(fold):
                return first, fold
            span *= _FACTOR

    def _last(
        self, deadline: Deadline, match: Callable[[Fold, Appended], T | None], since: int = 0
    ) -> T | None:
        """Returns what a function finds in the last batch in which it finds something."""
        found: T | None = None

        def look(fold: Fold, batch: Appended | None) -> None:
            nonlocal found
            match_ = None if batch is None else match(fold, batch)
            # A larger part may show that a batch does not count which a smaller one counted.
            found = match_ if batch is None or match_ is not None else found

        def is_enough(fold: Fold) -> bool:
            return found is not None and fold.is_certain

        self.fold_back(self.offset, deadline, is_enough, since=since, on_batch=look)
        return found

    def fold_from(self, first: int) -> Fold:
        """Returns a fold of the log that begins at an offset."""
        return self._fold(0 if first == 0 else None)

    def _fold(self, known: int | None) -> Fold:
        return Fold(known, known, compacted=self.is_compacted, repaired=self.repaired)

    def begin_at(self, offset: int) -> None:
        """Forgets the state, and begins to read at an offset."""
        self.fold = self.fold_from(offset)
        self.offset = self.known_from = offset

    def catch_up(self, stop: int, deadline: Deadline) -> None:
        """Reads the log on to an offset below which everything is decided.

        Raises:
            LogCorrupt: Records are missing, or the log ends below what it had.
            LogTruncated: Retention has removed records that were not read yet.
        """
        if stop < self.offset and not self._ends_at_least(self.offset):
            raise self._corrupt(stop, f"it had records up to offset {self.offset}")
        for _ in self.counted(stop, deadline):
            pass

    def counted(self, stop: int, deadline: Deadline) -> Iterator[Sequence[Raw]]:
        """Reads on to an offset; yields the records that count, one batch at a time.

        Raises:
            LogCorrupt: Records are missing.
            LogTruncated: Retention has removed records that were not read yet.
        """
        try:
            for _ in self.batches(self.fold, self.offset, stop, deadline, moves=True):
                yield self.fold.rows
        except EngineDoubt as doubt:
            topic, partition = self.log.topic, self.log.partition
            if doubt.is_out_of_range:
                start = self._engine.start(topic, partition)
                if start > self.offset:
                    raise LogTruncated(topic, partition, self.offset, start) from doubt
            raise
        self.offset = max(self.offset, stop)

    def records(self, first: int, end: int, deadline: Deadline) -> list[Raw]:
        """Returns the committed records from one offset to below another."""
        topic, partition = self.log.topic, self.log.partition
        pieces = self._engine.read(topic, partition, first, end, max(1.0, deadline.left))
        return [row for rows in pieces for row in rows]

    def has_id(self, batch_id: str, deadline: Deadline) -> bool:
        """Whether a batch with an id may be in the log up to `offset`; False is certain.

        The first call reads the whole log for the ids of all batches; calls that end in a doubt
        go on where they stopped.

        Raises:
            LogCorrupt: Records are missing.
        """
        if self.fold.ids is None:
            self._read_index(deadline)
        assert self.fold.ids is not None
        return hash_of(batch_id) in self.fold.ids

    def last_seqs(self, keys: Iterable[bytes], deadline: Deadline) -> LastSeqs:
        """Returns the sequence number of the last record of each key, up to `offset`.

        The first call reads the whole log; calls that end in a doubt go on where they stopped.

        Raises:
            LogCorrupt: Records are missing.
        """
        wanted = set(keys)
        if wanted and self.fold.keys is None:
            self._read_index(deadline, keys=True)
        return {key: self._last_seq(key, deadline) for key in wanted}

    def _last_seq(self, key: bytes, deadline: Deadline) -> int | None:
        index = self.fold.keys
        assert index is not None
        with suppress(LookupError):
            return index.last_seq(key)

        def match(fold: Fold, _: Appended) -> int | None:
            # Of a compacted log the rows may begin in the middle of the batch.
            rows = enumerate(fold.rows, fold.seq - len(fold.rows) + 1)
            is_data = fold.stamp is not None and fold.stamp.kind == "data"
            seqs = [seq for seq, row in rows if row.key == key and is_data]
            return seqs[-1] if seqs else None

        found = self._last(deadline, match)
        if found is not None:
            index.add((key,), found)
        return found

    def _read_index(self, deadline: Deadline, *, keys: bool = False) -> None:
        from pyroaring import BitMap64

        from coopconsume.fenced.key_index import KeyIndex

        if self._index is None or (keys and self._index[0].keys is None):
            start = self._engine.start(self.log.topic, self.log.partition)
            fold = self.fold_from(start)
            fold.ids, fold.keys = BitMap64(), KeyIndex() if keys else None
            self._index = fold, start
        fold, at = self._index
        try:
            for batch in self.batches(fold, at, self.offset, deadline):
                at = batch.last_offset + 1
                self._index = fold, at
                if deadline.is_over:
                    break
            else:
                self.fold.ids, self.fold.keys, self._index = fold.ids, fold.keys, None
        except EngineDoubt as doubt:
            if doubt.is_out_of_range:
                self._index = None  # Retention was faster; begin at the new start of the log.
            raise
        if self._index is not None:
            raise EngineDoubt(
                f"the log was read to offset {at:,} of {self.offset:,} for its batch ids and keys; "
                "call again to go on"
            )

    def owner_before(self, deadline: Deadline) -> Owner | None:
        """Reads from the log who opened the epoch in force; None if that record was removed."""
        _, fold = self.fold_back(self.offset, deadline, lambda fold: fold.owner is not None)
        return fold.owner if fold.epoch == self.fold.epoch else None

    def last_batch(self, prefix: str, since: int, deadline: Deadline) -> Appended | None:
        """Returns the last batch up to here whose id has a prefix; None if not found."""
        known = [b for b in self.fold.batches.values() if b.first_offset >= since]
        found = next((b for b in reversed(known) if b.batch_id.startswith(prefix)), None)
        if found is not None:
            return found
        return self._last(
            deadline, lambda _, b: b if b.batch_id.startswith(prefix) else None, since
        )

    def find_batch(self, batch_id: str, since: int, deadline: Deadline) -> Appended | None:
        """Returns the batch of an id, from an offset up to here; None if not found."""
        found = self.fold.batches.get(batch_id)
        if found is None:
            found = self._last(deadline, lambda _, b: b if b.batch_id == batch_id else None, since)
            if found is not None:
                self.fold.remember(found)
        return found

    def batches(
        self, fold: Fold, first: int, end: int, deadline: Deadline, *, moves: bool = False
    ) -> Iterator[Appended]:
        """Folds a part of the log; yields each batch that counts, once it is complete.

        Raises:
            LogCorrupt: Records are missing.
        """
        topic, partition = self.log.topic, self.log.partition
        while True:
            try:
                for rows in self._engine.read(topic, partition, first, end, max(1, deadline.left)):
                    at = 0
                    while at < len(rows):
                        taken, verdict = fold.take(rows, at)
                        at += taken
                        if moves:
                            self.offset = rows[at - 1].offset + 1
                        if verdict == "counted":
                            yield next(reversed(fold.batches.values()))
                        elif self.on_passed is not None and verdict != "partial":
                            self.on_passed(rows[at - 1], verdict)
            except SequenceGap as gap:
                self._pass(gap, deadline)
                first = gap.offset
            else:
                return

    def _pass(self, gap: SequenceGap, deadline: Deadline) -> None:
        """Accepts a gap if this view passes gaps, or if an ``open`` record behind it lists it.

        Raises:
            LogCorrupt: Nobody has accepted it.
        """
        topic, partition = self.log.topic, self.log.partition
        end = self._engine.ends(topic, partition).stable
        seconds = max(1.0, deadline.left)
        first, known = gap.offset, self._searched
        if known and known.start <= first:
            first = max(first, known.stop)
        self._searched = range(min(first, gap.offset), end)
        for rows in self._engine.read(topic, partition, first, end, seconds):
            for row in rows:
                self.repaired.update(repaired_by(row))
        if gap.offset in self.repaired:
            return
        if not self.passes_gaps:
            raise self._corrupt(gap.offset, gap.problem)
        self.gaps[gap.offset] = gap.problem
        self.repaired.add(gap.offset)

    def _corrupt(self, offset: int, problem: str) -> LogCorrupt:
        """Returns the error of a corrupt log.

        Raises:
            LogReplaced: The records are those of a topic that was created again.
        """
        self.identify()
        return LogCorrupt(self.log.topic, self.log.partition, offset, problem)

    def _ends_at_least(self, offset: int) -> bool:
        # A marker is counted before it can be seen: the end is then reported late.
        return self._engine.ends(self.log.topic, self.log.partition).end >= offset - 1


def _is_known(fold: Fold) -> bool:
    return fold.next_seq is not None and fold.is_certain
