"""A log as far as it was read: its end, and its state by its records."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, suppress
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final, TypeVar

from coopconsume.closing import RaisedAs
from coopconsume.errors.fenced import (
    AppendOutcomeUnknown,
    AppendRefused,
    LogBlocked,
    LogCorrupt,
    LogReplaced,
    LogTruncated,
    LogUnavailable,
)
from coopconsume.fenced.engine import EngineDoubt, OpenTransaction
from coopconsume.fenced.fold import Fold, KeyIndex, SequenceGap, Verdict, hash_of, repaired_by
from coopconsume.fenced.kafka_engine import Engine
from coopconsume.fenced.log import RETAINED, LogId, Position
from coopconsume.kafka.call_limit import Deadline, monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from coopconsume.fenced.config import FencedSettings
    from coopconsume.fenced.log import Appended, Ends, Entry, LastSeqs, Raw, Rows

T = TypeVar("T")

#: Records that are read first to learn the state at an offset, and how much more each time after.
_TAIL: Final = 64
_FACTOR: Final = 8
#: Looks at a blocked log after which its open transactions are ended, if that is allowed.
_UNBLOCK: Final = frozenset({2, 8, 32, 128})


def open_engine(engine: str | Engine | None, settings: FencedSettings, timeout: float) -> Engine:
    """Returns a new engine; a given one stays."""
    if engine is not None and not isinstance(engine, str):
        return engine
    if engine is not None:
        warnings.warn("engine has no effect", DeprecationWarning, stacklevel=3)
    return Engine(settings, timeout)


class LogView:
    """A log as far as it was read. Any call may end in `EngineDoubt`.

    Attributes:
        log: The log, once it was looked up.
        fold: State of the log at `offset`.
        offset: How far it was read; -1 before.
        known_from: Offset from which on it was read without a gap; -1 before.
        identified_at: When the topic's id was looked up the last time, by `monotonic`.
        is_compacted: Whether the topic is compacted; None while not known.
        repaired: Offsets of batches that count although records before them are missing.
        gaps: Gaps that nobody has accepted, by the offset behind each; None: reading stops there.
        on_passed: Called with each record that does not count, and why.
    """

    def __init__(
        self, engine: Engine, topic: str, partition: int, *, compacted: bool | None = None
    ) -> None:
        self.log = LogId(topic, "", partition)
        self.repaired: set[int] = set()
        self.gaps: dict[int, str] | None = None
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
        self.is_compacted = compacted

    def reporting(self, operation: str) -> RaisedAs:
        """Raises a doubt within the block as `LogUnavailable`, or as its refusal if it has one."""

        def reported(error: Exception) -> Exception | None:
            if not isinstance(error, EngineDoubt):
                return None
            return error.refusal or LogUnavailable(*self.log.tp, operation, error.problem)

        return RaisedAs(reported)

    @contextmanager
    def looked_up(self) -> Iterator[None]:
        """Looks up the topic and begins to read it; raises as `reporting` and `identify`."""
        with self.reporting("reading"):
            self.identify()
            yield

    @property
    def position(self) -> Position:
        """The next offset and sequence number, as far as known."""
        return Position(self.offset, self.fold.next_seq or 0)

    def identify(self) -> None:
        """Looks up the topic; `LogReplaced` if it does not exist, or is another one by now."""
        topic, partition = self.log.tp
        found = self._engine.topic_id(topic)
        if found is None or self.log.topic_id not in ("", found):
            raise LogReplaced(topic, partition, self.log.topic_id or "any", found)
        self.log = LogId(topic, found, partition)
        self.identified_at = monotonic()
        if self.is_compacted is None:
            self.is_compacted = self._engine.is_compacted(topic)

    def start(self) -> int:
        """Returns the first offset that is kept."""
        return self._engine.start(*self.log.tp)

    def ends(self) -> Ends:
        """Returns where the log ends."""
        return self._engine.ends(*self.log.tp)

    def decided_end(self, deadline: Deadline) -> int:
        """Returns the present end of the log once all below it is decided, or `LogBlocked`."""
        ends = self.ends()
        end, attempt = ends.end, 0
        while ends.stable < end:
            attempt += 1
            if deadline.is_over:
                producers = (t.producer_id for t in self._open_transactions())
                raise LogBlocked(*self.log.tp, ends.stable, end, tuple(producers))
            deadline.pause()
            if attempt in _UNBLOCK:
                self._end_transactions(deadline)
            ends = self.ends()
        return end

    def _open_transactions(self) -> Sequence[OpenTransaction]:
        with suppress(EngineDoubt):  # There may be no right to ask.
            return self._engine.open_transactions(*self.log.tp)
        return ()

    def _end_transactions(self, deadline: Deadline) -> None:
        """Ends transactions that block the log; a reader ends none."""

    # -- from the end back ---------------------------------------------------------------------

    def find_state(self, end: int, deadline: Deadline) -> None:
        """Reads epoch and next sequence number from the end of the log, not from all of it."""
        first, fold, _ = self.fold_back(end, deadline, lambda *_: True)
        if fold.next_seq is None:
            # Retention has left no record that counts: no number can have passed the log's start.
            fold, first = self.fold_from(first, first), end
        self.fold, self.offset, self.known_from = fold, end, first

    def fold_back(
        self,
        end: int,
        deadline: Deadline,
        match: Callable[[Fold, Appended], T | None],
        since: int = 0,
    ) -> tuple[int, Fold, T | None]:
        """Folds the last records of a log, and more and more of them until something is found.

        ``match`` is called with each batch that counts; what it returns last was found, unless a
        larger part may show something else.

        Returns:
            The offset at which the last part begins, its fold, and what was found in it.
        """
        start = max(since, self.start())
        span = _TAIL
        found: T | None = None
        while True:
            first = max(start, end - span)
            # A larger part may show that a batch does not count which a smaller one counted.
            fold, found = self.fold_from(first), None
            for batch in self.batches(fold, first, end, deadline):
                matched = match(fold, batch)
                found = found if matched is None else matched
            if first == start or (found is not None and fold.is_certain):
                return first, fold, found
            span *= _FACTOR

    def _last(
        self, deadline: Deadline, match: Callable[[Fold, Appended], T | None], since: int = 0
    ) -> T | None:
        """Returns what a function finds in the last batch in which it finds something."""
        return self.fold_back(self.offset, deadline, match, since)[2]

    def last_batch(self, prefix: str, since: int, deadline: Deadline) -> Appended | None:
        """Returns the last batch up to here whose id has a prefix; None if not found."""
        known = [b for b in self.fold.batches.values() if b.first_offset >= since]
        found = next((b for b in reversed(known) if b.batch_id.startswith(prefix)), None)
        return found or self._last(
            deadline, lambda _, b: b if b.batch_id.startswith(prefix) else None, since
        )

    def find_batch(self, batch_id: str, since: int, deadline: Deadline) -> Appended | None:
        """Returns the batch of an id, from an offset up to here; None if not found."""
        found = self.fold.batches.get(batch_id)
        ids = self.fold.ids
        if found is None and (ids is None or hash_of(batch_id) in ids):
            found = self._last(deadline, lambda _, b: b if b.batch_id == batch_id else None, since)
            if found is not None:
                self.fold.remember(found)
        return found

    # -- forward -------------------------------------------------------------------------------

    def fold_from(self, first: int, known: int | None = None) -> Fold:
        """Returns a fold of the log that begins at an offset, with the epoch and number there."""
        known = 0 if first == 0 else known
        return Fold(known, known, compacted=bool(self.is_compacted), repaired=self.repaired)

    def begin_at(self, offset: int) -> None:
        """Forgets the state, and begins to read at an offset."""
        self.fold = self.fold_from(offset)
        self.offset = self.known_from = offset

    def catch_up(self, stop: int, deadline: Deadline) -> None:
        """Reads on to an offset below which all is decided; `LogCorrupt` if the log ends below."""
        # A marker is counted before it can be seen: the end is then reported late.
        if stop < self.offset and self.ends().end < self.offset - 1:
            raise self._corrupt(stop, f"it had records up to offset {self.offset}")
        for _ in self.counted(stop, deadline):
            pass

    def counted(self, stop: int, deadline: Deadline) -> Iterator[Rows]:
        """Reads on to an offset; yields the records that count, one batch at a time."""
        try:
            for _ in self.batches(self.fold, self.offset, stop, deadline, moves=True):
                yield self.fold.rows
        except EngineDoubt as doubt:
            if doubt.is_out_of_range:
                start = self.start()
                if start > self.offset:
                    raise LogTruncated(*self.log.tp, self.offset, start) from doubt
            raise
        self.offset = max(self.offset, stop)

    def read(self, first: int, end: int, deadline: Deadline) -> Iterator[Rows]:
        """Reads the committed records from one offset to below another."""
        return self._engine.read(*self.log.tp, first, end, max(1.0, deadline.left))

    def batches(
        self, fold: Fold, first: int, end: int, deadline: Deadline, *, moves: bool = False
    ) -> Iterator[Appended]:
        """Folds a part of the log; yields each batch that counts, once it is complete."""
        while True:
            try:
                for rows in self.read(first, end, deadline):
                    at = 0
                    while at < len(rows):
                        taken, verdict = fold.take(rows, at)
                        at += taken
                        if moves:
                            self.offset = rows.offsets[at - 1] + 1
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
        """Accepts a gap if this view passes gaps, or if an ``open`` record behind it lists it."""
        first, end, known = gap.offset, self.ends().stable, self._searched
        if known and known.start <= first:
            first = max(first, known.stop)
        self._searched = range(min(first, gap.offset), end)
        for rows in self.read(first, end, deadline):
            for row in rows:
                self.repaired.update(repaired_by(row))
        if gap.offset in self.repaired:
            return
        if self.gaps is None:
            raise self._corrupt(gap.offset, gap.problem)
        self.gaps[gap.offset] = gap.problem
        self.repaired.add(gap.offset)

    def _corrupt(self, offset: int, problem: str) -> LogCorrupt:
        """Returns the error, unless the topic was created again (`LogReplaced`)."""
        self.identify()
        return LogCorrupt(*self.log.tp, offset, problem)

    # -- ids and keys --------------------------------------------------------------------------

    def find_by_id(self, batch_id: str, deadline: Deadline) -> Appended | None:
        """Returns the batch of an id, from the log's start up to `offset`; None if not found.

        The first call reads the whole log for the ids of all batches, as the first call of
        `last_seqs` does for the keys; calls that end in a doubt go on where they stopped.
        """
        if self.fold.ids is None and batch_id not in self.fold.batches:
            self._read_index(deadline)
        return self.find_batch(batch_id, 0, deadline)

    def check_answer(self, found: Appended, rows: Sequence[Entry], deadline: Deadline) -> None:
        """Raises `AppendRefused` if the batch of an append's id has other records.

        Raises `AppendOutcomeUnknown` if retention has removed them.
        """
        if self.is_compacted:
            return  # Records may be gone that are in newer batches, too.
        first, end = found.first_offset, found.last_offset + 1
        try:
            there = [*chain.from_iterable(self.read(first, end, deadline))]
        except EngineDoubt as doubt:
            if not doubt.is_out_of_range:
                raise
            raise AppendOutcomeUnknown(*self.log.tp, found.batch_id, first, RETAINED) from doubt
        wanted = [(row.key, row.value, [*map(tuple, row.headers)]) for row in rows]
        if [(raw.key, raw.value, [*map(tuple, raw.headers[1:])]) for raw in there] != wanted:
            raise AppendRefused(
                f"batch_id {found.batch_id!r}: {self.log} has a batch of this id with other "
                f"records, at offset {found.first_offset}: give each batch an id of its own"
            )

    def last_seqs(self, keys: Iterable[bytes], deadline: Deadline) -> LastSeqs:
        """Returns the sequence number of the last record of each key, up to `offset`."""
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
            if fold.stamp is None or fold.stamp.kind != "data":
                return None
            keys = enumerate(fold.rows.keys, fold.stamp.seq)
            return max((seq for seq, found in keys if found == key), default=None)

        found = self._last(deadline, match)
        if found is not None:
            index.add((key,), found)
        return found

    def _read_index(self, deadline: Deadline, *, keys: bool = False) -> None:
        from pyroaring import BitMap64

        if self._index is None or (keys and self._index[0].keys is None):
            start = self.start()
            # A transaction of others that began just before this writer's marker may be open.
            self.decided_end(deadline)
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
