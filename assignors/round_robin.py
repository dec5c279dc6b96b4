"""KIP-X's `KeyRangeBasedRoundRobinAssignor`.

In a shared topic (see `sharing`) the slots are assigned to the partitions in turn, beginning with
the first. Five members on three partitions:

    p0: M1 M4    p1: M2 M5    p2: M3
    M1: p0 [0, N/2)   M4: p0 [N/2, N)   M2: p1 [0, N/2)   M5: p1 [N/2, N)   M3: p2

All other topics are assigned as by Kafka's round-robin assignor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assignors import kafka_rules
from assignors.contract import KeyRangeAssignor
from assignors.sharing import deal_or_divide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assignors.contract import Group, Member
    from assignors.shares import Share
    from assignors.sharing import Deal


class RoundRobinKeyRangeAssignor(KeyRangeAssignor):
    """Assigns consumers to partitions in turn, or partitions to consumers if those are fewer.

    The load can be uneven: one of five members on three partitions has twice the load of the
    others. `StickyKeyRangeAssignor` balances it.
    """

    name = "key-range-roundrobin"

    def _shares(self, group: Group) -> Iterator[tuple[str, Share]]:
        return deal_or_divide(group, _deal, kafka_rules.round_robin)


def _deal(count: int, members: Sequence[Member]) -> Deal:
    partitions: Deal = [[] for _ in range(count)]
    at = 0
    for member in members:
        rounds, rest = divmod(member.slots, count)
        for turn in range(min(member.slots, count)):
            partitions[(at + turn) % count].append((member.id, rounds + (turn < rest)))
        at += member.slots
    return partitions
