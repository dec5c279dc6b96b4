"""The schema of a state, and of the rows of its changelog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from coopconsume.errors import InvalidOption
from coopconsume.values.schema import arrow_type, check_names, kept_by_delta

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

#: The record of a change, and the commit that decides whether it counts.
ORIGIN: Final = pa.schema(
    [
        ("_topic", pa.string()), ("_topic_id", pa.string()), ("_partition", pa.int32()),
        ("_offset", pa.int64()), ("_key_hash", pa.int64()), ("_commit", pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class StateSchema:
    """The type of the values of a state.

    Attributes:
        type: The Arrow type.
    """

    type: pa.DataType

    @classmethod
    def parse(cls, given: str | DataType | pa.DataType) -> StateSchema:
        """Reads a schema.

        Args:
            given: DDL of a type (``"long"``) or of columns (``"count long, total double"``, whose
                values are dictionaries), ``"bytes"``, or a type of Spark or Arrow.

        Raises:
            InvalidOption: It is not one of these, or two of its fields have the same name.
        """
        try:
            kind = arrow_type("binary" if given == "bytes" else given)
            kept = kept_by_delta(pa.schema([pa.field("value", kind)])).field("value").type
        except Exception as error:
            raise InvalidOption(
                "state_schema",
                repr(given),
                "give DDL such as 'long' or 'count long, total double', or 'bytes'",
            ) from error
        check_names("state_schema", kept)
        return cls(kept)

    def value(self, found: Any) -> Any:
        """Returns a value of Arrow's `as_py` as handlers see it: a map as a dictionary."""
        return _with_dicts(found, self.type) if _has_map(self.type) else found

    def values(self, column: pa.ChunkedArray) -> list[Any]:
        """Returns the values of a column as handlers see them."""
        found: list[Any] = column.to_pylist()
        return [_with_dicts(one, self.type) for one in found] if _has_map(self.type) else found

    @property
    def rows(self) -> pa.Schema:
        """The columns of a change, without `ORIGIN`: a null value removes the state of the key."""
        expires = pa.field("expires_at", pa.timestamp("us", "UTC"))
        return pa.schema([pa.field("key", pa.binary()), pa.field("value", self.type), expires])

    @property
    def changelog(self) -> pa.Schema:
        """The columns of the changelog."""
        return pa.schema([*self.rows, *ORIGIN])


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(i).type for i in range(kind.num_fields)]


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(one) for one in _inner(kind))


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return {
            _with_dicts(key, kind.key_type): _with_dicts(one, kind.item_type) for key, one in pairs
        }
    if pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        return {name: _with_dicts(one, types[name]) for name, one in value.items()}
    if kind.num_fields:
        return [_with_dicts(one, _inner(kind)[0]) for one in value]
    return value
