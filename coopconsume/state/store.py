"""The local store: a copy of the state of some key ranges of a partition. Task-side code.

An SQLite file for each partition and host, shared by the slots there. It is a cache: a slot brings
its key ranges up to date from the changelog before it works, and if the file is lost or damaged
they are restored. It never has a change of a record whose commit may yet be refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import re
import sqlite3
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from coopconsume.errors import StateNotReadable
from coopconsume.state.rows import counted, newest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coopconsume.state.changelog import Changelog
    from coopconsume.state.rows import Origin, Range

log = logging.getLogger(__name__)

#: The environment variable of the driver that names the folder of the local stores on workers.
FOLDER: Final = "COOPCONSUME_STATE_DIR"
_FORMAT: Final = 2
#: Seconds after which a file is deleted that no slot has used, when a new one is made.
_UNUSED: Final = 7 * 86_400.0
_OURS: Final = re.compile(r"state-\d+-[0-9a-f]{32}\.db")
_BUSY: Final = 60.0
_KEYS_AT_ONCE: Final = 500
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS state (
    key BLOB PRIMARY KEY, hash INTEGER NOT NULL, offset INTEGER NOT NULL, value, expires INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_hash ON state (hash);
CREATE TABLE IF NOT EXISTS covered (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, version INTEGER NOT NULL
);
"""
_PUT: Final = """
INSERT INTO state VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
    hash = excluded.hash, offset = excluded.offset, value = excluded.value,
    expires = excluded.expires
WHERE excluded.offset >= state.offset
"""

_DROP: Final = "DELETE FROM state WHERE hash BETWEEN ? AND ? AND (value IS NULL OR expires <= ?)"


