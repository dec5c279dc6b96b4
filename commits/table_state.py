"""Reads what a Delta table is in one of its versions: its features, properties and files.

The newest checkpoint has all up to its version, and the entries after it the rest. These are read
side by side, so that an opening takes three answers of a store, however many entries there are.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from commits.entries import VersionEntry, actions_of
from commits.secrets import message_of
from commits.table_files import ENTRY, LOG_FOLDER, entry_name, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commits.table_files import TableFiles

#: A checkpoint in one file, in parts, and of the second format, whose names have an id.
_CHECKPOINT: Final = re.compile(
    r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)"
)
_POINTER: Final = f"{LOG_FOLDER}/_last_checkpoint"
#: Files that checkpoints of the second format name.
_SIDECARS: Final = f"{LOG_FOLDER}/_sidecars"
_COLUMNS: Final = ("protocol", "metaData", "sidecar", "add")
_OF_ADD: Final = ("path", "size", "partitionValues", "stats")


class DamagedEntry(ValueError):
    """An entry of the log is empty or torn, as after a loss of power."""


@dataclass
class TableState:
    """A table in one of its versions.

    Attributes:
        version: The version.
        protocol: The last action `protocol` up to it.
        metadata: The last action `metaData` up to it.
        files: The actions `add` of its data files, by their paths in the log.
        entries: The entries from the checkpoint on, which were read for it.
    """

    version: int
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    entries: dict[int, VersionEntry] = field(default_factory=dict)

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""
        return self.metadata.get("configuration") or {}

    @property
    def fields(self) -> Sequence[Mapping[str, Any]]:
        """The columns of the table, as Delta's JSON."""
        found: Sequence[Mapping[str, Any]] = json.loads(self.metadata["schemaString"])["fields"]
        return found

    def snapshot_files(self) -> list[str]:
        """Return the files that may have rows of kind `snapshot`, by their statistics."""
        found = []
        for path, add in self.files.items():
            stats = json.loads(add.get("stats") or "{}")
            least, most = (stats.get(bound, {}).get("kind") for bound in ("minValues", "maxValues"))
            if (least or "") <= "snapshot" <= (most or "snapshot"):
                found.append(unquote(path))
        return found

    def take_entries(self, versions: range) -> dict[int, VersionEntry]:
        """Return the entries of some versions that were read for it; forget them and older ones."""
        found = {v: entry for v, entry in self.entries.items() if v in versions}
        self.entries = {v: entry for v, entry in self.entries.items() if v >= versions.stop}
        return found

    def add(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """Add the actions of the next version."""
        for action in actions:
            if "protocol" in action:
                self.protocol = action["protocol"]
            if "metaData" in action:
                self.metadata = action["metaData"]
            if "remove" in action:
                self.files.pop(action["remove"]["path"], None)
        # A version may add a file that it also removes, with other statistics.
        self.files |= {a["add"]["path"]: a["add"] for a in actions if "add" in a}


def read_table(
    files: TableFiles, version: int | None = None, *, has_files: bool = True
) -> TableState | None:
    """Return a table in a version, by default the newest; None if there is no table.

    Args:
        files: The table.
        version: The version.
        has_files: Whether its data files are wanted.

    Raises:
        OSError: The storage does not answer or refuses.
        DamagedEntry: An entry is empty or torn.
        ValueError: The table is damaged, or does not have the version.
    """
    problem = ValueError()
    for _ in range(2):  # others may remove old entries between a listing and the reads
        try:
            return _read(files, version, _COLUMNS if has_files else _COLUMNS[:2])
        except FileNotFoundError as error:
            problem = ValueError(f"a file of its log is missing: {message_of(error)}")
        except ValueError as error:
            problem = error
    raise problem


def _read(files: TableFiles, version: int | None, kinds: Sequence[str]) -> TableState | None:
    hint = pointed_at(files)
    if version is not None and version < hint:
        hint = 0
    names = files.names(LOG_FOLDER, after=f"{hint:020d}" if hint else "")
    base, checkpoint = _checkpoint_of(names, version)
    if hint and base < 0:  # what it points at is not there
        names = files.names(LOG_FOLDER)
        base, checkpoint = _checkpoint_of(names, version)
    known = {int(name[1]) for name in map(ENTRY.fullmatch, names) if name}
    newest = max([base, *known]) if version is None else version
    if newest < 0:
        return None
    # A listing of a disk may miss what is created meanwhile, and have what came after it.
    # That of the checkpoint is wanted, too: the tail of a snapshot begins with its own entry.
    begin = base if base in known else base + 1
    late = (version for version in range(base + 1, newest + 1) if version not in known)
    texts = {v: files.read(entry_name(v)) for v in late}  # up to the first one that is missing
    wanted = [v for v in range(begin, newest + 1) if v not in texts]
    paths = [*checkpoint, *map(entry_name, wanted)]
    found = side_by_side(files.read, paths, is_far=files.is_far)
    texts |= dict(zip(wanted, found[len(checkpoint) :], strict=True))
    state = TableState(newest)
    for path, data in zip(checkpoint, found[: len(checkpoint)], strict=True):
        with _parsing(path):
            state.add(_of_checkpoint(files, path, data, kinds))
    if base in texts:
        with suppress(KeyError, ValueError):  # a tail that needs it reads it again
            state.entries[base] = VersionEntry.parse(texts.pop(base))
    for at, data in sorted(texts.items()):
        try:
            actions = actions_of(data)
        except ValueError as error:
            raise DamagedEntry(
                f"the entry of version {at} is not valid: {message_of(error)}"
            ) from error
        with _parsing(f"the entry of version {at}"):
            state.entries[at] = VersionEntry.of(actions, data)
            state.add(actions)
    with _parsing("its protocol or its metadata"):
        _ = state.fields, state.protocol["minReaderVersion"], state.protocol["minWriterVersion"]
    return state


def listed_versions(files: TableFiles) -> list[int]:
    """Return the versions with an entry in the log, newest first."""
    names = [ENTRY.fullmatch(name) for name in files.names(LOG_FOLDER)]
    return sorted((int(name[1]) for name in names if name), reverse=True)


@contextmanager
def _parsing(what: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{what} is not valid: {message_of(error)}") from error


def pointed_at(files: TableFiles) -> int:
    """Return the version of the last checkpoint, as far as it is noted; else 0."""
    try:
        return int(json.loads(files.read(_POINTER))["version"])
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return 0  # it is a hint: the listing has all checkpoints


def _checkpoint_of(names: Sequence[str], upto: int | None) -> tuple[int, list[str]]:
    """Return the newest complete checkpoint: its version and files; -1 and none without one."""
    complete: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        found = _CHECKPOINT.fullmatch(name)
        if found is None or (upto is not None and int(found[1]) > upto):
            continue
        at, path = int(found[1]), f"{LOG_FOLDER}/{name}"
        if found[2] is None:
            complete[at] = [path]
            continue
        some = parts.setdefault((at, int(found[3])), [])
        some.append(path)
        if len(some) == int(found[3]):
            complete[at] = some
    newest = max(complete, default=-1)
    return newest, complete.get(newest, [])


def _of_checkpoint(
    files: TableFiles, path: str, data: bytes, kinds: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Return the actions of a checkpoint's file, and of those that it names."""
    actions = actions_of(data) if path.endswith(".json") else _of_parquet(path, data, kinds)
    named = [unquote(action["sidecar"]["path"]) for action in actions if "sidecar" in action]
    if "sidecar" not in kinds or not named:
        return actions
    paths = [name if "/" in name else f"{_SIDECARS}/{name}" for name in named]
    contents = side_by_side(files.read, paths, is_far=files.is_far)
    for one, content in zip(paths, contents, strict=True):
        actions += _of_parquet(one, content, kinds)
    return actions


def _of_parquet(path: str, data: bytes, kinds: Sequence[str]) -> list[Mapping[str, Any]]:
    columns = [f"add.{name}" for name in _OF_ADD] if "add" in kinds else []
    columns += [kind for kind in kinds if kind != "add"]
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(columns=columns)
    except OSError as error:  # of the content: the bytes are here
        raise ValueError(f"{path} is no Parquet file: {message_of(error)}") from error
    found: list[Mapping[str, Any]] = []
    for kind in kinds:
        if kind in table.column_names:
            column = table.column(kind).drop_null()
            found += [{kind: _plain(one)} for one in column.to_pylist()]
    return found


def _plain(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action with its maps as dictionaries, as entries have them."""
    maps = ("partitionValues", "configuration")
    return {k: dict(v or ()) if k in maps else v for k, v in action.items()}
