"""Creates Delta tables, and repeats writes to them, while other writers do so too."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from deltalake import DeltaTable

T = TypeVar("T")

MOST_TRIES: Final = 20
"""The maximum number of attempts of a write that conflicts with commits of other writers."""

#: The maximum pause after the first conflict, in seconds; it grows with each conflict.
_PAUSE: Final = 0.05


def repeated_write(write: Callable[[], T]) -> T:
    """Open a Delta table and write to it; repeat both after a conflict with another writer.

    A conflicting write has no effect. It conflicts if another writer has removed rows since the
    table was opened.

    Args:
        write: Opens the table and writes to it.

    Returns:
        What the write returns.

    Raises:
        deltalake.exceptions.CommitFailedError: It conflicts at each attempt.
    """
    from deltalake.exceptions import CommitFailedError

    for conflicts in range(1, MOST_TRIES):
        try:
            return write()
        except CommitFailedError:
            time.sleep(random.uniform(0, _PAUSE * conflicts))  # noqa: S311 - no secret
    return write()


def create_if_not_exists(
    path: str,
    schema: pa.Schema,
    storage_options: Mapping[str, str] | None = None,
    **properties: Any,
) -> DeltaTable:
    """Opens a Delta table, which is created if it does not exist.

    Of those that create it at the same time one does, and all open its table. By deltalake's own
    ``mode="ignore"`` the others would commit their metadata over it, under another id.

    Args:
        path: The folder or URI of the table.
        schema: Its columns, if it is created.
        storage_options: As deltalake has them.
        properties: Further arguments of `DeltaTable.create`, if it is created.

    Raises:
        deltalake.exceptions.DeltaError, OSError: It can neither be opened nor created.
    """
    from deltalake import CommitProperties, DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    options = dict(storage_options) if storage_options else None
    try:
        return DeltaTable(path, storage_options=options)
    except TableNotFoundError:
        pass
    try:
        DeltaTable.create(
            path, schema, mode="error", storage_options=options,
            commit_properties=CommitProperties(max_commit_retries=0), **properties,
        )  # fmt: skip
    except (DeltaError, OSError) as error:
        try:
            return DeltaTable(path, storage_options=options)
        except TableNotFoundError:
            raise error from None
    return DeltaTable(path, storage_options=options)
