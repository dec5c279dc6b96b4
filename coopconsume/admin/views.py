"""A commit table in SQL: rows of partitions, gaps and chunks, of one group or of all.

    spark.sql("SELECT topic, partition, lag FROM coopconsume_partitions WHERE lag > 1000")

DataFrames and temporary views are snapshots of the time of the call. The data source
``coopconsume`` reads the current state at each query of a session where it is registered.

``partitions`` has these columns; an unknown offset is null:

- group, topic, partition
- stable_offset: the first uncommitted offset
- log_start, end_offset: the bounds of Kafka's log
- lag: the number of uncommitted offsets, gaps included
- committed_above: the number of committed offsets above the stable offset
- range_count, ranges: their ranges (first, last), both included, and the number of ranges
- gaps: the number of uncommitted ranges below the highest committed offset
- pending: the number of failed records that are not done, parked ones included
- primary_offset: the group's offset in Kafka
- blocker: the record that blocks the stable offset: offset, state (``failed``, ``parked`` or
  ``not done``), key_hash, attempts, since, due, error, done_behind and open_behind (numbers of
  offsets above it), key (null if it has none or was not read), deleted_by
  (``retention``, ``compaction`` or empty), ordering_key (with the option ``orderingKey``, of a
  record that a job has tried)

``gaps`` has group, topic, partition, first, last (both included), offsets (their number), since
and age_seconds.

``chunks`` has group, topic, partition, member, first, last, offsets, renewals, since and
held_seconds of each chunk that a member of a cooperative epoch holds.

``decisions`` has group, topic, partition, offset, action, decided_at, decided_by, reason, status
and settled_at of each open decision on a failed or parked record, and of the newest others. Times
are those of the
committers' clocks, null if the log does not say.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from coopconsume.admin.offsets import OffsetAdmin
from coopconsume.admin.overview.data import ChunkOverview
from coopconsume.admin.records.actions import group_decisions
from coopconsume.admin.records.tables import decision_row
from coopconsume.admin.tables import seconds_since
from coopconsume.errors import InvalidOption
from coopconsume.kafka.connection import Connection
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from commits import Acquisition
    from coopconsume.admin.offsets import PartitionStatus

View = Literal["partitions", "gaps", "chunks", "decisions"]

_PLACE = [("group", pa.string()), ("topic", pa.string()), ("partition", pa.int32())]
_TIME = pa.timestamp("us", tz="UTC")
_BLOCKER = pa.struct(
    [
        ("offset", pa.int64()),
        ("state", pa.string()),
        ("key_hash", pa.int64()),
        ("attempts", pa.int32()),
        ("since", _TIME),
        ("due", _TIME),
        ("error", pa.string()),
        ("done_behind", pa.int64()),
        ("open_behind", pa.int64()),
        ("key", pa.string()),
        ("deleted_by", pa.string()),
        ("ordering_key", pa.string()),
    ]
)
SCHEMAS: Mapping[View, pa.Schema] = {
    "partitions": pa.schema(
        [
            *_PLACE,
            ("stable_offset", pa.int64()),
            ("log_start", pa.int64()),
            ("end_offset", pa.int64()),
            ("lag", pa.int64()),
            ("committed_above", pa.int64()),
            ("range_count", pa.int64()),
            ("ranges", pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))),
            ("gaps", pa.int64()),
            ("pending", pa.int64()),
            ("primary_offset", pa.int64()),
            ("blocker", _BLOCKER),
        ]
    ),
    "gaps": pa.schema(
        [
            *_PLACE,
            ("first", pa.int64()),
            ("last", pa.int64()),
            ("offsets", pa.int64()),
            ("since", _TIME),
            ("age_seconds", pa.float64()),
        ]
    ),
    "chunks": pa.schema(
        [
            *_PLACE,
            ("member", pa.string()),
            ("first", pa.int64()),
            ("last", pa.int64()),
            ("offsets", pa.int64()),
            ("renewals", pa.int64()),
            ("since", _TIME),
            ("held_seconds", pa.float64()),
        ]
    ),
    "decisions": pa.schema(
        [
            *_PLACE,
            ("offset", pa.int64()),
            ("action", pa.string()),
            ("decided_at", _TIME),
            ("decided_by", pa.string()),
            ("reason", pa.string()),
            ("status", pa.string()),
            ("settled_at", _TIME),
        ]
    ),
}
"""The columns of the views."""


def partitions_frame(
    spark: SparkSession, options: Mapping[str, Any], group: str | None = None
) -> DataFrame:
    """Returns one row per partition, with its blocker and its committed ranges.

    Args:
        spark: The session.
        options: As for `CooperativeConsumer`; no subscription is needed.
        group: Only this group; by default every group of the commit table.

    Raises:
        commits.CommitTableNotFound: There is no commit table.
        GroupNotFound: Neither Kafka nor the commit log knows the group.
        OptionError, BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """
    return spark.createDataFrame(view_table("partitions", options, group, spark=spark))


def gaps_frame(
    spark: SparkSession, options: Mapping[str, Any], group: str | None = None
) -> DataFrame:
    """Returns one row per gap: its uncommitted offsets and its age.

    Arguments and errors are those of `partitions_frame`.
    """
    return spark.createDataFrame(view_table("gaps", options, group, spark=spark))


def create_views(
    spark: SparkSession,
    options: Mapping[str, Any],
    group: str | None = None,
    *,
    prefix: str = "coopconsume_",
) -> None:
    """Creates or replaces a temporary view of each kind, such as ``coopconsume_partitions``.

    The views are snapshots; call this again to update them.

    Args:
        spark: The session.
        options: As for `partitions_frame`.
        group: As for `partitions_frame`.
        prefix: The prefix of the view names.

    Raises: As for `partitions_frame`.
    """
    for view in SCHEMAS:
        frame = spark.createDataFrame(view_table(view, options, group, spark=spark))
        frame.createOrReplaceTempView(f"{prefix}{view}")


def view_table(
    view: View,
    options: Mapping[str, Any],
    group: str | None = None,
    *,
    spark: SparkSession | None = None,
) -> pa.Table:
    """Returns a view as an Arrow table; arguments and errors are those of `partitions_frame`.

    A commit table in a catalog needs a session.

    Raises:
        InvalidOption: There is no such view.
    """
    if view not in SCHEMAS:
        raise InvalidOption("view", repr(view), f"give {' or '.join(SCHEMAS)}")
    rows: list[dict[str, Any]] = []
    for name in [group] if group else _groups(options, spark):
        with OffsetAdmin(options, name, spark=spark) as admin:
            if view == "decisions":
                rows += map(decision_row, group_decisions(admin.store, name), repeat(name))
                continue
            held = admin.acquisitions() if view == "chunks" else {}
            for status in admin.statuses(keys=view == "partitions", times=view != "chunks"):
                chunks = held.get((status.topic, status.partition), ())
                rows += _rows(view, name, status, chunks)
    return pa.Table.from_pylist(rows, schema=SCHEMAS[view])


def status_frame(
    spark: SparkSession, view: View, statuses: Iterable[PartitionStatus], *columns: str
) -> DataFrame:
    """Returns some columns of ``partitions`` or ``gaps``, from the statuses of a group.

    Args:
        spark: The session.
        view: The view.
        statuses: The statuses.
        columns: The names of the columns, beside ``topic`` and ``partition``.
    """
    schema = pa.schema([SCHEMAS[view].field(n) for n in ("topic", "partition", *columns)])
    rows = [row for one in statuses for row in _rows(view, "", one)]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))


def _groups(options: Mapping[str, Any], spark: SparkSession | None) -> list[str]:
    with Connection(Options.parse(options, group=False), spark=spark) as at:
        return at.store.groups()


def _rows(
    view: View, group: str, one: PartitionStatus, held: Iterable[Acquisition] = ()
) -> list[dict[str, Any]]:
    """Returns the rows of a partition."""
    now = datetime.now(UTC)
    place = {"group": group, "topic": one.topic, "partition": one.partition}
    if view == "chunks":
        found = _chunks(held, now)
    else:
        found = _partition(one) if view == "partitions" else _gaps(one, now)
    return [place | row for row in found]


def _partition(one: PartitionStatus) -> Iterator[dict[str, Any]]:
    blocker = one.blocker
    firsts, lasts = one.done.bounds()
    yield one.figures() | {
        "log_start": one.log_start,
        "range_count": len(firsts),
        "ranges": [
            {"first": f, "last": t} for f, t in zip(firsts.tolist(), lasts.tolist(), strict=True)
        ],
        "pending": len(one.pending),
        "blocker": None
        if blocker is None
        else {name: getattr(blocker, name) for name in (field.name for field in _BLOCKER)},
    }


def _gaps(one: PartitionStatus, now: datetime) -> Iterator[dict[str, Any]]:
    for gap in one.gaps():
        yield {
            "first": gap.first,
            "last": gap.last,
            "offsets": gap.offsets,
            "since": gap.since,
            "age_seconds": seconds_since(gap.since, now),
        }


def _chunks(held: Iterable[Acquisition], now: datetime) -> Iterator[dict[str, Any]]:
    for chunk in held:
        held_for = seconds_since(chunk.since, now)
        yield asdict(ChunkOverview.of(chunk)) | {"held_seconds": held_for}
