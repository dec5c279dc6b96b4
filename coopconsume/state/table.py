"""A Delta table of a state: how it is opened, read and written, and what fails."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from commits.arrow_dataset import arrow_dataset
from commits.places import refuse_unwritable
from commits.secrets import hidden, message_of
from commits.table_appender import TableAppender
from commits.table_notes import notes_after
from coopconsume.errors import OutputNotWritten, StateNotReadable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from deltalake import DeltaTable

    from coopconsume.state.rows import Origin, Range

#: The columns that both tables are partitioned by.
PARTITION: Final = ["_topic_id", "_partition"]
RETENTION: Final = {
    # A slot may be reading removed files.
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    # Slots look at the version in which the oldest batch at work began.
    "delta.logRetentionDuration": "interval 6 hours",
}
"""For how long removed files, and entries of the tables' logs, stay."""


#: The tables of a state, in its folder.
CHANGELOG: Final = "changelog"
SNAPSHOTS: Final = "snapshots"


def table_paths(state: str) -> list[str]:
    """Returns the paths of the tables of a state, which is a folder or URI."""
    return [f"{state}/{name}" for name in (CHANGELOG, SNAPSHOTS)]


class StateTable:
    """A Delta table of a state.

    Args:
        state: The folder or URI of the state.
        name: The name of the table.
        row_group_size: The rows of a row group of a file at most.
    """

    def __init__(self, state: str, name: str, row_group_size: int | None = None) -> None:
        self._state = state
        self.path = f"{state}/{name}"
        self.row_group_size = row_group_size
        #: The versions that were opened last to be read: a slot reads two of them in turn.
        self._read: Mapping[int, DeltaTable] = {}

    @cached_property
    def appender(self) -> TableAppender:
        """What appends rows to the table. Slots, which only read, have none."""
        return TableAppender(self.path, row_group_size=self.row_group_size)

    @property
    def version(self) -> int:
        """The newest version; -1 if the table does not exist.

        Raises:
            StateNotReadable: It cannot be read.
        """
        table = self.newest()
        return -1 if table is None else int(table.version())

    def newest(self) -> DeltaTable | None:
        """Returns the table at its newest version, to be read; None if it does not exist.

        Raises:
            StateNotReadable: It cannot be read.
        """
        return self._to_be_read(self.open())

    def at(self, version: int) -> DeltaTable | None:
        """Returns the table at a version, to be read; None if it does not exist.

        A version does not change, so those that were read last are not opened again. `open` is for
        those that write: a write takes the table to another version.

        Raises:
            StateNotReadable: It cannot be read.
        """
        return self._read.get(version) or self._to_be_read(self.open(version))

    def _to_be_read(self, table: DeltaTable | None) -> DeltaTable | None:
        if table is not None:
            # Replaced as a whole: other threads read it.
            self._read = dict([*self._read.items()][-1:]) | {int(table.version()): table}
        return table

    def open(self, version: int | None = None) -> DeltaTable | None:
        """Opens the table at a version, by default the newest; None if it does not exist.

        Raises:
            StateNotReadable: It cannot be read.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(self.path, version=version)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise self.unreadable(message_of(error)) from error

    def unreadable(self, reason: str) -> StateNotReadable:
        """Returns the error that the state cannot be read."""
        return StateNotReadable(hidden(self._state), hidden(reason))

    def removed(self, known: str, found: str) -> OutputNotWritten:
        """Returns the error that the table of a known id is gone, and what is found instead."""
        return OutputNotWritten(
            "changes of the state",
            hidden(self._state),
            f"its table {known} was removed, and {found} is there now: bring it back, or stop "
            "the job and run 'coopconsume state switch'",
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raises what fails within it as `OutputNotWritten`."""
        try:
            refuse_unwritable(self.path)
            yield
        except OutputNotWritten:
            raise
        except Exception as error:  # deltalake raises more than its own errors
            raise OutputNotWritten(
                "changes of the state", hidden(self._state), message_of(error)
            ) from error

    def read(self, call: Callable[..., Any], **what: Any) -> Any:
        """Calls a method of deltalake.

        Raises:
            StateNotReadable: The table cannot be read.
        """
        try:
            return call(**what)
        except Exception as error:
            raise self.unreadable(message_of(error)) from error

    def notes(self, version: int) -> dict[int, Mapping[str, Any]]:
        """Returns what writers noted in later versions, as `notes_after` does.

        Raises:
            StateNotReadable: The table cannot be read.
        """
        return dict(self.read(lambda: notes_after(version, self.path)))

    def places(
        self, table: DeltaTable | None, origin: Origin | None = None
    ) -> list[dict[str, str]]:
        """Returns the values of the columns that the table is partitioned by.

        Args:
            table: The table, as `open` returns it.
            origin: Only those of this partition of Kafka; None: of all.

        Raises:
            StateNotReadable: The table cannot be read.
        """
        if table is None:
            return []
        filters = None if origin is None else origin.filters
        return list(self.read(table.partitions, file_pruning_predicate=filters))

    def rows(
        self,
        table: DeltaTable,
        schema: pa.Schema,
        filters: Sequence[tuple[str, str, str]] = (),
        *,
        ranges: Sequence[Range] = (),
        files: Collection[str] | None = None,
        above: int = 0,
    ) -> pa.Table:
        """Reads rows of the table; the statistics of files and row groups are used.

        Args:
            table: The table, as `open` returns it.
            schema: The columns.
            filters: As deltalake prunes files by them.
            ranges: Only rows of these key hashes; none: of all.
            files: Only rows of these files; None: of all.
            above: With ``ranges``, only rows of this offset and higher ones.

        Raises:
            StateNotReadable: They cannot be read.
        """
        from deltalake.exceptions import DeltaError

        names = schema.names
        try:
            found = arrow_dataset(table, filters)
            wanted = None
            for first, last in ranges:
                inside = (pc.field("_key_hash") >= first) & (pc.field("_key_hash") <= last)
                wanted = inside if wanted is None else wanted | inside
            if above and wanted is not None:
                wanted &= pc.field("_offset") >= above
            if files is None:
                rows = found.to_table(columns=names, filter=wanted)
            else:
                ends = {file_name(file) for file in files}
                pieces = [
                    fragment.to_table(schema=found.schema, columns=names, filter=wanted)
                    for fragment in found.get_fragments(filter=wanted)
                    if file_name(fragment.path) in ends
                ]
                rows = pa.concat_tables(pieces) if pieces else schema.empty_table()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self.unreadable(message_of(error)) from error
        return rows.cast(schema)


def file_name(file: str) -> str:
    """Returns the last part of a path; deltalake's names of files are unique."""
    return file.rsplit("/", 1)[-1]
