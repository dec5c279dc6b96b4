"""Shows the parts of a status as text: plain lines in a pipe, tables that fit in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from coopconsume.admin.tables import Headline, KeyRangeMap, Owner, Table, cell
from coopconsume.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TextIO

    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    from coopconsume.admin.tables import Part

#: The most rows that are fitted to a terminal; rich needs 0.5 ms for each.
_MOST_FITTED: Final = 2_000
#: The numbers of places of a map of the hash space in a terminal, by its width.
_PLACES: Final = (32, 16, 8)
#: How narrow a column of texts may be.
_NARROWEST: Final = 10
_BETWEEN: Final = 2


def write(parts: Iterable[Part], stream: TextIO) -> None:
    """Writes the parts of a status.

    In a terminal, tables fit its width, and owners and headlines have colours unless ``NO_COLOR``
    is set. A table that cannot fit is plain lines, which the terminal breaks.
    """
    console = _console(stream) if stream.isatty() else None
    for part in parts:
        if console is not None and isinstance(part, Headline):
            console.print(_headline(part), soft_wrap=True)
            continue
        if console is not None and isinstance(part, Table) and len(part.rows) <= _MOST_FITTED:
            fitted = _fitted(part, console.width)
            if fitted is not None:
                console.print(fitted)
                continue
        stream.writelines(f"{line}\n" for line in text_lines([part]))


def text_lines(parts: Iterable[Part]) -> Iterator[str]:
    """Yields the parts of a status as plain lines of any length."""
    for part in parts:
        if isinstance(part, str):
            yield printable(part)
        elif isinstance(part, Headline):
            yield cell(part.text)
        else:
            yield from _lines(part)


def _lines(table: Table) -> Iterator[str]:
    rows = [[title.upper() for title in table.titles], *([*map(cell, row)] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = list(zip(widths, table.numeric, strict=True))
    for row in rows:
        yield "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, (width, to_right) in zip(row, columns, strict=True)
        ).rstrip()


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream)


def _headline(part: Headline) -> Text:
    from rich.text import Text

    return Text(cell(part.text), f"bold {part.colour}")


def _fitted(table: Table, width: int) -> RichTable | None:
    """Returns a table that fits a terminal, with maps as large as fit; None: no such table does."""
    for places in _PLACES:
        rows = [[_shown(value, places) for value in row] for row in table.rows]
        widths = _widths(table, rows, places, width)
        if widths is not None:
            return _rich_table(table, rows, widths)
    return None


def _widths(
    table: Table, rows: Sequence[Sequence[Text]], places: int, width: int
) -> list[int] | None:
    """Returns the width of each column; None: they do not fit.

    Words of titles, numbers and maps stay whole. Texts are folded, the widest columns first.
    """
    from rich.cells import cell_len

    least, most = [], []
    columns = zip(table.titles, table.numeric, *rows, strict=True)
    for (title, is_numeric, *texts), *values in zip(columns, *table.rows, strict=True):
        word = max(map(cell_len, title.upper().split()), default=1)
        widest = max((text.cell_len for text in texts), default=1)
        is_map = any(isinstance(value, KeyRangeMap) for value in values)
        folded = max(places, min(widest, _NARROWEST)) if is_map else min(widest, _NARROWEST)
        least.append(max(word, widest if is_numeric else folded))
        most.append(max(cell_len(title), widest, least[-1]))
    left = width - _BETWEEN * (len(least) - 1)
    if sum(least) > left:
        return None
    cap = min(max(most), left)
    while True:
        found = [max(low, min(high, cap)) for low, high in zip(least, most, strict=True)]
        if sum(found) <= left:
            return found
        cap -= 1


def _rich_table(table: Table, rows: Sequence[Sequence[Text]], widths: Sequence[int]) -> RichTable:
    from rich.table import Table as RichTable

    found = RichTable(box=None, pad_edge=False, header_style="bold")
    for title, is_numeric, width in zip(table.titles, table.numeric, widths, strict=True):
        side: Literal["right", "left"] = "right" if is_numeric else "left"
        found.add_column(title.upper(), justify=side, width=width, overflow="fold")
    for row in rows:
        found.add_row(*row)
    return found


def _shown(value: object, places: int) -> Text:
    from rich.text import Text

    if isinstance(value, Owner):
        return Text(str(value), value.colour)
    if isinstance(value, KeyRangeMap):
        owners = value.places(places)
        return Text.assemble(
            *((str(one), one.colour if isinstance(one, Owner) else "dim") for one in owners)
        )
    return Text(cell(value))
