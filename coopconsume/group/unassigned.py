"""Finds partitions of a member's topics that are assigned to nobody."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from coopconsume.group.claims import LOOK_EVERY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commits import CommitStore
    from coopconsume.group.claims import ClaimWatch
    from coopconsume.group.core import GroupCore
    from coopconsume.kafka.cluster import Cluster

log = logging.getLogger(__name__)

_NAMED = 20


class UnassignedWatch:
    """Compares from time to time what the epoch in force assigns with what the topics have.

    Args:
        group: The group id.
        core: Knows which of them were reported to the group.
        store: The commit store.
        cluster: For the topics.
        claims: Of the group.
        every: Seconds between two looks.
    """

    def __init__(
        self, group: str, core: GroupCore, store: CommitStore, cluster: Cluster,
        claims: ClaimWatch, every: float,
    ) -> None:  # fmt: skip
        self._group = group
        self._core = core
        self._store = store
        self._cluster = cluster
        self._claims = claims
        self._every = every
        self._looked = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the last look is long enough ago; while claims are around, more often."""
        every = LOOK_EVERY if self._core.around else self._every
        return bool(self._core.owned_under) and time.monotonic() - self._looked > every

    def look(self, subscribed: Iterable[str]) -> str | None:
        """Returns why to ask for a rebalance; None: all is assigned, or the group knows of it.

        Args:
            subscribed: The topics of the member.
        """
        self._looked = time.monotonic()
        with self._store.one_look():
            row, claimed = self._store.assignment(self._group), self._claims.claimed()
        topics, _ = self._cluster.visible_topics(sorted(subscribed))
        found = {topic.name: (topic.partitions, topic.id) for topic in topics}
        if row is None or not (left := self._core.unassigned(row, found, claimed)):
            return None
        some = ", ".join(left[:_NAMED]) + (", …" if len(left) > _NAMED else "")
        if self._core.has_news:
            return f"nobody is assigned {some}"
        log.warning("group %s: nobody is assigned %s, though reported", self._group, some)
        return None
