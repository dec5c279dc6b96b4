"""Which logs the partitions of clusters are, and the group id under which Spark reads them.

Spark's Kafka source keeps consumers and fetched records in its executors, by group id, topic,
partition and next offset. A topic that was deleted and created again has the same name, so it would
be read from the records of the deleted one; so would a log that an unclean election cut. Reads
therefore use a group id of their own, which changes when a topic id or a leader epoch does. Spark
assigns partitions to its consumers by hand: a group id for reads needs no right on a group.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Partition = tuple[str, int]


class LogIdentities:
    """The topic ids and leader epochs that this process has seen last.

    The group id for reads is the same for all partitions, as one read covers many of them, and it
    counts changes: it stays while none of the logs changes, whatever this process owns of them.
    Methods may be called from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Several processes may share executors, as clients of one Spark Connect server do.
        self._process = uuid.uuid4().hex[:8]
        self._changes = 0
        self._topic_ids: dict[tuple[str, str], str] = {}
        self._epochs: dict[tuple[str, Partition], int] = {}

    def saw_topics(self, cluster_id: str, topic_ids: Mapping[str, str]) -> None:
        """Take note of topic ids by name; an empty id says nothing."""
        with self._lock:
            for name, topic_id in topic_ids.items():
                known = self._topic_ids.setdefault((cluster_id, name), topic_id)
                if topic_id and known != topic_id:
                    self._topic_ids[cluster_id, name] = topic_id
                    self._changes += bool(known)

    def saw_epochs(self, cluster_id: str, epochs: Mapping[Partition, int]) -> None:
        """Take note of leader epochs, as the leaders themselves give them."""
        with self._lock:
            for tp, epoch in epochs.items():
                if self._epochs.setdefault((cluster_id, tp), epoch) != epoch:
                    self._epochs[cluster_id, tp] = epoch
                    self._changes += 1

    def read_group(self, group_id: str) -> str:
        """Return the group id for reads on behalf of a group."""
        with self._lock:
            return f"{group_id}-reads-{self._process}-{self._changes}"


#: Those of this process: Spark's caches are shared by all consumers in it.
LOG_IDENTITIES = LogIdentities()
