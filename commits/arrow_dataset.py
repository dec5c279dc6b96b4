"""Delta tables as Arrow datasets, whose reading leaves nothing running at the end of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from commits.places import local_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.dataset
    from deltalake import DeltaTable


def arrow_dataset(
    table: DeltaTable, pruned_by: Sequence[tuple[str, str, Any]] = ()
) -> pyarrow.dataset.Dataset:
    """Returns the rows of a table, which are not read yet.

    Files on a local disk are opened by Arrow itself. By default Arrow's threads have deltalake open
    and close them in Python. Such a thread still closes a file after the rows are there; if the
    program ends meanwhile, Python before version 3.14 aborts the process.

    Args:
        table: The table, at the version that is read.
        pruned_by: Files without rows for these filters, which deltalake documents, are left out.
    """
    folder = local_folder(table.table_uri)
    files = None if folder is None else SubTreeFileSystem(folder, LocalFileSystem())
    return table.to_pyarrow_dataset(
        filesystem=files, file_pruning_predicate=list(pruned_by) or None
    )
