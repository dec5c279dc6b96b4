"""Publishes rows that wait, one transaction after another, as the stable offset passes them.

Each transaction writes the rows of offsets from P, the group's offset in Kafka, to below S, and
sets P to S. The commit log alone says which rows these are: those of counted commits below the
stable offset, which nobody can take back. So any member may publish them. Three things keep two
members from publishing at the same time, and rows from being published twice:

- one transactional id for each partition: the next publisher fences the previous one, after which
  that one's transaction is decided, and reads P only then;
- the log, which must still count our epoch after that;
- the group's generation, where there is one: Kafka refuses the offsets of an earlier one.

After any doubt the producer is dropped, and the next attempt starts with these steps again. That
also happens when a partition's first key hashes come back after another member has published. A
partition whose rows cannot be published is tried again after a pause; the others do not wait for
it. Its rows stay where they wait, so nothing is lost.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from commits import CommitLogUnavailable
from coopconsume.backoff import Backoff
from coopconsume.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    NotAuthorized,
    OutputsNotPublished,
)
from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.kafka.primary import primary_mark
from coopconsume.sinks.transactions import TransactionChannel, transactional_id
from coopconsume.state.rows import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.kafka.primary import Primary
    from coopconsume.kafka.producer import Message
    from coopconsume.sinks.purgatory import Chunk, Purgatory

log = logging.getLogger(__name__)

#: Rows of a transaction; those of one record stay together.
ROWS: Final = 10_000
#: Seconds that a transaction may take; Kafka's own limit is a minute.
_TRANSACTION: Final = 30.0
#: Seconds for which an attempt is repeated at once, until the partition counts as in trouble.
_PATIENCE: Final = 5.0
_PAUSE: Final = 0.2
#: Seconds until a partition in trouble is tried again: first, doubled with each failure, at most.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
#: Errors that may pass; a missing right is granted by an operator while the job runs.
_PASSING: Final = (
    AuthenticationFailed, BrokerUnreachable, CommitLogUnavailable, NotAuthorized,
    OutputsNotPublished,
)  # fmt: skip
#: Seconds between looks at whether what is published can be deleted.
_FORGET_EVERY: Final = 300.0


@dataclass(frozen=True)
class Trouble:
    """Why the rows of a partition are not published for now.

    Attributes:
        first: Rows from this offset on are not published, as far as is known.
        error: Why the last attempt failed.
        backoff: When the next attempt is due, on the monotonic clock.
    """

    first: int
    error: Exception
    backoff: Backoff


@dataclass
class Lane:
    """The producer of one partition.

    Attributes:
        channel: The producer.
        position: Everything below this offset is published.
        forgotten: When rows that are published were last deleted.
    """

    channel: TransactionChannel
    position: int
    forgotten: float = 0.0


class Publishing:
    """Publishes the rows of one epoch's partitions.

    Args:
        assignment: What is owned.
        topic: The topic that is written to.
        purgatory: Where rows wait.
        messages: Makes records of them.

    Attributes:
        topic: The topic that is written to.
        troubles: Partitions whose rows are not published for now. It is replaced, never changed:
            other threads read it.
    """

    def __init__(
        self,
        assignment: EpochAssignment,
        topic: str,
        purgatory: Purgatory,
        messages: Callable[[Chunk], Iterable[Message]],
    ) -> None:
        self.topic = topic
        self._assignment = assignment
        self._purgatory = purgatory
        self._messages = messages
        self.troubles: dict[TopicPartition, Trouble] = {}
        self._lanes: dict[TopicPartition, Lane] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()

    def publish(self, tp: TopicPartition, stable: int) -> bool:
        """Publishes the rows of a partition below its stable offset; sets the group's offset to it.

        Returns:
            Whether all of it is published. If not, the partition is in trouble, the group is being
            rebalanced, or `stop` was called.

        Raises:
            EngineNotUsable: The brokers are too old for transactions to be safe.
            commits.FencedMember: The epoch or the membership is not in force.
        """
        trouble = self.troubles.get(tp)
        if trouble is not None and time.monotonic() < trouble.backoff.not_before:
            return False
        try:
            with self._lock:
                is_done = self._repeat(tp, stable)
        except _PASSING as error:
            self._failed(tp, stable, error)
            return False
        finally:
            if self._over.is_set():
                self.close()  # `close` did not wait for us.
        if is_done:
            self._positions[tp] = stable
        if trouble is not None and is_done:
            self.troubles = {at: one for at, one in self.troubles.items() if at != tp}
            log.info("%s-%d: outputs are published again", *tp)
        return is_done

    def given_up(self, patience: float) -> Exception | None:
        """Returns why a job that is to end cannot publish everything; None: it may yet.

        Args:
            patience: Seconds for which an error must last.
        """
        now = time.monotonic()
        troubles = self.troubles.values()
        return next((x.error for x in troubles if x.backoff.is_lasting(now, patience)), None)

    @property
    def unpublished(self) -> dict[TopicPartition, tuple[int, str]]:
        """Partitions in trouble: the offset from which on rows wait, and why."""
        return {tp: (one.first, str(one.error)) for tp, one in self.troubles.items()}

    def stop(self) -> None:
        """Publishes nothing more; the next publisher takes the rows that wait."""
        self._over.set()

    def close(self) -> None:
        """Stops and drops the producers; harmless when repeated.

        It does not wait for an attempt under way, which closes what it used when it ends. The next
        publisher fences it.
        """
        self.stop()
        if self._lock.acquire(blocking=False):
            try:
                lanes, self._lanes = self._lanes, {}
                for lane in lanes.values():
                    lane.channel.drop()
            finally:
                self._lock.release()

    def _repeat(self, tp: TopicPartition, stable: int) -> bool:
        """Publishes; repeats an attempt without an answer for some seconds."""
        until = time.monotonic() + _PATIENCE
        while not self._over.is_set():
            try:
                return self._publish(tp, stable)
            except EngineDoubt as doubt:
                self._drop(tp, doubt, last=time.monotonic() > until)
                if doubt.is_of_earlier_generation:
                    log.debug("%s-%d: published later: %s", *tp, doubt.problem)
                    return False
                log.warning("publishing %s-%d again: %s", *tp, doubt.problem)
                self._over.wait(_PAUSE)
        return False

    def _failed(self, tp: TopicPartition, stable: int, error: Exception) -> None:
        """Notes that the rows of a partition are not published for now, and says so once."""
        known, lane = self.troubles.get(tp), self._lanes.get(tp)
        first = lane.position if lane is not None else self._positions.get(tp, stable)
        trouble = known or Trouble(first, error, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE))
        self.troubles = self.troubles | {tp: replace(trouble, error=error)}
        is_denied = isinstance(error, AuthenticationFailed | NotAuthorized)
        pause = trouble.backoff.failed(time.monotonic(), is_denied=is_denied)
        if known is None or str(known.error) != str(error):
            log.log(
                logging.ERROR if is_denied else logging.WARNING,
                "%s-%d: %s. The next attempt is made in %g s", *tp, error, pause,
            )  # fmt: skip

    def _drop(self, tp: TopicPartition, doubt: EngineDoubt, *, last: bool) -> None:
        """Drops the producer; raises what a repetition does not help."""
        lane = self._lanes.pop(tp, None)
        if lane is not None:
            self._positions[tp] = lane.position
            lane.channel.drop()
        if isinstance(doubt.refusal, AppendRefused) or (last and doubt.refusal is None):
            raise OutputsNotPublished(f"topic {self.topic!r}", doubt.problem) from doubt
        if doubt.refusal is not None:
            raise doubt.refusal from doubt
        self._check()

    def _check(self) -> None:
        assignment = self._assignment
        assignment.store.check(assignment.options.group_id, assignment.epoch, assignment.member)

    def _publish(self, tp: TopicPartition, stable: int) -> bool:
        lane = self._lanes.get(tp) or self._open(tp)
        origin = Origin(self._assignment.topic_ids.get(tp[0], ""), tp[1])
        if stable == lane.position:
            self._transact(tp, lane, None, stable)  # So that Kafka does not forget it.
        while lane.position < stable and not self._over.is_set():
            # Asked for each time, as others' commits are among them.
            counted = self._assignment.store.counted_commits(self._assignment.options.group_id)
            chunk = self._purgatory.chunk(origin, lane.position, stable, ROWS, counted.__contains__)
            self._transact(tp, lane, chunk, chunk.next)
        if time.monotonic() - lane.forgotten > _FORGET_EVERY:
            self._purgatory.forget(origin, lane.position)
            lane.forgotten = time.monotonic()
        return lane.position >= stable

    def _open(self, tp: TopicPartition) -> Lane:
        """Fences the former publisher, and reads how far it got."""
        assignment = self._assignment
        group = assignment.options.group_id
        channel = TransactionChannel(
            assignment.options, self.topic, transactional_id(group, *tp), _TRANSACTION,
            assignment.cluster.fence_producers,
        )  # fmt: skip
        try:
            channel.init(_TRANSACTION)
            primary = assignment.cluster.stable_primary(tp)
            self._check()
            stable = assignment.store.state(group)[tp].stable_offset
        except BaseException:
            channel.drop()
            raise
        position = begin(primary, assignment.topic_ids.get(tp[0], ""), stable)
        if primary is not None and position < primary.offset:
            log.warning(
                "%s-%d: Kafka's offset %d is beyond the stable offset %d, which was set back: what "
                "lies between may be published again", *tp, primary.offset, position
            )  # fmt: skip
        lane = self._lanes[tp] = Lane(channel, position)
        return lane

    def _transact(self, tp: TopicPartition, lane: Lane, chunk: Chunk | None, offset: int) -> None:
        assignment, channel = self._assignment, lane.channel
        until = time.monotonic() + _TRANSACTION
        mark = primary_mark(assignment.topic_ids.get(tp[0], ""), assignment.epoch, self.topic)
        channel.begin()
        if chunk is not None and chunk.rows.num_rows:
            channel.send(self._messages(chunk), until - time.monotonic())
        channel.add_offsets({tp: (offset, mark)}, assignment.place(), until - time.monotonic())
        channel.commit(until - time.monotonic())
        lane.position = offset


def begin(primary: Primary | None, topic_id: str, stable: int) -> int:
    """Below which offset everything is published.

    Args:
        primary: The group's offset in Kafka, read once nobody else can move it.
        topic_id: Of the topic as it is now.
        stable: The stable offset, read after that. Where it is the lower one, the log was set back,
            by an operator or as the topic was cut: what is done since then is new.
    """
    if primary is None or (primary.ours and primary.topic_id != topic_id):
        return 0
    return min(primary.offset, stable)
