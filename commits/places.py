"""Places of commit tables: how their versions are made, and which are refused because of that.

A version of a Delta table is made by creating its entry *if it is not there yet*. Where two writers
can both create the same entry, one overwrites the other, and commits that were acknowledged are
lost.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from commits.errors import UnsupportedTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["local_path", "mount_kind", "refuse_unsafe_path", "refuse_unsafe_spark"]

_UNSAFE_RENAME = "aws_s3_allow_unsafe_rename"
_S3 = ("s3:", "s3a:", "s3n:")
_S3_LOG_STORE = "spark.delta.logStore.{}.impl"
_DATABRICKS = "spark.databricks.clusterUsageTags.sparkVersion"
_COORDINATED = ("delta.coordinatedCommits.commitCoordinator-preview",
                "delta.feature.catalogManaged", "delta.feature.catalogOwned-preview")  # fmt: skip
_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks and the like, in lines of mounts
_FUSE_OF_DATABRICKS = ("/dbfs/", "/Volumes/")
_FILE = "file://"
# deltalake takes the first for an escape and looks elsewhere, and stumbles over the others.
_UNUSABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|]" + ("" if os.sep == "\\" else r"|\\"))


def refuse_unsafe_path(uri: str, options: Mapping[str, str] | None) -> None:
    """Refuses a path or URI on which `deltalake` cannot create an entry only once.

    Raises:
        UnsupportedTarget: It names the remedy.
    """
    if uri.startswith(_S3):
        given = {name.lower(): value for name, value in {**os.environ, **(options or {})}.items()}
        if given.get(_UNSAFE_RENAME, "").lower() in {"1", "true", "yes", "on"}:
            raise UnsupportedTarget(
                uri,
                f"{_UNSAFE_RENAME} lets writers overwrite each other's commits; take it away, as "
                "S3 and its kin know conditional puts",
            )
        return
    if "://" in uri and not uri.startswith(_FILE):
        return
    path = local_path(uri)
    real = os.path.realpath(path)
    found = _UNUSABLE.search(real)
    if found:
        raise UnsupportedTarget(
            uri, f"deltalake does not take {found[0]!r} in a local path; give another folder"
        )
    kind = mount_kind(real, _mounts())
    if kind.startswith("fuse") or any(p.startswith(_FUSE_OF_DATABRICKS) for p in (path, real)):
        raise UnsupportedTarget(
            uri,
            f"it lies on a file system ({kind or 'FUSE'}) without a rename that fails if the name "
            "is taken; give the URI of the object store behind it (s3://…, abfss://…, gs://…), "
            "or the name of a table in a catalog",
        )


def refuse_unsafe_spark(name: str, location: str, spark: Any) -> None:
    """Refuses a table whose place several drivers could not commit to through Spark.

    Raises:
        UnsupportedTarget: It names the remedy.
    """
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
        "give the URI instead of the name, which deltalake commits to by conditional puts",
    )


def local_path(uri: str) -> str:
    """The path that a path or a URI ``file://…`` names."""
    return unquote(uri.removeprefix(_FILE)) if uri.startswith(_FILE) else uri


def mount_kind(path: str, mounts: Iterable[str]) -> str:
    """The kind of file system that a path lies on, from lines as of /proc/mounts; else empty.

    Symbolic links are followed: what lies behind them counts.
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
