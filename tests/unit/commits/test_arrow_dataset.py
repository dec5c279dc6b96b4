"""Rows of Delta tables as Arrow datasets: what Arrow reads, and with which threads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import DeltaStorageHandler

from commits.arrow_dataset import arrow_dataset

_ROWS = pa.table({"n": [1, 2, 3, 4, 5], "of": ["x y", "ä/%41", "", None, "a=b:c#d?e"]})
_SOURCES = Path(__file__).parents[3]


@pytest.fixture(params=["plain", "with a space, ä"], ids=["plain", "odd"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaTable:
    """Returns a table with partitions of odd names."""
    path = str(tmp_path / request.param)
    write_deltalake(path, _ROWS, partition_by=["of"])
    return DeltaTable(path)


def _numbers(rows: pa.Table) -> list[int]:
    return sorted(rows.column("n").to_pylist())


def test_rows_are_those_of_deltalake(table: DeltaTable) -> None:
    """Columns, partitions and filters are the same."""
    assert arrow_dataset(table).to_table().sort_by("n") == table.to_pyarrow_table().sort_by("n")
    odd = pc.field("of") == "ä/%41"
    assert _numbers(arrow_dataset(table).to_table(columns=["n"], filter=odd)) == [2]


def test_files_that_cannot_match_are_not_opened(table: DeltaTable) -> None:
    """The files of other partitions may be gone."""
    pruned = arrow_dataset(table, [("of", "=", "x y")])
    for folder in Path(table.table_uri.removeprefix("file://").replace("%20", " ")).glob("of=a*"):
        shutil.rmtree(folder)
    assert _numbers(pruned.to_table()) == [1]


def test_no_thread_of_arrow_opens_files_in_python(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that closes such a file as the program ends aborts it: 6 of 60 programs, under load."""
    opened = []
    open_file = DeltaStorageHandler.open_input_file

    def noted(self: DeltaStorageHandler, path: str) -> pa.PythonFile:
        opened.append(path)
        return open_file(self, path)

    monkeypatch.setattr(DeltaStorageHandler, "open_input_file", noted)
    assert _numbers(arrow_dataset(table).to_table()) == [1, 2, 3, 4, 5]
    assert not opened


def _sources_with(text: str) -> list[str]:
    return [
        file.name for folder in ("assignors", "commits", "coopconsume")
        for file in (_SOURCES / folder).rglob("*.py") if text in file.read_text()
    ]  # fmt: skip


def test_tables_are_read_so_everywhere() -> None:
    """No other file has Arrow read with deltalake's file system."""
    assert _sources_with("to_pyarrow_") == ["arrow_dataset.py"]


@pytest.mark.parametrize("call", [".is_deltatable(", ".alter.", "open_input_file("])
def test_calls_that_let_no_other_thread_run_are_not_used(call: str) -> None:
    """These of deltalake keep the interpreter lock while an object store answers."""
    assert not _sources_with(call)
