"""Key hashes, key ranges and what they cover."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors import (
    MAX_KEY_HASH,
    AssignorError,
    Coverage,
    InvalidKeyRange,
    KeyRange,
    coverage,
    key_hash,
    merge,
    offset_hash,
)

SPACE = 2**63
# Few different ends, so that ranges meet, touch and overlap often.
SMALL = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda ends: KeyRange(*sorted(ends)))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", 1779300269653747460),
        (b"N14228", 2818031054348419725),
        (bytes(8), 3970846574758949996),
        (bytes(range(256)), 7066838444592420925),
        (None, None),
    ],
)
def test_key_hash_is_sparks(key: bytes | None, expected: int | None) -> None:
    """A key has the hash that Spark 4.0.2 computed for `xxhash64(key) & 9223372036854775807`."""
    assert key_hash(key) == expected


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, 3970846574758949996),
        (1, 2221699401151730226),
        (255, 7371870981689193786),
        (2**31, 812085703008894007),
        (2**63 - 1, 5976775981216477958),
    ],
)
def test_offset_hash_is_sparks(offset: int, expected: int) -> None:
    """An offset has the hash that Spark 4.0.2 computed for it as a bigint."""
    assert offset_hash(offset) == expected


def test_the_whole_space_is_the_default() -> None:
    """A key range without ends is all hashes, and only that one is full."""
    whole = KeyRange()
    assert (whole.first, whole.last, whole.size) == (0, MAX_KEY_HASH, SPACE)
    assert whole.is_full
    assert not KeyRange(1).is_full
    assert not KeyRange(0, MAX_KEY_HASH - 1).is_full


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
def test_the_space_is_cut_where_the_design_says(n: int) -> None:
    """Cut i of n of the whole space lies at 2**63 * i // n."""
    pieces = KeyRange().split(n)
    assert [piece.first for piece in pieces] == [SPACE * i // n for i in range(n)]
    assert coverage(pieces).is_exact


@given(st.integers(0, 50), st.integers(1, 60), st.data())
def test_any_range_is_cut_evenly(first: int, size: int, data: st.DataObject) -> None:
    """Pieces follow each other without hole, are as many as asked, and differ by one at most."""
    whole = KeyRange(first, first + size - 1)
    pieces = whole.split(n := data.draw(st.integers(1, size)))
    assert len(pieces) == n
    assert [h for p in pieces for h in range(p.first, p.last + 1)] == [*range(first, first + size)]
    assert max(p.size for p in pieces) - min(p.size for p in pieces) <= 1


@pytest.mark.parametrize(
    "ends", [(-1, 5), (5, 4), (0, SPACE), (0.0, 5), (0, "5"), (True, 5), (None, 5)]
)
def test_an_impossible_range_is_refused(ends: tuple[Any, Any]) -> None:
    """Ends out of order, out of the space, or not whole numbers are refused, both ends named."""
    with pytest.raises(InvalidKeyRange) as refused:
        KeyRange(*ends)
    assert (refused.value.first, refused.value.last) == ends
    assert isinstance(refused.value, AssignorError)
    assert isinstance(refused.value, ValueError)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize("n", [0, -1, 4])
def test_a_range_is_not_cut_in_empty_pieces(n: int) -> None:
    """A range of three hashes can be cut in one to three pieces."""
    with pytest.raises(InvalidKeyRange, match="only in 1 to 3"):
        KeyRange(5, 7).split(n)


def test_ranges_are_values() -> None:
    """Ranges are equal, hashed, ordered and pickled by their ends, and cannot be changed."""
    assert KeyRange(1, 2) == KeyRange(1, 2)
    assert len({KeyRange(1, 2), KeyRange(1, 2)}) == 1
    assert sorted([KeyRange(5, 6), KeyRange(0, 9), KeyRange(0, 1)])[1] == KeyRange(0, 9)
    assert pickle.loads(pickle.dumps(KeyRange(1, 2))) == KeyRange(1, 2)
    assert str(KeyRange(1, 2)) == "[1, 2]"
    with pytest.raises(AttributeError):
        KeyRange(1, 2).first = 3  # type: ignore[misc]


@given(SMALL, SMALL)
def test_two_ranges_as_sets(a: KeyRange, b: KeyRange) -> None:
    """Containing, intersecting and overlapping are what they are for sets of hashes."""
    left, right = set(range(a.first, a.last + 1)), set(range(b.first, b.last + 1))
    assert [h for h in range(14) if a.contains(h)] == sorted(left)
    common = a.intersect(b)
    assert (set(range(common.first, common.last + 1)) if common else set()) == left & right
    union = left | right
    assert a.overlaps(b) == bool(left & right)
    assert (len(merge([a, b])) == 1) == (union == set(range(min(union), max(union) + 1)))


@given(st.lists(SMALL))
def test_merging_keeps_the_hashes(ranges: list[KeyRange]) -> None:
    """Merged ranges hold the same hashes, in order, and no two of them touch."""
    merged = merge(ranges)
    assert {h for r in merged for h in range(r.first, r.last + 1)} == {
        h for r in ranges for h in range(r.first, r.last + 1)
    }
    assert all(a.last + 1 < b.first for a, b in pairwise(merged))


@given(st.lists(SMALL))
def test_coverage_finds_holes_and_overlaps(ranges: list[KeyRange]) -> None:
    """Holes are the hashes nobody covers, overlaps those that several do, both merged."""
    times = [sum(r.contains(h) for r in ranges) for h in range(14)]
    found = coverage(ranges)
    assert [h for h in range(13) if any(r.contains(h) for r in found.overlaps)] == [
        h for h in range(13) if times[h] > 1
    ]
    assert [h for h in range(14) if any(r.contains(h) for r in found.holes)] == [
        h for h in range(14) if times[h] == 0
    ]
    assert found.holes == merge(found.holes)
    assert found.overlaps == merge(found.overlaps)
    assert not found.is_exact  # the end of the space is never covered here


def test_coverage_of_nothing_and_of_all() -> None:
    """No range leaves one hole, the whole space none; twice the whole space is one overlap."""
    assert coverage([]) == Coverage(holes=(KeyRange(),))
    assert coverage([KeyRange()]) == Coverage()
    assert coverage([KeyRange(), KeyRange(5, 9), KeyRange(7, 11)]).overlaps == (KeyRange(5, 11),)
