"""Features of Delta tables that an append has to obey, and that appends here do not know."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from commits.errors import CommitTableFormat

if TYPE_CHECKING:
    from deltalake import DeltaTable

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
_LAST_PLAIN: Final = 6  # the last protocol version of a writer without a list of features


def check_appendable(table: DeltaTable, target: str) -> None:
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
            target, found, "a table without it: remove it (ALTER TABLE), or restore the table"
        )


def asks_of_append(table: DeltaTable, *, removes: bool) -> str | None:
    """Return what asks more of an append than a file and its `add` action; None if nothing does.

    Args:
        table: The table.
        removes: Whether its rows are removed, too.
    """
    protocol = table.protocol()
    if protocol.min_writer_version > _LAST_PLAIN:
        more = set(protocol.writer_features or ()) - {*_KNOWN.split()}
        if more:
            return f"the table feature {min(more)}"
    properties = table.metadata().configuration
    # A compaction removes rows.
    asked = _PROPERTIES | ({"delta.appendOnly": ("false",)} if removes else {})
    for name, plain in asked.items():
        if properties.get(name, plain[0]).lower() not in plain:
            return f"the property {name}={properties[name]}"
    for name in properties:
        if name.startswith("delta.constraints."):
            return f"the constraint {name.removeprefix('delta.constraints.')}"
    for field in json.loads(table.schema().to_json())["fields"]:
        for name in _COLUMN:
            if name in field.get("metadata", {}):
                return f"the column {field['name']} with {name}"
    return None
