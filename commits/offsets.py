"""Sets of offsets: compact, exact up to 2**63 - 1, and fast with millions of them."""

from __future__ import annotations

from array import array
from collections.abc import Sized
from contextlib import suppress
from functools import reduce
from operator import index, or_
from typing import TYPE_CHECKING, Any

import numpy as np
from pyroaring import BitMap64

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Pairs = Iterable[tuple[int, int]]
    Int64s = NDArray[np.int64]


MAX_OFFSET = 2**63 - 1
"""The largest offset of a set: Kafka's offsets are signed 64-bit integers."""

MAX_COUNT = 2**36
"""The largest number of offsets in a set, a limit against invalid input."""

_PAIR = 2
_EMPTY = np.empty(0, dtype=np.int64)  # an empty buffer cannot be viewed as an array
_SHOWN = 4  # ranges in a representation
_WIDE = 256  # shorter ranges are added offset by offset


class OffsetRanges:
    """An immutable set of offsets from 0 to 2**63 - 1, stored as a roaring bitmap.

    The constructor takes pairs `(first, last)`, both included, in any order, overlapping or not.
    Iteration yields the pairs of its separate ranges in order. `len()` counts offsets; `|`, `&`,
    `-`, `in` and `==` are those of sets. For a list of the pairs use `pairs()`: `list()` would
    first allocate `len()` elements.

    Args:
        pairs: Pairs `(first, last)`, or another set.

    Raises:
        ValueError: If a pair is not two integers with 0 <= first <= last <= 2**63 - 1, or if the
            set has more than 2**36 offsets.
    """

    __slots__ = ("_bits", "_range_count")
    __hash__ = None  # type: ignore[assignment]
    _bits: Any
    _range_count: int | None

    def __init__(self, pairs: Pairs | OffsetRanges = ()) -> None:
        self._bits = _bits_of(pairs) if isinstance(pairs, OffsetRanges) else _from_pairs(pairs)
        self._range_count = None

    @classmethod
    def of(cls, pairs: Pairs | OffsetRanges) -> OffsetRanges:
        """Return the set itself, or the set of the pairs."""
        return pairs if isinstance(pairs, cls) else cls(pairs)

    @classmethod
    def from_offsets(cls, offsets: Int64s | Iterable[int]) -> OffsetRanges:
        """Create the set of single offsets: a numpy array of integers or any iterable.

        Raises:
            ValueError: If an offset is no integer from 0 to 2**63 - 1.
        """
        if not isinstance(offsets, np.ndarray):
            offsets = _int64s(list(offsets))
        elif offsets.dtype.kind not in "iu":
            raise ValueError(f"offsets must be integers, not {offsets.dtype}")
        elif offsets.dtype == np.uint64 and offsets.size and int(offsets.max()) > MAX_OFFSET:
            raise ValueError(f"offset {offsets.max()} is beyond 2**63 - 1")
        singles = np.ascontiguousarray(offsets, dtype=np.int64)
        if singles.size and int(singles.min()) < 0:
            raise ValueError(f"offset {singles.min()} is negative")
        return cls._of_bits(_from_int64s(singles))

    @classmethod
    def union(cls, sets: Iterable[OffsetRanges]) -> OffsetRanges:
        """Return the offsets that at least one of the sets contains."""
        whole: OffsetRanges = reduce(or_, sets, cls())
        return whole

    @classmethod
    def from_bounds(cls, firsts: Int64s, lasts: Int64s) -> OffsetRanges:
        """Create the set of ranges whose first and last offsets are two numpy arrays.

        Raises:
            ValueError: As for pairs.
        """
        return cls._of_bits(_from_bounds(np.asarray(firsts), np.asarray(lasts)))

    @classmethod
    def from_bytes(cls, data: bytes) -> OffsetRanges:
        """Read the set that `to_bytes` of this or another roaring library has written.

        Raises:
            ValueError: If the bytes are no 64-bit roaring bitmap in the portable format, or hold
                offsets beyond 2**63 - 1.
        """
        try:
            bits = BitMap64.deserialize(data)
        except Exception as error:
            raise ValueError(
                f"{len(data)} bytes are no portable roaring bitmap: {error}"
            ) from error
        if bits and bits.max() > MAX_OFFSET:
            raise ValueError(f"offset {bits.max()} of a roaring bitmap is beyond 2**63 - 1")
        return cls._of_bits(bits)

    @classmethod
    def _of_bits(cls, bits: Any) -> OffsetRanges:
        new = cls.__new__(cls)
        new._bits = bits  # noqa: SLF001
        new._range_count = None  # noqa: SLF001
        return new

    def to_bytes(self) -> bytes:
        """Return a 64-bit roaring bitmap in the portable format of the roaring libraries."""
        compact = self._bits.copy()
        compact.run_optimize()
        data: bytes = compact.serialize()
        return data

    @property
    def first(self) -> int | None:
        """The lowest offset; None if the set is empty."""
        return int(self._bits.min()) if self._bits else None

    @property
    def last(self) -> int | None:
        """The highest offset; None if the set is empty."""
        return int(self._bits.max()) if self._bits else None

    @property
    def range_count(self) -> int:
        """The number of separate ranges."""
        if self._range_count is None:
            neighbours = self._bits.intersection_cardinality(self._bits.shift(1))
            self._range_count = len(self._bits) - neighbours
        return self._range_count

    def bounds(self) -> tuple[Int64s, Int64s]:
        """Return the first and last offsets of the separate ranges, in order, as numpy arrays."""
        firsts = self._bits - self._bits.shift(1)
        lasts = self._bits - self._bits.shift(-1)
        return _to_int64s(firsts), _to_int64s(lasts)

    def pairs(self) -> list[tuple[int, int]]:
        """Return the pairs `(first, last)` of the separate ranges, in order."""
        return [*iter(self)]

    def offsets(self) -> Int64s:
        """Return every offset, in order, as a numpy array."""
        return _to_int64s(self._bits)

    def range_end(self, offset: int) -> int | None:
        """Return the last offset of the range with an offset; None if it is not in the set."""
        if offset not in self:
            return None
        lasts = self._bits - self._bits.shift(-1)
        return int(lasts.next_set_bit(offset))

    def clip(self, first: int, last: int) -> OffsetRanges:
        """Return the offsets from `first` to `last`, both included; empty if `last` is lower."""
        if not self._bits or (first <= self._bits.min() and self._bits.max() <= last):
            return self
        clipped = self._bits.copy()
        if first > 0:
            clipped.remove_range(0, min(first, MAX_OFFSET + 1))
        if last < MAX_OFFSET:
            clipped.remove_range(max(last + 1, 0), MAX_OFFSET + 1)
        return self._of_bits(clipped)

    def head(self, count: int) -> OffsetRanges:
        """Return the lowest `count` offsets; all of them if there are fewer, none below 1."""
        if count >= len(self._bits):
            return self
        return self.clip(0, self._bits[count - 1]) if count > 0 else OffsetRanges()

    def complement(self, first: int, last: int) -> OffsetRanges:
        """Return the offsets from `first` to `last`, both included, that are not in the set.

        Raises:
            ValueError: If `first` is negative, or the window is wider than 2**36 offsets.
        """
        if last < first:
            return OffsetRanges()
        return OffsetRanges([(first, last)]) - self

    def gaps(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges from `first` to `last`, both included, that are not in the set.

        Other than in `complement`, they may hold any number of offsets.
        """
        firsts, lasts = self.gap_bounds(first, last)
        yield from zip(firsts.tolist(), lasts.tolist(), strict=True)

    def gap_bounds(self, first: int, last: int) -> tuple[Int64s, Int64s]:
        """Return the first and last offsets of these ranges, in order, as numpy arrays."""
        if last < first:
            return _EMPTY, _EMPTY
        firsts, lasts = self.clip(first, last).bounds()
        before, ends = np.append(first - 1, lasts), np.append(firsts - 1, last)
        is_gap = before < ends
        return before[is_gap] + 1, ends[is_gap]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        firsts, lasts = self.bounds()
        return zip(firsts.tolist(), lasts.tolist(), strict=True)

    def __len__(self) -> int:
        return len(self._bits)

    def __bool__(self) -> bool:
        return bool(self._bits)

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int | np.integer) and bool(offset >= 0) and offset in self._bits

    def __or__(self, other: OffsetRanges) -> OffsetRanges:
        if not isinstance(other, OffsetRanges):
            return NotImplemented
        return self._of_bits(self._bits | other._bits)

    def __and__(self, other: OffsetRanges) -> OffsetRanges:
        if not isinstance(other, OffsetRanges):
            return NotImplemented
        return self._of_bits(self._bits & other._bits)

    def __sub__(self, other: OffsetRanges) -> OffsetRanges:
        if not isinstance(other, OffsetRanges):
            return NotImplemented
        return self._of_bits(self._bits - other._bits)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetRanges):
            return NotImplemented
        return bool(self._bits == other._bits)

    def __reduce__(self) -> tuple[Any, ...]:
        return (OffsetRanges.from_bytes, (self.to_bytes(),))

    def __repr__(self) -> str:
        firsts, lasts = self.bounds()
        shown = [
            f"({first}, {last})"
            for first, last in zip(firsts[:_SHOWN].tolist(), lasts[:_SHOWN].tolist(), strict=True)
        ]
        if len(firsts) > _SHOWN:
            shown.append(f"… {len(firsts)} ranges of {len(self)} offsets up to {lasts[-1]}")
        return f"OffsetRanges([{', '.join(shown)}])"


def _bits_of(offsets: OffsetRanges) -> Any:
    return offsets._bits  # noqa: SLF001  (never changed, so it can be shared)


def _from_pairs(pairs: Pairs) -> Any:
    listed = list(pairs)
    if not listed:
        return BitMap64()
    if len(listed) == 1:
        bits = _from_pair(listed[0])
        if bits is not None:
            return bits
    try:
        firsts, lasts = [first for first, _ in listed], [last for _, last in listed]
    except (TypeError, ValueError):
        wrong = next(pair for pair in listed if not isinstance(pair, Sized) or len(pair) != _PAIR)
        raise ValueError(f"offsets come as pairs (first, last), not {wrong!r}") from None
    return _from_bounds(_int64s(firsts), _int64s(lasts))


def _int64s(values: list[Any]) -> Int64s:
    try:
        # Only an array checks at full speed that each value is an integer.
        return np.frombuffer(array("q", values), dtype=np.int64) if values else _EMPTY
    except (OverflowError, TypeError):
        wrong = next(
            v for v in values if not -MAX_OFFSET <= exact_integer("offset", v) <= MAX_OFFSET
        )
        raise ValueError(f"offset {wrong} is not within [0, 2**63 - 1]") from None


def exact_integer(name: str, value: Any) -> int:
    """Convert an integer of Python or numpy to `int`; booleans and floats are refused.

    Raises:
        ValueError: If it is not an integer; the message contains `name`.
    """
    if not isinstance(value, bool | np.bool_):
        with suppress(TypeError):
            return index(value)
    raise ValueError(f"{name} must be an integer, not {value!r}")


def _from_pair(pair: Any) -> Any:
    """Return the bits of one valid range, the common case; None otherwise."""
    if type(pair) is not tuple or len(pair) != _PAIR:
        return None
    first, last = pair
    if type(first) is not int or type(last) is not int:
        return None
    if not 0 <= first <= last <= MAX_OFFSET or last - first >= MAX_COUNT:
        return None
    bits = BitMap64()
    bits.add_range(first, last + 1)
    return bits


def _from_bounds(firsts: NDArray[Any], lasts: NDArray[Any]) -> Any:
    if firsts.dtype.kind not in "iu" or lasts.dtype.kind not in "iu":
        raise ValueError(f"offsets must be integers, not {firsts.dtype} and {lasts.dtype}")
    if firsts.shape != lasts.shape:
        raise ValueError(f"{firsts.size} first and {lasts.size} last offsets do not pair up")
    firsts, lasts = firsts.astype(np.int64), lasts.astype(np.int64)
    wrong = np.flatnonzero((firsts < 0) | (firsts > lasts))
    if wrong.size:
        first, last = int(firsts[wrong[0]]), int(lasts[wrong[0]])
        raise ValueError(
            f"({first}, {last}) is no range: 0 <= first <= last <= 2**63 - 1 must hold"
        )
    steps = lasts - firsts
    if not steps.any():  # single offsets, the common case
        return _from_int64s(firsts)
    # Floats are exact enough to refuse what would overflow an integer sum.
    if float(steps.sum(dtype=np.float64)) + steps.size > MAX_COUNT:
        raise ValueError(f"more than {MAX_COUNT} offsets in one set (2**36) are not supported")
    narrow = steps < _WIDE
    lengths = steps[narrow] + 1
    starts = firsts[narrow] - (np.cumsum(lengths) - lengths)
    bits = _from_int64s(np.repeat(starts, lengths) + np.arange(int(lengths.sum())))
    wide = ~narrow
    for first, last in zip(firsts[wide].tolist(), lasts[wide].tolist(), strict=True):
        bits.add_range(first, last + 1)
    return bits


def _from_int64s(offsets: Int64s) -> Any:
    values = array("Q")  # the only type that the library accepts as a block
    values.frombytes(offsets.tobytes())
    return BitMap64(values)


def _to_int64s(bits: Any) -> Int64s:
    if not bits:
        return _EMPTY
    return np.frombuffer(bits.to_array(), dtype=np.int64)
