"""Frames of typed records: their columns, and the rows that do not decode."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
from typing import Annotated, Literal, NewType

import msgspec
import pandas as pd
import pyarrow as pa
import pydantic
import pytest

from coopconsume.decoding import Decoding
from coopconsume.errors import InvalidOption
from coopconsume.record import RetryPolicy
from coopconsume.runtime.checks import check_decoding
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.report import PartitionWork
from tests.unit.decoding.declared import Line, Model, Order, Page, PydanticOrder, Rows
from tests.unit.worker.slot_harness import RETRIES_LATER, done, run

ROWS = [(0, o, b"ab"[o % 2 : o % 2 + 1]) for o in range(6)]
VALUES = [b'{"amount": %d}' % o for o in range(6)]
REASON = "NotDecodable: value.amount: Expected `int`, got `str`"


class Colour(enum.Enum):
    """An enumeration."""

    RED = "red"


@dataclasses.dataclass
class Wide:
    """Each kind of field that has a column."""

    text: str
    whole: int
    real: float
    flag: bool
    at: dt.datetime
    day: dt.date
    key: uuid.UUID
    price: decimal.Decimal
    colour: Colour
    kind: Literal["a", "b"]
    lines: list[Line]
    counts: dict[str, int]
    inner: Line
    perhaps: int | None = None


@dataclasses.dataclass
class Timed:
    """A time."""

    at: dt.datetime


class WideStruct(msgspec.Struct):
    """Such fields in a struct."""

    lines: tuple[Line, ...]
    perhaps: Line | None = None


class WideModel(pydantic.BaseModel):
    """Such fields in a model."""

    colour: Colour
    key: uuid.UUID
    lines: list[Line] = []


Cents = NewType("Cents", pydantic.PositiveInt)


class LimitedModel(pydantic.BaseModel):
    """Fields with limits, also inside of others, and with new names."""

    cents: Cents
    perhaps: pydantic.PositiveInt | None = None
    sizes: list[Annotated[int, pydantic.Field(lt=10)]] = []
    names: dict[str, Cents | None] = {}


WIDE = (
    b'{"text": "x", "whole": 1, "real": 2, "flag": true, "at": "2026-01-02T03:04:05Z",'
    b' "day": "2026-01-02", "key": "00000000-0000-0000-0000-000000000001", "price": "1.50",'
    b' "colour": "red", "kind": "b", "lines": [{"amount": 3}], "counts": {"n": 4},'
    b' "inner": {"amount": 5}}'
)


def batched(function, rows=ROWS, *, most=10, form="arrow", **more):
    """Run typed rows through a frame handler."""
    more = {"values": VALUES[: len(rows)], "decoding": Decoding(value=Order, key="text")} | more
    return run(FrameHandler(function, most, form), rows, **more)


def frame_of(declared, *values, form="arrow", name="value"):
    """The frame that a handler gets for some values."""
    frames = []
    rows = [(0, o, b"k") for o in range(len(values))]
    report = batched(
        frames.append, rows, form=form, values=list(values), decoding=Decoding(**{name: declared})
    )
    assert done(report) == list(range(len(values))), report
    assert report.dead == []
    (frame,) = frames
    return frame


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_a_class_has_a_column_for_each_field(form):
    """In the place of its value; the key has a column of text; offsets are as they were."""
    frames = []
    report = batched(frames.append, form=form)
    (frame,) = frames
    names = frame.schema.names if form == "arrow" else list(frame)
    assert names == [
        "topic", "partition", "offset", "key", "value.amount", "value.lines", "timestamp",
        "attempt",
    ]  # fmt: skip
    columns = frame.to_pandas() if form == "arrow" else frame
    assert list(columns["value.amount"]) == list(range(6))
    assert list(columns["key"]) == ["a", "b"] * 3
    assert done(report) == list(range(6))


def test_types_of_columns_follow_from_the_fields():
    """So that each frame has the same, whatever its values are."""
    (row,) = frame_of(Wide, WIDE).select(list(range(4, 18))).to_pylist()
    assert row == {
        "value.text": "x", "value.whole": 1, "value.real": 2.0, "value.flag": True,
        "value.at": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "value.day": dt.date(2026, 1, 2), "value.key": str(uuid.UUID(int=1)),
        "value.price": decimal.Decimal("1.5"), "value.colour": "red", "value.kind": "b",
        "value.lines": [{"amount": 3}], "value.counts": [("n", 4)], "value.inner": {"amount": 5},
        "value.perhaps": None,
    }  # fmt: skip
    struct = frame_of(WideStruct, b'{"lines": []}')
    assert struct.schema.field("value.lines").type == pa.list_(pa.struct([("amount", pa.int64())]))
    assert struct.schema.field("value.perhaps").type == pa.struct([("amount", pa.int64())])
    model = frame_of(WideModel, b'{"colour": "red", "key": "%s"}' % str(uuid.UUID(int=2)).encode())
    assert model.column("value.colour").to_pylist() == ["red"]
    assert model.column("value.key").to_pylist() == [str(uuid.UUID(int=2))]
    limited = frame_of(LimitedModel, b'{"cents": 1, "sizes": [2], "names": {"a": 3}}')
    assert [limited.schema.field(n).type for n in range(4, 8)] == [
        pa.int64(), pa.int64(), pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64()),
    ]  # fmt: skip
    assert [limited.column(n).to_pylist() for n in range(4, 8)] == [
        [1],
        [None],
        [[2]],
        [[("a", 3)]],
    ]


def test_null_is_null_in_all_columns():
    """Where the type allows it."""
    frame = frame_of(Order | None, None, b'{"amount": 1}')
    assert frame.column("value.amount").to_pylist() == [None, 1]
    assert frame.column("value.lines").to_pylist() == [None, []]
    assert frame_of("text", None, b"x").column("value").to_pylist() == [None, "x"]


def test_pandas_frames_have_objects_of_all_else():
    """JSON of any form, and what a function makes."""
    frame = frame_of("json", b'{"a": 1}', b"[2]", None, form="pandas")
    assert list(frame["value"]) == [{"a": 1}, [2], None]
    assert list(frame)[4] == "value"
    frame = frame_of(lambda data: Line(int(data)), b"1", b"2", form="pandas")
    assert list(frame["value"]) == [Line(1), Line(2)]
    assert isinstance(frame["offset"], pd.Series)


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_a_row_that_does_not_decode_is_a_dead_letter_and_the_others_are_a_frame(form):
    """Its key goes on, in the same frame; the handler does not see it."""
    seen = []

    def handler(frame):
        seen.extend(frame["offset"].tolist() if form == "pandas" else frame["offset"].to_pylist())

    values = [*VALUES]
    values[2] = b'{"amount": "x"}'
    report = batched(handler, values=values, form=form)
    assert seen == [0, 1, 3, 4, 5]
    assert done(report) == list(range(6))
    assert [(x.offset, x.value, x.reason) for x in report.dead] == [(2, values[2], REASON)]
    assert (report.stats.handled, report.stats.failures) == (6, 1)


@pytest.mark.parametrize("undecodable", ["park", "retry"])
def test_a_row_behind_one_that_waits_is_not_handled(undecodable):
    """Order of keys: it waits until the row before it is done, and no handler gets it."""
    frames = []
    values = [*VALUES]
    values[2] = b'{"amount": "x"}'
    policy = dataclasses.replace(RETRIES_LATER, undecodable=undecodable)
    report = batched(frames.append, values=values, policy=policy)
    (frame,) = frames
    assert frame.column("offset").to_pylist() == [0, 1, 3, 5]
    assert done(report) == [0, 1, 3, 5]
    (failure,) = report.partitions[0].failed
    delay = math.inf if undecodable == "park" else 1_000.0
    assert (failure.offset, failure.delay, failure.error) == (2, delay, REASON)
    assert [offset for offset, _ in report.partitions[0].blocked] == [4]
    assert len(report.dead) == (undecodable == "park")


def test_a_frame_without_a_row_that_decodes_calls_no_handler():
    """All rows are settled, and the next frame comes."""
    frames = []
    values = [b"?", b"?", *VALUES[2:]]
    report = batched(frames.append, values=values, most=2)
    assert [frame.column("offset").to_pylist() for frame in frames] == [[2, 3], [4, 5]]
    assert done(report) == list(range(6))
    assert len(report.dead) == 2


@pytest.mark.parametrize(
    ("given", "value", "field"),
    [
        (Order, b'{"amount": %d}' % 2**70, "amount"),
        (Timed, b'{"at": "0001-01-01T00:00:00+14:00"}', "at"),
    ],
)
def test_a_value_that_its_column_cannot_hold_does_not_decode(given, value, field):
    """As a number above 64 bits, which Python holds, or a time that UTC does not have."""
    values = [value] * 6
    report = batched(lambda frame: None, values=values, decoding=Decoding(value=given))
    assert all(one.reason.startswith(f"NotDecodable: value.{field}: ") for one in report.dead)
    assert [letter.offset for letter in report.dead] == done(report) == list(range(6))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_error_of_a_decoder_costs_its_row_whatever_it_is(error):
    """As it does outside of frames."""
    seen = []

    def decode(data):
        if data == VALUES[2]:
            raise error
        return data

    report = batched(
        lambda frame: seen.extend(frame["offset"]), form="pandas",
        decoding=Decoding(value=decode), policy=RetryPolicy(max_attempts=1),
    )  # fmt: skip
    assert seen == [0, 1, 3, 4, 5]
    assert done(report) == list(range(6))
    assert [letter.offset for letter in report.dead] == [2]


def test_the_attempts_of_a_row_that_does_not_decode_count():
    """The last one makes it a dead letter."""
    policy = RetryPolicy(max_attempts=3, undecodable="retry")
    work = {0: PartitionWork(((0, 99),), attempts={1: 2})}
    report = batched(lambda frame: None, values=[VALUES[0], b"?", *VALUES[2:]], policy=policy,
                     work=work)  # fmt: skip
    assert [(x.offset, x.attempts) for x in report.dead] == [(1, 3)]


@dataclasses.dataclass
class Odd:
    """A field without a column."""

    inner: int | str


@pytest.mark.parametrize("kind", [Page, Rows])
def test_a_generic_class_has_the_columns_of_its_arguments(kind):
    """Of one that is inside another, too."""
    data = b'{"amount": 1, "rows": [{"amount": 2, "rows": ["a"]}]}'
    frame = frame_of(kind[kind[str]], data)
    inner = pa.struct([("amount", pa.int64()), ("rows", pa.list_(pa.string()))])
    assert frame.schema.field("value.rows").type == pa.list_(inner)
    assert frame.column("value.rows").to_pylist() == [[{"amount": 2, "rows": ["a"]}]]


@dataclasses.dataclass
class Nested:
    """A class inside itself."""

    inner: list[Nested]


@pytest.mark.parametrize(
    ("given", "form", "why"),
    [
        (Nested, "arrow", "it contains itself"),
        ("json", "arrow", "it has no columns of known types"),
        (lambda data: data, "arrow", "it has no columns of known types"),
        (Model | PydanticOrder, "arrow", "it has no columns of known types"),
        (Odd, "arrow", "the field inner of type"),
        (Odd, "pandas", "the field inner of type"),
    ],
)
def test_what_has_no_columns_is_refused_before_the_job_starts(given, form, why):
    """By name, with what to give."""
    handler = FrameHandler(lambda frame: None, 10, form)
    with pytest.raises(InvalidOption, match=f"option value = .*{why}.*format='pandas'"):
        check_decoding(Decoding(value=given), handler)
    check_decoding(Decoding(value="text", key=Order), handler)