def store_folder(given: str = "") -> Path:
    """Returns the folder of this user's local stores, which nobody else may read.

    Args:
        given: A folder; by default one in the folder for temporary files.

    Raises:
        StateNotReadable: The folder belongs to somebody else.
    """
    folder = Path(given) if given else Path(tempfile.gettempdir(), f"coopconsume-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    # Values are unpickled, so nobody else may write here.
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise StateNotReadable(
            str(folder), f"others may write to this folder; set {FOLDER} to a folder of your own"
        )
    return folder


class LocalStore:
    """The state of a partition on this host, as far as slots here have needed it.

    Args:
        changelog: The changelog.
        origin: The partition.
        folder: The folder of the file; by default that of `store_folder`.
    """

    def __init__(self, changelog: Changelog, origin: Origin, folder: str = "") -> None:
        self._changelog = changelog
        self._origin = origin
        name = "\n".join((changelog.path, changelog.id, origin.topic_id, str(origin.partition)))
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        self.file = store_folder(folder) / f"state-{_FORMAT}-{digest}.db"
        self._lock = threading.Lock()
        self._connection = self._open()
        #: Keys that the last call of `bring_up_to_date` restored, and the seconds that it took.
        self.restored = (0, 0.0)

    def _open(self) -> sqlite3.Connection:
        try:
            return self._opened()
        except sqlite3.DatabaseError as error:
            if _is_busy(error):
                raise StateNotReadable(str(self.file), str(error)) from error
            log.warning("the local store %s is damaged and made again: %s", self.file, error)
            _remove(self.file)
            return self._opened()

    def _opened(self) -> sqlite3.Connection:
        try:
            os.utime(self.file)  # first, so that no other slot deletes it as unused
        except FileNotFoundError:
            self._delete_unused()
        connection = sqlite3.connect(
            self.file, timeout=_BUSY, isolation_level=None, check_same_thread=False
        )
        self._use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cache_size = -16000")
        connection.executescript(_TABLES)
        return connection

    @staticmethod
    def _use_wal(connection: sqlite3.Connection) -> None:
        """Sets the journal mode; waits for other slots, as SQLite itself does not do here."""
        deadline = time.monotonic() + _BUSY
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    connection.close()
                    raise
                time.sleep(0.01)
            else:
                return

    def _delete_unused(self) -> None:
        """Deletes files of states, partitions and versions of this library that are not used."""
        for file in self.file.parent.glob("state-*.db"):
            if not _OURS.fullmatch(file.name):
                continue
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > _UNUSED:
                    _remove(file)

    def get(self, key: bytes) -> Any:
        """Returns the value of a key; None if it has no state. Threads may call it at once."""
        value, expires = self.find(key)
        return None if expires is not None and expires <= time.time() * 1000 else value

    def find(self, key: bytes) -> tuple[Any, int | None]:
        """Returns the value of a key, and when it is gone, in milliseconds since 1970.

        Threads may call it at once.

        Args:
            key: The key.

        Returns:
            The value, None if it has no state; and None instead of a time if it stays.
        """
        with self._lock:
            row = self._connection.execute(
                "SELECT value, expires FROM state WHERE key = ?", (key,)
            ).fetchone()
        return (None, None) if row is None else (self._loaded(row[0]), row[1])

    @property
    def is_empty(self) -> bool:
        """Whether no key has a state. Of a damaged store it is not known; then it is not empty."""
        with self._lock, contextlib.suppress(sqlite3.DatabaseError):
            return self._connection.execute("SELECT 1 FROM state LIMIT 1").fetchone() is None
        return False

    def find_all(self, keys: Sequence[bytes]) -> dict[bytes, tuple[Any, int | None]]:
        """Returns what `find` returns, by key, of those keys that are here."""
        found: dict[bytes, tuple[Any, int | None]] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            marks = ", ".join("?" * len(some))
            with self._lock:
                rows = self._connection.execute(
                    f"SELECT key, value, expires FROM state WHERE key IN ({marks})",  # noqa: S608
                    some,
                ).fetchall()
            found |= {key: (self._loaded(value), until) for key, value, until in rows}
        return found

    def close(self) -> None:
        """Closes the file; harmless when repeated."""
        self._connection.close()

    # -- what the store has

    def bring_up_to_date(
        self,
        ranges: Sequence[Range],
        version: int,
        counts: Callable[[str], bool],
    ) -> None:
        """Applies the changes of some key ranges up to a version of the changelog.

        What is not here, or is too old, is restored from the newest snapshot and the changelog.

        Args:
            ranges: Key hashes, first and last.
            version: The version; the commits of all rows of these ranges in it are decided.
            counts: Whether the commit of a row counts.

        Raises:
            StateNotReadable: The changelog cannot be read.
        """
        try:
            self._bring_up_to_date(ranges, version, counts)
        except sqlite3.DatabaseError as error:
            if _is_busy(error):
                raise StateNotReadable(str(self.file), str(error)) from error
            log.warning("the local store %s is damaged and made again: %s", self.file, error)
            self._connection.close()
            _remove(self.file)
            self._connection = self._opened()
            self._bring_up_to_date(ranges, version, counts)

    def _bring_up_to_date(
        self, ranges: Sequence[Range], version: int, counts: Callable[[str], bool]
    ) -> None:
        began, keys = time.monotonic(), 0
        for wanted in ranges:
            while True:
                pieces = self._pieces(wanted)
                late = [p for p in pieces if p[2] < version]
                if not late:
                    break
                first, last, have = late[0]
                rows, is_whole = self._behind((first, last), have, version, counts)
                if self._apply((first, last), have, version, rows, is_whole=is_whole):
                    keys += rows.num_rows if is_whole else 0
        self.restored = (keys, time.monotonic() - began if keys else 0.0)

    def _behind(
        self, piece: Range, have: int, version: int, counts: Callable[[str], bool]
    ) -> tuple[pa.Table, bool]:
        """Returns the rows that a piece lacks, and whether they are all rows that it has then."""
        changelog, origin = self._changelog, self._origin
        try:
            if have >= 0 and changelog.is_complete(origin, have, version):
                there, seen = (changelog.files(origin, at) for at in (version, have))
                # Where files were rewritten, a change could be applied again without a later one.
                unseen = there - seen if seen <= there else None
                changes = changelog.changes(origin, version, [piece], unseen=unseen)
                return counted(changes, counts), False
        except StateNotReadable as error:
            log.debug("version %d is gone, a restore follows: %s", have, error)
        # In this order: what is removed from the changelog is in the snapshot before.
        changes = counted(changelog.changes(origin, version, [piece]), counts)
        return pa.concat_tables([changes, changelog.snapshots.rows(origin, [piece])]), True

    def _pieces(self, wanted: Range) -> list[tuple[int, int, int]]:
        """Returns a range in pieces, each with the version that the store has; -1: it has none."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT first, last, version FROM covered WHERE first <= ? AND last >= ? "
                "ORDER BY first",
                (wanted[1], wanted[0]),
            ).fetchall()
        return list(_cut(wanted, rows))

    def _apply(
        self, piece: Range, have: int, version: int, rows: pa.Table, *, is_whole: bool
    ) -> bool:
        """Applies rows to a piece; False if another slot has changed it meanwhile."""
        first, last = piece
        with self._lock, self._transaction() as cursor:
            found = cursor.execute(
                "SELECT first, last, version FROM covered WHERE first <= ? AND last >= ? "
                "ORDER BY first",
                (last, first),
            ).fetchall()
            if any(one[2] != have for one in _cut(piece, found)):
                return False
            if is_whole:
                cursor.execute("DELETE FROM state WHERE hash BETWEEN ? AND ?", piece)
            cursor.executemany(_PUT, self._cells(rows))
            now = int(time.time() * 1000)
            cursor.execute(_DROP, (*piece, now))
            self._cover(cursor, piece, version, found)
        return True

    def _cover(
        self,
        cursor: sqlite3.Cursor,
        piece: Range,
        version: int,
        found: Sequence[tuple[int, int, int]],
    ) -> None:
        """Notes the version of a piece; what touches it and has the same version is one with it."""
        first, last = piece
        for one_first, one_last, one_version in found:
            cursor.execute("DELETE FROM covered WHERE first = ?", (one_first,))
            if one_first < first:
                cursor.execute(
                    "INSERT INTO covered VALUES (?, ?, ?)", (one_first, first - 1, one_version)
                )
            if one_last > last:
                cursor.execute(
                    "INSERT INTO covered VALUES (?, ?, ?)", (last + 1, one_last, one_version)
                )
        for neighbour in cursor.execute(
            "SELECT first, last FROM covered WHERE version = ? AND (last = ? OR first - 1 = ?)",
            (version, first - 1, last),
        ).fetchall():
            cursor.execute("DELETE FROM covered WHERE first = ?", neighbour[:1])
            first, last = min(first, neighbour[0]), max(last, neighbour[1])
        cursor.execute("INSERT INTO covered VALUES (?, ?, ?)", (first, last, version))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        cursor = self._connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield cursor
        except BaseException:
            cursor.execute("ROLLBACK")
            raise
        cursor.execute("COMMIT")

    def _cells(self, rows: pa.Table) -> Iterator[tuple[Any, ...]]:
        # One row a key, so that it does not matter in which order files were read.
        rows = newest([rows])
        expires = rows.column("expires_at").cast("int64")
        names = ("key", "_key_hash", "_offset")
        columns = (rows.column(name).to_pylist() for name in names)
        values = self._changelog.schema.values(rows.column("value"))
        for key, key_hash, offset, value, until in zip(
            *columns, values, expires.to_pylist(), strict=True
        ):
            yield key, key_hash, offset, _packed(value), None if until is None else until // 1000

    def _loaded(self, value: Any) -> Any:
        if type(value) is not bytes:
            return value
        # A file of this user alone, see `store_folder`.
        return value[1:] if value[:1] == b"b" else pickle.loads(value[1:])  # noqa: S301


def _remove(file: Path) -> None:
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{file}{end}").unlink()


def _is_busy(error: sqlite3.DatabaseError) -> bool:
    """Whether another slot has kept the file for too long."""
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _packed(value: Any) -> Any:
    """Returns a value as SQLite takes it: numbers and texts as they are."""
    # SQLite takes the float that is not equal to itself for null.
    if value is None or (type(value) in (int, float, str) and value == value):  # noqa: PLR0124
        return value
    return b"b" + value if type(value) is bytes else b"p" + pickle.dumps(value)


def _cut(wanted: Range, known: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Cuts a range at the ends of known pieces, which are ascending; -1 where nothing is known."""
    at, last = wanted
    for first, end, version in known:
        if first > at:
            yield at, first - 1, -1
        begin = max(first, at)
        yield begin, min(end, last), version
        at = min(end, last) + 1
    if at <= last:
        yield at, last, -1
