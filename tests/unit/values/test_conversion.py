"""What fits a type: exactly this value, or nothing; and every type knows."""

from __future__ import annotations

import collections
import datetime as dt
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from coopconsume.values.conversion import DoesNotFit, converter

UTC = dt.UTC
NOON = dt.datetime(2020, 1, 2, 12, 0, 0, 5, tzinfo=UTC)
PLUS_2 = dt.timezone(dt.timedelta(hours=2))
POINT = pa.struct([("x", pa.int64()), ("y", pa.float64())])
STRICT = pa.struct([pa.field("x", pa.int64(), nullable=False)])
NAMED = collections.namedtuple("Named", "y x")  # noqa: PYI024 - a handler's own
MOMENT, LOCAL, MONEY = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(6, 2)

FITS = [
    (pa.int64(), 2.0, 2), (pa.int64(), Decimal("4.0"), 4), (pa.int64(), np.int8(3), 3),
    (pa.int64(), Fraction(8, 2), 4), (pa.int8(), -128, -128), (pa.uint8(), 255, 255),
    (pa.float64(), 3, 3.0), (pa.float64(), np.float32(0.5), 0.5), (pa.float64(), 2**60, 2.0**60),
    (pa.float32(), 1, 1.0), (pa.float32(), 0.1, 0.10000000149011612), (pa.float16(), 0.5, 0.5),
    (pa.float32(), math.inf, math.inf), (pa.bool_(), np.True_, True),
    (pa.string(), b"caf\xc3\xa9", "café"), (pa.string(), np.str_("a"), "a"),
    (pa.binary(), "é", b"\xc3\xa9"), (pa.binary(), bytearray(b"x"), b"x"),
    (pa.binary(), memoryview(b"x"), b"x"),
    (pa.date32(), pd.Timestamp("2020-01-02"), dt.date(2020, 1, 2)),
    (pa.date32(), np.datetime64("2020-01-02"), dt.date(2020, 1, 2)),
    (MOMENT, NOON.replace(tzinfo=None), NOON), (MOMENT, NOON.astimezone(PLUS_2), NOON),
    (MOMENT, pd.Timestamp(NOON), NOON), (LOCAL, NOON, NOON.replace(tzinfo=None)),
    (MOMENT, np.datetime64("2020-01-02T12:00:00.000005"), NOON),
    (MONEY, 7, Decimal("7.00")), (MONEY, Decimal("7.5"), Decimal("7.50")),
    (pa.list_(pa.float64()), (1, 2), [1.0, 2.0]),
    (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]), (pa.list_(pa.int64()), pd.Series([1]), [1]),
    (pa.list_(pa.int64()), {1}, {1} and [1]), (pa.list_(pa.int64()), pa.array([1]), [1]),
    (POINT, {"x": 1}, {"x": 1, "y": None}), (POINT, (1, 2), {"x": 1, "y": 2.0}),
    (POINT, NAMED(2, 1), {"x": 1, "y": 2.0}), (POINT, Row(y=2, x=1), {"x": 1, "y": 2.0}),
    (POINT, collections.OrderedDict(x=1), {"x": 1, "y": None}),
    (pa.map_(pa.string(), pa.float64()), {b"a": 1}, {"a": 1.0}),
    (pa.map_(pa.string(), pa.float64()), [("a", None)], {"a": None}),
    (pa.list_(POINT), [pd.NA, {"x": pd.NA}], [None, {"x": None, "y": None}]),
    (MOMENT, pd.NaT, None), (MOMENT, np.datetime64("NaT"), None), (pa.int64(), pd.NA, None),
    (pa.null(), None, None),
]  # fmt: skip

