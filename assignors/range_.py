"""KIP-X's range assignor with shared partitions.

In a shared topic (see `sharing`) the slots are laid out in order and every partition gets a run
of them, the first ones one more where it does not come out even. Five members on topics of two
and three partitions:

    t1p0: c1 c2 c3    t1p1: c4 c5
    t2p0: c1 c2       t2p1: c3 c4    t2p2: c5

All other topics are divided as Kafka's range assignor does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assignors import classic
from assignors.contract import KeyRangeAssignor
from assignors.sharing import deal_or_divide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assignors.contract import Group, Member, Share
    from assignors.sharing import Deal


class RangeKeyRangeAssignor(KeyRangeAssignor):
    """Gives runs of consumers to partitions, or runs of partitions to consumers if those are fewer.

    Partitions with the same number in topics of the same size go to the same members, so records
    of one key can be joined. The work is only as even as the runs; `StickyKeyRangeAssignor`
    balances.
    """

    name = "key-range-range"

    def _shares(self, group: Group) -> Iterator[tuple[str, Share]]:
        return deal_or_divide(group, _deal, classic.ranges)


def _deal(count: int, members: Sequence[Member]) -> Deal:
    size, more = divmod(sum(member.slots for member in members), count)
    queue = [(member.id, member.slots) for member in reversed(members)]
    partitions: Deal = []
    for partition in range(count):
        room = size + (partition < more)
        run: list[tuple[str, int]] = []
        while room:
            member_id, slots = queue.pop()
            taken = min(slots, room)
            run.append((member_id, taken))
            room -= taken
            if slots > taken:
                queue.append((member_id, slots - taken))
        partitions.append(run)
    return partitions
