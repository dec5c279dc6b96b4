"""Types that tests declare for keys and values, in a module that can be named."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import pathlib
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pydantic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from coopconsume.decoding import DecoderFactory

T = TypeVar("T")


@dataclasses.dataclass
class Line:
    """A dataclass inside others."""

    amount: int


@dataclasses.dataclass
class Order(Line):
    """A dataclass."""

    lines: list[Line] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Loose:
    """What msgspec cannot read here may be left out or be null, or is whatever JSON has."""

    anything: object
    parts: list[Any]
    above: Loose | None = None
    found: pathlib.Path = pathlib.Path()
    perhaps: pathlib.Path | None = None


@dataclasses.dataclass
class Files:
    """A dataclass with a class in it that msgspec cannot read."""

    by_name: dict[str, list[pathlib.Path]]


class Struct(msgspec.Struct):
    """A struct of msgspec."""

    amount: int
    lines: list[Line] = []


class Plain(msgspec.Struct):
    """A struct of data alone."""

    amount: int = 0
    names: list[str] = []
    by_name: dict[str, Any] = {}
    at: dt.datetime | None = None
    above: Plain | None = None


class Checked(msgspec.Struct):
    """A struct with code of its own."""

    amount: int

    def __post_init__(self):
        """Check nothing."""


class CheckedPage(msgspec.Struct, Generic[T]):
    """A generic struct with code of its own."""

    rows: list[T] = []

    def __post_init__(self):
        """Check nothing."""


class Freed(msgspec.Struct):
    """A struct with code that runs as a decoded value is thrown away."""

    amount: int

    def __del__(self):
        """Free nothing."""


class LikeList:
    """A function that is equal to list, and is code of the user."""

    def __call__(self):
        """Make a default."""

    def __eq__(self, other):
        return other is list

    def __hash__(self):
        return hash(list)


class Letters(enum.Enum):
    """An enumeration with code of its own."""

    A = "a"

    @classmethod
    def _missing_(cls, value):
        return cls.A


#: Types with a part that runs code of the user.
RUN_CODE = [
    Line,
    Checked,
    CheckedPage[int],
    Freed,
    msgspec.defstruct("Like", [("at", int, msgspec.field(default_factory=LikeList()))]),
    Letters,
    dict[Letters, int],
    Annotated[str, msgspec.Meta(pattern="(a*)*b")],
]


class Model(pydantic.BaseModel):
    """A model of pydantic."""

    amount: int
    lines: list[Line] = []


@pydantic.dataclasses.dataclass
class PydanticOrder:
    """A dataclass of pydantic, which reads numbers in text."""

    amount: int


class Page(msgspec.Struct, Generic[T]):
    """A generic struct."""

    amount: int
    rows: list[T] = []


@dataclasses.dataclass
class Rows(Generic[T]):
    """A generic dataclass."""

    amount: int
    rows: list[T] | None = None


@dataclasses.dataclass
class Mixed:
    """A dataclass with a model in it."""

    lines: list[Model]


def number(data):
    """A function of bytes."""
    return int(data)


async def later(data):
    """A coroutine function of bytes."""


def _message():
    """A class as protoc makes it of a file with one message."""
    file = descriptor_pb2.FileDescriptorProto(
        name="payment.proto", package="tests", syntax="proto3"
    )
    field = file.message_type.add(name="Payment").field.add(name="amount", number=1)
    field.type, field.label = field.TYPE_INT64, field.LABEL_OPTIONAL
    found = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(found.message_types_by_name["Payment"])


Payment = _message()
Payment.__module__ = __name__
FACTORY = DecoderFactory(lambda: number)
