"""Opens commit tables: their properties, and the check that a table is a commit table."""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from commits.errors import CommitTableFormat
from commits.path_engine import CHECKPOINT_VERSIONS, PathEngine
from commits.path_opening import newest_readable, open_or_create
from commits.places import is_named
from commits.rows import FORMAT, SCHEMA
from commits.spark_engine import SparkEngine

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from commits.engine import LogEngine


LOG_PROPERTIES = {
    "delta.checkpointInterval": str(CHECKPOINT_VERSIONS),
    "delta.dataSkippingStatsColumns": "kind",
    # Only this library removes entries of the table's log, right after a snapshot: appends
    # after the last snapshot are read through their entries, whatever their age.
    "delta.enableExpiredLogCleanup": "false",
    # Checkpoints, snapshots and openings list all entries: 100,000 take 170 ms on a local disk, and
    # a job in real time makes 90,000 an hour.
    "delta.logRetentionDuration": "interval 15 minutes",
    # Every checkpoint contains removed files for this time.
    "delta.deletedFileRetentionDuration": "interval 15 minutes",
}
"""The properties of a table that `PathEngine` writes."""

_WRITERS = defaultdict(
    lambda: "an unknown engine", path="this library (a path)", spark="Spark alone (a name)"
)

# Removals are rarer and slower with Spark. Entries of the log remain: Spark has no command to
# remove only the entries before a snapshot.
_KEPT_BY_SPARK = {
    "delta.deletedFileRetentionDuration": "interval 7 days",
    # Delta 4.4 refuses one that is shorter than that of files.
    "delta.logRetentionDuration": "interval 7 days",
}


def open_table(
    target: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None,
    segment_versions: int,
    *,
    spark: Any = None,
    create: bool = True,
    is_written: bool = True,
) -> LogEngine:
    """Open a commit table and create it if it does not exist.

    Args:
        target: The path or URI of the Delta table, or its name in a catalog.
        storage_options: Options of an object store.
        segment_versions: How many versions a segment has, if the table is created.
        spark: A Spark session; not needed for a path.
        create: Whether to create the table.
        is_written: Whether rows may be appended; a path that is only read may have any feature.

    Raises:
        CommitTableNotFound: If the table does not exist and `create` is False.
        UnsupportedTarget: If a name is given without a session, or the location is not safe.
        CommitTableFormat: If it is not a commit table, or has another format.
        CorruptCommitLog: If it cannot be opened.
        ValueError: If `segment_versions` is not positive.
    """
    if segment_versions < 1:
        raise ValueError(f"segment_versions must be at least 1, not {segment_versions}")
    properties = {
        "delta.enableChangeDataFeed": "true",
        **LOG_PROPERTIES,
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
        engine = open_or_create(
            target,
            SCHEMA,
            properties if create else None,
            storage_options,
            is_written=is_written,
        )
    _check(engine)
    return engine


def opened_at(
    target: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None,
    spark: Any,
    versions: int,
) -> LogEngine | None:
    """Open a damaged table at the newest of `versions` versions that can be opened."""
    if is_named(target):
        return None if spark is None else SparkEngine(str(target), spark)
    return newest_readable(target, storage_options, versions)


def _check(engine: PathEngine | SparkEngine) -> None:
    found: Mapping[str, Any] = engine.properties
    if "coopconsume.format" not in found:
        raise CommitTableFormat(engine.target, "another Delta table", "a commit table")
    kind = "path" if isinstance(engine, PathEngine) else "spark"
    if found.get("coopconsume.engine", kind) != kind:
        # On a local disk Spark can overwrite a version that another engine creates concurrently.
        raise CommitTableFormat(
            engine.target,
            f"a table that is written by {_WRITERS[found['coopconsume.engine']]}",
            f"one that is written by {_WRITERS[kind]}, as this target requires; move it by "
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
