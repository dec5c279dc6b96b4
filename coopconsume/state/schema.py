"""The schema of a state, and of the rows of its changelog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from coopconsume.errors import InvalidOption

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
            InvalidOption: It is none of these.
        """
        if isinstance(given, pa.DataType):
            return cls(given)
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import DataType

        try:
            parsed = (
                DataType.fromDDL("binary" if given == "bytes" else given)
                if isinstance(given, str)
                else given
            )
            return cls(to_arrow_type(parsed))
        except Exception as error:
            raise InvalidOption(
                "state_schema", repr(given),
                "give DDL such as 'long' or 'count long, total double', or 'bytes'",
            ) from error  # fmt: skip

    @property
    def rows(self) -> pa.Schema:
        """The columns of a change, without `ORIGIN`: a null value removes the state of the key."""
        expires = pa.field("expires_at", pa.timestamp("us", "UTC"))
        return pa.schema([pa.field("key", pa.binary()), pa.field("value", self.type), expires])

    @property
    def changelog(self) -> pa.Schema:
        """The columns of the changelog."""
        return pa.schema([*self.rows, *ORIGIN])
