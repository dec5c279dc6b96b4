"""Commits holes between polled records: offsets at which there is proven to be no record."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from commits import CommitLogUnavailable, OffsetRanges
from coopconsume.runtime.read.audit import HoleAudit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.options import Options
    from coopconsume.runtime.poll.session import PollSession
    from coopconsume.runtime.read.spans import Span

log = logging.getLogger(__name__)

#: Seconds between two looks for holes that no commit of the user's looks for.
_LOOK_EVERY = 1.0


class PollHoles:
    """Looks for the holes that hold stable offsets back, and commits them.

    Args:
        spark: The session of Spark.
        options: Of the consumer.
        session: What was handed out.
    """

    def __init__(self, spark: SparkSession, options: Options, session: PollSession) -> None:
        self._audit = HoleAudit(spark, options)
        self._session = session
        self._looked_at = -math.inf

    def look(self, assignment: EpochAssignment) -> None:
        """Commits holes that hold stable offsets back, where the user has nothing to commit.

        Other members may move a stable offset to a hole, and a limit of ranges may keep their
        records from being committed until it moves on.
        """
        if time.monotonic() - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = time.monotonic()
        try:
            assignment.refresh()
            if self.commit(assignment, alone=True):
                assignment.primary.write_quietly()
        except CommitLogUnavailable as error:
            log.warning("holes are looked for later: %s", error)

    def commit(self, assignment: EpochAssignment, *, alone: bool = False) -> bool:
        """Commits what is proven to be no record; returns whether there was any.

        Args:
            assignment: The key ranges of the consumer.
            alone: Only of partitions without polled records that wait for an answer.
        """
        holes = {}
        for tp, place in list(self._session.places_of(assignment).items()):
            if alone and place.polled:
                continue
            owned = assignment.owned[tp]
            # A seek may go beyond the end; what is not written yet is no hole.
            position = min(place.position, assignment.logs.seen_end(tp))
            span = self._audit.due(owned, owned.stable, position)
            absent = self._absent(span) if span else None
            if absent:
                holes[tp] = absent
        if holes:
            try:
                assignment.commit({}, holes=holes)
            except BaseException:
                for tp in holes:
                    self._audit.forget(tp)  # Else nobody would look for them again.
                raise
            self._session.committed(assignment, holes)
        return bool(holes)

    def forget(self, tp: TopicPartition) -> None:
        """Looks at all offsets of a partition again."""
        self._audit.forget(tp)

    def _absent(self, span: Span) -> OffsetRanges:
        """Returns the offsets of a span at which there is no record; none if it cannot be read."""
        try:
            return self._audit.look(span)
        except Exception as error:  # noqa: BLE001 - what the user commits does not depend on it
            where = f"{span.topic}-{span.partition}"
            log.warning("could not look for holes in %s: %s", where, error)
            return OffsetRanges()
