"""Tables that this library appends to, with checkpoints and with files that were removed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import DeltaTable

from commits import CommitStore, OffsetRanges, Pending
from coopconsume.sinks import Outputs, OutputTable
from coopconsume.sinks.letters import DeadLetterTable
from coopconsume.worker.report import DeadLetter

if TYPE_CHECKING:
    from pathlib import Path

P0, P1 = ("t", 0), ("t", 1)
_INTERVAL = 5  # versions between two checkpoints of outputs and dead letters


def write_commits(path: str) -> None:
    """Write a commit table whose segments were compacted, with bitmaps and failed records."""
    store = CommitStore.open(path, segment_versions=5, snapshot_commits=10)
    table = DeltaTable(path)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    epoch = store.open_epoch("g", {"m": [P0, P1]}, previous=None, topic_ids={"t": "id"})
    drawn = random.Random(7)
    for n in range(55):
        offsets = OffsetRanges.from_offsets(drawn.sample(range(100 * n, 100 * n + 100), 40))
        failed = Pending(n, attempts=1, error="no ünicode", headers=(("n", b"\xff"),))
        store.commit("g", epoch, "m", {P0: offsets}, pending={P1: [failed]})
    table.update_incremental()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)


def write_outputs(path: str) -> None:
    """Write an output table with rows of most types, of records of two partitions."""
    schema = pa.schema(
        [
            ("text", pa.string()), ("number", pa.int64()), ("real", pa.float64()),
            ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("flag", pa.bool_()),
            ("exact", pa.decimal128(30, 2)), ("bytes", pa.binary()),
            ("list", pa.list_(pa.int32())), ("nested", pa.struct([("a", pa.int16())])),
        ]
    )  # fmt: skip
    OutputTable(path, schema).write(_rows(schema, 0))
    table = OutputTable(path, schema)
    _append(path, lambda number: table.write(_rows(schema, number)))


def write_dead_letters(path: str) -> None:
    """Write a table of dead letters with headers, some of them null."""
    table = DeadLetterTable(path)

    def append(number: int) -> None:
        headers = (("n", b"\xff"), ("none", None))
        letter = DeadLetter("t", 0, number, b"k", None, number, headers, 3, "ü", "trace")
        table.append([letter], {"t": "id"}, f"run-{number}")

    append(0)
    _append(path, append)


#: What writes each table, by its name.
WRITERS: Final[dict[str, Callable[[str], None]]] = {
    "commits": write_commits, "outputs": write_outputs, "dead letters": write_dead_letters,
}  # fmt: skip


def written(kind: str, path: Path) -> pa.Table:
    """Write a table of a kind, and return its rows as `deltalake` reads them.

    It has a checkpoint, and neither the entries before it nor the files that were removed.
    """
    WRITERS[kind](str(path))
    names = {file.name for file in (path / "_delta_log").iterdir()}
    assert f"{0:020d}.json" not in names
    assert any(name.endswith(".checkpoint.parquet") for name in names)
    rows = DeltaTable(str(path)).to_pyarrow_table()
    assert rows.num_rows == {"commits": rows.num_rows, "outputs": 42, "dead letters": 21}[kind] > 0
    return rows


def sorted_rows(rows: pa.Table) -> list[dict[str, object]]:
    """The rows of a table in an order that only depends on what is in them."""
    return sorted(rows.to_pylist(), key=repr)


def _append(path: str, append: Callable[[int], None]) -> None:
    """Append beside what others do: rows are deleted, files are compacted and removed."""
    table = DeltaTable(path)
    table.alter.set_table_properties(
        {
            "delta.checkpointInterval": str(_INTERVAL),
            "delta.logRetentionDuration": "interval 0 seconds",
            "delta.enableExpiredLogCleanup": "true",
        }
    )
    for number in range(1, 5 * _INTERVAL):
        append(number)
        if number % _INTERVAL == 0:
            table.update_incremental()
            table.delete(f"_offset = {number - 1}")
        if number == 3 * _INTERVAL:
            table.optimize.compact()
            table.vacuum(0, enforce_retention_duration=False, dry_run=False)


def _rows(schema: pa.Schema, number: int) -> Outputs:
    """What handlers returned for one record: two rows, one of them with nulls alone."""
    values = {
        "text": "ü 50%/x", "number": 2**60 + number, "real": 0.1 * number, "day": 19_000 + number,
        "at": 1_000_000 * number + 999, "flag": number % 2 == 0, "exact": number,
        "bytes": b"\xff\x00", "list": [1, None], "nested": {"a": number},
    }  # fmt: skip
    rows = pa.Table.from_pylist([values, {}], schema)
    for name, kind in (("_part", pa.int32()), ("_offset", pa.int64())):
        rows = rows.append_column(name, pa.array([number if name == "_offset" else 0] * 2, kind))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    parts = [((("t", number % 2),), sink.getvalue().to_pybytes())]
    return Outputs(parts, {}, {"t": "id"}, f"run-{number}")
