"""Delta tables that several writers create at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from commits.conflicts import create_if_not_exists

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("number", pa.int64())])
WRITERS = 4


def test_of_those_that_create_a_table_at_once_one_does_and_all_have_it(tmp_path: Path) -> None:
    """Metadata of another one over it would be another table to all who noted it."""
    barrier = threading.Barrier(WRITERS)

    def create(path: str, writer: int) -> str:
        barrier.wait()
        table = create_if_not_exists(path, SCHEMA, description=f"of {writer}")
        return str(table.metadata().id)

    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(30):
            path = str(tmp_path / f"table{number}")
            ids = set(pool.map(create, [path] * WRITERS, range(WRITERS)))
            table = DeltaTable(path)
            assert ids == {str(table.metadata().id)}
            assert table.version() == 0


def test_a_table_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    """With its columns and its description, whatever is asked for."""
    path = str(tmp_path / "table")
    first = create_if_not_exists(path, SCHEMA, description="first")
    other = create_if_not_exists(path, pa.schema([("text", pa.string())]), description="other")
    assert other.metadata().id == first.metadata().id
    assert other.metadata().description == "first"
    assert other.version() == 0


def test_what_is_no_folder_for_a_table_is_the_error(tmp_path: Path) -> None:
    """Not that there is no table in it."""
    path = tmp_path / "file"
    path.write_text("of somebody")
    with pytest.raises((DeltaError, OSError)) as caught:
        create_if_not_exists(str(path / "table"), SCHEMA)
    assert "not a table" not in str(caught.value).lower()
