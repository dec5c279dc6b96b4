"""Our assignors as kafka-python's consumer takes them.

kafka-python calls `metadata` before each JoinGroup, `assign` on the leader, `on_assignment` on
every member, all in its own I/O thread; no heartbeat goes out meanwhile, so all are short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from assignors import (
    RangeKeyRangeAssignor,
    RoundRobinKeyRangeAssignor,
    StickyKeyRangeAssignor,
)
from coopconsume.group.dealing import Joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assignors import KeyRangeAssignor

ASSIGNORS: dict[str, type[KeyRangeAssignor]] = {
    "sticky": StickyKeyRangeAssignor,
    "range": RangeKeyRangeAssignor,
    "roundrobin": RoundRobinKeyRangeAssignor,
}
#: Of Kafka's own part of the data: topics and partitions alone.
_VERSION = 0


class Player(Protocol):
    """Who decides; see `coopconsume.group.member`."""

    def subscription(self, *, with_owned: bool, is_first: bool) -> bytes:
        """Returns `user_data` for the leader; it is asked for each assignor of a join in turn."""

    def lead(self, assignor: KeyRangeAssignor, joined: Sequence[Joined]) -> dict[str, Answer]:
        """Returns what each member is handed: the partitions for Kafka to see, and `user_data`."""

    def handed(self, data: bytes, generation: int) -> None:
        """Takes what the leader handed us."""


Answer = tuple[list[tuple[str, list[int]]], bytes]


class Plugin(AbstractPartitionAssignor):  # type: ignore[misc]
    """One of our assignors, for one consumer.

    Args:
        assignor: Which.
        player: Who decides.
        is_first: Whether it is the preferred one, which is asked first.
    """

    def __init__(self, assignor: KeyRangeAssignor, player: Player, *, is_first: bool) -> None:
        self._assignor = assignor
        self._player = player
        self._is_first = is_first

    @property
    def name(self) -> str:
        """What the members of a group call it when they agree on one."""
        return self._assignor.name

    def metadata(self, topics: set[str]) -> Any:
        """Returns the subscription to join with."""
        data = self._player.subscription(
            with_owned=isinstance(self._assignor, StickyKeyRangeAssignor),
            is_first=self._is_first,
        )
        return ConsumerProtocolSubscription(_VERSION, sorted(topics), data)

    def assign(self, _cluster: Any, members: Sequence[Any]) -> dict[str, Any]:
        """Returns the assignment of every member, by id."""
        joined = [
            Joined(
                member.member_id,
                tuple(member.metadata.topics),
                member.metadata.user_data or b"",
                member.group_instance_id,
            )
            for member in members
        ]
        answers = self._player.lead(self._assignor, joined)
        return {
            member: ConsumerProtocolAssignment(_VERSION, partitions, data)
            for member, (partitions, data) in answers.items()
        }

    def on_assignment(self, assignment: Any, generation: int) -> None:
        """Pass on what the leader handed us."""
        self._player.handed(assignment.user_data or b"", generation)


def plugins(preferred: str, player: Player) -> list[Plugin]:
    """Returns all assignors, the preferred one first: a group may change from one to another."""
    names = sorted(ASSIGNORS, key=lambda name: name != preferred)
    return [Plugin(ASSIGNORS[name](), player, is_first=name == preferred) for name in names]
