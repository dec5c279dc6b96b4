"""`ExclusiveProducer`: PIP-68's access modes for a Kafka log."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import uuid
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from coopconsume.closing import Acquired
from coopconsume.errors import InvalidOption
from coopconsume.errors.fenced import (
    LogReplaced,
    OwnershipUnavailable,
    ProducerBusy,
    ProducerFenced,
    WriterNotOpen,
)
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.ownership import (
    AccessMode,
    Busy,
    Fenced,
    Grant,
    KafkaStore,
    Outcome,
    OwnershipRegistry,
    OwnershipStore,
    Queued,
    Replaced,
)
from coopconsume.fenced.ownership.registry import check_lease
from coopconsume.fenced.view import LogView, open_engine
from coopconsume.fenced.writer import FencedWriter
from coopconsume.fenced.writer_config import EpochSource, WriterConfig, WriterOptions
from coopconsume.kafka.call_limit import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coopconsume.fenced.log import Appended, AppendOptions, LogId, Records

logger = logging.getLogger(__name__)

GROUP = "log"
"""The registry's group of all logs."""
_LOOK = 0.25  # seconds; a store says earlier when something changed


class ExclusiveProducer(Acquired):
    """A producer of one partition that shares it, has it alone, or waits to have it alone.

    The registry grants access; the log itself fences former owners, from the moment at which the
    next owner opens it, before its first append. A fenced producer is not notified: its next append
    raises `ProducerFenced`, permanently. A producer that only lost its
    place in the registry continues under its epoch if nobody had the log in between.

    Example:
        >>> wait = AccessMode.WAIT_FOR_EXCLUSIVE
        >>> with ExclusiveProducer({"kafka.bootstrap.servers": "…"}, "ledger", mode=wait) as mine:
        ...     mine.append([b"nobody else writes until the end of this block"])

    Args:
        options, topic, partition: As for `FencedWriter`.
        mode: How to have it.
        store: Where the registry is, for this producer alone, which closes it; by default the topic
            ``__fw_ownership`` of the same cluster.
        lease: Seconds without a heartbeat after which waiting producers consider this one dead; 0:
            never.
        meanwhile: Called repeatedly while it waits for the log.
        **how: The fields of `WriterConfig`, except ``epochs``, ``shared`` and ``fence_owner``. The
            visibility is the same for all producers of a log. ``owner`` is the session's id by
            default. ``timeout`` does not limit the wait for the log. A ``session`` keeps its place
            and its epoch if nobody had the log meanwhile, else it asks again; with ``epoch`` it is
            fenced permanently then. One process at a time may use a session, under the same owner.

    Attributes:
        topic, partition, mode: As they were given.
        owner: The name of this producer.
        session: Id of this producer's session; another producer can continue it.
        registry: The registry, to look at.
        writer: The writer, once the log is acquired.

    Raises:
        OptionError, EngineNotUsable, OwnershipUnavailable, OwnershipFormat: As they say.
        ValueError: There is no such mode, or the lease is negative.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        partition: int = 0,
        *,
        mode: AccessMode = AccessMode.EXCLUSIVE,
        store: OwnershipStore | None = None,
        lease: float = 10.0,
        meanwhile: Callable[[], None] | None = None,
        **how: Unpack[WriterOptions],
    ) -> None:
        check_lease(lease)
        config = WriterConfig(**how)
        if config.shared or config.epochs is not None or config.fence_owner is not None:
            remedy = "the access mode decides: leave them out"
            raise InvalidOption("shared, epochs, fence_owner", "given", remedy)
        self.topic, self.partition = topic, partition
        self.mode = AccessMode(mode)
        self._engine = open_engine(config.engine, FencedSettings.parse(options), config.timeout)
        session, epoch = config.session, config.epoch
        name = config.owner or session or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        shared = self.mode is AccessMode.SHARED
        how |= {
            "owner": name, "engine": self._engine, "shared": shared,
            "fence_owner": None if shared else True,  # the registry has decided
            "epochs": _ClaimedEpochs(self._confirm_claim),
            "session": None if shared else session, "epoch": None if shared else epoch,
        }  # fmt: skip
        self.writer: Final = FencedWriter(options, topic, partition, **how)
        self.registry: Final = OwnershipRegistry(
            KafkaStore(options) if store is None else store,
            owner=name,
            lease=lease,
            session=session or self.writer.session,
        )
        self.owner: Final = name
        self.session: Final = self.registry.session.id
        self._grant: Grant | None = None
        self._resumes, self._resumed = session is not None, epoch
        self._log = self.writer.log
        self._meanwhile = meanwhile
        self._lost: ProducerFenced | None = None
        self._given_up = threading.Event()
        self._turn = threading.RLock()  # `close` waits for `acquire`

    @property
    def epoch(self) -> int:
        """The topic epoch: grows with every owner, and stays when the same one comes back."""
        return self.writer.epoch

    @property
    def is_open(self) -> bool:
        """Whether it was acquired, and is not known to be lost."""
        return self.writer.is_open

    def acquire(self, timeout: float | None = None) -> Self:
        """Takes the log, as the access mode says; nothing if this producer has it.

        Args:
            timeout: Seconds to wait for one's turn, with `WAIT_FOR_EXCLUSIVE`; None: for ever. A
                wait that is over, or was ended by `close` in another thread, leaves nothing behind.

        Raises:
            ProducerBusy: Shared: somebody has the log alone, or waits to have it so. Waiting: it
                took too long.
            ProducerFenced: Exclusive: somebody else is there; or this producer was fenced.
            WriterNotOpen: It was closed.
            LogReplaced: The topic was created again, and the old one still has owners.
            OwnershipUnavailable, LogUnavailable, LogBlocked: As they say.
        """
        with self._turn:
            if self._lost is not None:
                raise self._lost
            if self._given_up.is_set():
                raise WriterNotOpen(*self._log.tp, "closed")
            if self.writer.is_open:
                return self
            view = LogView(self._engine, *self._log.tp, compacted=False)
            with view.looked_up():
                self._log = view.log
            try:
                self._grant = self._take_turn(timeout)
                self.writer.acquire()
            except BaseException:
                self._grant = None
                self._release_place()
                raise
            return self

    def _release_place(self) -> None:
        try:
            self.registry.release(GROUP, [str(self._log)])
        except OwnershipUnavailable as error:  # the lease will expire
            logger.warning("the place of %s was not given back: %s", self._log, error)

    def append(self, records: Records, **how: Unpack[AppendOptions]) -> Appended:
        """Publishes records, all or nothing: see `FencedWriter.append`.

        Raises:
            ProducerFenced: Another one has, or had, its turn; nothing of it is in the log. One that
                was granted the log and has not opened it yet does not fence: the append is in the
                log, before all of the next owner's.
            ProducerBusy, OwnershipUnavailable: As for `check`; all other errors are as there.
        """
        self.check()
        return self.writer.append(records, **how)

    async def append_async(self, records: Records, **how: Unpack[AppendOptions]) -> Appended:
        """Publishes records as `append` does, without blocking the event loop."""
        if not self._has_place:
            await asyncio.to_thread(self.check)
        return await self.writer.append_async(records, **how)

    def confirm(self) -> int:
        """Makes sure that at some moment of this call nobody else had opened the log.

        So what was read of the log up to the offset returned was then all there was. It fails as
        `check` and `FencedWriter.refresh` do.
        """
        self.check()
        return self.writer.refresh()

    def check(self) -> None:
        """Looks whether this producer has its place, as far as it knows; if not, asks for it again.

        Raises:
            ProducerFenced: Somebody else had a turn meanwhile.
            ProducerBusy: The place beside others is lost, and somebody waits to have the log alone.
        """
        if not self._has_place:
            self._come_back()

    @property
    def _has_place(self) -> bool:
        if self._lost is not None:
            raise self._lost
        return not self.writer.is_open or self.registry.keeps(GROUP, str(self._log))

    def held_by(self) -> str | None:
        """The name of the log's owner, or of the first producer that shares it.

        Raises:
            OwnershipUnavailable: The registry cannot be asked.
        """
        holders = self.registry.show(GROUP, str(self._log)).holders
        return holders[0].session.owner if holders else None

    def close(self) -> None:
        """Releases the log, or stops waiting for it; the next one that waits gets it.

        The producer cannot be used again. Harmless when repeated.
        """
        self._given_up.set()
        with self._turn:
            self.writer.release()
            self._release_place()
            # The next owner need not wait for connections to be closed.
            self.writer.close()
            self.registry.close()

    def _take_turn(self, timeout: float | None) -> Grant:
        deadline = Deadline(inf if timeout is None else timeout)
        epoch = self._kept() if self._resumed is None else self._resumed
        outcome = self._claim(self.mode, epoch)
        if isinstance(outcome, Fenced) and epoch != self._resumed:
            outcome = self._claim(self.mode, None)  # somebody was faster
        while isinstance(outcome, Queued):
            if self._given_up.is_set():
                raise WriterNotOpen(*self._log.tp, "closed")
            if deadline.is_over:
                others = f"{outcome.before} wait before this one, and " if outcome.before else ""
                reason = f"after {timeout:g} s {others}it is held"
                raise ProducerBusy(*self._log.tp, self.held_by(), reason)
            if self._meanwhile is not None:
                self._meanwhile()
            self.registry.wait(min(_LOOK, deadline.left))
            outcome = self.registry.poll(GROUP, str(self._log))
        return self._given(outcome)

    def _claim(self, mode: AccessMode, epoch: int | None) -> Outcome:
        return self.registry.acquire(
            GROUP, str(self._log), mode, epoch=epoch, topic_id=self._log.topic_id
        )

    def _kept(self) -> int | None:
        """The epoch of a session that goes on, if nobody had a turn since."""
        if not self._resumes:
            return None
        row, mine = self.registry.show(GROUP, str(self._log)), self.registry.session
        is_last = row.is_owned_by(mine) or (row.is_free and row.last == mine)
        is_same = row.topic_id in {"", self._log.topic_id}
        return row.fence_epoch if is_last and is_same else None

    def _given(self, outcome: Outcome) -> Grant:
        if isinstance(outcome, Grant):
            return outcome
        if isinstance(outcome, Busy):
            raise ProducerBusy(*self._log.tp, outcome.owner, "it is held alone, or waited for,")
        if isinstance(outcome, Replaced):
            raise LogReplaced(*self._log.tp, outcome.known_id, outcome.found_id)
        assert isinstance(outcome, Fenced)
        mine = (self._resumed or 0) if self._grant is None else self._grant.fence_epoch
        raise ProducerFenced(*self._log.tp, mine, outcome.fence_epoch, outcome.owner or None)

    def _come_back(self) -> Grant:
        """Claims one's own place again, which works if nobody was there in between."""
        grant = self._grant
        if grant is None:
            raise WriterNotOpen(*self._log.tp, "not open")
        mode = self.mode if self.mode is AccessMode.SHARED else AccessMode.EXCLUSIVE
        try:
            back = self._given(self._claim(mode, grant.fence_epoch))
            if back.fence_epoch != grant.fence_epoch:
                # An operator had evicted it.
                self.registry.release(GROUP, [str(self._log)])
                self._given(Fenced("", back.fence_epoch))
        except ProducerFenced as error:
            self._lost = error
            self.writer.close()
            raise
        return grant

    def _confirm_claim(self) -> Grant:
        """Asks the registry whether the claim holds, and renews it if nobody was in between."""
        grant = self._grant
        if grant is not None and self.registry.holds(GROUP, str(self._log), grant.fence_epoch):
            return grant
        return self._come_back()


class _ClaimedEpochs(EpochSource):
    def __init__(self, confirm: Callable[[], Grant]) -> None:
        self._confirm = confirm

    def next_epoch(self, log: LogId, last: int) -> int:  # noqa: ARG002
        return max(self._confirm().fence_epoch, last + 1)  # The registry may be younger.

    def join(self, log: LogId) -> None:  # noqa: ARG002
        self._confirm()

    def check(self, log: LogId, epoch: int) -> None:  # noqa: ARG002
        try:
            self._confirm()
        except OwnershipUnavailable as error:  # what fences is the log
            logger.warning("the owner of %s could not be looked up: %s", log, error)
