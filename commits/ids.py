"""Compact sets of commit ids."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


# No leading zeros, so that a number has one spelling. 18 digits fit into 64 bits.
_NUMBERED = re.compile(r"(.*-)(0|[1-9][0-9]{0,17})", re.DOTALL)


class CommitIds:
    """A set of ids. It stores ids that end in `-<number>` as ranges of numbers per prefix.

    Args:
        ids: The ids.
    """

    __slots__ = ("_numbers", "_others")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, ids: Iterable[str] = ()) -> None:
        # The ends of separate ranges by prefix: first, last, first, last …, sorted.
        self._numbers: dict[str, list[int]] = {}
        self._others: set[str] = set()
        for one in ids:
            self.add(one)

    def add(self, commit_id: str) -> None:
        """Add an id."""
        numbered = _NUMBERED.fullmatch(commit_id)
        if numbered is None:
            self._others.add(commit_id)
        else:
            _add(self._numbers.setdefault(numbered[1], []), int(numbered[2]))

    def discard(self, commit_id: str) -> None:
        """Remove an id, if it is there."""
        numbered = _NUMBERED.fullmatch(commit_id)
        if numbered is None:
            self._others.discard(commit_id)
        elif commit_id in self:
            _split(self._numbers[numbered[1]], int(numbered[2]))
            if not self._numbers[numbered[1]]:
                del self._numbers[numbered[1]]

    def copy(self) -> CommitIds:
        """Return an independent copy."""
        new = CommitIds()
        new._numbers = {prefix: list(ends) for prefix, ends in self._numbers.items()}
        new._others = set(self._others)
        return new

    def to_plain(self) -> dict[str, Any]:
        """Return values for JSON: each prefix with its ranges of numbers, and the other ids."""
        return {
            "numbers": {prefix: list(ends) for prefix, ends in self._numbers.items()},
            "others": sorted(self._others),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> CommitIds:
        """Create a set from the result of `to_plain`."""
        new = cls(plain["others"])
        new._numbers = {prefix: list(ends) for prefix, ends in plain["numbers"].items()}
        return new

    def __contains__(self, commit_id: object) -> bool:
        if not isinstance(commit_id, str):
            return False
        numbered = _NUMBERED.fullmatch(commit_id)
        if numbered is None:
            return commit_id in self._others
        return _has(self._numbers.get(numbered[1], []), int(numbered[2]))

    def __iter__(self) -> Iterator[str]:
        for prefix, ends in self._numbers.items():
            for first, last in _pairs(ends):
                for number in range(first, last + 1):
                    yield f"{prefix}{number}"
        yield from self._others

    def __len__(self) -> int:
        counts = (
            last - first + 1 for ends in self._numbers.values() for first, last in _pairs(ends)
        )
        return sum(counts) + len(self._others)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CommitIds):
            return NotImplemented
        return self._numbers == other._numbers and self._others == other._others

    def __repr__(self) -> str:
        return f"<CommitIds: {len(self)} ids of {len(self._numbers) + len(self._others)} writers>"


def _pairs(ends: list[int]) -> Iterator[tuple[int, int]]:
    return zip(ends[0::2], ends[1::2], strict=True)


def _has(ends: list[int], number: int) -> bool:
    at = bisect_right(ends, number)
    # An odd index is within a range; a number that is the last end of a range is in it as well.
    return at % 2 == 1 or (at > 0 and ends[at - 1] == number)


def _add(ends: list[int], number: int) -> None:
    if _has(ends, number):
        return
    at = bisect_right(ends, number)
    touches_left = at > 0 and ends[at - 1] == number - 1
    touches_right = at < len(ends) and ends[at] == number + 1
    if touches_left and touches_right:
        del ends[at - 1 : at + 1]
    elif touches_left:
        ends[at - 1] = number
    elif touches_right:
        ends[at] = number
    else:
        ends[at:at] = [number, number]


def _split(ends: list[int], number: int) -> None:
    """Takes a number out of its range."""
    at = next(i for i in range(0, len(ends), 2) if number <= ends[i + 1])
    first, last = ends[at], ends[at + 1]
    left = [first, number - 1] if first < number else []
    right = [number + 1, last] if number < last else []
    ends[at : at + 2] = [*left, *right]
