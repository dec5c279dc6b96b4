"""Appends to tables of users: as `deltalake` makes them, beside others, and where it has to."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from commits import table_appender
from commits.added_files import statistics
from commits.conflicts import repeated_write
from commits.table_appender import TableAppender
from commits.table_files import DiskFiles

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = pa.table({"number": pa.array([1, None], pa.int64()), "text": ["a", "b"]})
_AT = datetime(2024, 1, 1, 1, 2, 3, 456_000, UTC)
_VALUES: dict[str, pa.Array] = {
    "text": pa.array(["short", "b", None]), "small": pa.array([1, None, 3], pa.int16()),
    "large": pa.array([2**60, 5, -1]), "real": pa.array([1.5, -0.25, None]),
    "flag": pa.array([True, False, None]), "day": pa.array([date(2024, 1, 1), None, date(1, 1, 1)]),
    "at": pa.array([_AT, _AT, None], pa.timestamp("us", "UTC")),
    "local": pa.array([_AT.replace(tzinfo=None)] * 3, pa.timestamp("us")),
    "exact": pa.array([Decimal("2.50"), Decimal("1.25"), None], pa.decimal128(30, 2)),
    "bytes": pa.array([b"\xff", b"", None]), "list": pa.array([[1, 2], [], None]),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
    "nested": pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": 3, "b": None}]),
    "nothing": pa.array([None] * 3, pa.string()),
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The path of a table with one row."""
    path = str(tmp_path / "table")
    write_deltalake(path, ROWS)
    return path


