"""One append of a few rows to an output table, against `deltalake`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

from coopconsume.sinks.table import Table
from tests.bench.figures import Ratio, Report, seconds_of, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

_ENTRIES = 20_000
_SCHEMA = pa.schema([("text", pa.string()), ("number", pa.int64())])


class _Rows(Table):
    """The table of an output, without what handlers return."""

    def append(self, rows: pa.Table) -> None:
        """Appends rows as outputs and dead letters are appended."""
        self._append(rows)


def appends(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Milliseconds of an append of ten rows, beside no and 20,000 entries of the table's log."""
    from deltalake import write_deltalake

    rounds, entries = harness.size(20, 3), harness.size(_ENTRIES, 50)
    schema = pa.schema([*_SCHEMA, *Table.beside])
    rows = pa.table({
        "text": ["text"] * 10, "number": range(10), "_topic": ["t"] * 10, "_topic_id": ["id"] * 10,
        "_partition": [0] * 10, "_offset": range(10), "_commit": ["c"] * 10,
    }).cast(schema)  # fmt: skip
    sides: dict[str, Callable[[int], float]] = {}
    for beside in (0, entries):
        ours, other = (str(harness.path(f"{kind}-{beside}")) for kind in ("ours", "deltalake"))
        for path in (ours, other):
            _make(path, rows, beside)
        append = _Rows(ours, _SCHEMA).append
        bare = partial(write_deltalake, other, mode="append")
        words = f"beside {beside:,} entries"
        sides[f"output table, {words}"] = partial(_milliseconds, append, rows, rounds)
        sides[f"write_deltalake, {words}"] = partial(_milliseconds, bare, rows, rounds)
    report = Report(
        "An append to an output table",
        "Ten rows with the columns of their records, on a local disk; the output table's appends "
        "are synced. The other side is `write_deltalake` with the path of the table. Each value is "
        f"the median of {rounds} appends.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "ms")
    report.ratios = [
        Ratio(
            f"output table / deltalake, beside {beside:,} entries",
            f"output table, beside {beside:,} entries",
            f"write_deltalake, beside {beside:,} entries",
            at_most=0.5,
        )
        for beside in (0, entries)
    ]
    return [report]


def _make(path: str, rows: pa.Table, entries: int) -> None:
    """A table with many entries, each with a file, and a checkpoint."""
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(path, rows)
    log = Path(path, "_delta_log")
    (line,) = [one for one in (log / f"{0:020d}.json").read_text().splitlines() if '"add"' in one]
    action = json.loads(line)
    for version in range(1, entries + 1):
        action["add"]["path"] = f"part-{version}.parquet"
        (log / f"{version:020d}.json").write_text(json.dumps(action))
    DeltaTable(path).create_checkpoint()


def _milliseconds(
    append: Callable[[pa.Table], object], rows: pa.Table, rounds: int, _: int
) -> float:
    return 1000 * median(seconds_of(lambda: append(rows)) for _ in range(rounds))
