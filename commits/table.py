"""The commit table: its properties, and whether a table is one."""

from __future__ import annotations

import uuid
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commits.errors import CommitTableFormat
from commits.path_engine import CHECKPOINT_VERSIONS, PathEngine
from commits.rows import FORMAT, SCHEMA
from commits.spark_engine import SparkEngine, is_name

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from commits.engine import LogEngine

__all__ = ["is_named", "open_table", "opened_at"]


_WRITERS = defaultdict(
    lambda: "an unknown engine", path="deltalake (a path)", spark="Spark alone (a name)"
)

# Removals are rarer and slower there. Entries of the log stay, as Spark has no word to remove those
# that a snapshot has made needless, and by itself would remove others, too.
_KEPT_BY_SPARK = {
    "delta.deletedFileRetentionDuration": "interval 7 days",
}


def open_table(
    target: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None,
    segment_versions: int,
    *,
    spark: Any = None,
    create: bool = True,
) -> LogEngine:
    """Opens a commit table, creates it if there is none.

    Args:
        target: The path or URI of the Delta table, or its name in a catalog.
        storage_options: For an object store.
        segment_versions: How many versions share a segment, where the table is created.
        spark: A Spark session; not needed for a path.
        create: Whether it may be created.

    Raises:
        CommitTableNotFound: If there is none, and it may not be created.
        UnsupportedTarget: If a name is given without a session, or a place is not safe.
        CommitTableFormat: If it is no commit table, or of another format.
        CorruptCommitLog: If it cannot be opened.
        ValueError: If `segment_versions` is not positive.
    """
    if segment_versions < 1:
        raise ValueError(f"segment_versions must be at least 1, not {segment_versions}")
    properties = {
        "delta.enableChangeDataFeed": "true",
        "delta.checkpointInterval": str(CHECKPOINT_VERSIONS),
        "delta.dataSkippingStatsColumns": "kind",
        # Entries of the table's log are removed right after a snapshot, by us alone: what was
        # appended after the last snapshot is read through them, however long ago that was.
        "delta.enableExpiredLogCleanup": "false",
        "delta.logRetentionDuration": "interval 1 days",
        # A removed file costs room in each checkpoint for so long.
        "delta.deletedFileRetentionDuration": "interval 6 hours",
        "coopconsume.format": str(FORMAT),
        "coopconsume.store": uuid.uuid4().hex,
        "coopconsume.engine": "path",
        "coopconsume.segment.versions": str(segment_versions),
    }
    engine: PathEngine | SparkEngine
    if is_named(target):
        properties |= {"coopconsume.engine": "spark", **_KEPT_BY_SPARK}
        engine = SparkEngine.open_or_create(str(target), spark, properties if create else None)
    else:
        engine = PathEngine.open_or_create(
            target, SCHEMA, properties if create else None, storage_options
        )
    _check(engine)
    return engine


def opened_at(
    target: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None,
    spark: Any,
    versions: int,
) -> LogEngine | None:
    """A table whose newest version cannot be opened, at the newest of so many that can be."""
    if is_named(target):
        return None if spark is None else SparkEngine(str(target), spark)
    return PathEngine.opened_at(target, storage_options, versions)


def is_named(target: str | os.PathLike[str]) -> bool:
    """Whether a target is the name of a table in a catalog, which only Spark can open."""
    return isinstance(target, str) and is_name(target) and not Path(target).exists()


def _check(engine: PathEngine | SparkEngine) -> None:
    found: Mapping[str, Any] = engine.properties
    if "coopconsume.format" not in found:
        raise CommitTableFormat(engine.target, "another Delta table", "a commit table")
    kind = "path" if isinstance(engine, PathEngine) else "spark"
    if found.get("coopconsume.engine", kind) != kind:
        # On a local disk Spark looks for a version, and then renames over what came in between.
        raise CommitTableFormat(
            engine.target,
            f"a table that is written by {_WRITERS[found['coopconsume.engine']]}",
            f"one that is written by {_WRITERS[kind]}, as this target asks for; move it by "
            "commits.move_table",
        )
    for name, expected in [
        ("coopconsume.format", str(FORMAT)),
        ("coopconsume.engine", kind),
        ("delta.enableChangeDataFeed", "true"),
    ]:
        if found.get(name) != expected:
            raise CommitTableFormat(
                engine.target, f"the property {name}={found.get(name)}", f"{name}={expected}"
            )
    columns = engine.columns
    expected_columns = engine.columns_of(SCHEMA)
    if columns != expected_columns:
        wrong, _ = min(set(columns.items()) ^ set(expected_columns.items()))
        raise CommitTableFormat(
            engine.target,
            f"the column {wrong!r} of type {columns.get(wrong)}",
            f"type {expected_columns.get(wrong)}",
        )
