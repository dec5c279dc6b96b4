"""First goal of the sticky assignor: the quota of each member, by topic.

The work is balanced if the sum of the squared work of a slot, over all slots of the group, is
smallest. The work of a member counts as divided evenly over its slots. If all members may share
all topics, every slot gets the same. Partitions that cannot be split are assigned first (`whole`).
This module spreads the rest over the members that share it and compensates for what they have:

    a and b share t (1 partition), a has a whole partition of another topic:    t goes to b
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assignors.flow import Demand, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assignors.contract import Group

Wholes = list[Counter[int]]
"""For each bundle the number of whole partitions of each member that cannot have parts."""


@dataclass(slots=True)
class Bundle:
    """Partitions with the same subscribers that are either all shareable or all not.

    Members are given by their index in the group.

    Attributes:
        partitions: The partitions, as topic and number.
        members: The members that may have whole partitions.
        sharers: The members that may have parts; empty if the partitions must not be split.
        owned: How many of their hashes each member owned before.
    """

    partitions: list[tuple[str, int]]
    members: list[int]
    sharers: list[int]
    owned: Counter[int] = field(default_factory=Counter)

    @property
    def takers(self) -> list[int | None]:
        """The members that may get one more whole partition; None stands for the sharers."""
        apart = set(self.sharers)
        return [*(m for m in self.members if m not in apart), *([None] if apart else [])]


@dataclass(frozen=True, slots=True)
class Due:
    """The quotas of members in a bundle.

    Attributes:
        units: The number of units of one partition.
        of: The units of each member, more than 0; their sum is the units of all partitions.
    """

    units: int
    of: dict[int, int]


def bundles(group: Group) -> list[Bundle]:
    """Group partitions into bundles."""
    place = {member.id: i for i, member in enumerate(group.members)}
    found: dict[tuple[int, bool], Bundle] = {}
    for topic, count in group.topics.items():
        key = (group.audience_of[topic], group.may_be_shared(topic))
        if key not in found:
            members = group.subscribers(topic)
            sharers = [place[m.id] for m in members if m.allow_key_share and key[1]]
            found[key] = Bundle(
                [], [place[m.id] for m in members], sharers if len(sharers) > 1 else []
            )
        found[key].partitions += [(topic, partition) for partition in range(count)]
    return list(found.values())


def balance(work: Sequence[Bundle], wholes: Wholes, slots: Sequence[int]) -> list[Due]:
    """Compute the quota of each member in each bundle.

    Args:
        work: The bundles.
        wholes: The whole partitions that are already assigned.
        slots: The slots of each member.
    """
    fixed: Counter[int] = Counter()
    owned: Counter[int] = Counter()
    for bundle, dealt in zip(work, wholes, strict=True):
        fixed.update(dealt)
        owned.update(bundle.owned)
    left = [len(b.partitions) - dealt.total() for b, dealt in zip(work, wholes, strict=True)]
    # Earlier jobs and takers get more: few takers first, then previous owners of much of the
    # bundle and little else.
    shared = sorted(
        (i for i, count in enumerate(left) if count), key=lambda i: len(work[i].sharers)
    )
    jobs = [
        Demand(left[i], sorted(work[i].sharers, key=lambda m: (-work[i].owned[m], owned[m], m)))
        for i in shared
    ]
    sharers = {member for job in jobs for member in job.takers}
    jobs += [Demand(fixed[member], [member]) for member in sorted(sharers) if fixed[member]]
    parts = dict(zip(shared, spread(jobs, dict(enumerate(slots))), strict=False))
    due: list[Due] = []
    for i, dealt in enumerate(wholes):
        units, of = (parts[i].units, parts[i].parts) if i in parts else (1, {})
        due.append(Due(units, {**{m: n * units for m, n in dealt.items() if n}, **of}))
    return due