def _entry(path: str, version: int) -> list[dict[str, Any]]:
    text = Path(path, "_delta_log", f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def _added(path: str, version: int) -> list[tuple[Any, ...]]:
    """The files of a version: folder, partition values, and statistics without empty ones."""
    adds = [action["add"] for action in _entry(path, version) if "add" in action]
    found = []
    for add in adds:
        stats = json.loads(add["stats"])
        stats["nullCount"].pop("bytes", None)  # `deltalake` has none of binary columns
        texts = [
            json.dumps(_filled(one), sort_keys=True) for one in (add["partitionValues"], stats)
        ]
        found.append((add["path"].rpartition("/")[0], *texts))
    return sorted(found)


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Values without empty structs."""
    plain = {k: _filled(v) if isinstance(v, dict) else v for k, v in values.items()}
    return {name: value for name, value in plain.items() if value != {}}


def _numbers(path: str) -> list[int]:
    column = DeltaTable(path).to_pyarrow_table().column("number").to_pylist()
    return sorted(number for number in column if number is not None)


def _row(number: int) -> pa.Table:
    return pa.table({"number": [number], "text": [str(number)]}, ROWS.schema)


@pytest.mark.parametrize("by", [[], ["text"], ["day", "flag", "small"]])
def test_files_have_the_statistics_and_partition_values_of_deltalake(
    tmp_path: Path, by: list[str]
) -> None:
    """And readers find the rows."""
    path, rows = str(tmp_path / "t"), pa.table(_VALUES)
    write_deltalake(path, rows, partition_by=by or None)
    assert TableAppender(path).append(rows) == 1
    assert _added(path, 1) == _added(path, 0)
    order = [("large", "ascending")]
    read = DeltaTable(path).to_pyarrow_table().select(rows.column_names).sort_by(order)
    assert read == pa.concat_tables([rows, rows]).sort_by(order).cast(read.schema)


def test_partition_values_of_any_text(tmp_path: Path) -> None:
    """Their folders are those of `deltalake`, whose vacuum leaves them."""
    path = str(tmp_path / "t")
    texts = ["a b", "x/y", "50%", "", "ü=é", None, "a:b?c#d", "[x]^|", "..", "a+b&c", "%41", "~'"]
    rows = pa.table({"text": texts, "number": range(len(texts))})
    write_deltalake(path, rows, partition_by=["text"])
    assert TableAppender(path).append(rows) == 1
    assert _added(path, 1) == _added(path, 0)
    now = DeltaTable(path)
    assert not now.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    assert now.to_pyarrow_table().num_rows == 2 * len(texts)


def test_new_partitions_of_several_columns_get_their_folders(tmp_path: Path) -> None:
    """In the folder of the table alone, which is not made: its disk may not be mounted."""
    with suppress(FileNotFoundError):
        DiskFiles(str(tmp_path)).write("a=1/b=1/c=1/file", b"")
    assert (tmp_path / "a=1" / "b=1" / "c=1" / "file").exists()
    path, by = str(tmp_path / "t"), ["a", "b", "c"]
    rows = [pa.table({"a": [n], "b": [str(n)], "c": [True], "v": [n]}) for n in range(3)]
    write_deltalake(path, rows[0], partition_by=by)
    appender = TableAppender(path)
    for version in (1, 2):
        assert appender.append(rows[version]) == version
    read = DeltaTable(path).to_pyarrow_table().select(rows[0].column_names).sort_by("v")
    assert read == pa.concat_tables(rows)
    with pytest.raises(FileNotFoundError):
        DiskFiles(str(tmp_path / "away")).write("a=1/b=1/file", b"")
    assert not (tmp_path / "away").exists()


def test_the_first_columns_of_a_table_have_statistics(tmp_path: Path) -> None:
    """All fields of a struct among them; their number is a property of the table."""
    path = str(tmp_path / "t")
    wide = pa.array([{f"f{n}": n for n in range(40)}])
    rows = pa.table({"wide": wide, **{f"c{n}": [n] for n in range(5)}})
    properties = {"delta.dataSkippingNumIndexedCols": "3"}
    for version in range(4):
        if version % 2 == 0:
            write_deltalake(path, rows, mode="append", configuration=properties)
        else:
            assert TableAppender(path).append(rows) == version
        ((_, _, stats),) = _added(path, version)
        assert [*json.loads(stats)["minValues"]] == ["c0", "c1", "wide"]


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        (pa.array([1.0, float("nan")]), None, None),
        (pa.array([float("-inf"), 2.0]), None, 2.0),
        (pa.array([Decimal("0.1"), Decimal("0.5")], pa.decimal128(9, 1)), None, 0.5),
        (pa.array(["a" * 99, "b" * 99]), "a" * 64, "b" * 64 + "\U0010ffff"),
        (pa.array(["\U0010ffff" * 99]), "\U0010ffff" * 64, None),
        (pa.array([-(2**60)], pa.timestamp("us")), None, None),
        (pa.array([1_999], pa.timestamp("us")),
         "1970-01-01 00:00:00.001", "1970-01-01 00:00:00.002"),
        (pa.array([b"\xff"]), None, None),
        (pa.array([], pa.int64()), None, None),
    ],
)  # fmt: skip
def test_a_bound_that_is_not_certain_is_left_out(values: pa.Array, least: Any, most: Any) -> None:
    """A reader would skip a file that has what it looks for."""
    found = json.loads(statistics(pa.table({"a": values, "b": values}), 1))
    assert found["minValues"] == ({} if least is None else {"a": least})
    assert found["maxValues"] == ({} if most is None else {"a": most})


def _with_property(name: str, value: str) -> Callable[[DeltaTable], object]:
    return lambda table: table.alter.set_table_properties({name: value}, raise_if_not_exists=False)


@pytest.mark.parametrize(
    ("change", "is_left"),
    [
        (lambda t: t.alter.add_constraint({"low": "text < 'z'"}), True),
        (lambda t: t.alter.add_columns([Field("more", PrimitiveType("integer"))]), True),
        (_with_property("delta.dataSkippingStatsColumns", "text"), True),
        (_with_property("delta.appendOnly", "true"), False),
        (lambda t: t.optimize.compact(), False),
        (lambda t: t.delete("text = 'a'"), False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_open", [True, False])
def test_what_others_change_is_obeyed(
    table: str, change: Callable[[DeltaTable], object], *, is_left: bool, is_open: bool
) -> None:
    """Also between two appends. `deltalake` appends where it has to be obeyed."""
    appender = TableAppender(table)
    for number in range(5, 7 if is_open else 5):
        assert appender.append(_row(number)) is not None
    change(DeltaTable(table))
    version = DeltaTable(table).version()
    assert appender.append(_row(9)) == (None if is_left else version + 1)
    assert (9 in _numbers(table)) is not is_left


def test_a_removal_beside_appends_makes_no_second_file(table: str) -> None:
    """Nor is the table opened again: the entry alone goes to the next number."""
    appender = TableAppender(table)
    assert appender.append(_row(2)) == 1
    DeltaTable(table).delete("number = 2")
    before = len(list(Path(table).glob("*.parquet")))
    assert appender.append(_row(3)) == 3
    assert len(list(Path(table).glob("*.parquet"))) == before + 1
    assert _numbers(table) == [1, 3]


def test_a_null_is_not_appended_where_there_may_be_no_null(tmp_path: Path) -> None:
    """In a column or in a field; that is an error of `deltalake`."""
    inner = pa.struct([pa.field("b", pa.int64(), nullable=False)])
    kinds = (pa.field("a", pa.int64(), nullable=False), pa.field("a", inner))
    for number, (field, value) in enumerate(zip(kinds, (None, {"b": None}), strict=True)):
        path, seen = str(tmp_path / str(number)), list[str]()
        DeltaTable.create(path, pa.schema([field]))
        # Arrow looks at no nulls here.
        rows = pa.table({"a": pa.array([value], field.type)})
        assert TableAppender(path).append(rows, seen.append) is None
        assert DeltaTable(path).version() == 0
        assert len(seen) == 1, "there is no use in a second look"


def test_a_table_that_takes_the_place_of_another_gets_the_next_version(table: str) -> None:
    """It has fewer versions than the former one."""
    appender, seen = TableAppender(table), []
    for number in range(5):
        appender.append(_row(number), seen.append)
    shutil.rmtree(table)
    for number in (7, 8):
        write_deltalake(table, _row(number), mode="append")
    assert appender.append(_row(9), seen.append) == 2
    assert _numbers(table) == [7, 8, 9]
    assert len(set(seen)) == len(seen) == 2

    def refuses(_: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        TableAppender(table).append(_row(9), refuses)
    assert _numbers(table) == [7, 8, 9]
    shutil.rmtree(table)
    assert appender.append(_row(5)) is None
    assert not Path(table).exists()


def test_other_rows_and_large_ones_are_left_to_deltalake(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other columns, other types, and what it makes several files of."""
    appender = TableAppender(table)
    assert appender.append(_row(2).append_column("more", pa.array([1]))) is None
    assert appender.append(_row(2).drop_columns(["text"])) is None
    assert appender.append(pa.table({"number": ["2"], "text": ["2"]})) is None
    assert appender.append(_row(2).select(["text", "number"])) == 1
    assert appender.append(ROWS.schema.empty_table()) == 2
    monkeypatch.setattr(table_appender, "_LARGE", 1)
    assert appender.append(_row(3)) is None
    assert _numbers(table) == [1, 2]


def test_places_whose_writers_create_entries_otherwise_are_left_to_deltalake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Locks in DynamoDB, and stores that `obstore` does not know."""
    store = {"AWS_REGION": "us-east-1", "AWS_SKIP_SIGNATURE": "true"}
    assert TableAppender("s3://bucket/t", store)._files is not None
    assert TableAppender("lakefs://a/b/t").append(_row(1)) is None
    for name in ("AWS_S3_LOCKING_PROVIDER", "aws_s3_allow_unsafe_rename", "conditional_put"):
        assert TableAppender("s3://bucket/t", store | {name: "true"})._files is None
    monkeypatch.setenv("AWS_S3_LOCKING_PROVIDER", "dynamodb")
    assert TableAppender("s3://bucket/t", store).append(_row(1)) is None


def test_an_answer_that_is_lost_is_no_second_append(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that repeats a request finds the entry there, which is its own."""
    appender = TableAppender(table)
    assert appender.append(_row(2)) == 1
    create = DiskFiles.create
    monkeypatch.setattr(DiskFiles, "create", lambda *args: not create(*args))
    assert appender.append(_row(3)) == 2
    monkeypatch.undo()
    assert appender.append(_row(4)) == 3
    assert _numbers(table) == [1, 2, 3, 4]


_KILLED = """
import os, signal, sys
import pyarrow as pa
from commits.table_appender import TableAppender
os.link = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
TableAppender(sys.argv[1]).append(pa.table({"number": [2], "text": ["2"]}))
"""


def test_a_process_that_is_killed_before_its_entry_has_appended_nothing(table: str) -> None:
    """The file of its rows is one for the vacuum."""
    assert subprocess.run([sys.executable, "-c", _KILLED, table], check=False).returncode == -9
    assert _numbers(table) == [1]
    assert len(list(Path(table).glob("*.parquet"))) == 2
    assert TableAppender(table).append(_row(3)) == 1
    assert _numbers(table) == [1, 3]


def test_writers_of_both_kinds_append_each_row_once(table: str) -> None:
    """Appenders of several threads and of their own, and `deltalake`."""
    shared = TableAppender(table)
    calls: list[Callable[[pa.Table], object]] = [
        shared.append, shared.append, TableAppender(table).append,
        lambda rows: repeated_write(lambda: write_deltalake(table, rows, mode="append")),
    ]  # fmt: skip
    each = 40

    def write(writer: int) -> list[object]:
        return [calls[writer](_row(100 * (writer + 1) + n)) for n in range(each)]

    with ThreadPoolExecutor(len(calls)) as pool:
        answers = [answer for some in pool.map(write, range(len(calls))) for answer in some]
    versions = [answer for answer in answers if answer is not None]
    assert len(set(versions)) == 3 * each
    expected = [100 * (writer + 1) + n for writer in range(len(calls)) for n in range(each)]
    assert _numbers(table) == [1, *expected]


def test_checkpoints_are_made_and_old_entries_removed(tmp_path: Path) -> None:
    """At the interval of the table, by the writer of the version, as `deltalake` does."""
    names: dict[str, list[str]] = {}
    for kind in ("ours", "deltalake"):
        path = tmp_path / kind
        properties = {"delta.checkpointInterval": "7",
                      "delta.logRetentionDuration": "interval 0 seconds"}  # fmt: skip
        DeltaTable.create(str(path), ROWS.schema, configuration=properties)
        appender = TableAppender(str(path))
        for number in range(1, 31):
            if kind == "ours":
                assert appender.append(_row(number)) == number
            else:
                write_deltalake(str(path), _row(number), mode="append")
        names[kind] = sorted(file.name for file in (path / "_delta_log").iterdir())
        assert _numbers(str(path)) == [*range(1, 31)]
    assert names["ours"] == names["deltalake"]
    assert f"{27:020d}.checkpoint.parquet" in names["ours"]
    assert f"{26:020d}.json" not in names["ours"]


def test_a_checkpoint_that_fails_is_no_error(
    table: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are written: a repeat would write them twice."""
    DeltaTable(table).alter.set_table_properties({"delta.checkpointInterval": "3"})
    monkeypatch.setattr(DeltaTable, "create_checkpoint", lambda _: 1 / 0)
    assert TableAppender(table).append(_row(2)) == 2
    assert "no checkpoint" in caplog.text
    assert _numbers(table) == [1, 2]


@pytest.mark.parametrize("left", ["", '{"commitInfo":{"timest'], ids=["empty", "torn"])
def test_a_table_whose_newest_entry_is_damaged_is_not_appended_to(table: str, left: str) -> None:
    """`deltalake` takes an empty one for a version without rows: they would be lost in silence."""
    TableAppender(table).append(ROWS)
    newest = Path(table, "_delta_log", f"{1:020d}.json")
    newest.write_text(left)
    with pytest.raises(OSError, match=r"the entry of version 1 is not valid.*remove its file in"):
        TableAppender(table).append(ROWS)
    assert max(Path(table, "_delta_log").glob("*.json")) == newest
    newest.unlink()
    assert TableAppender(table).append(ROWS) == 1
