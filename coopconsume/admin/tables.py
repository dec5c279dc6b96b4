"""Tables of a status as data, which `admin.text` shows as text and `admin.html` as HTML (pure).

A part of a status is a sentence, a `Headline` or a `Table`. The values of a table are numbers,
texts, times, `Owner` and `KeyRangeMap`; None is a dash.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from assignors import KeyRange
from coopconsume.texts import printable, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coopconsume.monitoring.verdict import Level

_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase + string.digits
#: Those of Okabe and Ito, and of an owner that the list does not have.
_COLOURS: Final = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
_NO_COLOUR: Final = "#888888"
_TOO_MANY: Final = "#"
_NOBODY: Final = "."
#: The colours of levels, as HTML has them: those of Okabe and Ito, readable on light and dark.
_LEVELS: Final[dict[Level, str]] = {
    "ok": "#009e73", "working": "#3a8fc4", "waiting": "#b8860b", "action": "#d55e00",
    "danger": "#d62f2f",
}  # fmt: skip
_PLACES: Final = 32


class Owner(NamedTuple):
    """The owner of key ranges, in the list of a group's owners.

    Attributes:
        number: Its number in the list, from 0; None if the list does not have it.
    """

    number: int | None

    def __str__(self) -> str:
        """Returns its letter; those beyond the last letter have one in common."""
        is_known = self.number is not None and self.number < len(_LETTERS)
        return _LETTERS[self.number] if is_known else _TOO_MANY  # type: ignore[index]

    @property
    def colour(self) -> str:
        """Its colour, as HTML has it; grey if the list does not have it."""
        return _NO_COLOUR if self.number is None else _COLOURS[self.number % len(_COLOURS)]


class OwnedPart(NamedTuple):
    """A key range in a map, its owner, and what is shown of it under the pointer."""

    key_range: KeyRange
    owner: Owner
    tooltip: str


class KeyRangeMap(NamedTuple):
    """A map of the hash space: who owns which key range."""

    parts: tuple[OwnedPart, ...]

    def __str__(self) -> str:
        """Returns the letters of the owners of 32 places."""
        return "".join(map(str, self.places()))

    def places(self, count: int = _PLACES) -> list[Owner | str]:
        """Returns the main owner of each of some places of equal size; a dot: it has none."""
        return [self._main_owner(place) for place in KeyRange().split(count)]

    def _main_owner(self, place: KeyRange) -> Owner | str:
        sizes = [
            (common.size, part.owner)
            for part in self.parts
            if (common := part.key_range.intersect(place)) is not None
        ]
        return max(sizes, key=lambda one: one[0])[1] if sizes else _NOBODY


@dataclass(frozen=True)
class Headline:
    """A sentence in the colour of its level.

    Attributes:
        text: The sentence.
        level: How urgent it is.
    """

    text: str
    level: Level

    @property
    def colour(self) -> str:
        """Its colour, as HTML has it."""
        return _LEVELS[self.level]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        titles: The titles of its columns, in small letters; a column of `Owner` needs none.
        rows: A value for each column of each row.
    """

    titles: tuple[str, ...]
    rows: Sequence[Sequence[object]]

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column has numbers."""
        return tuple(any(map(_is_number, column)) for column in zip(*self.rows, strict=True)) or (
            (False,) * len(self.titles)
        )


#: A part of a status.
Part: TypeAlias = str | Headline | Table


def cell(value: object) -> str:
    """Returns a value as text: numbers grouped, times with their zone, None as a dash.

    Control characters are escaped: a key or an error of a record must not reach a terminal as
    commands.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S %Z}"
    return printable(str(value), kept="")


def text_of(data: bytes | None) -> str | None:
    """Returns bytes as text; what is not UTF-8 is escaped."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def age(since: datetime | None, now: datetime) -> str | None:
    """Returns how long ago a time is; None if it is not known."""
    seconds = seconds_since(since, now)
    return None if seconds is None else span(seconds)


def seconds_since(at: datetime | None, now: datetime) -> float | None:
    """Returns how long ago a time is, in seconds from 0; None if it is not known."""
    return None if at is None else max(0.0, (now - at).total_seconds())


def share_of_space(ranges: Iterable[KeyRange]) -> str:
    """Returns the size of key ranges, in whole partitions."""
    return f"{sum(key_range.size for key_range in ranges) / KeyRange().size:.2f}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
