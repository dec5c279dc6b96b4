"""The leader's part in a rebalance: it deals the shares of all members and opens the epoch."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from coopconsume.group.agreement import agree
from coopconsume.group.dealing import Rebalance
from coopconsume.group.repeating import repeated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assignors import KeyRangeAssignor
    from commits import CommitStore, Epoch
    from coopconsume.group.claims import ClaimWatch
    from coopconsume.group.core import GroupCore
    from coopconsume.group.dealing import Deal, Joined
    from coopconsume.group.plugin import Answer
    from coopconsume.kafka.cluster import Cluster

log = logging.getLogger(__name__)


class GroupLeader:
    """Deals the shares of a group and opens its epoch, if Kafka makes this member the leader.

    Args:
        group: The group id.
        core: Decides who gets what.
        store: The commit store.
        cluster: For the topics.
        claims: Of the group.
        within: Seconds within which it deals the shares.

    Attributes:
        within: The same.
    """

    def __init__(
        self, group: str, core: GroupCore, store: CommitStore, cluster: Cluster,
        claims: ClaimWatch, within: float,
    ) -> None:  # fmt: skip
        self._group = group
        self._core = core
        self._store = store
        self._cluster = cluster
        self._claims = claims
        self.within = within

    def lead(
        self, assignor: KeyRangeAssignor, joined: Sequence[Joined], place: Any, noted: Epoch | None
    ) -> dict[str, Answer]:
        """Returns what each member is handed.

        Args:
            assignor: The assignor that the members agree on.
            joined: The members.
            place: The place of this member in the group when it was asked, as of kafka-python.
            noted: The epoch that was in force before it joined.
        """
        with self._store.one_look():
            names = sorted({topic for member in joined for topic in member.topics})
            topics, hidden = self._cluster.visible_topics(names)
            rebalance = Rebalance(
                me=place.member_id,
                generation=place.generation_id,
                joined=joined,
                partitions={topic.name: topic.partitions for topic in topics},
                topic_ids={topic.name: topic.id for topic in topics},
                shareable=self._store.open_to_sharing(names),
                hidden=hidden,
                noted=noted,
                claimed=self._claims.claimed(),
                row=self._store.assignment(self._group),
            )
            deal = self._core.lead(rebalance, assignor)
            claims = [claim.epoch for claim in self._store.claims(self._group)]
            agree(self._store, self._group, self._core.terms, at_work=claims)
            for topic in sorted(set(hidden) - deal.topic_ids.keys()):
                log.warning(
                    "group %s: this member leads the group and has no right to see topic %r: "
                    "nobody is assigned it until a member reports its partitions",
                    self._group,
                    topic,
                )
            return _answers(deal, self._opened(deal, place))

    def _opened(self, deal: Deal, place: Any) -> Epoch:
        terms = self._core.terms
        epoch = repeated(
            lambda: self._store.open_epoch(
                self._group, deal.shares, previous=deal.previous, generation=place.generation_id,
                topic_ids=deal.topic_ids, member=place.member_id, nonce=deal.nonce,
                life_ms=deal.life_ms, partitions=deal.initial,
                record_filter=terms.get("filter", ""), continues=deal.continues,
                sharing=terms.get("sharing", ""), lives=deal.lives,
            ),
            f"epoch of {len(deal.shares)} members", self.within / 2,
        )  # fmt: skip
        log.info("group %s: epoch %d, members: %d", self._group, epoch.number, len(deal.shares))
        for member, reason in deal.refused.items():
            log.warning("group %s: %s is refused: %s", self._group, member, reason)
        return epoch


def _answers(deal: Deal, epoch: Epoch) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for member, data in deal.answers(epoch).items():
        partitions: dict[str, list[int]] = {}
        for share in deal.shares.get(member, ()):
            known = partitions.setdefault(share.topic, [])
            if share.partition not in known[-1:]:
                known.append(share.partition)
        answers[member] = (list(partitions.items()), data)
    return answers
