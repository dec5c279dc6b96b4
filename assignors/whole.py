"""The assignment of whole partitions where partitions cannot be split.

Members that do not share get whole partitions only, and so do all members of topics that must not
be split. The goal is a small sum of the squared work of a slot. Each partition goes to the member
for which the sum grows least. Then chains of moves (a gives one to b, b gives one to c) reduce the
sum until no chain helps. Without sharing, the result is the smallest possible sum.

Members that share with each other form one *pool*, because the work of a pool can be divided
among its members. The partitions of a pool that cannot be split are then assigned to its members.

    a and b share, c does not; four partitions
    pool {a, b} has weight 2, c has weight 1:    c 1, pool 3
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from assignors.ranges import FULL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assignors.balance import Bundle, Wholes


def deal_wholes(work: Sequence[Bundle], slots: Sequence[int]) -> Wholes:
    """Assign whole partitions to members that cannot have parts of them.

    Args:
        work: The bundles.
        slots: The slots of each member.

    Returns:
        For each bundle the number of whole partitions of each such member. The remaining
        partitions are for the members that share them.
    """
    pool = _pools(work, len(slots))
    weights: Counter[int] = Counter()
    for member, weight in enumerate(slots):
        weights[pool[member]] += weight
    batches = [_Batch.of(bundle, pool) for bundle in work]
    _deal(batches, weights)
    _keep_splittable(work, batches, pool)

    wholes: Wholes = [Counter() for _ in work]
    inner: list[tuple[int, _Batch]] = []
    for number, (bundle, batch) in enumerate(zip(work, batches, strict=True)):
        takers = defaultdict(list)
        for member in bundle.members:
            takers[pool[member]].append(member)
        for taker, count in (+batch.dealt).items():
            if not bundle.sharers or taker != pool[bundle.sharers[0]]:
                inner.append((number, _Batch(count, takers[taker], bundle.owned)))
    _deal([batch for _, batch in inner], dict(enumerate(slots)))
    for number, batch in inner:
        wholes[number].update(batch.dealt)
    return wholes


def _pools(work: Iterable[Bundle], members: int) -> list[int]:
    """Return the first member of each member's pool; a pool may have one member."""
    first = list(range(members))

    def find(member: int) -> int:
        while first[member] != member:
            first[member] = first[first[member]]
            member = first[member]
        return member

    for bundle in work:
        for member in bundle.sharers:
            a, b = find(member), find(bundle.sharers[0])
            first[max(a, b)] = min(a, b)
    return [find(member) for member in range(members)]


@dataclass(slots=True)
class _Batch:
    """Equivalent whole partitions: their number, possible takers, owners and the result."""

    count: int
    takers: list[int]
    owned: Mapping[int, int]
    dealt: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, bundle: Bundle, pool: Sequence[int]) -> _Batch:
        owned: Counter[int] = Counter()
        for member, hashes in bundle.owned.items():
            owned[pool[member]] += hashes
        takers = list(dict.fromkeys(pool[member] for member in bundle.members))
        return cls(len(bundle.partitions), takers, owned)


def _deal(batches: Sequence[_Batch], weights: Mapping[int, int]) -> None:
    """Assign whole partitions so that the sum of load² / weight is smallest."""
    load: Counter[int] = Counter()
    for batch in sorted(batches, key=lambda batch: len(batch.takers)):
        heap = [_bid(batch, taker, load[taker], weights[taker]) for taker in batch.takers]
        heapify(heap)
        for _ in range(batch.count):
            taker = heap[0][2]
            batch.dealt[taker] += 1
            load[taker] += 1
            heapreplace(heap, _bid(batch, taker, load[taker], weights[taker]))
    while chain := _better(batches, load, weights):
        for batch, giver, taker in chain:
            batch.dealt[giver] -= 1
            batch.dealt[taker] += 1
            load[giver] -= 1
            load[taker] += 1
    for batch in batches:
        batch.dealt = +batch.dealt


def _bid(batch: _Batch, taker: int, load: int, weight: int) -> tuple[float, int, int]:
    """Return the cost of one more partition for a taker; at equal cost previous owners go first."""
    missing = batch.owned.get(taker, 0) - batch.dealt[taker] * FULL.size
    return ((2 * load + 1) / weight, -max(0, missing), taker)


def _better(
    batches: Sequence[_Batch], load: Mapping[int, int], weights: Mapping[int, int]
) -> list[tuple[_Batch, int, int]]:
    """Find a chain of moves that reduces the sum; empty if no chain does."""
    holds: defaultdict[int, list[_Batch]] = defaultdict(list)
    for batch in batches:
        for taker, count in batch.dealt.items():
            if count and len(batch.takers) > 1:
                holds[taker].append(batch)
    # The most loaded member goes first: if it cannot improve by giving to a member, nobody can.
    seen: set[int] = set()
    for start in sorted(holds, key=lambda taker: -(2 * load[taker] - 1) / weights[taker]):
        if start in seen:
            continue
        reached = _reach(start, holds, seen)
        end = min(reached, key=lambda t: ((2 * load[t] + 1) / weights[t], t), default=start)
        if (2 * load[end] + 1) / weights[end] < (2 * load[start] - 1) / weights[start]:
            chain = []
            while end != start:
                batch, giver = reached[end]
                chain.append((batch, giver, end))
                end = giver
            return chain
    return []


def _reach(
    start: int, holds: Mapping[int, Sequence[_Batch]], seen: set[int]
) -> dict[int, tuple[_Batch, int]]:
    """Return the members that moves can reach from a giver, each with its batch and giver."""
    came_from: dict[int, tuple[_Batch, int]] = {}
    given: set[int] = set()
    queue = deque([start])
    seen.add(start)
    while queue:
        giver = queue.popleft()
        for batch in holds.get(giver, ()):
            if id(batch) in given:
                continue
            given.add(id(batch))
            for taker in batch.takers:
                if taker not in seen:
                    seen.add(taker)
                    came_from[taker] = (batch, giver)
                    queue.append(taker)
    return came_from


def _keep_splittable(
    work: Sequence[Bundle], batches: Sequence[_Batch], pool: Sequence[int]
) -> None:
    """Swap whole partitions so that members outside a pool get those that cannot be split."""
    for rigid_bundle, rigid in zip(work, batches, strict=True):
        if rigid_bundle.sharers:
            continue
        for bundle, batch in zip(work, batches, strict=True):
            if not bundle.sharers:
                continue
            sharing = pool[bundle.sharers[0]]
            for member in rigid.takers:
                swapped = min(rigid.dealt[sharing], batch.dealt[member])
                if member != sharing and swapped:
                    rigid.dealt[sharing] -= swapped
                    rigid.dealt[member] += swapped
                    batch.dealt[member] -= swapped
                    batch.dealt[sharing] += swapped
