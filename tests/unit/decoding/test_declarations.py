"""Declarations of keys and values: what decodes, what does not and why, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError

from coopconsume.decoding import DecoderFactory, Decoding, SchemaRegistryDecoder
from coopconsume.decoding.declaration import decoder_of
from coopconsume.decoding.record_decoder import record_decoder
from coopconsume.errors import InvalidOption, NotDecodable
from coopconsume.record import Record, Reject, Retry
from coopconsume.runtime.checks import check_decoding
from coopconsume.runtime.trace import plain
from tests.unit.decoding import declared
from tests.unit.decoding.declared import (
    CheckedPage,
    Files,
    Line,
    Loose,
    Mixed,
    Model,
    Order,
    Page,
    Plain,
    PydanticOrder,
    Struct,
    number,
)

NAMES = "tests.unit.decoding.declared:"
NESTED = b'{"amount": 1, "lines": [{"amount": 2}, {"amount": "x"}]}'


def decoded(given, data, *, name="value"):
    """The value, or the key, of a record with some bytes, as a handler gets it."""
    raw = Record("t", 0, 7, data, data, 5, (("h", b"x"),), 2)
    record = record_decoder(Decoding(**{name: given})).decoded(raw)
    other = "key" if name == "value" else "value"
    assert record._replace(**{name: data}) == raw
    assert getattr(record, other) is data
    return getattr(record, name)


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize(
    ("given", "data", "expected"),
    [
        ("json", b'{"a": [1, null]}', {"a": [1, None]}),
        ("text", "é".encode(), "é"),
        (Order, b'{"amount": 1, "lines": [{"amount": 2}]}', Order(1, [Line(2)])),
        (Struct, b'{"amount": 1, "lines": [{"amount": 2}]}', Struct(1, [Line(2)])),
        (Model, b'{"amount": "1"}', Model(amount=1)),
        (PydanticOrder, b'{"amount": "1"}', PydanticOrder(1)),
        (Page[Line], b'{"amount": 1, "rows": [{"amount": 2}]}', Page(1, [Line(2)])),
        (Model | PydanticOrder, b'{"amount": 3}', Model(amount=3)),
        (number, b"12", 12),
        (DecoderFactory(lambda: number), b"12", 12),
        (f"{NAMES}number", b"12", 12),
        (f"{NAMES}FACTORY", b"12", 12),
        (f"{NAMES}Order", b'{"amount": 1}', Order(1)),
        (
            Loose,
            b'{"anything": {"a": 1}, "parts": [1], "above": {"anything": 2, "parts": []}}',
            Loose({"a": 1}, [1], Loose(2, [])),
        ),
        ("json", None, None),
        ("text", None, None),
        (lambda data: data and int(data), None, None),
        (DecoderFactory(lambda: lambda data: data is None), None, True),
        (Order | None, None, None),
        (Order | None, b"null", None),
        (Model | None, None, None),
        (Model | None, b'{"amount": 1}', Model(amount=1)),
    ],
)
def test_what_is_declared_decodes(given, data, expected, name):
    """Of each kind of declaration, key or value; null is None where the type allows it."""
    assert decoded(given, data, name=name) == expected


@pytest.mark.parametrize(
    ("given", "data", "field", "reason"),
    [
        ("json", b"{", "value", "JSONDecodeError: Expecting property name"),
        ("json", b"[" * 100_000, "value", "RecursionError"),
        ("json", b"\xff", "value", "UnicodeDecodeError"),
        ("text", b"a\xff", "value", "byte 0xff in position 1"),
        (number, b"x", "value", "ValueError: invalid literal"),
        (Order, b"{}", "value", "missing required field `amount`"),
        (Order, b'{"amount": "x"}', "value.amount", "Expected `int`, got `str`"),
        (Order, NESTED, "value.lines[1].amount", "Expected `int`, got `str`"),
        (Struct, NESTED, "value.lines[1].amount", "Expected `int`, got `str`"),
        (Struct, b"{", "value", "truncated"),
        (Model, b'{"amount": "x"}', "value.amount", "valid integer"),
        (Model, NESTED, "value.lines.1.amount", "valid integer"),
        (Model, b'{"amount": "x", "lines": 3}', "value.amount", "(and 1 more)"),
        (Model, b"{", "value", "Invalid JSON"),
        (number, None, "value", "TypeError: int() argument"),
        (Order, None, "value", "it is null, and Order does not allow None"),
        (Order, b"null", "value", "Expected `object`, got `null`"),
        (Model, None, "value", "it is null, and Model does not allow None"),
    ],
)
def test_what_does_not_decode_names_field_and_reason(given, data, field, reason):
    """In one line, without the value: it may be anything, and the dead letter has it."""
    with pytest.raises(NotDecodable) as caught:
        decoded(given, data)
    assert caught.value.field == field
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)
    assert str(caught.value) == f"{caught.value.field}: {caught.value.reason}"
    assert caught.value.__cause__ is None


def test_a_validation_error_does_not_show_the_value():
    """Errors go to logs; what a record has must not."""
    with pytest.raises(NotDecodable) as caught:
        decoded(Model, b'{"amount": "account 4711"}')
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    "error", [ConnectionResetError("gone"), TimeoutError("late"), Retry(3.0), Reject("no"),
              MemoryError()],
)  # fmt: skip
def test_what_is_not_the_records_fault_stays_as_it_is(error):
    """A connection that breaks must not make dead letters; and a decoder may ask for an outcome."""

    def decode(data):
        raise error

    with pytest.raises(type(error)) as caught:
        decoded(decode, b"x")
    assert caught.value is error


@pytest.mark.parametrize(
    ("code", "is_of_record"),
    [(40400, True), (40401, True), (40403, True), (404, False), (50001, False)],
)
def test_a_schema_that_its_registry_does_not_have_is_the_records_fault(code, is_of_record):
    """Its client's own mock says so by 40400; what has no code of a registry is another server."""

    def decode(data):
        raise SchemaRegistryError(404, code, "not found")

    with pytest.raises(NotDecodable if is_of_record else SchemaRegistryError):
        decoded(decode, b"x")


