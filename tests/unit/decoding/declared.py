"""Types that tests declare for keys and values, in a module that can be named."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

import msgspec
import pydantic

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


class Struct(msgspec.Struct):
    """A struct of msgspec."""

    amount: int
    lines: list[Line] = []


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


def number(data):
    """A function of bytes."""
    return int(data)


async def later(data):
    """A coroutine function of bytes."""


FACTORY = DecoderFactory(lambda: number)
