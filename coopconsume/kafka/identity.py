"""Which log a partition has: topic ids, leader epochs, and Spark's group id for reads.

A name and a number do not say which log a partition has. Whatever reads or keeps offsets carries a
`LogIdentity`, and what was read or noted under one identity does not count under another.

Spark's Kafka source caches consumers and fetched records in its executors, by group id, topic,
partition and next offset. A topic that was deleted and created again has the same name, so a read
would return cached records of the deleted topic. The same holds for a log that an unclean election
truncated. Reads therefore use a separate group id that changes when a topic id or a leader epoch
changes. It differs for different settings, too: a consumer that an executor has once made for a
group id and a partition may never be asked for with others. Spark assigns partitions to its
consumers manually, so that the group id for reads needs no permission.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits.model import TopicPartition


@dataclass(frozen=True)
class LogIdentity:
    """Identifies a log among those of the same topic name and partition.

    Attributes:
        topic_id: Kafka's id of the topic (KIP-516), as text; empty: not known.
        leader_epoch: The leader epoch in which the log was seen (KIP-320); None: not known. What
            was seen in it is still there below the end of that epoch, see `leaders.epoch_ends`.
    """

    topic_id: str = ""
    leader_epoch: int | None = None


def is_other_topic(noted: str, found: str) -> bool:
    """Return whether two topic ids belong to different topics; an empty one is not known."""
    return bool(noted and found and noted != found)


class LogIdentities:
    """The latest topic ids and leader epochs that this process has seen.

    All partitions have the same group id for reads, because one read covers many of them. The id
    contains a counter of changes, and a digest of the settings, which nobody else can compute. It
    is independent of the assignment of this process.
    The methods are thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Several processes can share executors, for example clients of one Spark Connect server.
        self._process = uuid.uuid4().hex[:8]
        self._secret = os.urandom(16)
        self._changes = 0
        self._topic_ids: dict[tuple[str, str], str] = {}
        self._epochs: dict[tuple[str, TopicPartition], int] = {}

    def saw_topics(self, cluster_id: str, topic_ids: Mapping[str, str]) -> None:
        """Record topic ids by name. An empty id is ignored."""
        with self._lock:
            for name, topic_id in topic_ids.items():
                known = self._topic_ids.setdefault((cluster_id, name), topic_id)
                if topic_id and known != topic_id:
                    self._topic_ids[cluster_id, name] = topic_id
                    self._changes += bool(known)

    def saw_epochs(self, cluster_id: str, epochs: Mapping[TopicPartition, int]) -> None:
        """Record the leader epochs that the leaders reported."""
        with self._lock:
            for tp, epoch in epochs.items():
                if self._epochs.setdefault((cluster_id, tp), epoch) != epoch:
                    self._epochs[cluster_id, tp] = epoch
                    self._changes += 1

    @property
    def changes(self) -> int:
        """The number of changes that this process has seen."""
        with self._lock:
            return self._changes

    def read_group(self, group_id: str, settings: Mapping[str, str]) -> str:
        """Return the group id for reads of a group.

        Args:
            group_id: The group.
            settings: All settings of the client with which it reads.
        """
        known = repr(sorted(settings.items())).encode()
        digest = hashlib.blake2s(known, key=self._secret, digest_size=6).hexdigest()
        return f"{group_id}-reads-{self._process}-{self.changes}-{digest}"


#: The identities of this process. All its consumers share Spark's caches.
LOG_IDENTITIES = LogIdentities()
