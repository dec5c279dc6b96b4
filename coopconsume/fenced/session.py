"""One writer's hold on a log: its producer, its place in the log, and what it knows of it.

Fence, read, open, write: in this order. All earlier producers are fenced first; then the log is
read up to an end below which everything is decided; then an ``open`` record is appended on the
condition that it comes right after that end. Its success certifies that nothing was missed, and
is the moment at which the log changes hands.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, Final

from coopconsume.fenced.core import Position, judge
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.errors import (
    LogBlocked,
    LogCorrupt,
    LogReplaced,
    LogUnavailable,
    ProducerFenced,
)
from coopconsume.fenced.fold import Fold, Owner, RuleBroken
from coopconsume.fenced.headers import Stamp, encode_batch
from coopconsume.fenced.log import UNCHECKED, Entry, LogId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.fenced.engine import Channel, Engine
    from coopconsume.fenced.epochs import EpochSource
    from coopconsume.fenced.headers import Kind
    from coopconsume.fenced.log import Visibility

#: Key of records without data: a compacted topic takes no record without a key.
MARK_KEY: Final = b"coopconsume-log"
_TAIL: Final = 64
_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.2


class Deadline:
    """Some seconds from now on.

    Attributes:
        seconds: How many.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; never below 0."""
        return max(0.0, self._until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether none are left."""
        return self.left == 0.0

    def pause(self, attempt: int) -> None:
        """Sleep a little, longer after more attempts, and not as long as others do."""
        longest = min(_LONGEST_PAUSE, _PAUSE * 2 ** min(attempt, 10), self.left)
        time.sleep(random.uniform(0, longest))  # noqa: S311 - only to get out of step


