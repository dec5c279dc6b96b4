"""`QueueConsumer`: a work queue on Kafka, without Spark."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self

from coopconsume.closing import Closing
from coopconsume.decoding import Decoding
from coopconsume.decoding.record_decoder import RecordDecoder
from coopconsume.errors import (
    AlreadyClosed,
    BrokerUnreachable,
    InvalidOption,
    NotDecodable,
)
from coopconsume.errors.queue import QueueUnavailable
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.headers import message_headers
from coopconsume.queue.acknowledge_type import ACCEPT, REJECT, RELEASE, AcknowledgeType
from coopconsume.queue.committer import QueueCommitter
from coopconsume.queue.group_offsets import GroupOffsets
from coopconsume.queue.held_records import HeldRecords, places_of
from coopconsume.queue.record_source import LOOK_EVERY, RecordSource
from coopconsume.queue.rows import minus
from coopconsume.queue.session import QueueSession
from coopconsume.queue.settings import QueueReplica, QueueSettings
from coopconsume.queue.source_log import NEW_AFTER
from coopconsume.record import (
    MAX_WAIT,
    KeyT_co,
    Record,
    Reject,
    Retry,
    ValueT_co,
    usable_seconds,
)
from coopconsume.worker.handler_answers import error_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from coopconsume.decoding.declaration import Declared
    from coopconsume.queue.acquisitions import Granted
    from coopconsume.sinks.base import DeadLetterSink


log = logging.getLogger(__name__)

_OPENING = 30.0
#: Seconds for which a `poll` waits for an answer of brokers and replicas, at least and at most.
_ANSWER, _LONGEST_ANSWER = 5.0, 30.0
#: Seconds after which a `poll` without an answer raises; a leader's election takes less.
_AWAY = 15.0
_MOST_RECORDS = 100_000
#: Seconds for which a record is released that does not decode and has no place for dead letters,
#: and one whose decoder cannot work now.
_UNDECODED, _AGAIN = 60.0, 1.0


@dataclass(frozen=True)
class QueueCommit:
    """The result of `QueueConsumer.commit`.

    Attributes:
        done: The number of records whose acknowledgement counts.
        not_held: Partition and offset of each record whose acknowledgement does not count, since
            its hold had ended and another consumer holds it, or its topic was created again; and
            of each that was not renewed.
    """

    done: int = 0
    not_held: tuple[tuple[int, int], ...] = ()


class QueueConsumer(Closing, Generic[KeyT_co, ValueT_co]):
    """A consumer of a work queue: each record goes to one consumer at a time, in no order.

    A consumer acquires records for a time, works on them and acknowledges each one. A hold ends
    if it is not renewed; then another consumer gets the record. Acquisitions and acknowledgements
    are decided by a majority of the replicas. It connects at the first call, or as a context
    manager. Only one thread at a time may use it.

    Example:
        >>> with QueueConsumer(options, "orders") as consumer:
        ...     for record in consumer.poll(max_records=100):
        ...         handle(record)
        ...         consumer.acknowledge(record)
        ...     consumer.commit()

    Args:
        options: ``kafka.*`` with ``kafka.group.id``; ``startingOffsets``, ``failOnDataLoss`` and
            ``deadLetter``.
        topic: The topic with the records.
        replicas: 1 to 5 replicas, each the name of a topic, the path or URI of a Delta table (a
            text with a slash) or a `QueueReplica`. All consumers of the queue must name the same
            ones in the same order. By default there is one, the topic
            ``__queue.GROUP.TOPIC`` of the same cluster.
        hold: The duration of a hold in seconds, from 1 to 3600.
        max_deliveries: After so many deliveries without ACCEPT a record becomes a dead letter; it
            needs ``deadLetter``. None: never.
        engine: Has no effect, and is deprecated: one client writes and reads all replicas.
        value: What ``record.value`` is, declared as for `CooperativeConsumer.foreach`; None: bytes.
            `poll` rejects a record that does not decode, with the reason, and does not return it.
            Without ``deadLetter`` it is released for a minute; so is, for a second, a record whose
            decoder cannot work now, as where a schema registry does not answer.
        key: What ``record.key`` is, declared as for ``value``; None: bytes.

    Raises:
        InvalidOption, MissingOption, UnknownOption: The options are not valid.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        replicas: Sequence[str | QueueReplica] | None = None,
        *,
        hold: float = 30.0,
        max_deliveries: int | None = None,
        engine: str | None = None,
        value: Declared[ValueT_co] | None = None,
        key: Declared[KeyT_co] | None = None,
    ) -> None:
        if engine is not None:
            warnings.warn("engine has no effect", DeprecationWarning, stacklevel=2)
        self._settings = QueueSettings.parse(
            options, topic, replicas, hold=hold, max_deliveries=max_deliveries
        )
        decoding = Decoding(key, value)
        decoding.check()
        self._decoder = RecordDecoder(decoding) if decoding.declared else None
        self._session: QueueSession | None = None
        self._cluster: Cluster | None = None
        self._source: RecordSource | None = None
        self._offsets: GroupOffsets | None = None
        self._letters: DeadLetterSink | None = None
        self._held = HeldRecords(topic)
        self._committer = QueueCommitter(self._settings, self._held)
        #: When the first `poll` began that had no answer; infinite after one that had.
        self._away_since = math.inf
        self._is_closed = False
        self._pid: int | None = None

    def __enter__(self) -> Self:
        try:
            self._opened()
        except BaseException:
            self.close()
            raise
        return self

    def poll(
        self, max_records: int = 500, timeout: float = 1.0
    ) -> list[Record[KeyT_co, ValueT_co]]:
        """Acquire free records, the oldest ones first. First it commits acknowledgements.

        The attempt of a record is its number of deliveries, as far as the replicas know it.

        Args:
            max_records: The largest number of records, from 1 to 100,000.
            timeout: The seconds to wait for records. The call waits up to 5 s for an answer of
                brokers or replicas if ``timeout`` is shorter; a consumer's first call, which
                connects, up to 30 s.

        Returns:
            The records; empty if nothing is free in time.

        Raises:
            AlreadyClosed: The consumer is closed, or the process that opened it was forked.
            BrokerUnreachable: The brokers of the topic have not answered for 15 s.
            DataLoss: Records were deleted before they were done, with ``failOnDataLoss=true``.
            InvalidOption: An argument is out of range.
            QueueUnavailable: No majority of the replicas has taken acknowledgements for 15 s.
                Without acknowledgements a queue without a majority gives no records and no error.
        """
        if type(max_records) is not int or not 1 <= max_records <= _MOST_RECORDS:
            remedy = f"give a whole number from 1 to {_MOST_RECORDS}"
            raise InvalidOption("max_records", repr(max_records), remedy)
        _check_timeout(timeout)
        session, started = self._opened(), time.monotonic()
        try:
            found = self._polled(session, max_records, timeout)
        except (BrokerUnreachable, QueueUnavailable) as error:
            self._away_since = min(self._away_since, started)
            if time.monotonic() - self._away_since >= _AWAY:
                raise
            log.warning("%s", error)
            return []
        self._away_since = math.inf
        return found

    def _polled(
        self, session: QueueSession, limit: int, timeout: float
    ) -> list[Record[KeyT_co, ValueT_co]]:
        deadline = time.monotonic() + timeout
        self.commit(_patience(timeout))
        while True:
            found = self._acquired(session, limit, _patience(deadline - time.monotonic()))
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            session.run(min(left, LOOK_EVERY))

    def acknowledge(
        self,
        record: Record[Any, Any],
        kind: AcknowledgeType | str = ACCEPT,
        *,
        delay: float = 0.0,
        reason: object = "",
    ) -> None:
        """Acknowledge a record. The next `commit` or `poll` writes it.

        Args:
            record: A record that `poll` returned.
            kind: ACCEPT, RELEASE, REJECT or RENEW.
            delay: For RELEASE: the seconds for which no consumer gets the record.
            reason: For REJECT: written beside the dead letter, at most 500 characters: text, or
                any object, such as the error that is the reason.

        Raises:
            InvalidOption: The kind or the delay is not valid.
            NotHeld: `poll` did not return the record, or it is acknowledged already.
        """
        try:
            kind = AcknowledgeType(kind)
        except ValueError:
            remedy = f"give one of {', '.join(AcknowledgeType)}"
            raise InvalidOption("kind", repr(kind), remedy) from None
        seconds = usable_seconds(delay)
        if seconds is None or (seconds and kind is not RELEASE):
            raise InvalidOption("delay", repr(delay), "give seconds from 0, with RELEASE only")
        self._held.acknowledge(record, kind, seconds, reason)

    def commit(self, timeout: float = 30.0) -> QueueCommit:
        """Write the acknowledgements, and wait until a majority of the replicas counts them.

        The dead letter of a record is written before its rejection.

        Args:
            timeout: The seconds to wait.

        Raises:
            AlreadyClosed: The consumer is closed.
            InvalidOption: ``timeout`` is out of range.
            OutputNotWritten: Dead letters could not be written; their records stay held. All
                other acknowledgements count; the result of the next call contains them.
            QueueUnavailable: No majority answers. Later calls repeat the acknowledgements.
        """
        _check_timeout(timeout)
        session = self._opened()
        assert self._source is not None
        topic_id = self._source.topic_id
        settled = self._committer.commit(session, self._letters, topic_id, timeout)
        done = sum(len(found) for one in settled for found in one.done.values())
        lost = [place for one in settled for place in places_of(one.refused)]
        lost += self._held.not_counted()
        if settled:
            self._write_offsets(session)
        return QueueCommit(done, tuple(lost))

    def stable_offsets(self) -> dict[int, int]:
        """Return the stable offset of each partition: the first offset that is not done.

        Raises:
            AlreadyClosed: The consumer is closed.
            QueueUnavailable: No majority of the replicas can be read.
        """
        session = self._opened()
        session.wait_until_read(_ANSWER)
        assert self._source is not None
        return {p: session.member.replicas.done(p)[0] for p in self._source.ends}

    def close(self) -> None:
        """Commit acknowledgements, release all other records, and close all connections.

        Repeated calls have no effect.
        """
        if self._is_closed:
            return
        if self._is_forked():
            self._is_closed = True  # the connections are those of the other process
            return
        try:
            if self._session is not None and self._has_looked:
                self._held.release_rest()
                self.commit(timeout=self._settings.hold / 2)
                self._write_offsets(self._session, is_last=True)
        finally:
            self._is_closed = True
            self._held.clear()
            for part in (self._session, self._source, self._letters, self._cluster):
                if part is not None:
                    part.close()

    def _opened(self) -> QueueSession:
        if self._is_closed:
            raise AlreadyClosed(f"the queue consumer of {self._settings.name}")
        if self._is_forked():
            what = f"the queue consumer of {self._settings.name}, opened before a fork,"
            raise AlreadyClosed(what)
        if self._session is None or not self._has_looked:
            return self._open()
        return self._session

    @property
    def _has_looked(self) -> bool:
        """Whether the partitions of the topic are known."""
        return self._source is not None and bool(self._source.ends)

    def _is_forked(self) -> bool:
        """Whether another process has connected this consumer: its threads are not here."""
        return self._pid not in (None, os.getpid())

    def _open(self) -> QueueSession:
        self._pid = os.getpid()
        options, topic = self._settings.options, self._settings.topic
        if self._source is None:
            self._cluster = self._cluster or Cluster(options)
            self._cluster.topics([topic])  # checks permissions
            self._offsets = GroupOffsets(self._settings, self._cluster)
            self._source = RecordSource(self._settings, self._cluster)
        if options.dead_letter is not None and self._letters is None:
            from coopconsume.sinks.letters import open_dead_letters

            self._letters = open_dead_letters(options.dead_letter, options)
        if self._session is None:
            self._session = QueueSession(self._settings)
        self._session.open(_OPENING)
        self._refresh(self._session, _OPENING)
        if not self._has_looked:  # another topic than the noted one
            time.sleep(NEW_AFTER)
            self._refresh(self._session, _OPENING)
        return self._session

    def _refresh(self, session: QueueSession, patience: float) -> None:
        """Look at the topic; take up partitions that were added, and logs that are others now."""
        assert self._source is not None
        assert self._offsets is not None
        if not self._source.is_look_due:
            return
        now, member = time.monotonic(), session.member
        session.wait_until_read(patience)
        look = self._source.look(member.replicas, self._offsets.written, patience)
        if look is None:
            return
        session.note_former(look.replicas)
        changed = member.follow(look.logs)
        self._source.follow(look, is_other=bool(changed))
        if changed:
            self._forget(changed)
        session.begin(look.logs, patience)
        is_new = self._source.take_up(look, now)
        for partition, start in look.starts.items():
            deleted = self._source.deleted(member.replicas, partition, start)
            if deleted:
                session.tombstone({partition: deleted})
        if is_new:  # so that Kafka has where a queue began, whatever becomes of its replicas
            self._write_offsets(session)

    def _forget(self, changed: Collection[int]) -> None:
        """Forget what concerns logs that were replaced by others."""
        assert self._offsets is not None
        self._offsets.forget(changed)
        self._held.replace(changed)
        shown = ", ".join(f"{self._settings.topic}-{partition}" for partition in sorted(changed))
        log.warning("%s has another log now; its records are handed out as new ones", shown)

    def _write_offsets(self, session: QueueSession, *, is_last: bool = False) -> None:
        """Write the stable offsets to the group's offsets in Kafka."""
        assert self._source is not None
        assert self._offsets is not None
        topic_id, partitions = self._source.topic_id, self._source.ends
        if is_last:
            self._offsets.write_last(session, topic_id, partitions)
        else:
            self._offsets.write(session, topic_id, partitions, _ANSWER)

    def _acquired(
        self, session: QueueSession, limit: int, patience: float
    ) -> list[Record[KeyT_co, ValueT_co]]:
        assert self._source is not None
        self._refresh(session, patience)
        granted = session.acquire(limit, self._source.ends, patience)
        if granted is None or not granted.offsets:
            return []
        try:
            records = self._read(session, granted, patience)
        except BaseException:
            # Nobody has got them: others may, at once, and it was no delivery.
            session.settle("release", granted.offsets, is_delivered=False)
            raise
        for record in records:
            self._held.add(record, granted.until)
        return self._decoded(self._without_exhausted(records))

    def _decoded(self, records: list[Record]) -> list[Record[Any, Any]]:
        """Decode records as declared; acknowledge those that do not decode."""
        decoder = self._decoder
        if decoder is None:
            return list[Record[Any, Any]](records)
        found = []
        for record in records:
            try:
                given = decoder.decoded(record)
            except Exception as error:  # noqa: BLE001 - a function of the user may raise any
                self._acknowledge_undecoded(record, error)
                continue
            self._held.give(record, given)
            found.append(given)
        return found

    def _acknowledge_undecoded(self, record: Record, error: Exception) -> None:
        """Reject a record that does not decode; release it if that is not its own fault."""
        reason = error_text(error)
        if isinstance(error, NotDecodable | Reject) and self._letters is not None:
            self.acknowledge(record, REJECT, reason=reason)
            return
        delay = _UNDECODED if isinstance(error, NotDecodable | Reject) else _AGAIN
        if isinstance(error, Retry) and error.after is not None:
            delay = error.after
        self.acknowledge(record, RELEASE, delay=delay)
        log.warning(
            "%s-%d@%d is released for %g s: %s",
            record.topic, record.partition, record.offset, delay, reason,
        )  # fmt: skip

    def _read(self, session: QueueSession, granted: Granted, patience: float) -> list[Record]:
        """Read granted records; withdraw from those that do not come in time to be worked on."""
        assert self._source is not None
        read = self._source.read(granted, patience)
        if read.missing:
            session.settle("accept", read.missing)
        # If the hold has ended, others may have them.
        late = (
            read.late if time.monotonic() < granted.until else minus(granted.offsets, read.missing)
        )
        if late:
            session.settle("release", late, is_delivered=False)
        return [
            self._record(session, raw)
            for raw in sorted(read.records, key=_place)
            if raw.offset() not in late.get(raw.partition(), ())
        ]

    def _without_exhausted(self, records: list[Record]) -> list[Record]:
        """Reject the records that were delivered too often; the next commit writes them."""
        most = self._settings.max_deliveries
        if most is None:
            return records
        exhausted = [record for record in records if record.attempt > most]
        for record in exhausted:
            self.acknowledge(record, REJECT, reason=f"delivered {most} times without ACCEPT")
        return [record for record in records if record.attempt <= most]

    def _record(self, session: QueueSession, raw: Any) -> Record:
        partition, offset = _place(raw)
        attempt = 1 + session.member.replicas.deliveries(partition, offset)
        return Record(
            raw.topic(), partition, offset, raw.key(), raw.value(), raw.timestamp()[1],
            tuple(message_headers(raw)), attempt,
        )  # fmt: skip


def _patience(left: float) -> float:
    """Return the seconds to wait for an answer."""
    return min(max(left, _ANSWER), _LONGEST_ANSWER)


def _check_timeout(timeout: float) -> None:
    if usable_seconds(timeout) is None:
        raise InvalidOption("timeout", repr(timeout), f"give 0 to {MAX_WAIT:.0f} seconds")


def _place(raw: Any) -> tuple[int, int]:
    """Partition and offset of a record of confluent-kafka."""
    return raw.partition(), raw.offset()
