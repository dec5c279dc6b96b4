"""Storage locations of commit tables, and the refusal of unsafe ones.

A writer creates a version of a Delta table by creating its entry *if it does not exist*. If two
writers can both create the same entry, one overwrites the other, and acknowledged commits are lost.
"""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import re
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from commits.errors import UnsupportedTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


log = logging.getLogger(__name__)

TURN_SECONDS = 60.0
"""How long a Spark driver waits on a local disk for other writers of the same table."""

_UNSAFE_RENAME = "aws_s3_allow_unsafe_rename"
_S3 = ("s3:", "s3a:", "s3n:")
_S3_LOG_STORE = "spark.delta.logStore.{}.impl"
_DATABRICKS = "spark.databricks.clusterUsageTags.sparkVersion"
_COORDINATED = ("delta.coordinatedCommits.commitCoordinator-preview",
                "delta.feature.catalogManaged", "delta.feature.catalogOwned-preview")  # fmt: skip
_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # escaped characters such as spaces, in lines of mounts
_FUSE_OF_DATABRICKS = ("/dbfs/", "/Volumes/")
_FILE = "file://"
_LOCAL = "file:"  # Spark's form: one slash and no escapes
#: The name of a table in a catalog, of up to three parts.
_NAME = re.compile(r"(`[^`]+`|\w+)(\.(`[^`]+`|\w+)){0,2}", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
_SAME_SCHEME = {
    "s3a": "s3", "s3n": "s3", "gcs": "gs",
    "abfss": "abfs", "az": "abfs", "azure": "abfs", "adl": "abfs",
}  # fmt: skip
_SHARED = ("fuse", "nfs", "cifs", "smb")
_SPACE = 16_384  # bytes of an entry of the log, and of a file without rows
# deltalake interprets the first as an escape and fails on the others.
_UNUSABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|]" + ("" if os.sep == "\\" else r"|\\"))


def is_named(target: str | os.PathLike[str]) -> bool:
    """Return whether a target is the name of a table in a catalog, which only Spark can open."""
    return isinstance(target, str) and bool(_NAME.fullmatch(target)) and not Path(target).exists()


def refuse_unsafe_path(uri: str, options: Mapping[str, str] | None) -> None:
    """Refuse a path or URI where an entry cannot be created atomically.

    Raises:
        UnsupportedTarget: The location is not safe; the message has a remedy.
    """
    if uri.startswith(_S3):
        given = {name.lower(): value for name, value in {**os.environ, **(options or {})}.items()}
        if given.get(_UNSAFE_RENAME, "").lower() in {"1", "true", "yes", "on"}:
            raise UnsupportedTarget(
                uri,
                f"{_UNSAFE_RENAME} lets writers overwrite each other's commits; remove it, because "
                "S3 and compatible stores have conditional puts",
            )
        return
    if "://" in uri and not uri.startswith(_FILE):
        return
    path = local_path(uri)
    real = os.path.realpath(path)
    found = _UNUSABLE.search(real)
    if found:
        raise UnsupportedTarget(
            uri, f"deltalake does not support {found[0]!r} in a local path; give another folder"
        )
    kind = mount_kind(real, _mounts())
    if kind.startswith("fuse") or any(p.startswith(_FUSE_OF_DATABRICKS) for p in (path, real)):
        raise UnsupportedTarget(
            uri,
            f"it is on a file system ({kind or 'FUSE'}) without a rename that fails if the name "
            "exists; give the URI of the object store behind it (s3://…, abfss://…, gs://…), "
            "or the name of a table in a catalog",
        )


