"""Claims key ranges by hand, beside the group's rebalances."""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from typing import TYPE_CHECKING

from assignors import KeyRange, Share, coverage
from coopconsume.errors import ConsumerRangeFetchNotAccepted, TopicRangeFetchNotAllowed
from coopconsume.group.claims import ClaimKeeper, ClaimWatch
from coopconsume.group.ordering_keys import agree_on_ordering_key
from coopconsume.group.owned import EpochGrant
from coopconsume.group.repeating import repeated
from coopconsume.group.settings import session_ms
from coopconsume.group.shares import share_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commits import CommitStore, Epoch
    from commits.model import TopicPartition
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options

log = logging.getLogger(__name__)


def claim_key_ranges(
    options: Options,
    store: CommitStore,
    cluster: Cluster,
    partitions: Mapping[TopicPartition, Iterable[KeyRange]],
    life_ms: int,
    *,
    takeover: bool,
) -> tuple[EpochGrant, ClaimKeeper]:
    """Claims key ranges; an empty list of ranges means the whole partition.

    Args:
        options: Of the consumer.
        store: The commit store.
        cluster: The Kafka cluster.
        partitions: The key ranges of each partition.
        life_ms: How long the work may go on after the death of this process.
        takeover: Whether to fence a process that holds part of it.

    Returns:
        The claimed shares, and what keeps the claim alive.

    Raises:
        TopicNotFound: A topic or partition does not exist.
        TopicRangeFetchNotAllowed: A part was asked for, and the topic is not open to sharing.
        ConsumerRangeFetchNotAccepted: A part was asked for in spite of allowKeyShare=false.
        GroupRefused: Others of the group work with another ordering key.
        commits.ClaimConflict: A process that lives holds part of it, and ``takeover`` is false.
            It is waited for a sign of life of another claim, for its session at most.
    """
    found = {t.name: t for t in cluster.topics(dict.fromkeys(t for t, _ in partitions))}
    shares = []
    for (topic, partition), ranges in partitions.items():
        if not 0 <= partition < found[topic].partitions:
            last = found[topic].partitions - 1
            raise ValueError(f"topic {topic} has partitions 0 to {last}, not {partition}")
        chosen = tuple(sorted(ranges))
        if not chosen:
            log.info(
                "%s-%d: an empty list of key ranges means the whole partition", topic, partition
            )
            chosen = (KeyRange(),)
        _check_ranges(options, store, topic, partition, chosen)
        shares += [Share(topic, partition, key_range) for key_range in chosen]
    topic_ids = {name: topic.id for name, topic in found.items()}
    group, member = options.group_id, _new_member_id()
    session, limit = session_ms(options), options.batch_life

    def claim() -> Epoch:
        return store.claim(
            group, member, shares, takeover=takeover, topic_ids=topic_ids, life_ms=life_ms,
            session_ms=session, nonce=member, record_filter=str(options.record_filter),
        )  # fmt: skip

    epoch = ClaimWatch(store, group).insist(
        lambda: repeated(claim, f"claim of {len(shares)} shares", limit), time.sleep
    )
    row = repeated(lambda: store.assignment(group, epoch), "look at the claim", limit)
    waits = tuple((share_of(d.share), d.life_ms / 1000) for d in (row.doubts if row else ()))
    compare_filters(options, store)
    try:
        _agree_on_ordering_key(options, store, epoch)
    except BaseException:
        store.release(group, epoch, member)
        raise
    keeper = ClaimKeeper(store, group, epoch, member, session / 3000)
    return EpochGrant(epoch, member, tuple(shares), topic_ids, waits, life_ms), keeper


def compare_filters(options: Options, store: CommitStore) -> None:
    """Warns if the epoch in force or another claim has another filter than this claim."""
    mine, group = str(options.record_filter), options.group_id
    rows = repeated(
        lambda: [*store.claims(group), store.assignment(group)],
        "look at the filters of the group", options.batch_life,
    )  # fmt: skip
    for other in sorted({row.record_filter for row in rows if row is not None} - {mine}):
        log.warning(
            "group %s: other shares are processed with the filter %s, these with %s; what was "
            "filtered before stays done", group, other or "none", mine or "none",
        )  # fmt: skip


def _agree_on_ordering_key(options: Options, store: CommitStore, mine: Epoch) -> None:
    """Compares the ordering key of a claim with that of others, or makes it the group's.

    The claim is in the log already: of two that come at once, one sees the other.

    Raises:
        GroupRefused: Another claim, or the group, works with another one.
    """
    group, row = options.group_id, store.assignment(options.group_id)
    others = [one.epoch for one in store.claims(group) if one.epoch != mine]
    if row is not None and not row.members.keys() <= row.fenced.keys() | row.heirs.keys():
        others.append(row.epoch)
    agree_on_ordering_key(store, group, options.ordering_key, at_work=others)


def _check_ranges(
    options: Options, store: CommitStore, topic: str, partition: int, ranges: Sequence[KeyRange]
) -> None:
    found = coverage(ranges)
    if found.overlaps:
        raise ValueError(f"key ranges of {topic}-{partition} overlap in {found.overlaps[0]}")
    if found.holes:
        if not options.allow_key_share:
            raise ConsumerRangeFetchNotAccepted(topic, partition, str(ranges[0]))
        if not store.open_to_sharing([topic]):
            raise TopicRangeFetchNotAllowed(topic)


def _new_member_id() -> str:
    """Returns a name for this process in the group, unlike any earlier one."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
