"""Shows the parts of a status as text: plain lines in a pipe, tables that fit in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from coopconsume.admin.tables import HashMap, Owner, Table, cell, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TextIO

    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

#: The most rows that are fitted to a terminal; rich needs 0.5 ms for each.
_MOST_FITTED: Final = 2_000
#: The numbers of places of a map of the hash space in a terminal, by its width.
_PLACES: Final = (32, 16, 8)


def write(parts: Iterable[str | Table], stream: TextIO) -> None:
    """Writes the parts of a status.

    In a terminal, tables fit its width, and owners have colours unless ``NO_COLOR`` is set.
    """
    console = _console(stream) if stream.isatty() else None
    for part in parts:
        if (
            console is None
            or isinstance(part, str)
            or len(part.rows) > _MOST_FITTED
            or (fitted := _fitted(part, console)) is None
        ):
            stream.writelines(f"{line}\n" for line in _lines(part))
        else:
            console.print(fitted)


def text_lines(parts: Iterable[str | Table]) -> Iterator[str]:
    """Yields the parts of a status as plain lines of any length."""
    for part in parts:
        yield from _lines(part)


def _lines(part: str | Table) -> Sequence[str]:
    if isinstance(part, str):
        return [printable(part)]
    rows = [[title.upper() for title in part.titles], *([*map(cell, row)] for row in part.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, part.numeric, strict=True)
        ).rstrip()
        for row in rows
    ]


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream)


def _fitted(table: Table, console: Console) -> RichTable | None:
    """Returns a table that fits a terminal, with maps as large as fit; None: no such table does."""
    for places in _PLACES:
        widths = _narrowest(table, places)
        if sum(widths) + 2 * (len(widths) - 1) <= console.width:
            return _rich_table(table, widths, places)
    return None


def _narrowest(table: Table, places: int) -> list[int]:
    """Returns how narrow each column may be: texts are folded; words of titles, numbers are not."""
    found = []
    for title, is_numeric, *values in zip(table.titles, table.numeric, *table.rows, strict=True):
        whole = [len(cell(value)) for value in values] if is_numeric else []
        maps = [places for value in values if isinstance(value, HashMap)]
        found.append(max([1, *map(len, title.split()), *whole, *maps]))
    return found


def _rich_table(table: Table, widths: Sequence[int], places: int) -> RichTable:
    from rich.table import Table as RichTable

    found = RichTable(box=None, pad_edge=False, header_style="bold")
    for title, is_numeric, width in zip(table.titles, table.numeric, widths, strict=True):
        side: Literal["right", "left"] = "right" if is_numeric else "left"
        found.add_column(title.upper(), justify=side, min_width=width, overflow="fold")
    for row in table.rows:
        found.add_row(*(_coloured(value, places) for value in row))
    return found


def _coloured(value: object, places: int) -> Text:
    from rich.text import Text

    if isinstance(value, Owner):
        return Text(str(value), value.colour)
    if isinstance(value, HashMap):
        owners = value.places(places)
        return Text.assemble(
            *((str(one), one.colour if isinstance(one, Owner) else "dim") for one in owners)
        )
    return Text(cell(value))
