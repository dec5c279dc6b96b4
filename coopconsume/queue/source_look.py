"""Looks at the topic of a queue: which logs its partitions have, and where they begin and end."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coopconsume.queue.source_log import (
    TopicIds,
    epochs_to_compare,
    is_known,
    source_logs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.kafka.cluster import Cluster, Topic
    from coopconsume.queue.replica import ReplicaState
    from coopconsume.queue.source_log import SourceLog


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceLook:
    """What a look at the topic has found.

    Attributes:
        topic: The topic.
        logs: The logs of its partitions.
        starts: The first offset of each log.
        ends: The end of each log.
        replicas: The identities of the replicas that are noted with the group's offsets; empty if
            these were not looked up.
    """

    topic: Topic
    logs: dict[int, SourceLog]
    starts: dict[int, int]
    ends: dict[int, int]
    replicas: dict[int, str]


class SourceTopic:
    """The topic of a queue.

    Args:
        cluster: Its cluster.
        name: Its name.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._ids = TopicIds()
        self._replicas: dict[int, str] = {}

    def described(self) -> Topic:
        """Return the topic.

        Raises:
            TopicNotFound, NotAuthorized: It does not exist, or may not be read.
        """
        found = self._cluster.topics([self._name], missing_ok=True)
        return found[0] if found else self._cluster.topics([self._name])[0]

    def is_current(self, topic: Topic, states: Sequence[ReplicaState]) -> bool:
        """Return whether this is the topic, and no former one that a broker still describes."""
        is_current = self._ids.is_current(topic.id, states, time.monotonic())
        if not is_current:
            log.info("topic %s has another id now, %s, or a broker is behind", topic.name, topic.id)
        return is_current

    def look(
        self, topic: Topic, states: Sequence[ReplicaState], stable: Mapping[int, int]
    ) -> SourceLook:
        """Look at the logs of the topic.

        It was described before that: whatever is looked up or read after it is of no former topic.

        Args:
            topic: The topic.
            states: The replicas.
            stable: Where partitions begin that no replica has any more.
        """
        places = [(topic.name, p) for p in range(topic.partitions)]
        ends = {p: end for (_, p), end in self._cluster.log_ends(places).items()}
        starts = {p: start for (_, p), start in self._cluster.log_starts(places).items()}
        epochs = epochs_to_compare(states, topic.id, ends)
        kept = {}
        if epochs:
            asked = {(topic.name, p): epoch for p, epoch in epochs.items()}
            kept = {p: end for (_, p), end in self._cluster.epoch_ends(asked).items()}
        self._replicas = {}
        begin = {**self._beginnings(topic, states, starts), **stable}
        logs = source_logs(states, topic.id, ends, kept, begin)
        offsets = {p: end.offset for p, end in ends.items()}
        return SourceLook(topic, logs, starts, offsets, self._replicas)

    def noted_replicas(self) -> dict[int, str]:
        """Return the identities of the replicas that are noted with the group's offsets."""
        noted = [
            held.replicas
            for (name, _), held in sorted(self._cluster.primary().items())
            if name == self._name and held.replicas
        ]
        return dict(enumerate(noted[0])) if noted else {}

    def _beginnings(
        self, topic: Topic, states: Sequence[ReplicaState], starts: Mapping[int, int]
    ) -> dict[int, int]:
        """Return where the logs begin that no replica has."""
        logs = {p: {state.log(p) for state in states} - {None} for p in starts}
        new = [p for p, known in logs.items() if not known]
        begin = {p: starts[p] for p, known in logs.items() if known}  # known as other logs
        if not new:
            return begin
        self._replicas = self.noted_replicas()
        primary = {
            p: held.offset
            for (name, p), held in self._cluster.primary().items()
            if name == topic.name and (not held.ours or held.topic_id == topic.id)
        }
        begin |= {p: primary[p] for p in new if p in primary}
        others = [p for p in new if p not in primary]
        if is_known(states):  # they were added to the topic
            return begin | {p: starts[p] for p in others}
        found = self._cluster.starting([(topic.name, p) for p in others])
        return begin | {p: start for (_, p), start in found.items()}
