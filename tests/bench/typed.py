"""What a slot adds to a decoder, and what handlers cost that nobody opens, logs or traces."""

from __future__ import annotations

import dataclasses
import json
import time
from functools import partial
from types import GenericAlias
from typing import TYPE_CHECKING, Any, get_type_hints
from unittest.mock import patch

import msgspec
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pydantic import create_model

from coopconsume.decoding import Decoding, SchemaRegistryDecoder
from coopconsume.worker import handler_logs
from tests.bench.figures import WARM_UPS, Ratio, Report
from tests.bench.handlers import handler
from tests.bench.slots import batches_of, cost
from tests.schema_registry import SchemaRegistry

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from coopconsume import Record, SlotContext
    from tests.bench.harness import Harness

    Side = Callable[[], float]

#: A turn has the least of so many measurements: what else runs on the machine adds time.
_REPEATS = 10
_AVRO = json.dumps({
    "type": "record", "name": "Order", "fields": [
        *({"name": name, "type": "string"} for name in ("id", "customer", "created", "currency")),
        {"name": "amount", "type": "long"},
        {"name": "address", "type": {"type": "record", "name": "Address", "fields": [
            {"name": name, "type": "string"}
            for name in ("name", "street", "city", "code", "country")
        ]}},
        {"name": "items", "type": {"type": "array", "items": {
            "type": "record", "name": "Item", "fields": [
                {"name": "sku", "type": "string"}, {"name": "count", "type": "long"},
                {"name": "price", "type": "double"},
            ],
        }}},
    ],
})  # fmt: skip


def _required(types: dict[str, Any]) -> dict[str, Any]:
    return {name: (kind, ...) for name, kind in types.items()}


@dataclasses.dataclass
class Address:
    """A dataclass."""

    name: str
    street: str
    city: str
    code: str
    country: str


@dataclasses.dataclass
class Item:
    """A dataclass."""

    sku: str
    count: int
    price: float


@dataclasses.dataclass
class Order:
    """A dataclass."""

    id: str
    customer: str
    created: str
    currency: str
    amount: int
    address: Address
    items: list[Item]


def _parts(address: Any, item: Any) -> dict[str, Any]:
    return get_type_hints(Order) | {"address": address, "items": GenericAlias(list, (item,))}


AddressStruct = msgspec.defstruct("AddressStruct", [*get_type_hints(Address).items()])
ItemStruct = msgspec.defstruct("ItemStruct", [*get_type_hints(Item).items()])
OrderStruct = msgspec.defstruct(
    "OrderStruct",
    [*_parts(AddressStruct, ItemStruct).items()],
)
AddressModel = create_model("AddressModel", **_required(get_type_hints(Address)))
ItemModel = create_model("ItemModel", **_required(get_type_hints(Item)))
OrderModel = create_model(
    "OrderModel",
    **_required(_parts(AddressModel, ItemModel)),
)


class Called:
    """A handler that is an object."""

    def __call__(self, record: Record) -> None:
        """Do nothing."""


class Opened(Called):
    """The same, opened and closed."""

    def open(self, slot: SlotContext) -> None:
        """Open nothing."""

    def close(self, error: BaseException | None) -> None:
        """Close nothing."""