REFUSED = [
    (pa.int64(), 1.5, "whole number"), (pa.int64(), Decimal("4.7"), "whole number"),
    (pa.int64(), True, "whole number"), (pa.int64(), np.True_, "whole number"),
    (pa.int64(), "1", "whole number"), (pa.int64(), math.nan, "whole number"),
    (pa.int64(), math.inf, "whole number"), (pa.int64(), 2**63, "whole number from -92"),
    (pa.int64(), Decimal("sNaN"), "whole number"), (pa.int64(), Decimal("1e999999999"), "whole"),
    (pa.int8(), 128, "from -128 to 127"), (pa.uint16(), -1, "from 0 to 65535"),
    (pa.float64(), 2**53 + 1, "more digits than a double"), (pa.float64(), True, "a float"),
    (pa.float64(), Fraction(1, 3), "more digits"), (pa.float64(), 10**400, "range of a double"),
    (pa.float64(), Decimal("4.7"), "a float"), (pa.float64(), "1", "a float"),
    (pa.float32(), 1e40, "range of a float"), (pa.float32(), 2**24 + 1, "more digits than a float"),
    (pa.float16(), 1e6, "range of a float"), (pa.bool_(), 1, "true or false"),
    (pa.string(), 5, "text"), (pa.string(), b"\xff", "not text in UTF-8"),
    (pa.string(), "\ud800", "UTF-8 can hold"), (pa.binary(), 5, "bytes"),
    (pa.date32(), NOON, "a date"), (pa.date32(), 1, "a date"),
    (pa.date32(), np.datetime64("2020-01-02T01"), "a date"),
    (MOMENT, 1_600_000_000_000, "a datetime"), (MOMENT, dt.date(2020, 1, 1), "a datetime"),
    (MOMENT, "2020-01-01", "a datetime"),
    (MOMENT, dt.datetime.min.replace(tzinfo=PLUS_2), "a datetime from the year 1 to 9999 in UTC"),
    (LOCAL, dt.datetime.min.replace(tzinfo=PLUS_2), "a datetime from the year 1 to 9999 in UTC"),
    (MOMENT, pd.Timestamp("2020-01-01 00:00:00.000000001"), "whole microseconds"),
    (MOMENT, np.datetime64("2020-01-01T00:00:00.000000001"), "whole microseconds"),
    (pa.timestamp("ms"), NOON, "multiple of 1000 microseconds"),
    (pa.duration("us"), 5, "duration"), (pa.time64("us"), 5, "time64"),
    (MONEY, 1.5, "Decimal or an int"), (MONEY, Decimal("0.001"), "exactly"),
    (MONEY, Decimal(10000), "exactly"), (MONEY, Decimal("NaN"), "exactly"),
    (MONEY, True, "Decimal or an int"), (pa.list_(pa.int64()), "12", "a list"),
    (pa.list_(pa.int64()), {1: 2}, "a list"), (pa.list_(pa.int64()), [1, 2.5], r"^\[1\]: 2.5"),
    (pa.list_(pa.int64(), 2), [1], "1 elements, expected 2"),
    (POINT, {"x": 1, "Y": 2}, "no field 'Y': did you mean y?"), (POINT, {1: 2}, "no field 1"),
    (POINT, {"x": 1.5}, "^x: 1.5"), (POINT, [1, 2], "a dictionary"), (POINT, (1,), "a dictionary"),
    (STRICT, {}, "^x: it must not be null"), (STRICT, {"x": pd.NA}, "^x: it must not be null"),
    (pa.map_(pa.string(), pa.int64()), {"a": 1, b"a": 2}, "stands twice"),
    (pa.map_(pa.string(), pa.int64()), {None: 1}, "must not be null"),
    (pa.map_(pa.string(), pa.int64()), {"a": 1.5}, r"^'a': 1.5"), (pa.null(), 5, "5"),
    (pa.map_(pa.string(), pa.int64()), ["ab"], "a pair"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "held"), FITS, ids=range(len(FITS)))
def test_a_value_that_fits_becomes_what_the_type_holds(kind, value, held):
    """At once, so that it is the same before and after it was written."""
    found = converter(kind)(value)
    assert found == held
    assert type(found) is type(held)
    array = pa.array([found], kind)
    if not pa.types.is_map(kind):
        assert array.to_pylist() == [held]
    assert pickle.loads(pickle.dumps(found)) == held


@pytest.mark.parametrize(("kind", "value", "why"), REFUSED, ids=range(len(REFUSED)))
def test_a_value_that_does_not_fit_is_refused(kind, value, why):
    """With the place, the value and what fits; nothing is cut or guessed."""
    with pytest.raises(DoesNotFit, match=why):
        converter(kind)(value)


def test_a_converted_value_shares_nothing_with_the_handlers():
    """What can be changed in place is copied, at each depth."""
    inner = {"x": 1}
    value = [inner]
    found = converter(pa.list_(POINT))(value)
    inner["x"] = 2
    value.append(None)
    assert found == [{"x": 1, "y": None}]


KINDS = [
    pa.int8(), pa.int64(), pa.uint16(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(),
    pa.string(), pa.large_string(), pa.binary(), pa.date32(), pa.date64(), LOCAL, MOMENT,
    pa.timestamp("ms"), pa.timestamp("ns"), pa.duration("us"), pa.time64("ns"),
    pa.decimal128(10, 2), pa.decimal256(40, 3), pa.binary(2), pa.dictionary(pa.int8(), pa.string()),
]  # fmt: skip
DEEP = st.recursive(
    st.sampled_from(KINDS),
    lambda kinds: st.one_of(
        st.builds(pa.list_, kinds), st.builds(lambda kind: pa.struct([("x", kind)]), kinds),
        st.builds(lambda kind: pa.map_(pa.string(), kind), kinds), st.builds(pa.large_list, kinds),
    ),
    max_leaves=3,
)  # fmt: skip
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.text(max_size=4),
    st.text(st.characters(categories=["Cs", "L"]), max_size=3), st.binary(max_size=3), st.dates(),
    st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.timedeltas(), st.times(),
    st.datetimes(timezones=st.just(PLUS_2)), st.decimals(), st.fractions(),
    st.sampled_from([object(), pd.NA, pd.NaT, np.datetime64("NaT"), Ellipsis, int]),
    st.integers(-9, 9).map(np.int64), st.floats(width=32).map(np.float32),
)  # fmt: skip
VALUES = st.recursive(
    PLAIN,
    lambda values: st.one_of(
        st.lists(values, max_size=3), st.dictionaries(st.sampled_from(["x", "y"]), values),
        st.tuples(values),
    ),
    max_leaves=4,
)  # fmt: skip


@given(DEEP, VALUES)
@settings(max_examples=1_000, deadline=None)
def test_whatever_is_taken_arrow_takes_unchanged(kind, value):
    """It is refused now, or it is surely written; and a second conversion changes nothing."""
    convert = converter(kind)
    try:
        found = convert(value)
    except DoesNotFit:
        return
    array = pa.array([found], kind)
    assert (array.null_count == 1) == (found is None)
    if isinstance(found, int | float | Decimal) and not isinstance(value, bool):
        is_rounded = isinstance(value, float) and pa.types.is_floating(kind)
        assert is_rounded or found == value
        assert str(array[0].as_py()) == str(found)
    if not isinstance(found, pa.Scalar):
        assert str(convert(found)) == str(found)
