"""The conversion of Python values to an Arrow type: exactly, or not at all.

One rule for output rows, state values and their fields: a value fits a type if the type holds
exactly this value. Only a float is rounded, to the nearest number that a smaller float type has. A
value that fits becomes what the type holds at once, so that a handler that sees it again sees the
same as after a restart: an int for a ``double`` becomes a float, a time without a zone is one in
UTC. Task-side code.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import numbers
import struct
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coopconsume.values.shown import clean, safely, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Convert = Callable[[Any], Any]

#: Bytes that one text or binary value may have, as Arrow counts them.
_MOST_BYTES = (1 << 31) - 1
#: Names of NumPy's type of truth values, before and since version 2.
_FLAGS = "bool_", "bool"
_MICRO = {"s": 1_000_000, "ms": 1_000, "us": 1}


class DoesNotFit(ValueError):
    """A value does not fit its type.

    Attributes:
        why: The reason.
        path: Names of fields and indexes of elements, from the outermost.
    """

    def __init__(self, why: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(why, path)
        self.why = why
        self.path = path

    def __str__(self) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        place = "".join(steps).removeprefix(".")
        return f"{place}: {self.why}" if place else self.why


def converter(kind: pa.DataType, *, nullable: bool = True) -> Convert:
    """Returns a function that returns a value as the type holds it.

    Its results are plain values (of types that Delta lacks, Arrow scalars), copied where they could
    be changed in place, which `pyarrow.array` surely takes. It raises `DoesNotFit`, or whatever a
    user's object raises. Null is None, or pandas' ``NA`` and ``NaT``.

    Args:
        kind: The type.
        nullable: Whether it takes null.
    """
    convert = of_type(kind)

    def convert_or_null(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except DoesNotFit:
            if is_null(value):
                return None
            raise

    def convert_no_null(value: Any) -> Any:
        if is_null(value):
            raise DoesNotFit("it must not be null")
        return convert(value)

    return convert_or_null if nullable else convert_no_null


def misfit(what: str, schema: str, error: BaseException) -> ValueError:
    """Returns the error of a value that does not fit.

    Args:
        what: The value, for people.
        schema: What it should fit, for people.
        error: What the conversion raised.
    """
    why = clean(safely(error.__str__)) or clean(safely(lambda: type(error).__name__))
    return ValueError(f"{what} does not fit {schema}: {why}")


def is_null(value: Any) -> bool:
    """Whether a value is None, or pandas' or NumPy's word for it; NaN is a number."""
    if value is None:
        return True
    if _is_numpys(value, "datetime64", "timedelta64"):
        return str(value) == "NaT"
    kind = type(value)
    return kind.__name__ in ("NAType", "NaTType") and kind.__module__.startswith("pandas.")


def _is_numpys(value: Any, *names: str) -> bool:
    """Whether a value is of one of NumPy's types; by name, as a worker may have no NumPy."""
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ in names


def fields_of(value: Any, names: Iterable[str]) -> Mapping[Any, Any]:
    """Returns a row or a struct as a mapping by the names of its fields.

    Args:
        value: A mapping, a Spark `Row`, a named tuple, or a pandas Series.
        names: The fields that it may have.

    Raises:
        DoesNotFit: It has another field.
        TypeError: It is none of these.
    """
    known = tuple(names)
    found: Mapping[Any, Any]
    own = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
    if isinstance(value, Mapping):
        found = value
    elif isinstance(value, tuple) and own:
        found = dict(zip(own, value, strict=True))
    elif hasattr(value, "keys"):
        found = dict(value)
    else:
        raise TypeError(f"{shown(value)} of type {type(value).__name__} has no fields")
    for name in found:
        if name not in known:
            close = get_close_matches(str(name).lower(), {one.lower(): one for one in known}, 1)
            near = [one for one in known if one.lower() in close]
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise DoesNotFit(f"there is no field {shown(name)}: {hint}")
    return found