def typed(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Processor time a record of what is decoded, and of what is not wanted."""
    records = harness.size(4_000, 1_000)
    with SchemaRegistry() as registry:
        return [
            _decoders(records, registry.url, harness.turns, say),
            _switched_off(harness.size(20_000, 2_000), harness.turns, say),
        ]


def _order(number: int) -> dict[str, Any]:
    address = ("Ada Lovelace", "12 St James's Square", "London", "SW1Y 4JH", "GB")
    return {
        "id": f"order-{number}",
        "customer": f"customer-{number % 1_000}",
        "created": "2026-11-30T10:00:00Z",
        "currency": "EUR",
        "amount": number,
        "address": dict(zip(get_type_hints(Address), address, strict=True)),
        "items": [
            {"sku": f"sku-{number + place}", "count": place + 1, "price": 9.99}
            for place in range(5)
        ],
    }


def _decoders(records: int, url: str, turns: int, say: Callable[[str], None]) -> Report:
    orders = [_order(number) for number in range(records)]
    client = SchemaRegistryClient({"url": url})
    context = SerializationContext("t", MessageField.VALUE)
    serializer, deserializer = AvroSerializer(client, _AVRO), AvroDeserializer(client)
    of_json = [json.dumps(order).encode() for order in orders]
    of_avro = [serializer(order, context) for order in orders]
    avro = SchemaRegistryDecoder("avro", {"url": url})

    def decode_avro(data: bytes) -> Any:
        # As the library's examples do: each message has its own context.
        return deserializer(data, SerializationContext("t", MessageField.VALUE))

    kinds: dict[str, tuple[Any, list[bytes], Callable[[bytes], Any]]] = {
        "pydantic": (OrderModel, of_json, OrderModel.model_validate_json),
        "msgspec": (OrderStruct, of_json, msgspec.json.Decoder(OrderStruct).decode),
        "dataclass": (Order, of_json, msgspec.json.Decoder(Order).decode),
        "json": ("json", of_json, json.loads),
        "Avro": (avro, of_avro, decode_avro),
    }
    sides: dict[str, Side] = {}
    for name, (declared, values, decode) in kinds.items():
        batches = batches_of(values)
        sides[f"{name}, bare loop"] = partial(_bare, decode, values)
        sides[f"{name}, untyped"] = partial(cost, handler, batches)
        decoding = Decoding(value=declared)
        sides[f"{name}, typed"] = partial(cost, handler, batches, decoding=decoding)
    report = Report(
        "Typed values",
        f"{records:,} orders with an address and five items, {len(of_json[0])} bytes of JSON or "
        f"{len(of_avro[0])} of Avro, an empty handler, in one process without Spark: processor "
        "time from Arrow batches to the report with `value=`, minus that without it, beside a "
        "loop over the same bytes that calls the library alone: `model_validate_json`, `decode` "
        "of msgspec (also for the dataclass), `json.loads`, and the deserializer of "
        "`confluent_kafka.schema_registry` with a registry on loopback. Each turn has the least "
        f"of {_REPEATS} measurements.",
    )
    found = _turns(sides, turns, say)
    for name in kinds:
        bare, plain, with_type = (
            found[f"{name}, {side}"] for side in ("bare loop", "untyped", "typed")
        )
        report.add(f"{name}, bare loop", bare, "µs/record")
        added = [one - other for one, other in zip(with_type, plain, strict=True)]
        report.add(f"{name}, typed minus untyped", added, "µs/record")
        report.ratios.append(Ratio(
            f"{name}: typed minus untyped / bare loop", f"{name}, typed minus untyped",
            f"{name}, bare loop", at_most=1.15,
        ))  # fmt: skip
    note = "What is added does not shrink with the record: of smaller ones it is a larger part."
    report.notes.append(note)
    return report


def _switched_off(records: int, turns: int, say: Callable[[str], None]) -> Report:
    batches = batches_of([b"%0100d" % number for number in range(records)])
    plain, called = "plain handler", "object that is called"
    opened, spans = "object with open and close", "spans that the environment switches off"
    filtered = "plain handler, RecordLogFilter installed"
    # As in each job: by it a slot has a journal for crashes.
    run: dict[str, Any] = {"run": "bench"}
    sides: dict[str, Side] = {
        plain: partial(cost, handler, batches, **run),
        "the same again": partial(cost, handler, batches, **run),
        spans: partial(_around, _without_spans, handler, batches, has_spans=True, **run),
        called: partial(cost, Called(), batches, **run),
        opened: partial(_around, _in_reused_worker, Opened(), batches, **run),
        filtered: partial(_around, _with_filter, handler, batches, **run),
    }
    report = Report(
        "Lifecycle, log context and spans",
        f"{records:,} records of 100 bytes, empty handlers, measured as typed values are, each "
        "slot with its journal for crashes. Without a `RecordLogFilter` and without spans the "
        "runner calls the handler itself, so the second row repeats the first. The worker process "
        "is reused for all slots, as Spark does unless `spark.python.worker.reuse` is false: the "
        "first one opens the handler.",
    )
    report.add_all(_turns(sides, turns, say), "µs/record")
    report.ratios = [
        Ratio("log context off / plain handler", "the same again", plain, at_most=1.05),
        Ratio("spans off / plain handler", spans, plain, at_most=1.05),
        Ratio("open and close / object that is called", opened, called, at_most=1.05),
        Ratio("RecordLogFilter installed / plain handler", filtered, plain),
    ]
    return report


def _without_spans() -> AbstractContextManager[Any]:
    return patch.dict("os.environ", {"OTEL_SDK_DISABLED": "true"})


def _in_reused_worker() -> AbstractContextManager[Any]:
    return patch.dict("os.environ", {"SPARK_REUSE_WORKER": "1"})


def _with_filter() -> AbstractContextManager[Any]:
    # To make one says so to the process, for all later calls.
    return patch.object(handler_logs, "_has_filter", new=True)


def _bare(decode: Callable[[bytes], Any], values: list[bytes]) -> float:
    began = time.process_time()
    for value in values:
        decode(value)
    return (time.process_time() - began) * 1e6 / len(values)


def _around(
    surroundings: Callable[[], AbstractContextManager[Any]], *given: Any, **more: Any
) -> float:
    with surroundings():
        return cost(*given, **more)


def _turns(
    sides: dict[str, Side], turns: int, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Returns the values of each side, one a turn: the least of several, all sides in turn."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(1 - WARM_UPS, turns + 1):
        rounds = [[side() for side in sides.values()] for _ in range(_REPEATS)]
        if turn > 0:
            for name, found in zip(sides, zip(*rounds, strict=True), strict=True):
                values[name].append(min(found))
        say(f"  turn {turn}")
    return values
