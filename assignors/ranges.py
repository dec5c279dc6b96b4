"""Key hashes and key ranges.

Every record has a hash in ``[0, 2**63 - 1]`` (KIP-X's ``[0, Long.MAX]``): the hash of its key, or
the hash of its offset if it has no key and therefore no order to keep. A key range is a part of
that space, both ends included. A split cuts it into even pieces:

    KeyRange().split(2) == (KeyRange(0, 2**62 - 1), KeyRange(2**62, 2**63 - 1))

Only the two hash functions need ``xxhash``. They import it when first called, so that code in
environments without it, such as a Spark task, can import this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from assignors.errors import InvalidKeyRange

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

MAX_KEY_HASH = 2**63 - 1
"""Last hash of the space; the first is 0."""

HASH_SEED = 42
"""Seed of Spark's ``xxhash64``."""
HASH_VERSION = 1
"""Version of how records are hashed; members and commits of a group have the same."""


def key_hash(key: bytes | None) -> int | None:
    """Return the hash of a record key.

    It equals Spark SQL's ``xxhash64(key) & 9223372036854775807`` of a binary column, except that
    Spark hashes a null to its seed.

    Args:
        key: The key bytes in Kafka, or None for a record without a key.

    Returns:
        A hash from 0 to `MAX_KEY_HASH`, or None for None.
    """
    if key is None:
        return None
    import xxhash

    return int(xxhash.xxh64_intdigest(key, seed=HASH_SEED)) & MAX_KEY_HASH


def offset_hash(offset: int) -> int:
    """Return the hash of a record without a key.

    It equals Spark SQL's ``xxhash64(offset) & 9223372036854775807`` of a bigint column, which is
    the hash of the number's eight bytes, lowest first.

    Args:
        offset: The record's offset, from 0 to 2**63 - 1.

    Returns:
        A hash from 0 to `MAX_KEY_HASH`.

    Raises:
        OverflowError: If the offset is out of range.
    """
    import xxhash

    encoded = offset.to_bytes(8, "little", signed=True)
    return int(xxhash.xxh64_intdigest(encoded, seed=HASH_SEED)) & MAX_KEY_HASH


class _Ends(NamedTuple):
    first: int = 0
    last: int = MAX_KEY_HASH


class KeyRange(_Ends):
    """The key hashes from `first` to `last`, both included; by default all hashes.

    A range is a tuple of its ends. Ranges sort by their first hash, then by their last hash.

    Attributes:
        first: First hash of the range, from 0.
        last: Last hash of the range, at least `first` and at most `MAX_KEY_HASH`.

    Raises:
        InvalidKeyRange: If an end is not a whole number or is out of bounds.
    """

    __slots__ = ()

    def __new__(cls, first: int = 0, last: int = MAX_KEY_HASH) -> Self:
        """Create a range, and check its ends."""
        if type(first) is not int or type(last) is not int:
            raise InvalidKeyRange(first, last, "both ends must be whole numbers")
        if not 0 <= first <= last <= MAX_KEY_HASH:
            raise InvalidKeyRange(first, last, f"expected 0 <= first <= last <= {MAX_KEY_HASH}")
        return tuple.__new__(cls, (first, last))

    def __str__(self) -> str:
        return f"[{self.first}, {self.last}]"

    @property
    def size(self) -> int:
        """The number of hashes in the range, from 1 to 2**63."""
        return self.last - self.first + 1

    @property
    def is_full(self) -> bool:
        """Whether the range is the whole hash space, that is, a whole partition."""
        return self.first == 0 and self.last == MAX_KEY_HASH

    def contains(self, key_hash: int) -> bool:
        """Return whether a hash is in the range."""
        return self.first <= key_hash <= self.last

    def split(self, n: int) -> tuple[KeyRange, ...]:
        """Split the range into `n` even pieces, in order.

        Piece i starts at ``first + size * i // n``, so the sizes differ by at most one hash.

        Args:
            n: How many pieces, from 1 to `size`.

        Raises:
            InvalidKeyRange: If `n` is out of bounds.
        """
        if not 1 <= n <= self.size:
            raise InvalidKeyRange(
                self.first, self.last, f"cannot be cut in {n} pieces, only in 1 to {self.size}"
            )
        cuts = [self.first + self.size * i // n for i in range(n + 1)]
        return tuple(KeyRange(a, b - 1) for a, b in pairwise(cuts))

    def intersect(self, other: KeyRange) -> KeyRange | None:
        """Return the hashes that both ranges contain, or None if they do not overlap."""
        if other.first <= self.first and self.last <= other.last:
            return self
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyRange(first, last) if first <= last else None

    def overlaps(self, other: KeyRange) -> bool:
        """Return whether the two ranges have common hashes."""
        return self.first <= other.last and other.first <= self.last


FULL = KeyRange()
"""The whole space."""


def merge(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """Merge overlapping and adjacent ranges; the result is sorted.

    Args:
        ranges: Ranges in any order; they may overlap.
    """
    merged: list[KeyRange] = []
    for each in sorted(ranges):
        if merged and each.first <= merged[-1].last + 1:
            merged[-1] = KeyRange(merged[-1].first, max(merged[-1].last, each.last))
        else:
            merged.append(each)
    return tuple(merged)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the union of ranges differs from the hash space.

    Attributes:
        holes: Ranges that no range covers, sorted and merged.
        overlaps: Ranges that two or more ranges cover, sorted and merged.
    """

    holes: tuple[KeyRange, ...] = ()
    overlaps: tuple[KeyRange, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether every hash is covered exactly once."""
        return not self.holes and not self.overlaps


def coverage(ranges: Iterable[KeyRange]) -> Coverage:
    """Return the holes and overlaps of ranges.

    Args:
        ranges: The ranges of one partition, of all members, in any order.

    Returns:
        The holes and overlaps; both are empty if every hash has exactly one owner.
    """
    holes: list[KeyRange] = []
    overlaps: list[KeyRange] = []
    covered = -1
    for each in sorted(ranges):
        if each.first > covered + 1:
            holes.append(KeyRange(covered + 1, each.first - 1))
        elif each.first <= covered:
            overlaps.append(KeyRange(each.first, min(each.last, covered)))
        covered = max(covered, each.last)
    if covered < MAX_KEY_HASH:
        holes.append(KeyRange(covered + 1, MAX_KEY_HASH))
    return Coverage(tuple(holes), merge(overlaps))


def intersection(ranges: Iterable[KeyRange], others: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """Returns the key ranges that are in both, merged and ascending."""
    others = merge(others)
    found = (one.intersect(other) for one in merge(ranges) for other in others)
    return tuple(one for one in found if one is not None)


def difference(ranges: Iterable[KeyRange], others: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """Returns the key ranges that are in the first ones alone, merged and ascending."""
    return intersection(ranges, coverage(others).holes)
