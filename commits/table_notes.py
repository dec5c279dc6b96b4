"""Reads what writers noted in the entries of a Delta table's log.

`DeltaTable.history` returns the same, but keeps Python's interpreter lock while a store answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commits.entries import actions_of, entry_words
from commits.errors import UnsupportedTarget
from commits.table_files import ENTRY, LOG_FOLDER, entry_name, files_of, side_by_side

if TYPE_CHECKING:
    from collections.abc import Mapping


def notes_after(
    version: int, uri: str, options: Mapping[str, str] | None = None
) -> dict[int, Mapping[str, Any]]:
    """Return the fields of `commitInfo` of later versions, the oldest first.

    Those of the `userMetadata`, in which Spark stores what a writer notes, are among them. Versions
    whose entry was removed or is not valid are left out.

    Args:
        version: The version; -1 for all.
        uri: The path or URI of the table.
        options: Options of an object store; see `deltalake.DeltaTable`.

    Raises:
        OSError, deltalake.exceptions.DeltaError: The storage does not answer or refuses.
    """
    try:
        files = files_of(uri, options)
    except UnsupportedTarget:  # deltalake reaches more places, but lets no other thread run
        from deltalake import DeltaTable

        table = DeltaTable(uri, storage_options=dict(options) if options else None)
        known = reversed(table.history())
        return {each["version"]: entry_words(each) for each in known if each["version"] > version}

    def note(name: str) -> Mapping[str, Any] | None:
        try:
            actions = actions_of(files.read(f"{LOG_FOLDER}/{name}"))
        except (FileNotFoundError, ValueError):  # others remove old entries
            return None
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        return entry_words(infos[0]) if infos else {}

    after = entry_name(version).rpartition("/")[2] if version >= 0 else ""
    names = [name for name in files.names(LOG_FOLDER, after) if ENTRY.fullmatch(name)]
    notes = side_by_side(note, names, is_far=files.is_far)
    return {int(name[:20]): one for name, one in zip(names, notes, strict=True) if one is not None}
