"""The topic of a queue: where its logs are, and the records of granted offsets."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges
from coopconsume.errors import DataLoss
from coopconsume.kafka.records import RecordReader
from coopconsume.queue.range_reader import RangeReader, RangesRead
from coopconsume.queue.rows import MOST_LISTED
from coopconsume.queue.source_look import SourceTopic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.kafka.cluster import Cluster
    from coopconsume.queue.acquisitions import Granted
    from coopconsume.queue.replica_set import ReplicaSet
    from coopconsume.queue.settings import QueueSettings
    from coopconsume.queue.source_look import SourceLook


log = logging.getLogger(__name__)

LOOK_EVERY = 0.2
"""Seconds from one look at the topic to the next."""

#: Milliseconds that a broker waits for records.
_FETCH_WAIT_MS = 20


class RecordSource:
    """The topic as a look has found it, and the client that reads its records.

    A look moves what is known: `look` returns it, and `take_up` counts on it once the replicas
    have its partitions. A read that finds the topic changed makes another look due.

    Args:
        settings: The settings of the queue.
        cluster: The cluster of the topic.

    Attributes:
        topic_id: The id of the topic.
        ends: The end of each partition; empty before the first look.
    """

    def __init__(self, settings: QueueSettings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._topic = SourceTopic(cluster, settings.topic)
        self._reader: RecordReader | None = None
        self._looked_at = 0.0
        self._epochs: dict[int, int] = {}
        self.topic_id = ""
        self.ends: dict[int, int] = {}

    @property
    def is_look_due(self) -> bool:
        """Whether what is known is old."""
        return time.monotonic() - self._looked_at >= LOOK_EVERY

    def look(
        self, replicas: ReplicaSet, stable: Mapping[int, int], patience: float
    ) -> SourceLook | None:
        """Look at the topic; None if the answer may be that of a broker that is behind.

        Args:
            replicas: The replicas.
            stable: Where partitions begin that no replica has any more.
            patience: The seconds to wait for the cluster.

        Raises:
            DataLoss: A log was cut, with ``failOnDataLoss=true``.
        """
        with self._cluster.patient_for(patience):
            topic = self._topic.described()
            if not self._topic.is_current(topic, replicas.states):
                return None
            look = self._topic.look(topic, replicas.states, stable)
        self._report_cuts(replicas, look)
        return look

    def follow(self, look: SourceLook, *, is_other: bool) -> None:
        """Read from the topic that was found; drop the client if a log is another one now."""
        self.topic_id = look.topic.id
        if is_other and self._reader is not None:  # it may have fetched records of the former logs
            self._reader.close()
            self._reader = None

    def take_up(self, look: SourceLook, at: float) -> bool:
        """Read from all partitions that were found.

        Args:
            look: What was found.
            at: The time of the look, on the monotonic clock.

        Returns:
            Whether there are new ones.
        """
        self._epochs = {p: source.epoch for p, source in look.logs.items()}
        if self._reader is None:
            kafka = self._settings.options.kafka
            self._reader = RecordReader(kafka, {"fetch.wait.max.ms": _FETCH_WAIT_MS})
        places = {(look.topic.name, p): look.starts[p] for p in look.logs}
        if places.keys() - self._reader.positions.keys():
            self._reader.assign(places)
        is_new = not look.ends.keys() <= self.ends.keys()
        self.ends, self._looked_at = look.ends, at
        return is_new

    def deleted(self, replicas: ReplicaSet, partition: int, start: int) -> OffsetRanges:
        """Return the offsets that were deleted before they were done, and that nobody holds.

        Many of them are not returned at once: later calls have the rest.

        Args:
            replicas: The replicas.
            partition: The partition.
            start: Its first offset.

        Raises:
            DataLoss: There are some, with ``failOnDataLoss=true``.
        """
        stable, above = replicas.done(partition)
        if start <= stable:
            return OffsetRanges()
        lost = above.complement(stable, min(start, stable + MOST_LISTED) - 1)
        for state in replicas.states_of(partition):
            lost -= state.held(partition)
        if not lost:
            return lost
        first, last = lost.first or 0, lost.last or 0
        if self._settings.options.fail_on_data_loss:
            raise DataLoss(self._settings.topic, partition, first, last)
        log.warning(
            "%d records of %s-%d were deleted before they were done, offsets %d to %d",
            len(lost), self._settings.topic, partition, first, last,
        )  # fmt: skip
        return lost

    def read(self, granted: Granted, patience: float) -> RangesRead:
        """Read granted records, those that come in time to be worked on."""
        now = time.monotonic()
        deadline = now + min(patience, (granted.until - now) / 2)
        assert self._reader is not None
        read = RangeReader(self._reader, self._settings.topic).read(granted.offsets, deadline)
        if not self._is_of_last_look(read.records, patience):
            self._looked_at, read = 0.0, RangesRead(late=dict(granted.offsets))
        if read.is_deleted:
            self._looked_at = 0.0  # the next look reports them
        return read

    def close(self) -> None:
        """Close the client that reads."""
        if self._reader is not None:
            self._reader.close()

    def _report_cuts(self, replicas: ReplicaSet, look: SourceLook) -> None:
        """Report records that an unclean election has removed from logs."""
        for partition, source in look.logs.items():
            if source.cut_at is None:
                continue
            last = max(state.end(partition) for state in replicas.states) - 1
            loss = DataLoss(look.topic.name, partition, source.cut_at, last)
            if self._settings.options.fail_on_data_loss:
                raise loss
            log.warning("%s; what is written there since then is handed out as new", loss)

    def _is_of_last_look(self, records: Sequence[Any], patience: float) -> bool:
        """Whether records that were just read are of the logs that the last look has found."""
        if not records:
            return True
        epochs = self._epochs
        if any((one.leader_epoch() or 0) > epochs.get(one.partition(), -1) >= 0 for one in records):
            return False  # there was an election since then
        with self._cluster.patient_for(patience):
            return self._topic.described().id == self.topic_id
