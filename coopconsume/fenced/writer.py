"""`FencedWriter`: appends to a log of Kafka by one owner, who has seen all that came before."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from coopconsume.closing import Acquired
from coopconsume.errors import CoopConsumeError
from coopconsume.errors.fenced import AppendRefused, WriterNotOpen
from coopconsume.fenced.appender import Appender
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.log import UNCHECKED, check_batch_id, checked_size, entries, expectation
from coopconsume.fenced.reader import head
from coopconsume.fenced.requests import Groups, Request, new_batch_id
from coopconsume.fenced.session import WriterSession
from coopconsume.fenced.view import open_engine
from coopconsume.fenced.writer_config import WriterConfig, WriterOptions
from coopconsume.kafka.call_limit import Deadline, monotonic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.fenced.log import (
        Appended,
        AppendOptions,
        Consumed,
        Expected,
        LastSeqs,
        LogId,
        Records,
    )

log = logging.getLogger(__name__)

#: Seconds before the next try of a checkpoint that failed.
_AGAIN: Final = 10.0


class BaseWriter(Acquired):
    """A writer of one or several logs of a cluster, with a session for each."""

    def __init__(
        self,
        options: Mapping[str, Any],
        logs: Iterable[tuple[str, int]],
        config: WriterConfig,
        producer_id: str | None = None,
    ) -> None:
        self._settings = FencedSettings.parse(options)
        self._timeout = config.timeout
        self._engine = open_engine(config.engine, self._settings, config.timeout)
        self._sessions = {
            log: WriterSession(self._engine, *log, config, producer_id) for log in logs
        }
        self._appender = Appender(*self._sessions.values())
        self._lock = threading.RLock()
        self._state = "not open"

    def close(self) -> None:
        """Releases the logs and closes the connections; harmless when repeated."""
        with self._lock:
            self._appender.drop()
            self._engine.close()
            self._state = "closed"

    def _check_open(self, wanted: str = "open") -> None:
        if self._state != wanted:
            raise WriterNotOpen(*next(iter(self._sessions)), self._state)

    def _last_batch(self, session: WriterSession, prefix: str, since: int = 0) -> Appended | None:
        with self._lock, session.reporting("reading"):
            self._check_open()
            session.check_owner()
            return session.last_batch(prefix, since, Deadline(self._timeout))


class FencedWriter(BaseWriter):
    """Appends to one partition as its only owner, on unmodified Kafka (KIP-27, PIP-68).

    Acquiring the log fences its owner, unless ``fence_owner`` is False, and returns when all that
    is in it is known to be decided. From then on each append is all or nothing, comes where it was
    expected or not at all, and is in the log once, however often it is tried.

    Example:
        >>> with FencedWriter({"kafka.bootstrap.servers": "localhost:9092"}, "ledger") as writer:
        ...     first = writer.append([b"a", b"b"], expected_seq=writer.next_seq)
        ...     writer.append([b"c"], expected_seq=first.last_seq + 1)

    It may be used by several threads; appends go one after another.

    Args:
        options: Kafka's settings, and ``check.expected.offsets``: see `FencedSettings.parse`.
        topic, partition: The log; the topic must exist.
        **how: The fields of `WriterConfig`.

    Attributes:
        checks: Whether what an append expects is looked at (``check.expected.offsets``).
        max_request_size: Bytes that a request may have (``kafka.max.request.size``).

    Raises:
        OptionError: An option makes no sense.
        EngineNotUsable: The brokers are too old for transactions to be safe.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        partition: int = 0,
        **how: Unpack[WriterOptions],
    ) -> None:
        config = WriterConfig(**how)
        super().__init__(options, [(topic, partition)], config)
        (self._session,) = self._sessions.values()
        self.checks: Final = self._settings.checks(topic)
        self.max_request_size: Final = self._settings.max_request_size
        self._groups = Groups(self.max_request_size, self._lock, self._settle)
        self._checkpoint_every = config.checkpoint_every
        self._checkpoints: threading.Thread | None = None
        self._closed = threading.Event()

    # -- what it knows -------------------------------------------------------------------------

    @property
    def log(self) -> LogId:
        """The log; its topic id is known once it was acquired."""
        return self._session.log

    @property
    def epoch(self) -> int:
        """The fence epoch of this owner; before `acquire` the one that was given, or 0."""
        return self._session.epoch

    @property
    def session(self) -> str:
        """Id of this writer, as its ``open`` records name it."""
        return self._session.id

    @property
    def next_offset(self) -> int:
        """Offset that the next record will get, as far as this writer knows."""
        return self._session.position.next_offset

    @property
    def next_seq(self) -> int:
        """Sequence number that the next record will get, as far as this writer knows."""
        return self._session.position.next_seq

    @property
    def opened_at(self) -> int:
        """Offset of the ``open`` record of this writer."""
        return self._session.opened_at

    @property
    def is_open(self) -> bool:
        """Whether the log was acquired, and nobody else is known to have taken it."""
        return self._state == "open" and not self._is_fenced

    @property
    def _is_fenced(self) -> bool:
        return self._session.fenced or self._session.is_refused

    peek = staticmethod(head)

    # -- to own --------------------------------------------------------------------------------

    def acquire(self, *, replaces_epoch: int | None = None, repairs: Sequence[int] = ()) -> Self:
        """Takes the log and learns where it goes on; nothing if this writer has it already.

        ``fence_owner`` decides what happens to an owner (`WriterConfig`). `ExclusiveProducer`
        refuses, waits or fences by its access mode.

        Args:
            replaces_epoch: The epoch of the owner to fence, as `peek` returns it; 0: nobody. A log
                with a later owner is left alone. It takes precedence over ``fence_owner``.
            repairs: Offsets of batches behind missing records, as `coopconsume.fenced.repair` finds
                them: the log is acquired in spite of them, and all readers pass over these gaps.

        Raises:
            ProducerBusy: The log has another epoch than ``replaces_epoch``, or an owner and
                ``fence_owner`` is False; nobody was fenced.
            ProducerFenced: This writer, or its claim, has lost the log to another one.
            LogBlocked: A transaction stays open in it, so that its end is not known.
            LogReplaced: There is no such topic, or it was created again.
            LogCorrupt: Its last records are not what fenced writers write.
            AppendRefused: The topic is compacted, and the visibility ``filter``.
            LogUnavailable, NotAuthorized, AuthenticationFailed: As they say.
        """
        with self._lock:
            if not self.is_open:
                self._check_open("not open")
                self._session.replaces = replaces_epoch
                self._session.repairs = tuple(repairs)
                self._session.repaired.update(repairs)
                self._appender.acquire(Deadline(self._timeout))
                self._state = "open"
                if self._checkpoint_every is not None and self._checkpoints is None:
                    run = partial(self._write_checkpoints, self._checkpoint_every)
                    name = "coopconsume-checkpoint"
                    self._checkpoints = threading.Thread(target=run, name=name, daemon=True)
                    self._checkpoints.start()
            return self

    def _write_checkpoints(self, every: float) -> None:
        wait = every
        while not self._closed.wait(wait):
            try:
                with self._lock:
                    left = self._session.wrote_at + every - monotonic()
                    if self.is_open and left <= 0:
                        self.checkpoint()
                wait = left if left > 0 else every
            except CoopConsumeError as error:
                log.warning("no checkpoint was written: %s", error)
                wait = min(every, _AGAIN)

    def _check_open(self, wanted: str = "open") -> None:
        if self._is_fenced:
            raise self._session.fenced_error()
        super()._check_open(wanted)

    def _check_answers(self) -> None:
        """Raises unless it is open; a fenced writer still answers for its appends."""
        if self._state != "open" and (self._state == "closed" or not self._is_fenced):
            self._check_open()

    def release(self) -> None:
        """Releases the log; harmless when repeated.

        `acquire` takes it again, under a new epoch, unless this writer was given a session.
        """
        with self._lock:
            self._session.release()
            if self._state == "open":
                self._state = "not open"

    def close(self) -> None:
        """Releases the log and closes the connections; harmless when repeated."""
        super().close()
        self._closed.set()
        self._groups.close()

    # -- to append -----------------------------------------------------------------------------

    def append(self, records: Records, **how: Unpack[AppendOptions]) -> Appended:
        """Appends records, all or nothing, if the log goes on where it is expected to.

        Appends that several threads or coroutines call at the same time are written together, in
        one transaction: each has its own expectation and its own answer.

        Args:
            records: Values, pairs of key and value, or `Entry` objects.
            **how: The keyword arguments below.

        Keyword Args:
            expected_offset: Kafka's offset that the first record has to get, or a list with one
                for each record (KIP-27); -1 is unchecked. It also counts records of others, and
                what transactions take.
            expected_seq: The same by sequence number, which counts this log's records alone; the
                better one to repeat an append by.
            expected_key_seq: Sequence number of the last record of keys in this log, as a mapping
                from key to number, None for a key without a record; or a number, if all records
                have one key. Appends of other keys do not matter. The first such append reads the
                log once. -1 (the default) is unchecked.
            batch_id: Id of the batch: 1 to 64 letters, digits or ``._:-``. Repeating an append
                with its id returns the first answer, from any process, as long as the log has the
                batch. The first append with an id reads the log's stamps once.
            is_new: True if the caller knows that the log has no batch of this id.
            timeout: Seconds that this call may take, above 0, also while it waits for others;
                the writer's by default, without the time that it waits for others.
            consumed: Offsets of a consumer group that are committed if the records are, and only
                then. Not in a filtered log.

        Raises:
            OffsetMismatch: The log goes on elsewhere; this call appended nothing.
            ProducerFenced: Another owner has the log; this call appended nothing.
            AppendOutcomeUnknown: Something failed after the records were sent, whatever it was, and
                whether they are in the log could not be found out in time. Or the log had a batch
                of this id, and retention has removed its records, so that they cannot be compared.
            AppendRefused: The records, numbers or id make no sense, the log has a batch of this
                id with other records, or Kafka does not take them.
            WriterNotOpen: The log was not acquired.
            LogBlocked, LogReplaced, LogCorrupt, LogUnavailable: As for `acquire`; this call
                appended nothing.
        """
        request = self._request(records, **how)
        return self._groups.run(request, self.log, how.get("timeout"))

    async def append_async(self, records: Records, **how: Unpack[AppendOptions]) -> Appended:
        """Appends records as `append` does, without blocking the event loop.

        A call that is cancelled, as by `asyncio.timeout`, may still append its records.
        """
        request = self._request(records, **how)
        if self._state == "closed":
            self._check_open()
        return await self._groups.run_async(request, self.log, how.get("timeout"))

    def _request(
        self,
        records: Records,
        *,
        expected_offset: Expected = UNCHECKED,
        expected_seq: Expected = UNCHECKED,
        expected_key_seq: LastSeqs | int = UNCHECKED,
        batch_id: str | None = None,
        is_new: bool = False,
        timeout: float | None = None,
        consumed: Consumed | None = None,
    ) -> Request:
        rows = entries(records)
        wanted = expectation(
            expected_offset, expected_seq, rows, check=self.checks, key_seq=expected_key_seq
        )
        check_batch_id(batch_id)
        if timeout is not None and timeout <= 0:
            raise AppendRefused(f"timeout {timeout!r}: give seconds above 0")
        if consumed is not None and self._session.is_filtered:
            raise AppendRefused("consumed: a filtered log has no transactions; leave it out")
        size = checked_size(rows, self.max_request_size, is_filtered=self._session.is_filtered)
        return Request(
            rows, wanted, batch_id or new_batch_id(), is_given=batch_id is not None, is_new=is_new,
            timeout=self._timeout if timeout is None else timeout, consumed=consumed, size=size,
        )  # fmt: skip

    def _settle(self, group: list[Request]) -> None:
        try:
            self._check_answers()
            seconds = max([request.timeout for request in group])
            self._appender.run({self._session: group}, Deadline(seconds))
        except BaseException as error:
            for request in group:
                request.settle(error)
            if not isinstance(error, Exception):
                raise

    def checkpoint(self) -> int:
        """Writes a record that holds nothing but the log's numbers, and returns its offset.

        So retention may remove all other records, and Kafka does not forget an idle owner's
        transactional id (7 days). It fails as `append` does.
        """
        mark = Request.mark("checkpoint", timeout=self._timeout)
        with self._lock:
            self._settle([mark])
        return mark.result().first_offset

    def refresh(self) -> int:
        """Reads what others have written, and returns the offset at which the log goes on.

        Raises:
            ProducerFenced, WriterNotOpen, LogUnavailable, LogBlocked, LogReplaced, LogCorrupt: As
                for `acquire`.
        """
        with self._lock:
            self._check_open()
            self._appender.refresh(Deadline(self._timeout))
            return self.next_offset

    def last_batch(self, prefix: str, *, since: int = 0) -> Appended | None:
        """Returns the last batch in the log whose id has a prefix: where a job goes on.

        It is the last one of what this writer has read, which is all that its owner need know;
        `refresh` reads on. The log is read from its end back, down to the offset ``since``.

        Raises:
            WriterNotOpen, ProducerFenced: The log was not acquired, or is lost.
            LogCorrupt, LogUnavailable: As for `acquire`.
        """
        return self._last_batch(self._session, prefix, since)

    def resolve(self, batch_id: str, *, since: int | None = None) -> Appended | None:
        """Finds out what happened to an append, after `AppendOutcomeUnknown` or a crash.

        Args:
            batch_id: Id of the batch.
            since: Offset from which to look for it, such as the error's ``offset``; by default
                from the log's start.

        Returns:
            The answer that the append would have given; None if it is not in the log and never
            will be.

        Raises:
            AppendOutcomeUnknown: It can still not be known.
            WriterNotOpen: The log was not acquired, so that an append of a former owner may be
                under way.
            LogReplaced, LogCorrupt: As for `acquire`.
        """
        with self._lock, self._session.reporting("reading"):
            self._check_answers()
            return self._appender.resolve(batch_id, since, Deadline(self._timeout))
