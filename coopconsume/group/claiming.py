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
from coopconsume.group.agreement import agree, log_changes, terms_of
from coopconsume.group.claims import ClaimKeeper, ClaimWatch
from coopconsume.group.owned import EpochGrant
from coopconsume.group.repeating import repeated
from coopconsume.group.settings import session_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commits import CommitStore, Epoch
    from commits.model import TopicPartition
    from coopconsume.kafka.cluster import Cluster, Topic
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
        GroupRefused: The group does not work with the terms of this consumer.
        commits.ClaimConflict: A process that lives holds part of it, and ``takeover`` is false.
            It is waited for a sign of life of another claim, for its session at most.
    """
    found = {t.name: t for t in cluster.topics(dict.fromkeys(t for t, _ in partitions))}
    shares = _chosen_shares(options, store, found, partitions)
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
    waits = tuple((part, life_ms / 1000) for part, life_ms in (row.doubts if row else ()))
    try:
        _agree(options, store, cluster, epoch)
    except BaseException:
        store.release(group, epoch, member)
        raise
    keeper = ClaimKeeper(store, group, epoch, member, session / 3000)
    return EpochGrant(
        epoch, member, shares=tuple(shares), topic_ids=topic_ids, waits=waits, life_ms=life_ms
    ), keeper


def _chosen_shares(
    options: Options,
    store: CommitStore,
    topics: Mapping[str, Topic],
    partitions: Mapping[TopicPartition, Iterable[KeyRange]],
) -> list[Share]:
    shares = []
    for (topic, partition), ranges in partitions.items():
        if not 0 <= partition < topics[topic].partitions:
            last = topics[topic].partitions - 1
            raise ValueError(f"topic {topic} has partitions 0 to {last}, not {partition}")
        chosen = tuple(sorted(ranges))
        if not chosen:
            log.info(
                "%s-%d: an empty list of key ranges means the whole partition", topic, partition
            )
            chosen = (KeyRange(),)
        _check_ranges(options, store, topic, partition, chosen)
        shares += [Share(topic, partition, key_range) for key_range in chosen]
    return shares


def _agree(options: Options, store: CommitStore, cluster: Cluster, mine: Epoch) -> None:
    """Compares the terms of a claim with those of others, or makes them the group's.

    The claim is in the log already: of two that come at once, one sees the other.

    Raises:
        GroupRefused: Another claim, or the group, works with others.
    """
    group, terms = options.group_id, terms_of(options, store, cluster)
    others = [one for one in store.claims(group) if one.epoch != mine]
    row = store.assignment(group)
    logged: set[tuple[str, str]] = set()
    for one in [*others, *([] if row is None else [row])]:
        log_changes(group, "other shares", one, terms, logged)
    at_work = [one.epoch for one in others]
    if row is not None and not row.members.keys() <= row.fenced.keys() | row.heirs.keys():
        at_work.append(row.epoch)
    agree(store, group, terms, at_work=at_work)


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
