"""`QueueConsumer`: a work queue on Kafka, without Spark."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Self

from commits import OffsetRanges
from coopconsume.closing import Closing
from coopconsume.decoding import Decoding
from coopconsume.decoding.record_decoder import RecordDecoder
from coopconsume.errors import (
    AlreadyClosed,
    BrokerUnreachable,
    DataLoss,
    InvalidOption,
    NotDecodable,
    OutputNotWritten,
)
from coopconsume.errors.queue import NotHeld, QueueUnavailable
from coopconsume.kafka.cluster import Cluster, primary_mark
from coopconsume.kafka.headers import message_headers
from coopconsume.kafka.records import RecordReader
from coopconsume.queue.range_reader import RangeReader, RangesRead
from coopconsume.queue.rows import MOST_LISTED, minus
from coopconsume.queue.session import QueueSession
from coopconsume.queue.settings import QueueReplica, QueueSettings
from coopconsume.queue.source_log import NEW_AFTER
from coopconsume.queue.source_look import SourceTopic
from coopconsume.record import (
    MAX_WAIT,
    KeyT_co,
    Record,
    Reject,
    Retry,
    ValueT_co,
    usable_seconds,
)
from coopconsume.worker.handler_answers import error_text, reason_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping, Sequence

    from coopconsume.decoding.declaration import Declared
    from coopconsume.queue.member import Granted, Settled
    from coopconsume.queue.rows import Offsets
    from coopconsume.queue.source_look import SourceLook
    from coopconsume.sinks.base import DeadLetterSink


log = logging.getLogger(__name__)

_OPENING = 30.0
#: Seconds for which a `poll` waits for an answer of brokers and replicas, at least and at most.
_ANSWER, _LONGEST_ANSWER = 5.0, 30.0
#: Seconds after which a `poll` without an answer raises; a leader's election takes less.
_AWAY = 15.0
_ENDS_AGE = 0.2
_OFFSETS_EVERY = 1.0
_LAST_OFFSETS = 10.0
_MOST_RECORDS = 100_000
#: Seconds for which a record is released that does not decode and has no place for dead letters,
#: and one whose decoder cannot work now.
_UNDECODED, _AGAIN = 60.0, 1.0
#: Milliseconds that a broker waits for records.
_FETCH_WAIT_MS = 20


class AcknowledgeType(StrEnum):
    """What becomes of a record; the names are those of Kafka's share groups (KIP-932, KIP-1222).

    Attributes:
        ACCEPT: The record is done.
        RELEASE: Any consumer may get the record again.
        REJECT: The record becomes a dead letter. Without ``deadLetter`` it is released.
        RENEW: The consumer holds the record for another full duration.
    """

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    RENEW = "renew"


ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW = AcknowledgeType.REJECT, AcknowledgeType.RENEW


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


@dataclass(slots=True)
class _Held:
    #: As it is in Kafka, and as `poll` has returned it.
    record: Record
    given: Record[Any, Any]
    #: When the hold ends, on the monotonic clock.
    until: float
    kind: AcknowledgeType | None = None
    delay: float = 0.0
    reason: str = ""


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
        self._source: RecordReader | None = None
        self._letters: DeadLetterSink | None = None
        self._held: dict[tuple[int, int], _Held] = {}
        self._unsettled: list[Settled] = []
        self._ends: dict[int, int] = {}
        self._ends_at = 0.0
        #: When the first `poll` began that had no answer; infinite after one that had.
        self._away_since = math.inf
        self._topic_id = ""
        self._topic: SourceTopic | None = None
        self._epochs: dict[int, int] = {}
        #: Records that were handed out of a log that was replaced, and not acknowledged since.
        self._replaced: dict[tuple[int, int], Record[Any, Any]] = {}
        self._not_counted: list[tuple[int, int]] = []
        self._stable: dict[int, int] = {}
        self._stable_at = 0.0
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
            session.run(min(left, _ENDS_AGE))

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
        place = record.partition, record.offset
        held = self._held.get(place)
        if place in self._replaced and self._replaced[place] == record:
            del self._replaced[place]
            self._not_counted.append(place)
            return
        is_ours = held is not None and record.topic == self._settings.topic
        if held is None or not is_ours or held.kind not in (None, RENEW):
            raise NotHeld(record.topic, record.partition, record.offset, record.offset)
        held.kind, held.delay, held.reason = kind, seconds, reason_of(reason)

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
        if self._letters is None:
            for held in self._held.values():
                held.kind = RELEASE if held.kind is REJECT else held.kind
        self._settle(session, ACCEPT, RELEASE, RENEW)
        problem: OutputNotWritten | None = None
        try:
            self._confirm_rejected(session, timeout)
            self._write_letters()
            self._settle(session, REJECT)
        except OutputNotWritten as error:
            problem = error
        session.wait(self._unsettled, timeout)
        if problem is not None:
            raise problem
        settled, self._unsettled = self._unsettled, []
        for one in settled:
            if one.row.kind == "renew":
                self._renewed(one)
        done = sum(len(found) for one in settled for found in one.done.values())
        lost = [place for one in settled for place in _places(one.refused)]
        lost, self._not_counted = lost + self._not_counted, []
        if settled:
            self._mirror(session, is_last=False)
        return QueueCommit(done, tuple(lost))

    def stable_offsets(self) -> dict[int, int]:
        """Return the stable offset of each partition: the first offset that is not done.

        Raises:
            AlreadyClosed: The consumer is closed.
            QueueUnavailable: No majority of the replicas can be read.
        """
        session = self._opened()
        session.wait_until_read(_ANSWER)
        return {partition: session.member.done(partition)[0] for partition in self._ends}

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
            if self._session is not None and self._ends:
                for held in self._held.values():
                    held.kind = held.kind if held.kind not in (None, RENEW) else RELEASE
                self.commit(timeout=self._settings.hold / 2)
                self._mirror(self._session, is_last=True)
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
        if self._session is None or not self._ends:
            return self._open()
        return self._session

    def _is_forked(self) -> bool:
        """Whether another process has connected this consumer: its threads are not here."""
        return self._pid not in (None, os.getpid())

    def _open(self) -> QueueSession:
        self._pid = os.getpid()
        options, topic = self._settings.options, self._settings.topic
        if self._topic is None:
            self._cluster = self._cluster or Cluster(options)
            self._cluster.topics([topic])  # checks permissions
            self._topic = SourceTopic(self._cluster, topic)
        if options.dead_letter is not None and self._letters is None:
            from coopconsume.sinks.letters import open_dead_letters

            self._letters = open_dead_letters(options.dead_letter, options)
        if self._session is None:
            self._session = QueueSession(self._settings)
        self._session.open(_OPENING)
        self._refresh(_OPENING)
        if not self._ends:  # another topic than the noted one
            time.sleep(NEW_AFTER)
            self._refresh(_OPENING)
        return self._session

    def _refresh(self, patience: float) -> None:
        """Look at the topic; take up partitions that were added, and logs that are others now."""
        now = time.monotonic()
        if now - self._ends_at < _ENDS_AGE:
            return
        assert self._cluster is not None
        assert self._topic is not None
        assert self._session is not None
        member = self._session.member
        self._session.wait_until_read(patience)
        with self._cluster.patient_for(patience):
            topic = self._topic.described()
            if not self._topic.is_current(topic, member.states):
                return
            look = self._topic.look(topic, member.states, self._stable)
        self._report_cuts(look)
        self._session.note_former(look.replicas)
        self._topic_id = look.topic.id
        self._follow(member.follow(look.logs), look)
        self._session.begin(look.logs, patience)
        self._epochs = {p: source.epoch for p, source in look.logs.items()}
        self._read_from(look)
        is_new = not look.ends.keys() <= self._ends.keys()
        self._ends, self._ends_at = look.ends, now
        for partition, start in look.starts.items():
            self._skip_deleted(partition, start)
        if is_new:  # so that Kafka has where a queue began, whatever becomes of its replicas
            self._mirror(self._session, is_last=False)

    def _report_cuts(self, look: SourceLook) -> None:
        """Report records that an unclean election has removed from logs."""
        assert self._session is not None
        for partition, source in look.logs.items():
            if source.cut_at is None:
                continue
            last = max(state.end(partition) for state in self._session.member.states) - 1
            loss = DataLoss(look.topic.name, partition, source.cut_at, last)
            if self._settings.options.fail_on_data_loss:
                raise loss
            log.warning("%s; what is written there since then is handed out as new", loss)

    def _follow(self, changed: Collection[int], look: SourceLook) -> None:
        """Forget what concerns logs that were replaced by others."""
        if not changed:
            return
        for partition in changed:
            self._stable.pop(partition, None)
        for place in [place for place in self._held if place[0] in changed]:
            self._replaced[place] = self._held.pop(place).given
        if self._source is not None:  # it may have fetched records of the former logs
            self._source.close()
            self._source = None
        shown = ", ".join(f"{look.topic.name}-{partition}" for partition in sorted(changed))
        log.warning("%s has another log now; its records are handed out as new ones", shown)

    def _read_from(self, look: SourceLook) -> None:
        """Open the client that reads records; assign partitions that are new to it."""
        if self._source is None:
            kafka = self._settings.options.kafka
            self._source = RecordReader(kafka, {"fetch.wait.max.ms": _FETCH_WAIT_MS})
        places = {(look.topic.name, p): look.starts[p] for p in look.logs}
        if places.keys() - self._source.positions.keys():
            self._source.assign(places)

    def _skip_deleted(self, partition: int, start: int) -> None:
        assert self._session is not None
        stable, above = self._session.member.done(partition)
        if start <= stable:
            return
        lost = above.complement(stable, min(start, stable + MOST_LISTED) - 1)  # the rest later
        for state in self._session.member.states_of(partition):
            lost -= state.held(partition)
        if not lost:
            return
        first, last = lost.first or 0, lost.last or 0
        if self._settings.options.fail_on_data_loss:
            raise DataLoss(self._settings.topic, partition, first, last)
        log.warning(
            "%d records of %s-%d were deleted before they were done, offsets %d to %d",
            len(lost), self._settings.topic, partition, first, last,
        )  # fmt: skip
        self._session.tombstone({partition: lost})

    def _acquired(
        self, session: QueueSession, limit: int, patience: float
    ) -> list[Record[KeyT_co, ValueT_co]]:
        self._refresh(patience)
        granted = session.acquire(limit, self._ends, patience)
        if granted is None or not granted.offsets:
            return []
        try:
            records = self._read(session, granted, patience)
        except BaseException:
            # Nobody has got them: others may, at once, and it was no delivery.
            session.settle("release", granted.offsets, is_delivered=False)
            raise
        for record in records:
            self._held[record.partition, record.offset] = _Held(record, record, granted.until)
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
            self._held[record.partition, record.offset].given = given
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
        now = time.monotonic()
        deadline = now + min(patience, (granted.until - now) / 2)
        assert self._source is not None
        read = RangeReader(self._source, self._settings.topic).read(granted.offsets, deadline)
        if not self._is_of_last_look(read.records, patience):
            self._ends_at, read = 0.0, RangesRead(late=dict(granted.offsets))
        if read.is_deleted:
            self._ends_at = 0.0  # `_refresh` reports them
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

    def _is_of_last_look(self, records: Sequence[Any], patience: float) -> bool:
        """Whether records that were just read are of the logs that the last look has found."""
        assert self._topic is not None
        assert self._cluster is not None
        if not records:
            return True
        epochs = self._epochs
        if any((one.leader_epoch() or 0) > epochs.get(one.partition(), -1) >= 0 for one in records):
            return False  # there was an election since then
        with self._cluster.patient_for(patience):
            return self._topic.described().id == self._topic_id

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
        attempt = 1 + session.member.deliveries(partition, offset)
        return Record(
            raw.topic(), partition, offset, raw.key(), raw.value(), raw.timestamp()[1],
            tuple(message_headers(raw)), attempt,
        )  # fmt: skip

    def _renewed(self, settled: Settled) -> None:
        """Note what was renewed, and drop what was not."""
        for place in _places(settled.refused):
            self._held.pop(place, None)
        for place in _places(settled.done):
            if place in self._held:
                self._held[place].until = settled.until

    def _confirm_rejected(self, session: QueueSession, timeout: float) -> None:
        """Hold rejected records for longer if their holds have ended, or may end soon.

        A record that another consumer has by now gets no dead letter.
        """
        soon = time.monotonic() + self._settings.hold / 2
        ending: dict[int, list[int]] = {}
        for (partition, offset), held in self._held.items():
            if held.kind is REJECT and held.until < soon:
                ending.setdefault(partition, []).append(offset)
        if ending:
            offsets = {p: OffsetRanges.from_offsets(found) for p, found in ending.items()}
            settled = session.settle("renew", offsets)
            session.wait([settled], timeout)
            self._renewed(settled)
            self._not_counted += _places(settled.refused)

    def _write_letters(self) -> None:
        rejected = [held for held in self._held.values() if held.kind is REJECT]
        if rejected and self._letters is not None:
            from coopconsume.worker.report import DeadLetter

            letters = [
                DeadLetter(
                    record.topic, record.partition, record.offset, record.key, record.value,
                    record.timestamp, record.headers, record.attempt, held.reason, "",
                )
                for held in rejected
                for record in [held.record]
            ]  # fmt: skip
            assert self._session is not None
            self._letters.append(
                letters, {self._settings.topic: self._topic_id}, self._session.member.holder
            )

    def _settle(self, session: QueueSession, *kinds: AcknowledgeType) -> None:
        """Start the acknowledgements of some kinds."""
        for (kind, delay), offsets in self._acknowledged(kinds).items():
            self._unsettled.append(session.settle(kind.value, offsets, delay))

    def _acknowledged(
        self, kinds: Container[AcknowledgeType]
    ) -> dict[tuple[AcknowledgeType, float], Offsets]:
        """Take the acknowledgements of some kinds, by kind and delay."""
        found: dict[tuple[AcknowledgeType, float], dict[int, list[int]]] = {}
        for (partition, offset), held in [*self._held.items()]:
            if held.kind is None or held.kind not in kinds:
                continue
            at = found.setdefault((held.kind, held.delay), {})
            at.setdefault(partition, []).append(offset)
            if held.kind is RENEW:
                held.kind = None
            else:
                del self._held[partition, offset]
        return {
            how: {p: OffsetRanges.from_offsets(offsets) for p, offsets in places.items()}
            for how, places in found.items()
        }

    def _mirror(self, session: QueueSession, *, is_last: bool) -> None:
        """Write the stable offsets to the group's offsets in Kafka, for tools that show the lag."""
        from kafka.errors import KafkaError

        now = time.monotonic()
        is_early = not is_last and now - self._stable_at < _OFFSETS_EVERY
        if is_early or not session.has_majority:
            return
        self._stable_at = now
        stable = {partition: session.member.done(partition)[0] for partition in self._ends}
        moved = {p: offset for p, offset in stable.items() if offset != self._stable.get(p, 0)}
        if not moved:
            return
        assert self._cluster is not None
        replicas = [session.identities.get(n, "") for n in range(len(self._settings.replicas))]
        mark, topic = primary_mark(self._topic_id, None, replicas=replicas), self._settings.topic
        offsets = {(topic, p): (at, mark) for p, at in moved.items()}
        try:
            # Holds end while a commit waits for the cluster of the records.
            with self._cluster.patient_for(_LAST_OFFSETS if is_last else _ANSWER):
                self._cluster.commit_primary(offsets, patience=_LAST_OFFSETS if is_last else 0.0)
            self._stable |= moved
        except (KafkaError, BrokerUnreachable) as error:  # the replicas have the truth
            log.warning("the offsets of group %s were not written: %s", self._settings.name, error)


def _patience(left: float) -> float:
    """Returns the seconds to wait for an answer."""
    return min(max(left, _ANSWER), _LONGEST_ANSWER)


def _check_timeout(timeout: float) -> None:
    if usable_seconds(timeout) is None:
        raise InvalidOption("timeout", repr(timeout), f"give 0 to {MAX_WAIT:.0f} seconds")


def _places(offsets: Offsets) -> list[tuple[int, int]]:
    return [(p, int(offset)) for p, found in offsets.items() for offset in found.offsets()]


def _place(raw: Any) -> tuple[int, int]:
    """Partition and offset of a record of confluent-kafka."""
    return raw.partition(), raw.offset()
