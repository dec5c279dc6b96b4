"""Features of Delta tables that an append has to obey, and that appends here do not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from commits.errors import CommitTableFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits.table_state import TableState

#: Features that ask nothing of an append of whole files.
#: (Of some, what is in use is checked below.)
_KNOWN: Final = """
allowColumnDefaults appendOnly changeDataFeed checkConstraints checkpointProtection clustering
columnMapping domainMetadata generatedColumns identityColumns inCommitTimestamp invariants
timestampNtz typeWidening typeWidening-preview v2Checkpoint vacuumProtocolCheck
"""
#: Properties with a value that asks something of an append.
_PROPERTIES: Final = {
    "delta.columnMapping.mode": ("none",),
    "delta.enableRowTracking": ("false",),
    "delta.enableInCommitTimestamps": ("false",),
    "delta.randomizeFilePrefixes": ("false",),
}
#: Fields of a column's metadata that ask something of an append.
_COLUMN: Final = ("delta.generationExpression", "delta.identity.start", "delta.invariants")
#: Features of tables that `deltalake` writes to.
_OF_DELTALAKE: Final = """
appendOnly changeDataFeed checkConstraints columnMapping deletionVectors generatedColumns invariants
timestampNtz v2Checkpoint variantType
"""
_LAST_PLAIN: Final = 6  # the last protocol version of a writer without a list of features
_NEWEST_READER, _NEWEST_WRITER = 3, 7  # of Delta's protocol


def check_appendable(table: TableState, target: str) -> None:
    """Make sure that an append needs nothing but a file and its `add` action.

    Args:
        table: The table.
        target: The same, for messages.

    Raises:
        CommitTableFormat: It has a feature, property or column that asks more of a writer.
    """
    found = asks_of_append(table, removes=True)
    if found is not None:
        raise CommitTableFormat(
            target,
            found,
            "a table without it: remove it (ALTER TABLE), restore the table, or move it to a new "
            "one by commits.move_table",
        )


def asks_of_append(table: TableState, *, removes: bool) -> str | None:
    """Return what asks more of an append than a file and its `add` action; None if nothing does.

    Args:
        table: The table.
        removes: Whether its rows are removed, too.
    """
    found = _asked_by_protocol(table.protocol)
    if found is not None:
        return found
    properties = table.properties
    # A compaction removes rows.
    asked = _PROPERTIES | ({"delta.appendOnly": ("false",)} if removes else {})
    for name, plain in asked.items():
        if properties.get(name, plain[0]).lower() not in plain:
            return f"the property {name}={properties[name]}"
    for name in properties:
        if name.startswith("delta.constraints."):
            return f"the constraint {name.removeprefix('delta.constraints.')}"
    for field in table.fields:
        for name in _COLUMN:
            if name in field.get("metadata", {}):
                return f"the column {field['name']} with {name}"
    return None


def refused_feature(features: Iterable[str], *, appends: bool) -> str | None:
    """Return a feature of a table that rows cannot be written to; None if there is no such.

    Args:
        features: The features that its writers have to know.
        appends: Whether rows are appended here, and not only by `deltalake`.
    """
    known = {*_OF_DELTALAKE.split()} | ({*_KNOWN.split()} if appends else set())
    return min({*features} - known, default=None)


def _asked_by_protocol(protocol: Mapping[str, Any]) -> str | None:
    writer, reader = (int(protocol[f"min{of}Version"]) for of in ("Writer", "Reader"))
    if writer > _NEWEST_WRITER or reader > _NEWEST_READER:
        return f"the protocol of readers {reader} and writers {writer}"
    features = {*(protocol.get("writerFeatures") or ())} if writer > _LAST_PLAIN else set()
    more = features - {*_KNOWN.split()}
    return f"the table feature {min(more)}" if more else None