class Session:
    """One writer's hold on a log.

    Args:
        engine: The Kafka client.
        topic: The topic.
        partition: The partition.
        visibility: How readers see what counts.
        owner: Name of the owner, for people.
        epochs: Where its epoch comes from.
        shared: Id of the writer where several share the log, so that it fences nobody and opens
            no epoch; None for the one owner.
        compacted: Whether the topic is compacted; None: Kafka is asked.

    Attributes:
        id: Id of this session.
        log: The log, once it was looked up.
        epoch: The session's epoch; 0 before it has one.
        fold: State of the log as far as it was read or written.
        offset: How far that is: the offset at which the log goes on, as far as known.
        opened_at: Offset of the session's first ``open`` record; -1 before.
        fenced: Whether somebody else has opened the log since.
    """

    def __init__(
        self,
        engine: Engine,
        topic: str,
        partition: int,
        *,
        visibility: Visibility,
        owner: str,
        epochs: EpochSource,
        shared: str | None,
        compacted: bool | None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.log = LogId(topic, "", partition)
        self.epoch = 0
        self.fold = Fold()
        self.offset = -1
        self.opened_at = -1
        self.fenced = False
        self._has_epoch = False
        self._engine = engine
        self._visibility = visibility
        self._owner = owner
        self._epochs = epochs
        self._shared = shared
        self._compacted = compacted
        self._channel: Channel | None = None

    @property
    def position(self) -> Position:
        """Where the log goes on, as far as known."""
        return Position(self.offset, self.fold.next_seq or 0)

    @property
    def is_open(self) -> bool:
        """Whether there is a producer about which there is no doubt."""
        return self._channel is not None

    @property
    def is_shared(self) -> bool:
        """Whether others write beside it."""
        return self._shared is not None

    @property
    def is_filtered(self) -> bool:
        """Whether readers see by themselves which records count."""
        return self._visibility == "filter"

    # -- to own the log ------------------------------------------------------------------------

    def acquire(self, deadline: Deadline) -> None:
        """Take the log, whoever has it, and learn where it goes on; again after any doubt.

        Raises:
            ProducerFenced: It belongs to another one: by the epoch source, or as somebody opened
                it after this session had.
            LogBlocked: A transaction stays open in it.
            LogReplaced, LogCorrupt, LogUnavailable: As they say.
        """
        attempt, problem = 0, "no answer in time"
        while True:
            try:
                if self._try_to_acquire(deadline):
                    self._has_epoch = True
                    return
                problem = "others kept writing to it"
            except EngineDoubt as doubt:
                self.drop()
                if doubt.refusal is not None:
                    raise doubt.refusal from doubt
                problem = doubt.problem
            except BaseException:
                self.drop()
                raise
            attempt += 1
            if deadline.is_over:
                self.drop()
                raise LogUnavailable(self.log.topic, self.log.partition, "acquire", problem)
            deadline.pause(attempt)

    def _try_to_acquire(self, deadline: Deadline) -> bool:
        self.identify()
        if self._has_epoch:
            # The log may say it all, and then the one who has it now is left alone.
            self.catch_up(self._engine.ends(self.log.topic, self.log.partition).stable, deadline)
            self._check_owner()
            if self._shared is None:
                self._epochs.check(self.log, self.epoch)
        if self._channel is None:
            name = None if self.is_filtered else self.log.transactional_id(self._shared)
            self._channel = self._engine.channel(self.log, name, deadline.seconds)
            if name is not None:
                self._channel.init(deadline.left)
        end = self.decided_end(deadline)
        if self.offset < 0:
            self._find_state(end, deadline)
        self.catch_up(end, deadline)
        last = self.fold.epoch or 0
        if self._shared is not None and not self._has_epoch:
            self.epoch = last
        self._check_owner()
        if self._shared is not None:
            return True
        if self.fold.owner is not None and self.fold.owner.session == self.id:
            # Also an ``open`` record of an earlier attempt, that is in the log after all.
            return self._open(last, deadline)
        epoch = self._epochs.next_epoch(self.log, last)
        if epoch <= last:
            raise self.fenced_error()
        return self._open(epoch, deadline)

    def _open(self, epoch: int, deadline: Deadline) -> bool:
        value = Owner(self._owner, self.id, self.log.topic_id).to_bytes()
        placed = self.attempt(
            [Entry(value, MARK_KEY)], uuid.uuid4().hex, self.offset, deadline, kind="open",
            epoch=epoch,
        )  # fmt: skip
        if placed is None:
            return False
        self.epoch = epoch
        if self.opened_at < 0:
            self.opened_at = placed
        return True

    def _check_owner(self) -> None:
        """Whether somebody else has opened the log since this session had it."""
        if self._has_epoch:
            owner = self.fold.owner
            other = self._shared is None and owner is not None and owner.session != self.id
            if other or (self.fold.epoch or 0) > self.epoch:
                self.fenced = True
        if self.fenced:
            raise self.fenced_error()

    def fenced_error(self) -> ProducerFenced:
        """The error of a session that has lost the log."""
        owner = self.fold.owner
        name = owner.name if owner is not None and owner.session != self.id else None
        return ProducerFenced(self.log.topic, self.log.partition, self.epoch, self.fold.epoch, name)

    # -- to know the log -----------------------------------------------------------------------

    def identify(self) -> None:
        """Look up the topic; the first time, learn its id.

        Raises:
            LogReplaced: It is not the one of the first time, or there is none.
        """
        topic, partition = self.log.topic, self.log.partition
        found = self._engine.topic_id(topic)
        if self.log.topic_id and found != self.log.topic_id:
            raise LogReplaced(topic, partition, self.log.topic_id, found)
        if found is None:
            raise LogReplaced(topic, partition, "any", None)
        self.log = LogId(topic, found, partition)
        if self._compacted is None:
            self._compacted = self._engine.is_compacted(topic)

    def decided_end(self, deadline: Deadline) -> int:
        """The end of the log, once everything below it is decided.

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
                raise LogBlocked(topic, partition, ends.stable, end, producers)
            deadline.pause(attempt)
            ends = self._engine.ends(topic, partition)
        return end

    def _find_state(self, end: int, deadline: Deadline) -> None:
        """Learn epoch and next sequence number from the end of the log, not from all of it."""
        start = self._engine.start(self.log.topic, self.log.partition)
        span = _TAIL
        while True:
            first = max(start, end - span)
            self.fold = self.fold_from(first)
            self.offset = first
            self.catch_up(end, deadline)
            if self.fold.next_seq is not None:
                return
            if first == start:
                break
            span *= 8
        # Retention has left no record that counts: neither number can have passed the log's start.
        self.fold = Fold(start, start, compacted=bool(self._compacted))
        self.offset = end

    def fold_from(self, first: int) -> Fold:
        """A fold of the log that begins at an offset."""
        known = 0 if first == 0 else None
        return Fold(known, known, compacted=bool(self._compacted))

    def refresh(self, deadline: Deadline) -> None:
        """Read on to the end of the log.

        Raises:
            ProducerFenced: Somebody else has opened the log.
            LogBlocked, LogReplaced, LogCorrupt: As for `acquire`.
            EngineDoubt: Kafka does not answer.
        """
        self.identify()
        self.catch_up(self.decided_end(deadline), deadline)
        self._check_owner()

    def catch_up(self, stop: int, deadline: Deadline) -> None:
        """Read the log on to an offset below which everything is decided.

        Raises:
            LogCorrupt: Its records break the rules, or it ends below what it had.
        """
        topic, partition = self.log.topic, self.log.partition
        if stop < self.offset and not self._ends_at_least(self.offset):
            raise LogCorrupt(topic, partition, stop, f"it had records up to offset {self.offset}")
        add: Callable[..., object] = self.fold.add
        try:
            for rows in self._engine.read(
                topic, partition, self.offset, stop, max(1.0, deadline.left)
            ):
                for row in rows:
                    add(row)
        except RuleBroken as broken:
            raise LogCorrupt(topic, partition, broken.offset, broken.problem) from None
        self.offset = max(self.offset, stop)

    def _ends_at_least(self, offset: int) -> bool:
        # A marker is counted before it can be seen: the end is then told late.
        return self._engine.ends(self.log.topic, self.log.partition).end >= offset - 1

    # -- to write ------------------------------------------------------------------------------

    def attempt(
        self,
        entries: Sequence[Entry],
        batch_id: str,
        expected: int,
        deadline: Deadline,
        *,
        kind: Kind = "data",
        epoch: int | None = None,
    ) -> int | None:
        """Append a batch once.

        Args:
            entries: The records.
            batch_id: The id of the batch.
            expected: Offset that it has to begin at; -1: any.
            deadline: When to give up.
            kind: Of the records.
            epoch: The epoch to write under; the session's own by default.

        Returns:
            Offset of its first record; None if it is not in the log, and will never be.

        Raises:
            EngineDoubt: It may be in the log, or be there later; the producer is of no use now.
        """
        seq = self.fold.next_seq or 0
        if self.is_filtered and expected == UNCHECKED:
            seq = UNCHECKED  # by its place
        stamp = Stamp(
            self._visibility, kind, self.epoch if epoch is None else epoch, seq, len(entries), 0,
            batch_id, expected,
        )  # fmt: skip
        headers = list(encode_batch(stamp))
        channel = self._channel
        assert channel is not None
        if self.is_filtered:
            offsets = channel.append(entries, headers, deadline.left)
            placed = judge(offsets, expected) == "in place"
        else:
            channel.begin()
            offsets = channel.append(entries, headers, deadline.left)
            placed = judge(offsets, expected) == "in place" and self._is_next(offsets[0])
            if placed:
                channel.commit(deadline.left)
            else:
                channel.abort(deadline.left)
        if not placed:
            return None
        if self._shared is not None and self.is_filtered:
            return self._read_back(batch_id, offsets[-1], deadline)
        # What was just written need not be read.
        value = entries[0].value if kind == "open" else None
        self.fold.wrote(offsets[0], stamp, value)
        # A transaction ends with a marker, which takes an offset.
        self.offset = offsets[-1] + (1 if self.is_filtered else 2)
        return offsets[0]

    def _read_back(self, batch_id: str, last: int, deadline: Deadline) -> int | None:
        """Where others may have written before: whether a batch counts is known by reading."""
        while self.offset <= last:
            self.catch_up(self.decided_end(deadline), deadline)
        batch = self.fold.batches.get(batch_id)
        return None if batch is None else batch.first_offset

    def _is_next(self, base: int) -> bool:
        """Where several share the log: whether all below is decided, and what was read."""
        if self._shared is None:
            return True
        return self._engine.ends(self.log.topic, self.log.partition).stable == base

    def release(self, timeout: float) -> None:
        """Give the log up: nobody is fenced by it, and another `acquire` has a new epoch."""
        del timeout
        self.drop()
        self.epoch, self._has_epoch, self.opened_at = 0, False, -1
        self.id = uuid.uuid4().hex

    def drop(self) -> None:
        """Let go of the producer; what it was doing is decided by the next `acquire`."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.drop()