def test_an_error_that_a_connection_has_caused_is_not_the_records_fault():
    """A library wraps the error of its connection in one of its own."""

    def decode(data):
        try:
            raise ConnectionRefusedError
        except OSError as error:
            raise ValueError("no schema") from error

    with pytest.raises(ValueError, match="no schema") as caught:
        decoded(decode, b"x")
    assert not isinstance(caught.value, NotDecodable)


@pytest.mark.parametrize(
    ("given", "found", "remedy"),
    [
        (int, "int", "give a pydantic model"),
        (dict, "dict", "give a pydantic model"),
        (list[Order], "list[", "give a pydantic model"),
        (int | None, "int | None", "give a pydantic model"),
        ("jsn", "jsn", "'json', 'text'"),
        (5, "an object of type int", "give a pydantic model"),
        (Order(1), "an object of type Order", "give a pydantic model"),
        (Files, "Files", "msgspec reads no Path from JSON: declare Files as a model or dataclass"),
        (Files | None, "Files | None", "msgspec reads no Path from JSON"),
        (Mixed, "Mixed", "msgspec reads no Model from JSON"),
        (declared.later, "later", "give a pydantic model"),
        (lambda: 1, "lambda", "it is called as decode(data)"),
        (DecoderFactory(number), "DecoderFactory", "it is called as make()"),
        ("tests_no_module:Order", "tests_no_module:Order", "No module named 'tests_no_module'"),
        (f"{NAMES}Absent", f"{NAMES}Absent", "the module has no such name"),
        (f"{NAMES}T", f"{NAMES}T", "give a pydantic model"),
        ("shop.py:Order", "shop.py:Order", "it names a file, not a module"),
    ],
)
@pytest.mark.parametrize("name", ["key", "value"])
def test_an_unknown_declaration_is_refused_by_name(given, found, remedy, name):
    """Before a job starts, with the argument, what was found, and what to give."""
    with pytest.raises(InvalidOption) as caught:
        check_decoding(Decoding(**{name: given}))
    assert caught.value.name == name
    assert found in caught.value.found
    assert remedy in caught.value.remedy


def test_what_cannot_be_pickled_is_refused_by_name():
    """A declaration with a lock in it, which no worker could get."""
    lock = threading.Lock()
    with pytest.raises(InvalidOption, match=r"option value = .*<lambda>.*cannot be pickled") as no:
        check_decoding(Decoding(value=lambda data: lock and data))
    assert "DecoderFactory" in no.value.remedy
    check_decoding(Decoding(value=DecoderFactory(lambda: threading.Lock() and number)))


def test_what_a_factory_makes_must_decode():
    """The factory is called in the slot; what it makes there is checked there."""
    with pytest.raises(InvalidOption, match="it made an object of type int: return a function of"):
        record_decoder(Decoding(value=DecoderFactory(lambda: 5)))


