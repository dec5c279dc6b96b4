"""First goal of the sticky assignor: how much of which topics each member is due.

The work is balanced if the sum, over all slots of the group, of the squared work of a slot is
smallest, the work of a member being divided evenly over its slots. Where everybody may share
everything, every slot gets the same. What can be had only whole is dealt before (`whole`); here the
rest is spread over the members that share it, so that they level out what they have already:

    a and b share t (1 partition), a has a whole one of another topic:    b is due all of t
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assignors.flow import Job, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assignors.contract import Group

Wholes = list[Counter[int]]
"""For each bundle the whole partitions of the members that cannot have parts of it."""


@dataclass(slots=True)
class Bundle:
    """Partitions that are alike: the same subscribers, and all of them shareable or none.

    Members are named by their place in the group.

    Attributes:
        partitions: The partitions, as topic and number.
        members: Who may have whole ones.
        sharers: Who may have parts; nobody if the partitions must not be split.
        owned: How many hashes of them each member had before.
    """

    partitions: list[tuple[str, int]]
    members: list[int]
    sharers: list[int]
    owned: Counter[int] = field(default_factory=Counter)

    @property
    def takers(self) -> list[int | None]:
        """Who may take one more whole partition; None stands for those that share."""
        apart = set(self.sharers)
        return [*(m for m in self.members if m not in apart), *([None] if apart else [])]


@dataclass(frozen=True, slots=True)
class Due:
    """What members are due of a bundle.

    Attributes:
        units: How many units a partition is counted in.
        of: The units of each member, more than 0; their sum is that of all partitions.
    """

    units: int
    of: dict[int, int]


def bundles(group: Group) -> list[Bundle]:
    """Sort the partitions of a group into bundles."""
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
    """Say how many units of each bundle each member is due.

    Args:
        work: The bundles.
        wholes: The whole partitions that are dealt already.
        slots: The slots of each member.
    """
    fixed: Counter[int] = Counter()
    owned: Counter[int] = Counter()
    for bundle, dealt in zip(work, wholes, strict=True):
        fixed.update(dealt)
        owned.update(bundle.owned)
    left = [len(b.partitions) - dealt.total() for b, dealt in zip(work, wholes, strict=True)]
    # The first to ask get all they can: few takers, who owned much of this and little of the rest.
    shared = sorted(
        (i for i, count in enumerate(left) if count), key=lambda i: len(work[i].sharers)
    )
    jobs = [
        Job(left[i], sorted(work[i].sharers, key=lambda m: (-work[i].owned[m], owned[m], m)))
        for i in shared
    ]
    sharers = {member for job in jobs for member in job.takers}
    jobs += [Job(fixed[member], [member]) for member in sorted(sharers) if fixed[member]]
    parts = dict(zip(shared, spread(jobs, dict(enumerate(slots))), strict=False))
    due: list[Due] = []
    for i, dealt in enumerate(wholes):
        units, of = (parts[i].units, parts[i].parts) if i in parts else (1, {})
        due.append(Due(units, {**{m: n * units for m, n in dealt.items() if n}, **of}))
    return due
