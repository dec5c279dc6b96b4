"""A writer's session with a log: its producer, its position and its epoch.

A session fences all earlier producers, then reads the log to an end below which everything is
decided, then appends an ``open`` record on the condition that it comes right after that end. Its
success proves that nothing was missed. At this moment the log has a new owner.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Final

from coopconsume.errors.fenced import (
    AppendOutcomeUnknown,
    AppendRefused,
    LogTruncated,
    ProducerBusy,
    ProducerFenced,
)
from coopconsume.fenced.engine import EngineDoubt, LogAppend
from coopconsume.fenced.fold import Owner
from coopconsume.fenced.log import is_in_place
from coopconsume.fenced.requests import Request
from coopconsume.fenced.stamp import NO_TAG, Header, Stamp, encode, encode_batch
from coopconsume.fenced.view import LogView
from coopconsume.fenced.writer_config import EpochSource, WriterConfig
from coopconsume.kafka.call_limit import Deadline, monotonic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from coopconsume.fenced.kafka_channel import KafkaChannel
    from coopconsume.fenced.kafka_engine import Engine

log = logging.getLogger(__name__)

#: Seconds after which an append looks at the topic's id and the log's end again. What is written to
#: a topic that was created again in between does not count there, as its session tag is another.
_LOOK_EVERY: Final = 1.0


class WriterSession(LogView):
    """A writer's session with a log.

    A shared session fences nobody and opens no epoch. With a ``producer_id``, sessions with other
    logs use its producer, too.

    Attributes:
        epoch: The session's epoch; 0 before it has one.
        opened_at: Offset of the session's first ``open`` record; -1 before.
        fenced: Whether somebody else has opened the log since.
        is_refused: Whether its `EpochSource` has refused it; the log may still be its own.
        replaces, repairs: See `FencedWriter.acquire`.
        channel: The producer; None after a doubt.
        doubtful: Earliest offsets of sent batches whose outcome is not known, by id.
        wrote_at: When this session last wrote to the log, by `monotonic`.
        late_at: Offset at which a batch without an answer would count.
        is_shared: Whether others write beside it.
        is_filtered: Whether readers find out from the records which of them count.
    """

    def __init__(
        self,
        engine: Engine,
        topic: str,
        partition: int,
        config: WriterConfig,
        producer_id: str | None = None,
    ) -> None:
        super().__init__(engine, topic, partition, compacted=config.compacted)
        self._config = config
        self.id = config.session or uuid.uuid4().hex
        self.epoch = config.epoch or 0
        self.opened_at = -1
        self.fenced = False
        self.replaces: int | None = None
        self.repairs: tuple[int, ...] = ()
        self.wrote_at = -inf
        self.late_at: int | None = None
        self.is_shared, self.is_filtered = config.shared, config.visibility == "filter"
        # To name an epoch that was granted is a choice, too.
        self._fence_owner = config.fence_owner if config.epoch is None else True
        self._left_epoch = 0  # of this writer's session before `release`
        self._has_epoch = config.epoch is not None
        self._incarnation = 0  # none before the session's first ``open`` record
        self._epochs = config.epochs or EpochSource()
        self._shared = uuid.uuid4().hex if config.shared else None
        self._producer_id = producer_id
        self.channel: KafkaChannel | None = None
        self.doubtful: dict[str, int] = {}
        self._released = False
        self.is_refused = False

    def unknown(self, batch_id: str, problem: str, at: int = 0) -> AppendOutcomeUnknown:
        """Returns the error of a batch that may be in the log, at this offset or later."""
        first = self.doubtful.get(batch_id, at)
        return AppendOutcomeUnknown(*self.log.tp, batch_id, first, problem)

    # -- to own the log ------------------------------------------------------------------------

    def look(self, deadline: Deadline) -> None:
        """Checks the log before its present owner is fenced; comes before `connect`."""
        if self.fenced or self.is_refused:
            raise self.fenced_error()
        if self._released:  # The next session, unless one was given.
            self._left_epoch = self.epoch
            self.epoch, self._has_epoch, self.opened_at, self._incarnation = 0, False, -1, 0
            self.id = self._config.session or uuid.uuid4().hex
            self._released = False
        self.identify()
        if self.is_filtered and self.is_compacted:
            raise AppendRefused(
                f"{self.log.topic} is compacted: of a filtered log a record that does not count "
                "could stand for one that does. Use visibility=read_committed"
            )
        if self._has_epoch or self._replaceable is not None:
            self._read_to(self.ends().stable, deadline)
            self.check_owner()
            if not self.is_shared and self._has_epoch:
                with self._asking():
                    self._epochs.check(self.log, self.epoch)

    def connect(self, deadline: Deadline, channel: KafkaChannel | None) -> None:
        """Uses a producer, or makes one, which decides the last transaction of the one before."""
        self.channel = channel or self.channel
        if self.channel is None:
            name = self._transactional_id
            self.channel = self._engine.channel(self.log, name, deadline.seconds)
            if name is not None:
                self.channel.init(deadline.left)

    @property
    def _transactional_id(self) -> str | None:
        if self.is_filtered:
            return None
        return self._producer_id or self.log.transactional_id(self._shared)

    def acquire(self, deadline: Deadline) -> bool:
        """Tries to take the log and to read its end, also after any doubt; comes after `connect`.

        See `FencedWriter.acquire`. A doubt about an append remains if retention has overtaken it.

        Returns:
            Whether all earlier appends are decided; False if others wrote meanwhile.
        """
        self._read_to(self.decided_end(deadline), deadline)
        if not (self._join(deadline) if self.is_shared else self._own(deadline)):
            return False
        self._has_epoch = True
        for batch_id, at in list(self.doubtful.items()):
            is_kept = at >= self.known_from and not self.fold.has_forgotten
            if not (is_kept or self.find_batch(batch_id, at, deadline)) and self.start() > at:
                continue
            del self.doubtful[batch_id]
        return True

    def _own(self, deadline: Deadline) -> bool:
        """Opens this session's epoch again, or a new one, which ends the last owner."""
        self.check_owner()
        last, owner = self.fold.epoch or 0, self.fold.owner
        is_ours = owner is not None and owner.session == self.id
        if self.opened_at < 0:  # Another writer of the session may have opened it meanwhile.
            self._incarnation = 1 + (owner.incarnation if owner is not None and is_ours else 0)
        # Also an ``open`` record of an earlier attempt that is in the log after all.
        with self._asking():
            epoch = max(self.epoch, last if is_ours else self._epochs.next_epoch(self.log, last))
            if epoch <= last and not is_ours:
                raise self.fenced_error()
        name = self._config.owner or f"{socket.gethostname()}:{os.getpid()}"
        mine = Owner(name, self.id, self.log.topic_id, self._incarnation, self.repairs)
        at = self.offset
        opening = self.draft([Request.mark("open", mine.to_bytes())], epoch)
        if not send({self: opening}, deadline):
            return False
        self.epoch = epoch
        self.opened_at = at if self.opened_at < 0 else self.opened_at
        if self._fence_owner is self.replaces is None and last != self._left_epoch and not is_ours:
            log.warning(
                "%s was taken from %s (epoch %d), which is fenced if it is alive: set "
                "fence_owner=True if you mean that, or fence_owner=False to be refused instead",
                self.log, "an owner" if owner is None else repr(owner.name), last,
            )  # fmt: skip
        return True

    def _join(self, deadline: Deadline) -> bool:
        """Writes beside others, under the epoch in force."""
        if not self._has_epoch:
            self.epoch = self.fold.epoch or 0
        self.check_owner()
        if not self._has_epoch:
            with self._asking():
                self._epochs.join(self.log)
        if self.late_at is None or self.offset > self.late_at:
            return True
        # An earlier append may still arrive and count. A shared filtered log is not opened: a
        # checkpoint takes the offset of that append.
        return send({self: self.draft([Request.mark("checkpoint")])}, deadline)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Takes a refusal of the `EpochSource` as permanent."""
        try:
            yield
        except ProducerFenced:
            self.is_refused = True
            raise

    def _end_transactions(self, deadline: Deadline) -> None:
        """Fences other writers of the log that stopped in a transaction."""
        if self.is_shared or self.channel is None:
            return
        if self._has_epoch:  # The transaction may be that of a new owner.
            self._read_to(self.ends().stable, deadline)
            self.check_owner()
        mine = self._transactional_id
        for name in (each.transactional_id for each in self._open_transactions()):
            if name is not None and name != mine and self.log.is_of_writer(name):
                channel = self._engine.channel(self.log, name, deadline.seconds)
                try:
                    channel.init(deadline.left)
                finally:
                    channel.drop()

    def _read_to(self, end: int, deadline: Deadline) -> None:
        """Reads on, and who opened the epoch in force if that may be this session."""
        if self.offset < 0 or self.fold.next_seq is None:
            self.find_state(end, deadline)
        self.catch_up(end, deadline)
        may_be_ours = self._config.session is not None and self.fold.owner is None
        if may_be_ours and (not self._has_epoch or self.fold.epoch == self.epoch):
            _, fold, _ = self.fold_back(self.offset, deadline, lambda fold, _: fold.owner)
            self.fold.owner = fold.owner if fold.epoch == self.fold.epoch else None

    def check_owner(self) -> None:
        """Raises `ProducerFenced` if another owner has opened the log since this session had it.

        Raises `ProducerBusy` if it has none yet, and the log another owner than the one to replace.
        """
        last, owner = self.fold.epoch or 0, self.fold.owner
        if self._has_epoch:
            other = not self.is_shared and self._other is not None
            self.fenced |= last > self.epoch or (other and last == self.epoch)
        if self.fenced:
            raise self.fenced_error()
        if self._has_epoch:
            return
        is_ours = owner is not None and self._other is None
        if self._replaceable not in (None, last) and not is_ours:
            name = None if owner is None else owner.name
            reason = f"its epoch is {last}, expected {self._replaceable}: it is held"
            raise ProducerBusy(*self.log.tp, name, reason)

    @property
    def _replaceable(self) -> int | None:
        """The epoch that this session may end; 0: none; None: any."""
        if self._fence_owner is False and self.replaces is None:
            return self._left_epoch
        return self.replaces

    @property
    def _other(self) -> Owner | None:
        """The log's owner, if known and not this session, or a later writer of this session."""
        owner = self.fold.owner
        later = owner is not None and 0 < self._incarnation < owner.incarnation
        return None if owner is None or (owner.session == self.id and not later) else owner

    def fenced_error(self) -> ProducerFenced:
        """The error of a session that has lost the log."""
        name = None if self._other is None else self._other.name
        return ProducerFenced(*self.log.tp, self.epoch, self.fold.epoch, name)

    def refresh(self, deadline: Deadline, *, stable: bool = False) -> None:
        """Reads on to the end of the log, or to what is stable now; fails as `acquire` does."""
        self.identify()
        end = max(self.offset, self.ends().stable) if stable else self.decided_end(deadline)
        self.catch_up(end, deadline)
        self.check_owner()

    # -- to write ------------------------------------------------------------------------------

    def catch_up(self, stop: int, deadline: Deadline) -> None:
        """Reads on; from the end of the log if retention has removed the next records."""
        try:
            super().catch_up(stop, deadline)
        except LogTruncated:
            self.find_state(stop, deadline)

    def look_again(self, deadline: Deadline) -> None:
        """Looks up the topic and reads on, if the last look-up is more than a second ago."""
        if monotonic() - self.identified_at > _LOOK_EVERY:
            self.refresh(deadline, stable=True)

    def draft(self, requests: Sequence[Request], epoch: int | None = None) -> LogAppend:
        """Returns batches of one kind with stamps for the expected end of the log.

        Appends without a condition, too, expect this offset: so a late batch of a former owner does
        not count, and sequence numbers have no gaps.
        """
        offset, seq = self.position
        kind, its = requests[0].kind, self.epoch if epoch is None else epoch
        visibility = self._config.visibility
        tag = os.urandom(len(NO_TAG)) if kind == "open" else self.fold.tag or NO_TAG
        stamps: list[Stamp] = []
        headers: list[Header] = []
        for each in requests:
            n = len(each.rows)
            stamp = Stamp(visibility, kind, its, seq, n, 0, each.batch_id, offset, tag)
            stamps.append(stamp)
            headers += [encode(stamp)] if n == 1 else encode_batch(stamp)
            offset, seq = offset + n, seq + n
        rows = [row for each in requests for row in each.rows]
        consumed = [each.consumed for each in requests if each.consumed is not None]
        return LogAppend(self.log, rows, headers, stamps, consumed)

    def wrote(self, part: LogAppend) -> None:
        """Folds what is now in the log, without reading it."""
        at = 0
        for stamp in part.stamps:
            self.fold.wrote(stamp, part.entries[at : at + stamp.n])
            at += stamp.n
        self.wrote_at = monotonic()
        # A transaction ends with a marker, which takes an offset.
        self.offset += at + (0 if self.is_filtered else 1)

    def release(self) -> None:
        """Releases the log; the next `acquire` opens a new epoch."""
        self.drop()
        self._released = True

    def drop(self) -> None:
        """Drops the producer; the next `acquire` decides its last transaction."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.drop()


def send(parts: Mapping[WriterSession, LogAppend], deadline: Deadline) -> bool:
    """Appends to each of some logs, in one transaction; to a filtered log without one.

    Offsets that are ``consumed`` are committed with the records.

    Returns:
        Whether the records are in the logs; if not, they never will be.

    Raises:
        EngineDoubt: They may be in the logs, or be there later; drop the channel.
    """
    first = next(iter(parts))
    channel, is_filtered = first.channel, first.is_filtered
    assert channel is not None
    try:
        if not is_filtered:
            channel.begin()
        first.late_at = first.offset if is_filtered else None
        found = channel.append([*parts.values()], deadline.left)
        placed = all(map(is_in_place, found, [session.offset for session in parts]))
        first.late_at = None
        if not is_filtered and placed:
            for each in (each for part in parts.values() for each in part.consumed):
                channel.send_offsets(each, deadline.left)
            channel.commit(deadline.left)
        elif not is_filtered:
            channel.abort(deadline.left)
    except EngineDoubt:
        raise
    except Exception as error:
        # A fault of the client says nothing about what was sent before it.
        raise EngineDoubt(str(error) or type(error).__name__, error) from error
    if placed:
        for session, part in parts.items():
            session.wrote(part)
    return placed
