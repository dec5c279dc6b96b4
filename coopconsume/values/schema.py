"""Schemas of values as Arrow types: from DDL, from Spark's types, and as Delta keeps them."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coopconsume.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import DataType

_EXAMPLES = "give DDL such as 'name string, count int', or a schema of Spark or Arrow"


def arrow_type(given: str | DataType | pa.DataType) -> pa.DataType:
    """Returns the Arrow type of DDL or of a Spark type; times with a zone are in UTC.

    Raises:
        Exception: Whatever Spark or Arrow raise for what is no type, or one that Arrow lacks.
    """
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType

    kind = DataType.fromDDL(given) if isinstance(given, str) else given
    if isinstance(kind, DataType):
        # From 4.2 on, PySpark has no time zone of its own.
        has_zone = "timezone" in signature(to_arrow_type).parameters
        zone: dict[str, Any] = {"timezone": "UTC"} if has_zone else {}
        kind = to_arrow_type(kind, **zone)
    if not isinstance(kind, pa.DataType):
        raise TypeError(f"{given!r} is no type")
    return kind


def arrow_schema(given: Any, taken: Iterable[str] = ()) -> pa.Schema:
    """Returns an ``output_schema`` as an Arrow schema.

    Args:
        given: DDL of columns, a Spark or an Arrow schema.
        taken: Names that no column may have, as the library's own columns have them.

    Raises:
        InvalidOption: It is none of these, or two columns or fields, or a column and one of the
            library, have the same name. As in Spark and Delta, case makes no difference.
    """
    schema = given
    if not isinstance(given, pa.Schema):
        try:
            kind = arrow_type(given)
        except Exception as error:
            raise InvalidOption("output_schema", repr(given), _EXAMPLES) from error
        if not pa.types.is_struct(kind):
            raise InvalidOption("output_schema", repr(given), _EXAMPLES)
        schema = pa.schema([kind.field(i) for i in range(kind.num_fields)])
    reserved = {name.lower() for name in taken}
    for name in schema.names:
        if name.lower() in reserved:
            remedy = "the library uses this name; rename the column"
            raise InvalidOption("output_schema", f"column {name!r}", remedy)
    check_names("output_schema", pa.struct(list(schema)))
    return schema


def check_names(option: str, kind: pa.DataType) -> None:
    """Checks that the fields of each struct in a type have different names.

    Raises:
        InvalidOption: Two have the same name, but for case.
    """
    inner = [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        seen: dict[str, str] = {}
        for name in (field.name for field in inner):
            if (other := seen.get(name.lower())) is not None:
                remedy = "Spark and Delta do not distinguish them; rename one"
                raise InvalidOption(option, f"fields {other!r} and {name!r}", remedy)
            seen[name.lower()] = name
    for field in inner:
        check_names(option, field.type)


def kept_by_delta(schema: pa.Schema) -> pa.Schema:
    """Returns a schema as a Delta table keeps it: Delta has fewer types than Arrow.

    Raises:
        Exception: It has a type that Delta lacks.
    """
    from deltalake import Schema

    return pa.schema(Schema.from_arrow(schema).to_arrow())


def named_types(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """Returns the names of columns with their types as Spark's DDL writes them."""
    from pyspark.sql.pandas.types import from_arrow_type

    return tuple(
        (field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True).simpleString())
        for field in schema
    )
