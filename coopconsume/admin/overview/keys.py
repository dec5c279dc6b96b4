"""Who works on a key: the member of a group, its host, and its slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coopconsume.runtime.plan.cursor import deal

if TYPE_CHECKING:
    from assignors import KeyRange
    from coopconsume.admin.overview.data import GroupOverview


@dataclass(frozen=True)
class KeyMetadata:
    """The owner of a key, and of its state.

    Attributes:
        topic: The topic.
        partition: The number of the partition.
        key_hash: The hash of the key, from 0.
        member: Kafka's id of the member, or the name of the claimant.
        client_id: Its ``client.id``, by default made of the application, the host and the process
            id; empty if Kafka does not list the member.
        host: The address that it connects from; empty if Kafka does not list the member.
        slot: The number of the slot that handles the key in a job with ``ordering="key"``; None if
            the number of slots is not known, as while the group rebalances.
        key_range: The key range of that slot that the key is in; without a slot that of the member.
    """

    topic: str
    partition: int
    key_hash: int
    member: str
    client_id: str
    host: str
    slot: int | None
    key_range: KeyRange


def key_metadata(
    group: GroupOverview, topic: str, partition: int, key_hash: int
) -> KeyMetadata | None:
    """Returns the owner of a key hash in a partition; None if nobody owns it.

    Args:
        group: The group.
        topic: The topic.
        partition: The number of the partition.
        key_hash: The hash of the key, from 0.
    """
    owned = next(
        (
            owner
            for one in group.partitions
            if (one.topic, one.partition) == (topic, partition)
            for owner in one.owners
            if owner.key_range.contains(key_hash)
        ),
        None,
    )
    if owned is None:
        return None
    member = next((one for one in group.members if one.id == owned.member), None)
    slot, key_range = None, owned.key_range
    if member is not None and member.slots:
        dealt = deal((owned.key_range,), member.slots, partition, "key")
        slot, key_range = next(
            (number, piece)
            for number, pieces in dealt
            for piece in pieces
            if piece.contains(key_hash)
        )
    return KeyMetadata(
        topic,
        partition,
        key_hash=key_hash,
        member=owned.member,
        client_id=member.client_id if member else "",
        host=member.host if member else "",
        slot=slot,
        key_range=key_range,
    )