def refuse_unsafe_spark(name: str, location: str, spark: Any) -> None:
    """Refuse a table to whose location several Spark drivers cannot commit safely.

    Raises:
        UnsupportedTarget: The location is not safe; the message has a remedy.
    """
    if location.startswith(_LOCAL):
        kind = mount_kind(location.removeprefix(_LOCAL), _mounts())
        if kind.startswith(_SHARED):
            raise UnsupportedTarget(
                name,
                f"it is on a file system ({kind}) of several machines, and Spark drivers that "
                f"commit to {location} at once overwrite each other; give it a LOCATION on an "
                "object store, or on a disk of one machine",
            )
        return
    if not location.startswith(_S3):
        return
    scheme = location.split(":", 1)[0]
    properties = {row["key"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
    log_store = spark.conf.get(_S3_LOG_STORE.format(scheme), "") or ""
    if (
        spark.conf.get(_DATABRICKS, None)
        or properties & set(_COORDINATED)
        or log_store.endswith("S3DynamoDBLogStore")
    ):
        return
    raise UnsupportedTarget(
        name,
        f"Spark drivers that commit to {location} at once overwrite each other: set "
        f"{_S3_LOG_STORE.format(scheme)}=io.delta.storage.S3DynamoDBLogStore in all of them, or "
        "give the URI instead of the name, which is committed to by conditional puts",
    )


def refuse_unwritable(uri: str, size: int = 0) -> None:
    """Refuse a folder on a local disk to which nothing can be written at the moment.

    `deltalake` finds that out itself, but a thread of its Rust library then also panics, with a
    dump on standard error.

    Args:
        uri: The path or URI of a Delta table.
        size: How many bytes are to be written, compressed or not.

    Raises:
        OSError: The file system is read-only or full, or this user may not write to the folder.
    """
    if "://" in uri and not uri.startswith(_FILE):
        return
    path = Path(local_path(uri))
    # A table that does not exist is created in the nearest folder that does.
    for place in (path, path / "_delta_log"):
        folder = next((one for one in (place, *place.parents) if one.is_dir()), Path())
        disk = os.statvfs(folder)
        free = disk.f_frsize * (disk.f_bavail if os.geteuid() else disk.f_bfree)
        problem = 0
        if disk.f_flag & os.ST_RDONLY:
            problem = errno.EROFS
        elif disk.f_blocks and free < size + _SPACE:
            problem = errno.ENOSPC
        elif not os.access(folder, os.W_OK):
            problem = errno.EACCES
        if problem:
            raise OSError(problem, os.strerror(problem), str(folder))


def local_path(uri: str) -> str:
    """Return the path of a path or ``file://…`` URI."""
    return unquote(uri.removeprefix(_FILE)) if uri.startswith(_FILE) else uri


def local_folder(place: str) -> str | None:
    """Return the path of a path or URI on a local disk; None: it is somewhere else."""
    return _on_disk(place) if _scheme_of(place)[0] == "file" else None


def identity_of(place: str) -> tuple[str, ...]:
    """Return the parts of a path or URI; names of one place have the same parts.

    A place inside another one begins with its parts. On a local disk, symbolic links are resolved.
    """
    scheme, remote = _scheme_of(place)
    if scheme == "file":
        return ("file", *Path(os.path.realpath(_on_disk(place))).parts)
    bucket, _, path = remote.lstrip("/").partition("/")
    parts = posixpath.normpath(f"/{path.lstrip('/')}").split("/")
    return (scheme, bucket, *filter(None, parts))


def enclosing_table(place: str) -> str | None:
    """Return the Delta table on a local disk that a path or URI is inside of."""
    folder = local_folder(place)
    if folder is None:
        return None
    parents = Path(os.path.realpath(folder)).parents
    # `Path.is_dir` raises an error for a folder that this user may not look into.
    return next((str(p) for p in parents if os.path.isdir(p / "_delta_log")), None)  # noqa: PTH112


def _scheme_of(place: str) -> tuple[str, str]:
    """Return the scheme of a path or URI, one of those that mean the same, and what follows it."""
    found = _SCHEME.match(place)
    if found is None:
        return "file", place
    name = found[1].lower()
    return _SAME_SCHEME.get(name, name), place[found.end() :]


def _on_disk(place: str) -> str:
    return local_path(place) if place.startswith(_FILE) else place.removeprefix(_LOCAL)


def log_folder(location: str) -> Path | None:
    """Return the folder of a table's log if its location is on a disk of this machine."""
    if not location.startswith(_LOCAL):
        return None
    folder = Path(location.removeprefix(_LOCAL), "_delta_log")
    if os.access(folder, os.R_OK) and folder.is_dir():
        return folder
    log.warning("%s is not visible here: no other Spark driver may commit to it", location)
    return None


@contextmanager
def taking_turns(folder: Path | None, seconds: float = TURN_SECONDS) -> Iterator[None]:
    """Lock a table against commits of other processes that use this function.

    On a local disk Spark's Delta writer checks whether an entry exists and then renames its own
    entry to it. This is only atomic within one process.

    Args:
        folder: The folder of the table's log; None if no lock is needed.
        seconds: How long to wait for the lock.

    Raises:
        OSError: If the lock is not free in time (`TimeoutError`), or the folder cannot be locked.
    """
    if folder is None:
        yield
        return
    import fcntl  # not on Windows

    handle = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"others have been committing to {folder.parent} for {seconds:g} s"
                    ) from None
            time.sleep(0.01)
        try:
            yield
        finally:  # closing is not enough: a forked process may have the handle as well
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


@contextmanager
def alone(uri: str) -> Iterator[bool]:
    """Lock a table on a local disk if it is free; yield whether nobody else has the lock.

    For work that one process of a host does for all. Where there are no locks, each does it.
    """
    folder = local_folder(uri)
    log_of = None if folder is None else Path(folder, "_delta_log")
    with ExitStack() as lock:
        try:
            lock.enter_context(taking_turns(log_of, 0.0))
        except TimeoutError:
            yield False
            return
        except (ImportError, OSError) as error:
            log.debug("no lock of %s: %s", log_of, error)
        yield True


def mount_kind(path: str, mounts: Iterable[str]) -> str:
    """Return the kind of file system of a path from lines of /proc/mounts; empty if unknown.

    Symbolic links are resolved.
    """
    wanted = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in mounts:
        _, point, found, *_ = [*line.split(" "), "", "", ""]
        folder = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), point))
        if point and len(folder.parts) > best and wanted.is_relative_to(folder):
            best, kind = len(folder.parts), found
    return kind


def _mounts() -> list[str]:
    try:
        return _MOUNTS.read_text().splitlines()
    except OSError:  # not Linux
        return []
