"""OffsetRanges: exact sets of offsets, against Python's own sets."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from commits import OffsetRanges
from commits.offsets import MAX_COUNT, MAX_OFFSET

# Around small numbers, the edges of roaring's containers, 2**32, 2**53 and the last offset.
BASES = [0, 1, 65_530, 2**32 - 5, 2**53 - 5, 2**63 - 40]
PAIR = st.tuples(st.sampled_from(BASES), st.integers(0, 30), st.integers(0, 9)).map(
    lambda drawn: (drawn[0] + drawn[1], drawn[0] + drawn[1] + drawn[2])
)
PAIRS = st.lists(PAIR, max_size=12)
OFFSET = st.tuples(st.sampled_from(BASES), st.integers(0, 39)).map(sum)


def as_set(pairs: list[tuple[int, int]]) -> set[int]:
    """The same offsets as a set."""
    return {offset for first, last in pairs for offset in range(first, last + 1)}


def as_pairs(offsets: set[int]) -> list[tuple[int, int]]:
    """The separate ranges of a set, the slow way."""
    pairs: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if pairs and pairs[-1][1] == offset - 1:
            pairs[-1] = (pairs[-1][0], offset)
        else:
            pairs.append((offset, offset))
    return pairs


@given(PAIRS)
def test_it_is_the_set_of_its_pairs(pairs: list[tuple[int, int]]) -> None:
    """Iteration, sizes, ends and membership are those of the plain set."""
    ranges, plain = OffsetRanges(pairs), as_set(pairs)
    assert list(ranges) == as_pairs(plain)
    assert (len(ranges), bool(ranges)) == (len(plain), bool(plain))
    assert ranges.range_count == len(as_pairs(plain))
    assert ranges.first == min(plain, default=None)
    assert ranges.last == max(plain, default=None)
    assert ranges.offsets().tolist() == sorted(plain)
    for offset in [*plain, *(o + 1 for o in plain), *(o - 1 for o in plain)]:
        assert (offset in ranges) == (offset in plain)


@given(PAIRS, PAIRS)
def test_set_operations(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    """Union, intersection, difference and equality are those of plain sets, and change no side."""
    a, b = OffsetRanges(one), OffsetRanges(other)
    x, y = as_set(one), as_set(other)
    assert list(a | b) == as_pairs(x | y)
    assert list(a & b) == as_pairs(x & y)
    assert list(a - b) == as_pairs(x - y)
    assert (a == b) == (x == y)
    assert (list(a), list(b)) == (as_pairs(x), as_pairs(y))


@given(PAIRS, OFFSET, OFFSET)
def test_clip_complement_and_range_end(pairs: list[tuple[int, int]], first: int, last: int) -> None:
    """The windows of a set and the end of a range agree with plain sets."""
    ranges, plain = OffsetRanges(pairs), as_set(pairs)
    assert list(ranges.clip(first, last)) == as_pairs({o for o in plain if first <= o <= last})
    assert list(ranges) == as_pairs(plain)
    if last - first < 100:
        inside = set(range(first, last + 1))
        assert list(ranges.complement(first, last)) == as_pairs(inside - plain)
    ends = [end for start, end in as_pairs(plain) if start <= first <= end]
    assert ranges.range_end(first) == (ends[0] if ends else None)


@given(PAIRS, OFFSET, OFFSET)
def test_gaps_are_what_is_missing(pairs: list[tuple[int, int]], first: int, last: int) -> None:
    """Also where they hold more offsets than a set may have."""
    ranges = OffsetRanges(pairs)
    gaps = [*ranges.gaps(first, last)]
    assert not gaps if first > last else all(start <= end for start, end in gaps)
    pieces = sorted([*gaps, *ranges.clip(first, last)])
    assert [start for start, _ in pieces] == [first, *(end + 1 for _, end in pieces)][: len(pieces)]
    assert not pieces or pieces[-1][1] == last
    assert bool(pieces) == (first <= last)


@given(PAIRS)
def test_bytes_are_portable(pairs: list[tuple[int, int]]) -> None:
    """Bytes and pickles bring the same set back, and roaring itself reads them."""
    ranges = OffsetRanges(pairs)
    data = ranges.to_bytes()
    assert OffsetRanges.from_bytes(data) == ranges
    assert pickle.loads(pickle.dumps(ranges)) == ranges
    assert list(BitMap64.deserialize(data)) == sorted(as_set(pairs))


@given(st.lists(OFFSET, max_size=40))
def test_single_offsets(offsets: list[int]) -> None:
    """Lists, signed and unsigned arrays in any order give the same set."""
    expected = as_pairs(set(offsets))
    assert list(OffsetRanges.from_offsets(offsets)) == expected
    assert list(OffsetRanges.from_offsets(np.array(offsets, dtype=np.int64))) == expected
    assert list(OffsetRanges.from_offsets(np.array(offsets, dtype=np.uint64))) == expected


@given(PAIRS)
def test_bounds_bring_the_set_back(pairs: list[tuple[int, int]]) -> None:
    """The arrays of first and last offsets make the same set again."""
    ranges = OffsetRanges(pairs)
    assert OffsetRanges.from_bounds(*ranges.bounds()) == ranges


@pytest.mark.parametrize(
    "pairs",
    [
        [(1, 0)],
        [(-1, 3)],
        [(1.0, 2)],
        [(1, 2, 3)],
        [1, 2],
        ["ab"],
        [None],
        [(0, 2**63)],
        [(2**63, 2**64)],
        [(-(2**70), 0)],
        [(0, MAX_COUNT)],
        [(0, 2**62), (2**62, MAX_OFFSET)],
    ],
)
def test_nonsense_is_refused(pairs: list[object]) -> None:
    """Pairs in wrong order, no integers, and far too many offsets are a ValueError."""
    with pytest.raises(ValueError):
        OffsetRanges(pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("offsets", [[-1], [1.5], [True, 1.0], np.array([0.5]), np.array([-3])])
def test_nonsense_offsets_are_refused(offsets: object) -> None:
    """Single offsets that are negative or no integers are a ValueError."""
    with pytest.raises(ValueError):
        OffsetRanges.from_offsets(offsets)  # type: ignore[arg-type]


def test_damaged_bytes_never_crash() -> None:
    """Bytes with flipped or missing parts are a ValueError or a set, never a crash."""
    source = random.Random(7)
    good = OffsetRanges([(5, 10**6), (2**40, 2**40 + 5), *((n * 3, n * 3) for n in range(9999))])
    data = good.to_bytes()
    refused = 0
    for _ in range(3000):
        damaged = bytearray(data[: source.randrange(len(data) + 1)])
        for _ in range(source.randrange(3) if damaged else 0):
            damaged[source.randrange(min(len(damaged), 64))] = source.randrange(256)
        try:
            len(OffsetRanges.from_bytes(bytes(damaged)))
        except ValueError:
            refused += 1
    assert refused > 2000
    with pytest.raises(ValueError, match="beyond"):
        OffsetRanges.from_bytes(BitMap64([2**63]).serialize())


def test_wide_ranges_cost_nothing_by_the_offset() -> None:
    """A range of ten thousand million offsets is made, cut and walked through at once."""
    wide = OffsetRanges([(0, 10**10)]) - OffsetRanges([(5, 5), (10**9, 10**9 + 1)])
    assert wide.pairs() == [(0, 4), (6, 10**9 - 1), (10**9 + 2, 10**10)]
    assert len(wide) == 10**10 - 2


def test_a_representation_is_short() -> None:
    """However many ranges there are, only the first ones and the sums are shown."""
    assert repr(OffsetRanges([(1, 2), (4, 4)])) == "OffsetRanges([(1, 2), (4, 4)])"
    many = OffsetRanges.from_offsets(range(0, 20_000, 2))
    assert len(repr(many)) < 120
    assert "10000 ranges of 10000 offsets up to 19998" in repr(many)
