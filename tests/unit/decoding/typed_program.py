"""A program whose types are checked; a line with the comment ``wrong`` must be an error there."""

# ruff: noqa: D103 - short functions, named after what they take or return

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, assert_type

import msgspec
import pydantic

from coopconsume import DecoderFactory, Record, Reject, Retry, RetryPolicy, SchemaRegistryDecoder

if TYPE_CHECKING:
    from coopconsume import CooperativeConsumer, SlotContext, State


@dataclasses.dataclass
class Order:
    amount: int


class Model(pydantic.BaseModel):
    amount: int


class Struct(msgspec.Struct):
    amount: int


def show(value: object) -> None: ...


def parse(data: bytes) -> Order:
    return Order(int(data))


def plain(record: Record) -> None:
    assert_type(record.key, bytes | None)
    assert_type(record.value, bytes | None)


def row(record: Record) -> dict[str, object]:
    return {"topic": record.topic}


def rows(record: Record) -> list[dict[str, int] | Retry]:
    return [{"offset": record.offset}, Retry()]


def outcome(record: Record) -> Retry | Reject | None:
    return Reject(record.topic)


def number(record: Record) -> int:
    return record.offset


def word(record: Record) -> str:
    return record.topic


async def coroutine(record: Record) -> None: ...


def order(record: Record[bytes | None, Order]) -> None:
    assert_type(record.value.amount, int)
    assert_type(record.key, bytes | None)


def perhaps(record: Record[bytes | None, Order | None]) -> None: ...


async def keyed(record: Record[str, Order]) -> list[dict[str, int]]:
    assert_type(record.key, str)
    return [{"amount": record.value.amount}]


def counted(record: Record[bytes | None, Order], state: State) -> None: ...


def frame(batch: Any) -> list[Retry | None]:
    return [None] * len(batch)


class Billing:
    def open(self, slot: SlotContext) -> None: ...

    def __call__(self, record: Record[bytes | None, Order]) -> None: ...

    def close(self, error: BaseException | None) -> None: ...


class Keyed:
    async def __call__(self, record: Record[str, Order]) -> dict[str, int]:
        return {"amount": record.value.amount}


class Counted:
    def __call__(self, record: Record[bytes | None, Order], state: State) -> None: ...


class Frames:
    async def __call__(self, frame: Any) -> list[Retry | None]:
        return [None] * len(frame)


class Entered:
    def __enter__(self) -> Billing:
        return Billing()

    def __exit__(self, *given: object) -> None: ...


class EnteredAsync:
    async def __aenter__(self) -> Keyed:
        return Keyed()

    async def __aexit__(self, *given: object) -> None: ...


def jobs(consumer: CooperativeConsumer) -> None:
    consumer.foreach(plain, concurrency=3, retry=RetryPolicy(undecodable="park"))
    consumer.foreach(row, output="/data/rows", output_schema="topic string")
    consumer.foreach(rows)
    consumer.foreach(outcome)
    consumer.foreach(coroutine)
    consumer.foreach("shop:handle", value="shop:Order", key="text")
    consumer.foreach(order, value=Order)
    consumer.foreach(order, value=parse)
    consumer.foreach(order, value=DecoderFactory(lambda: parse))
    consumer.foreach(order, value=SchemaRegistryDecoder("avro", {"url": "http://registry"}))
    consumer.foreach(perhaps, value=Order | None)
    consumer.foreach(keyed, value=Order, key="text", concurrency=100)
    consumer.foreach(lambda record: show(record.value.amount), value=Order)
    consumer.foreach(lambda record: show(record.value.amount), value=Model)
    consumer.foreach(lambda record: show(record.value.amount), value=Struct)
    consumer.foreach(lambda record: show(record.key.amount), key=parse)
    consumer.foreach_with_state(counted, state_schema="long", state="/data/state", value=Order)
    consumer.foreach_frame(frame, max_records=10)
    consumer.foreach(Billing(), value=Order)
    consumer.foreach(Billing, value=Order)
    consumer.foreach(Keyed, value=Order, key="text")
    consumer.foreach_with_state(Counted(), state_schema="long", state="/data/state", value=Order)
    consumer.foreach_with_state(Counted, state_schema="long", state="/data/state", value=Order)
    consumer.foreach_frame(Frames())
    consumer.foreach_frame(Frames, value=Order)
    consumer.foreach(Entered(), value=Order)
    consumer.foreach(Entered, value=Order)
    consumer.foreach(EnteredAsync(), value=Order, key="text")
    consumer.foreach(EnteredAsync, value=Order, key="text")


def wrong_jobs(consumer: CooperativeConsumer) -> None:
    consumer.foreach(order)  # wrong: its values are bytes
    consumer.foreach(order, value=Model)  # wrong: they are of another type
    consumer.foreach(plain, value=Order)  # wrong: it takes bytes
    consumer.foreach(keyed, value=Order)  # wrong: its keys are bytes
    consumer.foreach(order, key=Order)  # wrong: its values are bytes
    consumer.foreach(number)  # wrong: a number is no answer
    consumer.foreach(word)  # wrong: nor is a text
    consumer.foreach(counted, value=Order)  # wrong: it takes a state, too
    consumer.foreach(plain, concurency=3)  # wrong: there is no such argument
    consumer.foreach(plain, ordering="keys")  # wrong: nor such an order
    consumer.foreach(order, value=3)  # wrong: a number is no declaration
    consumer.foreach(lambda record: show(record.value.amuont), value=Order)  # wrong: no such field
    consumer.foreach(lambda record: show(record.value.amount))  # wrong: bytes have no amount
    consumer.foreach_with_state(order, state_schema="long", state="x", value=Order)  # wrong: alone
    consumer.foreach_with_state(counted, state_schema="long", value=Order)  # wrong: without a state
    consumer.foreach_frame(number)  # wrong: a number is no answer
    consumer.foreach(Billing)  # wrong: its values are bytes
    consumer.foreach(Order, value=Order)  # wrong: its instances cannot be called
    consumer.foreach(Counted, value=Order)  # wrong: they take a state, too
    consumer.foreach(Entered())  # wrong: its values are bytes
    consumer.foreach(lambda: None, value=Order)  # wrong: a function of nothing
    consumer.foreach_with_state(Keyed, state_schema="long", state="x")  # wrong: they take none
    consumer.foreach_frame(Order)  # wrong: its instances cannot be called
    RetryPolicy(undecodable="ignore")  # wrong: no such outcome