def test_a_factory_that_fails_is_named():
    """The job ends with this error."""
    with pytest.raises(InvalidOption, match=r"DecoderFactory\(.*\): ZeroDivisionError: division"):
        record_decoder(Decoding(value=DecoderFactory(lambda: 1 / 0)))


def test_what_a_declaration_has_is_not_shown():
    """Arguments of functions and attributes of objects may be secrets."""

    def decode(data, other, *, token=None):
        """It takes too much."""

    def make(token, lock=None):
        return number

    lock = threading.Lock()
    for given in (
        partial(decode, token="4711"), DecoderFactory(partial(decode, token="4711")),
        DecoderFactory(partial(make, token="4711", lock=lock)), partial(number, {"4711": lock}),
        SimpleNamespace(token="4711"), [SimpleNamespace(token="4711")],
    ):  # fmt: skip
        with pytest.raises(InvalidOption) as caught:
            check_decoding(Decoding(value=given))
        assert "4711" not in str(caught.value)
    assert repr(DecoderFactory(partial(make, token="4711"))).endswith("<locals>.make)")
    factory = DecoderFactory(lambda: {"token": "4711"})
    with pytest.raises(InvalidOption, match="it made an object of type dict"):
        record_decoder(Decoding(value=factory))


def test_a_process_makes_a_decoder_once():
    """Batch after batch has the same, as its clients keep connections; another job has its own."""
    calls = []

    def make():
        calls.append(1)
        return number

    one, other = Decoding(value=DecoderFactory(make)), Decoding(value=DecoderFactory(make))
    assert record_decoder(one) is record_decoder(one)
    assert record_decoder(one) is not record_decoder(other)
    assert len(calls) == 2


_MADE = msgspec.defstruct("Made", [("at", int, msgspec.field(default_factory=lambda: 1))])
_RUN_CODE = [Model, Order, PydanticOrder, number, DecoderFactory(lambda: number), f"{NAMES}number"]


@pytest.mark.parametrize(
    "given", ["json", "text", Plain, Plain | None, Page[Plain], Page[Page[int]]]
)
def test_what_runs_no_code_of_the_user_is_known(given):
    """Structs of data, in any depth."""
    assert decoder_of("value", given).is_pure


@pytest.mark.parametrize(
    "given",
    [
        *_RUN_CODE, _MADE, Page[_MADE], CheckedPage[int],
        *(Page[kind] for kind in declared.RUN_CODE),
    ],
)  # fmt: skip
def test_what_may_run_code_of_the_user_is_known(given):
    """Validators, patterns, factories of defaults: in any part."""
    assert not decoder_of("value", given).is_pure


def test_a_check_makes_nothing_of_a_factory():
    """On the driver a factory may lack what it needs."""
    check_decoding(Decoding(value=DecoderFactory(lambda: 1 / 0)))


@pytest.mark.parametrize(
    ("given", "package"), [("Order", "msgspec"), ("Struct", "msgspec"), ("Model", "pydantic")]
)
def test_a_missing_package_is_named_with_its_extra(given, package, monkeypatch):
    """Only a declaration that needs a package names it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidOption, match=rf"coopconsume\[{package}\]"):
        check_decoding(Decoding(value=getattr(declared, given)))
    check_decoding(Decoding(value="json"))


def test_packages_are_loaded_only_where_they_are_declared():
    """A worker that decodes JSON needs none of the packages that others declare."""
    code = (
        "import sys\n"
        "from coopconsume.decoding import Decoding\n"
        "from coopconsume.decoding.record_decoder import record_decoder\n"
        "from coopconsume.record import Record\n"
        "decoder = record_decoder(Decoding(value='json'))\n"
        "assert decoder.decoded(Record('t', 0, 0, None, b'[1]', 0)).value == [1]\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert not loaded & {"pydantic", "msgspec", "confluent_kafka", "kafka", "pyspark"}


@pytest.mark.parametrize("given", [Order, Struct, Model, Order | None, "json", number])
def test_a_trace_names_what_is_declared_and_nothing_else(given):
    """Neither types nor settings, as these may be secret."""
    assert plain(Decoding(value=given)) == ["value"]
    secret = SchemaRegistryDecoder("avro", {"url": "http://r", "basic.auth.user.info": "me:4711"})
    assert plain(Decoding(key=secret, value=given)) == ["key", "value"]
