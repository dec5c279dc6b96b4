"""Writes the stable offsets of a queue to its group's offsets in Kafka, for tools that show lag."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from coopconsume.errors import BrokerUnreachable
from coopconsume.kafka.primary import primary_mark

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from coopconsume.kafka.cluster import Cluster
    from coopconsume.queue.session import QueueSession
    from coopconsume.queue.settings import QueueSettings


log = logging.getLogger(__name__)

_EVERY = 1.0
_LAST = 10.0


class GroupOffsets:
    """The stable offsets that were written to the group's offsets, and when that was last tried.

    Writing moves both. The offsets of a partition are forgotten with its log.

    Args:
        settings: The settings of the queue.
        cluster: The cluster of the group.

    Attributes:
        written: The offsets that were written, by partition.
    """

    def __init__(self, settings: QueueSettings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._tried_at = 0.0
        self.written: dict[int, int] = {}

    def forget(self, partitions: Collection[int]) -> None:
        """Forget partitions whose log was replaced."""
        for partition in partitions:
            self.written.pop(partition, None)

    def write(
        self, session: QueueSession, topic_id: str, partitions: Iterable[int], patience: float
    ) -> None:
        """Write the offsets that have moved, at most once a second and in one attempt.

        Args:
            session: The session, whose replicas have the offsets.
            topic_id: The id of the topic.
            partitions: The partitions.
            patience: The seconds to wait for the cluster. Holds end while a commit waits for it.
        """
        if time.monotonic() - self._tried_at >= _EVERY:
            self._write(session, topic_id, partitions, patience, 0.0)

    def write_last(self, session: QueueSession, topic_id: str, partitions: Iterable[int]) -> None:
        """Write the offsets that have moved, as the consumer is closed."""
        self._write(session, topic_id, partitions, _LAST, _LAST)

    def _write(
        self,
        session: QueueSession,
        topic_id: str,
        partitions: Iterable[int],
        patience: float,
        repeat_for: float,
    ) -> None:
        from kafka.errors import KafkaError

        if not session.has_majority:
            return
        self._tried_at = time.monotonic()
        stable = {partition: session.member.replicas.done(partition)[0] for partition in partitions}
        moved = {p: offset for p, offset in stable.items() if offset != self.written.get(p, 0)}
        if not moved:
            return
        replicas = [session.identities.get(n, "") for n in range(len(self._settings.replicas))]
        mark = primary_mark(topic_id, None, replicas=replicas)
        offsets = {(self._settings.topic, p): (at, mark) for p, at in moved.items()}
        try:
            with self._cluster.patient_for(patience):
                self._cluster.commit_primary(offsets, patience=repeat_for)
            self.written |= moved
        except (KafkaError, BrokerUnreachable) as error:  # the replicas have the truth
            log.warning("the offsets of group %s were not written: %s", self._settings.name, error)
