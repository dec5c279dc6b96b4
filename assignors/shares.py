"""Shares of partitions, and the arithmetic of their sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from assignors.ranges import FULL, KeyRange, coverage, difference, intersection, merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_Label = TypeVar("_Label")


class Share(NamedTuple):
    """A part of a partition that one member works on.

    Shares sort by topic, partition and key range.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        key_range: The key hashes of the share; by default all, which is the whole partition.
    """

    topic: str
    partition: int
    key_range: KeyRange = FULL


def by_partition(shares: Iterable[Share]) -> dict[tuple[str, int], tuple[KeyRange, ...]]:
    """Return the key ranges of each partition, merged and ascending."""
    found: dict[tuple[str, int], list[KeyRange]] = {}
    for topic, partition, key_range in shares:
        found.setdefault((topic, partition), []).append(key_range)
    return {tp: merge(ranges) for tp, ranges in found.items()}


def shares_of(ranges: Mapping[tuple[str, int], Iterable[KeyRange]]) -> tuple[Share, ...]:
    """Return the key ranges of partitions as shares, ascending."""
    return tuple(Share(*tp, one) for tp, some in sorted(ranges.items()) for one in some)


def common(shares: Iterable[Share], others: Iterable[Share]) -> tuple[Share, ...]:
    """Return the parts of shares that are also in others, merged and ascending."""
    theirs = by_partition(others)
    return shares_of(
        {tp: intersection(mine, theirs.get(tp, ())) for tp, mine in by_partition(shares).items()}
    )


def without(shares: Iterable[Share], others: Iterable[Share]) -> tuple[Share, ...]:
    """Return the parts of shares that are not in others, merged and ascending."""
    theirs = by_partition(others)
    return shares_of(
        {tp: difference(mine, theirs.get(tp, ())) for tp, mine in by_partition(shares).items()}
    )


def inside(
    labelled: Iterable[tuple[Share, _Label]], shares: Iterable[Share]
) -> list[tuple[Share, _Label]]:
    """Return the parts of shares that are in others. Each keeps its label."""
    labelled, places = _places(labelled, shares)
    return [(part, label) for one, label in labelled for part in _parts(one, places, ())]


def outside(
    labelled: Iterable[tuple[Share, _Label]], shares: Iterable[Share]
) -> list[tuple[Share, _Label]]:
    """Return the parts of shares that are not in others. Each keeps its label."""
    labelled, places = _places(labelled, shares)
    rests = {tp: coverage(ranges).holes for tp, ranges in places.items()}
    return [(part, label) for one, label in labelled for part in _parts(one, rests, (FULL,))]


def _places(
    labelled: Iterable[tuple[Share, _Label]], shares: Iterable[Share]
) -> tuple[list[tuple[Share, _Label]], dict[tuple[str, int], tuple[KeyRange, ...]]]:
    labelled = list(labelled)
    partitions = {share[:2] for share, _ in labelled}
    return labelled, by_partition(share for share in shares if share[:2] in partitions)


def _parts(
    share: Share, places: Mapping[tuple[str, int], Iterable[KeyRange]], default: Iterable[KeyRange]
) -> Iterator[Share]:
    topic, partition, key_range = share
    for place in places.get((topic, partition), default):
        if (part := key_range.intersect(place)) is not None:
            yield Share(topic, partition, part)
