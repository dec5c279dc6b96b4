"""Sets of commit ids that stay small, however many there are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from commits.offsets import OffsetRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["CommitIds"]

# No leading zeros: a number must stand for one spelling. 18 digits fit into 64 bits.
_NUMBERED = re.compile(r"(.*-)(0|[1-9][0-9]{0,17})", re.DOTALL)


class CommitIds:
    """A set of ids. Of ids that end in `-<number>` only a bitmap of numbers per prefix is kept.

    Args:
        ids: The ids.
    """

    __slots__ = ("_numbers", "_others")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._numbers: dict[str, Any] = {}
        self._others: set[str] = set()
        for one in ids:
            self.add(one)

    def add(self, commit_id: str) -> None:
        """Adds an id."""
        numbered = _NUMBERED.fullmatch(commit_id)
        if numbered is None:
            self._others.add(commit_id)
        else:
            self._numbers.setdefault(numbered[1], BitMap64()).add(int(numbered[2]))

    def copy(self) -> CommitIds:
        """A copy that changes by itself."""
        new = CommitIds()
        new._numbers = {prefix: numbers.copy() for prefix, numbers in self._numbers.items()}
        new._others = set(self._others)
        return new

    def to_plain(self) -> dict[str, Any]:
        """As JSON can hold it: each prefix with its ranges of numbers, and the other ids."""
        return {
            "numbers": {
                prefix: [end for pair in OffsetRanges.from_offsets(numbers) for end in pair]
                for prefix, numbers in self._numbers.items()
            },
            "others": sorted(self._others),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> CommitIds:
        """The set that `to_plain` has written."""
        new = cls(plain["others"])
        for prefix, ends in plain["numbers"].items():
            numbers = BitMap64()
            for first, last in zip(ends[0::2], ends[1::2], strict=True):
                numbers.add_range(first, last + 1)
            new._numbers[prefix] = numbers
        return new

    def __contains__(self, commit_id: object) -> bool:
        if not isinstance(commit_id, str):
            return False
        numbered = _NUMBERED.fullmatch(commit_id)
        if numbered is None:
            return commit_id in self._others
        return numbered[1] in self._numbers and int(numbered[2]) in self._numbers[numbered[1]]

    def __iter__(self) -> Iterator[str]:
        for prefix, numbers in self._numbers.items():
            for number in numbers:
                yield f"{prefix}{number}"
        yield from self._others

    def __len__(self) -> int:
        return sum(map(len, self._numbers.values())) + len(self._others)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CommitIds):
            return NotImplemented
        return self._numbers == other._numbers and self._others == other._others

    def __repr__(self) -> str:
        return f"<CommitIds: {len(self)} ids of {len(self._numbers) + len(self._others)} writers>"