def of_type(kind: pa.DataType) -> Convert:  # noqa: C901, PLR0911, PLR0912 - one for each type
    """Returns a function as `converter` does, but for null, which it may refuse."""
    types = pa.types
    if types.is_signed_integer(kind):
        return _integer(-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
    if types.is_unsigned_integer(kind):
        return _integer(0, (1 << kind.bit_width) - 1)
    if types.is_floating(kind):
        return _float if kind.bit_width == 64 else _rounded("<f" if kind.bit_width == 32 else "<e")  # noqa: PLR2004 - bits
    if types.is_boolean(kind):
        return _boolean
    if _is_one_of(kind, "is_string", "is_large_string", "is_string_view"):
        return _text
    if _is_one_of(kind, "is_binary", "is_large_binary", "is_binary_view"):
        return _binary
    if types.is_date32(kind):
        return _date
    if types.is_timestamp(kind) and kind.unit in _MICRO:
        return _timestamp(_MICRO[kind.unit], dt.UTC if kind.tz else None)
    if types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_map(kind):
        return _map(kind)
    if hasattr(kind, "value_field"):
        size = kind.list_size if types.is_fixed_size_list(kind) else None
        return _list(converter(kind.value_field.type, nullable=kind.value_field.nullable), size)
    if types.is_dictionary(kind):
        return of_type(kind.value_type)
    return _by_arrow(kind)


def _is_one_of(kind: pa.DataType, *names: str) -> bool:
    return any(getattr(pa.types, name, lambda _: False)(kind) for name in names)


def _refused(value: Any, wanted: str) -> DoesNotFit:
    return DoesNotFit(f"{shown(value)} of type {type(value).__name__} is not {wanted}")


def _integer(low: int, high: int) -> Convert:
    wanted = f"a whole number from {low} to {high}"

    def convert(value: Any) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        is_number = isinstance(value, numbers.Real | decimal.Decimal) and not _is_flag(value)
        # The range first: a decimal may have a billion digits.
        if not is_number or not _holds(lambda: low <= value <= high):
            raise _refused(value, wanted)
        if (whole := int(value)) != value:
            raise _refused(value, wanted)
        return whole

    return convert


def _holds(condition: Callable[[], bool]) -> bool:
    """Whether a condition holds; it does not for a decimal that is no number."""
    try:
        return bool(condition())
    except decimal.InvalidOperation:
        return False


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or _is_numpys(value, *_FLAGS)


def _float(value: Any) -> Any:
    if type(value) is float:
        return value
    if not isinstance(value, numbers.Real) or _is_flag(value):
        raise _refused(value, "a float")
    try:
        number = float(value)
    except OverflowError:
        raise _refused(value, "in the range of a double") from None
    if math.isinf(number) and number != value:
        raise _refused(value, "in the range of a double")
    if isinstance(value, numbers.Rational) and number != value:
        raise DoesNotFit(f"{shown(value)} has more digits than a double; give float(…) of it")
    return number


def _rounded(code: str) -> Convert:
    """For floats of 32 and 16 bits, by their code in `struct`."""

    def convert(value: Any) -> Any:
        number = _float(value)
        try:
            (rounded,) = struct.unpack(code, struct.pack(code, number))
        except OverflowError:
            raise _refused(value, "in the range of a float") from None
        if isinstance(value, numbers.Rational) and rounded != number:
            raise DoesNotFit(f"{shown(value)} has more digits than a float; give float(…) of it")
        return rounded

    return convert


def _boolean(value: Any) -> Any:
    if value is True or value is False:
        return value
    if _is_flag(value):
        return bool(value)
    raise _refused(value, "true or false")


def _text(value: Any) -> Any:
    if type(value) is str and len(value) <= _MOST_BYTES and value.isascii():
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise DoesNotFit(f"{shown(value)} is not text that UTF-8 can hold: {error}") from None
    elif isinstance(value, bytes | bytearray | memoryview):
        raw = _plain_bytes(value)
        size = len(raw)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise DoesNotFit(f"{shown(value)} is not text in UTF-8: {error}") from None
    else:
        raise _refused(value, "text")
    return _within(text, size)


def _binary(value: Any) -> Any:
    if type(value) is bytes:
        return _within(value, len(value))
    if isinstance(value, str):
        raw = _text(value).encode()
    elif isinstance(value, bytes | bytearray | memoryview):
        raw = _plain_bytes(value)
    else:
        raise _refused(value, "bytes")
    return _within(raw, len(raw))


def _plain_bytes(value: Any) -> bytes:
    return memoryview(value).tobytes()


def _within(value: Any, size: int) -> Any:
    if size > _MOST_BYTES:
        raise DoesNotFit(f"it has {size} bytes, more than {_MOST_BYTES}")
    return value


def _date(value: Any) -> Any:
    if type(value) is dt.date:
        return value
    if isinstance(value, dt.datetime) or _is_numpys(value, "datetime64"):
        when = _plain_datetime(value, "a date")
        if when.tzinfo is not None or when.time() != dt.time():
            raise _refused(value, "a date: it has a time or a zone; give its date()")
        return when.date()
    if not isinstance(value, dt.date):
        raise _refused(value, "a date")
    return dt.date(value.year, value.month, value.day)


def _timestamp(step: int, zone: dt.tzinfo | None) -> Convert:
    """For timestamps.

    Args:
        step: Microseconds of its unit.
        zone: UTC for times with a zone.
    """

    def convert(value: Any) -> Any:
        when = value
        if type(value) is not dt.datetime:
            when = _plain_datetime(value, "a datetime")
        if when.tzinfo is not zone:
            if when.tzinfo is not None and when.utcoffset() is not None:
                try:
                    when = when.astimezone(dt.UTC)
                except OverflowError:
                    raise _refused(value, "a datetime from the year 1 to 9999 in UTC") from None
            when = when.replace(tzinfo=zone)
        if step > 1 and when.microsecond % step:
            raise _refused(value, f"a multiple of {step} microseconds")
        return when

    return convert


def _plain_datetime(value: Any, wanted: str) -> dt.datetime:
    """Returns the datetime that a value of another class is: a subclass's, or NumPy's."""
    if _is_numpys(value, "datetime64"):
        rounded = value.astype("datetime64[us]")
        when = rounded.item()
        if rounded != value or type(when) is not dt.datetime:
            raise _refused(value, f"{wanted} of whole microseconds")
        return when
    if not isinstance(value, dt.datetime) or is_null(value):
        raise _refused(value, wanted)
    if getattr(value, "nanosecond", 0):  # pandas' timestamps
        raise _refused(value, f"{wanted} of whole microseconds")
    return dt.datetime.combine(
        dt.date(value.year, value.month, value.day),
        dt.time(value.hour, value.minute, value.second, value.microsecond, fold=value.fold),
        value.tzinfo,
    )


def _decimal(precision: int, scale: int) -> Convert:
    unit = decimal.Decimal((0, (1,), -scale))
    traps = [decimal.Inexact, decimal.InvalidOperation]
    context = decimal.Context(prec=precision, traps=traps)

    def convert(value: Any) -> Any:
        if isinstance(value, numbers.Integral) and not _is_flag(value):
            value = decimal.Decimal(int(value))
        if not isinstance(value, decimal.Decimal):
            raise _refused(value, "a Decimal or an int")
        try:
            if value.is_finite():
                return value.quantize(unit, context=context.copy())
        except decimal.DecimalException:
            pass
        raise _refused(value, f"exactly a decimal({precision}, {scale})")

    return convert


def _list(element: Convert, size: int | None) -> Convert:
    def convert(value: Any) -> Any:
        found = value if type(value) is list else _elements(value)
        if size is not None and len(found) != size:
            raise DoesNotFit(f"{shown(value)} has {len(found)} elements, expected {size}")
        at, taken = 0, []
        try:
            for at, one in enumerate(found):  # noqa: B007 - for the error
                taken.append(element(one))
        except DoesNotFit as error:
            raise DoesNotFit(error.why, (at, *error.path)) from None
        return taken

    return convert


def _elements(value: Any) -> list[Any]:
    """Returns the elements of a sequence, a set, or a column of NumPy, pandas or Arrow."""
    found: Any = None
    for name in ("to_pylist", "tolist"):
        if hasattr(value, name):
            found = getattr(value, name)()
            break
    else:
        if isinstance(value, Sequence | AbstractSet) and not isinstance(value, str):
            found = list(value)
    if not isinstance(found, list):
        raise _refused(value, "a list")
    return found


def _struct(kind: pa.StructType) -> Convert:
    fields = [
        (field.name, converter(field.type, nullable=field.nullable))
        for field in (kind.field(i) for i in range(kind.num_fields))
    ]
    names = [name for name, _ in fields]
    known = frozenset(names)

    def convert(value: Any) -> Any:
        found = value
        if type(value) is tuple and len(value) == len(names):
            found = dict(zip(names, value, strict=True))
        elif type(value) is not dict or not known.issuperset(value):
            try:
                found = fields_of(value, names)
            except TypeError:
                raise _refused(value, "a dictionary") from None
        taken, name = {}, ""
        try:
            for name, take in fields:
                taken[name] = take(found.get(name))
        except DoesNotFit as error:
            raise DoesNotFit(error.why, (name, *error.path)) from None
        return taken

    return convert


def _map(kind: pa.MapType) -> Convert:
    key_of = converter(kind.key_type, nullable=False)
    item_of = converter(kind.item_type, nullable=kind.item_field.nullable)

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            pairs: Iterable[Any] = value.items()
        elif isinstance(value, list | tuple):
            pairs = value
        else:
            raise _refused(value, "a dictionary")
        taken: dict[Any, Any] = {}
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:  # noqa: PLR2004 - key and value
                raise _refused(pair, "a pair of a key and a value")
            key = key_of(pair[0])
            if key in taken:
                raise DoesNotFit(f"the key {shown(key)} stands twice in the map")
            try:
                taken[key] = item_of(pair[1])
            except DoesNotFit as error:
                raise DoesNotFit(error.why, (shown(key), *error.path)) from None
        return taken

    return convert


def _by_arrow(kind: pa.DataType) -> Convert:
    """For types that Delta lacks: Arrow decides, but takes no number for a time."""
    is_time = pa.types.is_temporal(kind)

    def convert(value: Any) -> Any:
        if is_time and isinstance(value, numbers.Number):
            raise _refused(value, f"a {kind}")
        try:
            return pa.scalar(value).cast(kind) if is_time else pa.scalar(value, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DoesNotFit(f"{shown(value)}: {clean(safely(error.__str__))}") from None

    return convert
