"""Tables of this library, read by a program that has another reader of Delta tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import duckdb_extension_delta
import pytest

from tests.written_tables import WRITERS, sorted_rows, written

if TYPE_CHECKING:
    import pyarrow as pa


def _by_duckdb(path: Path) -> pa.Table:
    """The rows of a table as DuckDB reads them, by the extension that a package contains."""
    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        connection.execute(f"LOAD '{extension}'")
        return connection.execute("SELECT * FROM delta_scan(?)", [str(path)]).to_arrow_table()


@pytest.mark.parametrize("kind", WRITERS)
def test_duckdb_reads_the_rows_that_deltalake_reads(tmp_path: Path, kind: str) -> None:
    """Also with checkpoints, compacted segments and removed files."""
    expected = written(kind, tmp_path / "table")
    found = _by_duckdb(tmp_path / "table").select(expected.column_names).cast(expected.schema)
    assert sorted_rows(found) == sorted_rows(expected)
