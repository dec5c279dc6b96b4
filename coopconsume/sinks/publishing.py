"""Publishes rows that wait, one transaction after another, as the stable offset passes them.

Each transaction writes the rows of offsets from P, the group's offset in Kafka, to below S, and
sets P to S. What the rows are follows from the commit log alone: those of counted commits below
the stable offset, which nobody can take back. So it does not matter who publishes; that nobody
does at the same time, or twice, is seen to by

- one transactional id for each partition: to begin is to fence whoever had it, after which his
  transaction is decided, and only then P is read;
- the log, which must still count our epoch after that;
- the group's generation, where there is one: Kafka refuses the offsets of an earlier one.

After any doubt the producer is dropped, and all of that begins anew.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coopconsume.errors import OutputsNotPublished
from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.kafka.cluster import primary_mark
from coopconsume.sinks.purgatory import Origin
from coopconsume.sinks.transactions import TransactionChannel, transactional_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import TopicPartition
    from coopconsume.kafka.cluster import Primary
    from coopconsume.kafka.producer import Message
    from coopconsume.sinks.purgatory import Chunk, Purgatory

log = logging.getLogger(__name__)

#: Rows of a transaction; those of one record stay together.
ROWS: Final = 10_000
#: Seconds that a transaction may take; Kafka's own limit is a minute.
_TRANSACTION: Final = 30.0
#: Seconds for which publishing is tried, until the job stops.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.2
#: Seconds between looks at whether what is published can be deleted.
_FORGET_EVERY: Final = 300.0


@dataclass
class Lane:
    """The way from a partition to the topic.

    Attributes:
        channel: The producer.
        position: Everything below this offset is published.
        forgotten: When rows that are published were last deleted.
    """

    channel: TransactionChannel
    position: int
    forgotten: float = 0.0


class Publishing:
    """What a member publishes under one epoch.

    Args:
        holding: What is owned.
        topic: The topic that is written to.
        purgatory: Where rows wait.
        messages: Makes records of them.
    """

    def __init__(
        self,
        holding: EpochAssignment,
        topic: str,
        purgatory: Purgatory,
        messages: Callable[[Chunk], Iterable[Message]],
    ) -> None:
        self.topic = topic
        self._holding = holding
        self._purgatory = purgatory
        self._messages = messages
        self._lanes: dict[TopicPartition, Lane] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()

    def publish(self, tp: TopicPartition, stable: int) -> bool:
        """Publish what a partition has below its stable offset, and make that the group's offset.

        Returns:
            Whether all of it is published; if not, the group is being dealt anew, or it is over.

        Raises:
            OutputsNotPublished: Kafka did not take it for a minute.
            NotAuthorized: This user may not write to the topic, or use the transactional id.
            commits.FencedMember: Another member holds the group.
        """
        until = time.monotonic() + _PATIENCE
        with self._lock:
            while not self._over.is_set():
                try:
                    return self._publish(tp, stable)
                except EngineDoubt as doubt:
                    self._strike(tp, doubt, last=time.monotonic() > until)
                    if _is_stale(doubt):
                        log.debug("%s-%d: published later: %s", *tp, doubt.problem)
                        return False
                    log.warning("publishing %s-%d anew: %s", *tp, doubt.problem)
                    self._over.wait(_PAUSE)
        return False

    def stop(self) -> None:
        """Publish nothing more; what waits is left to whoever comes next."""
        self._over.set()

    def close(self) -> None:
        """Stop, and let go of the producers; harmless when repeated."""
        self.stop()
        with self._lock:
            lanes, self._lanes = self._lanes, {}
            for lane in lanes.values():
                lane.channel.drop()

    def _strike(self, tp: TopicPartition, doubt: EngineDoubt, *, last: bool) -> None:
        """Drop the producer; raise what cannot be helped."""
        lane = self._lanes.pop(tp, None)
        if lane is not None:
            lane.channel.drop()
        if isinstance(doubt.refusal, AppendRefused) or (last and doubt.refusal is None):
            raise OutputsNotPublished(f"topic {self.topic!r}", doubt.problem) from doubt
        if doubt.refusal is not None:
            raise doubt.refusal from doubt
        self._check()

    def _check(self) -> None:
        holding = self._holding
        holding.store.check(holding.options.group_id, holding.epoch, holding.member)

    def _publish(self, tp: TopicPartition, stable: int) -> bool:
        lane = self._lanes.get(tp) or self._open(tp)
        origin = Origin(self._holding.topic_ids.get(tp[0], ""), tp[1])
        if stable == lane.position:
            self._transact(tp, lane, None, stable)  # So that Kafka does not forget it.
        while lane.position < stable and not self._over.is_set():
            # Asked for each time, as others' commits are among them.
            counted = self._holding.store.counted_commits(self._holding.options.group_id)
            chunk = self._purgatory.chunk(origin, lane.position, stable, ROWS, counted.__contains__)
            self._transact(tp, lane, chunk, chunk.next)
        if time.monotonic() - lane.forgotten > _FORGET_EVERY:
            self._purgatory.forget(origin, lane.position)
            lane.forgotten = time.monotonic()
        return lane.position >= stable

    def _open(self, tp: TopicPartition) -> Lane:
        """Fence whoever published before us, and see how far he got."""
        holding = self._holding
        group = holding.options.group_id
        channel = TransactionChannel(
            holding.options, self.topic, transactional_id(group, *tp), _TRANSACTION
        )
        try:
            channel.init(_TRANSACTION)
            primary = holding.cluster.stable_primary(tp)
            self._check()
            stable = holding.store.state(group)[tp].stable_offset
        except BaseException:
            channel.drop()
            raise
        position = begin(primary, holding.topic_ids.get(tp[0], ""), stable)
        if primary is not None and position < primary.offset:
            log.warning(
                "%s-%d: Kafka's offset %d is beyond the stable offset %d, which was set back: what "
                "lies between may be published again", *tp, primary.offset, position
            )  # fmt: skip
        lane = self._lanes[tp] = Lane(channel, position)
        return lane

    def _transact(self, tp: TopicPartition, lane: Lane, chunk: Chunk | None, offset: int) -> None:
        holding, channel = self._holding, lane.channel
        until = time.monotonic() + _TRANSACTION
        mark = primary_mark(holding.topic_ids.get(tp[0], ""), holding.epoch, self.topic)
        channel.begin()
        if chunk is not None and chunk.rows.num_rows:
            channel.send(self._messages(chunk), until - time.monotonic())
        channel.add_offsets({tp: (offset, mark)}, holding.place(), until - time.monotonic())
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


def _is_stale(doubt: EngineDoubt) -> bool:
    """Whether the group's coordinator refused us: it knows a later generation."""
    from kafka.errors import CommitFailedError, FencedInstanceIdError

    return isinstance(doubt.__cause__, CommitFailedError | FencedInstanceIdError)
