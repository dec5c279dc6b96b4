"""KIP-X's range assignor with shared partitions.

In a shared topic (see `sharing`) every partition gets a contiguous run of the slots; the first
partitions get one more if the division has a remainder. Five members on topics of two and three
partitions:

    t1p0: c1 c2 c3    t1p1: c4 c5
    t2p0: c1 c2       t2p1: c3 c4    t2p2: c5

All other topics are assigned as by Kafka's range assignor.
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


class RangeKeyRangeAssignor(KeyRangeAssignor):
    """Assigns runs of consumers to partitions, or runs of partitions if consumers are fewer.

    Partitions with the same number in topics of the same size go to the same members, so that
    records of one key can be joined. The load can be uneven; `StickyKeyRangeAssignor` balances it.
    """

    name = "key-range-range"

    def _shares(self, group: Group) -> Iterator[tuple[str, Share]]:
        return deal_or_divide(group, _deal, kafka_rules.ranges)


def _deal(count: int, members: Sequence[Member]) -> Deal:
    size, more = divmod(sum(member.slots for member in members), count)
    queue = [(member.id, member.slots) for member in reversed(members)]
    partitions: Deal = []
    for partition in range(count):
        slots_left = size + (partition < more)
        run: list[tuple[str, int]] = []
        while slots_left:
            member_id, slots = queue.pop()
            taken = min(slots, slots_left)
            run.append((member_id, taken))
            slots_left -= taken
            if slots > taken:
                queue.append((member_id, slots - taken))
        partitions.append(run)
    return partitions
