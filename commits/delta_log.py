"""Appends versions to the log of a Delta table, and reads the next ones.

The entry of a version is created unless it exists. If it was, nothing lies between the last version
that was read and this one. Else the entries of others are read, and the next version is tried. A
look for new versions is one request for the next entry, not a listing of the log.

Each entry has the digest of the entry before it. A process that reads on therefore notices that a
table was replaced, or put back from a copy.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from commits.engine import AppendConflict
from commits.entries import APPEND, BEFORE, VersionEntry, digest_of
from commits.errors import CorruptCommitLog
from commits.table_files import entry_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from commits.table_files import TableFiles

#: Entries that are kept until somebody wants them.
_KEPT: Final = 1_000
#: Entries of others that are read before the next version is tried.
_AT_ONCE: Final = 16
#: Tries to create an entry that exists and cannot be read, and seconds more between each two.
_MOST_TRIES, _PAUSE = 50, 0.001
#: The name of the writer in entries, for people.
_ENGINE: Final = "coopconsume"


def now_ms() -> int:
    """Return the time for actions of a log, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def host_seconds() -> float:
    """Return seconds on a clock that also runs while the host sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def conflicts_with_append(entry: VersionEntry) -> bool:
    """Whether a version may have closed the segment of an append, or changed the table."""
    return not entry.is_append or entry.changes_table


class DeltaLog:
    """The log of one table, from a version on. Not thread-safe.

    All methods raise `OSError` if the storage does not answer, `FileNotFoundError` for an entry
    that is missing, and `KeyError` or `ValueError` for one that is not valid.

    Args:
        files: The table.
        target: The table, for messages.
        version: The newest known version.

    Attributes:
        version: The newest known version.
        is_changed: Whether an entry that was read on has changed the table's properties or
            features.
    """

    def __init__(self, files: TableFiles, target: str, version: int) -> None:
        self._files = files
        self._target = target
        self._digests: dict[int, str] = {}  # of entries that were read, the newest ones
        self._unread: dict[int, VersionEntry] = {}  # entries that `known` has not returned
        self.version = version
        self.is_changed = False

    @staticmethod
    def create(
        files: TableFiles, schema: str, partitioned_by: str, properties: Mapping[str, str]
    ) -> None:
        """Create a table unless others are faster.

        Args:
            files: Its files.
            schema: Its columns, as Delta's JSON.
            partitioned_by: Its partition column.
            properties: Its properties.
        """
        now = now_ms()
        has_feed = properties.get("delta.enableChangeDataFeed") == "true"
        actions: list[Mapping[str, Any]] = [
            {"commitInfo": {"timestamp": now, "operation": "CREATE TABLE", "engineInfo": _ENGINE}},
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4 if has_feed else 2}},
            {
                "metaData": {
                    "id": str(uuid.uuid4()),
                    "description": f"An append-only log of {_ENGINE}.",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": schema,
                    "partitionColumns": [partitioned_by],
                    "createdTime": now,
                    "configuration": dict(properties),
                }
            },
        ]
        files.prepare()
        files.create(entry_name(0), _lines(actions))

    def entry(self, version: int) -> VersionEntry:
        """Return the entry of a version."""
        return VersionEntry.parse(self._files.read(entry_name(version)))

    def read_on(self, most: int) -> bool:
        """Read the entries of later versions; return whether these were all.

        Args:
            most: The number of entries to read at most.

        Raises:
            CorruptCommitLog: The table was replaced by another one.
        """
        return sum(1 for _ in itertools.islice(self._later(), most)) < most

    def is_newest_there(self) -> bool:
        """Whether the entry of the newest known version is there, and is the one that was read."""
        known = self._digests.get(self.version)
        if known is None:
            return self._files.has(entry_name(self.version))
        return self._digest_now(self.version) == known

    def known(self, versions: Iterable[int]) -> dict[int, VersionEntry]:
        """Return the entries of some versions that were read on, and forget them."""
        return {v: entry for v in versions if (entry := self._unread.pop(v, None)) is not None}

    def restart(self, version: int) -> None:
        """Go on after another version."""
        self._unread.clear()
        self.version = version

    def check(self, entries: Mapping[int, VersionEntry]) -> None:
        """Check that entries are successors of what was read before, in the same table.

        Raises:
            CorruptCommitLog: The table was replaced by another one.
        """
        for version, entry in sorted(entries.items()):
            before = self._digests.get(version - 1)
            if before is None:
                pass
            elif (entry.before or self._digest_now(version - 1) or before) != before:
                raise CorruptCommitLog(
                    self._target,
                    f"version {version - 1} is another one than it was: its files were replaced",
                )
            self._digests[version] = entry.digest
        for version in sorted(self._digests)[:-1]:
            del self._digests[version]

    def append(
        self,
        actions: Sequence[Mapping[str, Any]],
        words: Mapping[str, Any],
        token: str,
        *,
        files: Mapping[str, bytes] | None = None,
        mode: str = "Append",
        conflicts: Callable[[VersionEntry], bool] = conflicts_with_append,
    ) -> int:
        """Append a version, and return its number.

        Args:
            actions: Its actions, without `commitInfo`.
            words: More fields of its `commitInfo`.
            token: A text that no other version has.
            files: The files that it adds, unless they are written already.
            mode: `Append` if it only adds files, else `Overwrite`.
            conflicts: Whether it may not lie behind another version that it does not know.

        Raises:
            AppendConflict: There is such a version; nothing was written.
        """
        if not self._files.is_far:
            # A look costs nothing, and an entry that comes too late has waited for the disk.
            self._pass_by(conflicts)
        for tries in itertools.count():
            version = self.version + 1
            written = [{"commitInfo": self._info(words, token, mode)}, *actions]
            data = _lines(written)
            if self._files.create(entry_name(version), data, {} if tries else files or {}):
                entry = VersionEntry.of(written, data)
                self._take(version, replace(entry, rows=None))  # the writer has its rows
                return version
            # Of few writers one was faster; of many there are more entries by now. On a disk, to
            # read all of them takes less time than another try.
            most = None if not self._files.is_far else _AT_ONCE if tries else 1
            own = self._pass_by(conflicts, token, most=most)
            if own is not None:
                return own
            if self.version < version:  # another one is being written
                if tries > _MOST_TRIES:
                    raise OSError(f"version {version} can be neither created nor read")
                time.sleep(_PAUSE * tries)
        raise AssertionError

    def _pass_by(
        self,
        conflicts: Callable[[VersionEntry], bool],
        token: str | None = None,
        *,
        most: int | None = None,
    ) -> int | None:
        """Read the entries of later versions, at most so many of them.

        Returns:
            The version with the token: the answer to an earlier request was lost. None: no one.

        Raises:
            AppendConflict: An append may not lie behind one of them.
        """
        for at, entry in itertools.islice(self._later(), most):
            if entry.token == token:
                return at
            if conflicts(entry):
                raise AppendConflict(f"version {at} is in the way")
        return None

    def _info(self, words: Mapping[str, Any], token: str, mode: str) -> dict[str, Any]:
        return {
            "timestamp": now_ms(),
            "operation": "WRITE",
            "operationParameters": {"mode": mode},
            "engineInfo": _ENGINE,
            APPEND: token,
            BEFORE: self._digest(self.version),
            **words,
        }

    def _digest(self, version: int) -> str:
        if version not in self._digests:
            found = self._digest_now(version)
            if not found:
                return ""
            self._digests[version] = found
        return self._digests[version]

    def _digest_now(self, version: int) -> str:
        """Return the digest of an entry; empty if others have removed it."""
        try:
            return digest_of(self._files.read(entry_name(version)))
        except FileNotFoundError:
            return ""

    def _later(self) -> Iterator[tuple[int, VersionEntry]]:
        """Read the entries of later versions one by one."""
        while True:
            version = self.version + 1
            try:
                entry = self.entry(version)
            except FileNotFoundError:
                return
            self._take(version, entry)
            yield version, entry

    def _take(self, version: int, entry: VersionEntry) -> None:
        self.check({version: entry})
        self._unread[version] = entry
        if len(self._unread) > _KEPT:  # `known` is not called by those who only append
            del self._unread[next(iter(self._unread))]
        self.is_changed |= entry.changes_table
        self.version = version


def _lines(actions: Sequence[Mapping[str, Any]]) -> bytes:
    return "\n".join(json.dumps(one, separators=(",", ":")) for one in actions).encode()
