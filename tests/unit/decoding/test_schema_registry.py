"""Deserializers of a schema registry, given by settings or a factory, against one on loopback."""

from __future__ import annotations

import base64
import json
import pickle
import sys
import threading

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import (
    IntegerDeserializer,
    MessageField,
    SerializationContext,
)
from pyspark import cloudpickle

from coopconsume.decoding import DecoderFactory, Decoding, SchemaRegistryDecoder
from coopconsume.decoding.record_decoder import record_decoder
from coopconsume.errors import InvalidOption, NotDecodable
from coopconsume.record import Record
from coopconsume.runtime.checks import check_decoding
from tests.schema_registry import SchemaRegistry
from tests.unit.decoding.declared import Line, Payment
from tests.unit.worker.slot_harness import done, run

AVRO = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]}
)
READER = json.dumps(
    {"type": "record", "name": "Order", "fields": [
        {"name": "amount", "type": "long"}, {"name": "note", "type": "string", "default": "no"},
    ]}
)  # fmt: skip
JSON_SCHEMA = json.dumps(
    {"title": "Order", "type": "object", "properties": {"amount": {"type": "integer"}}}
)
#: A client that gives up at once.
QUICK = {"max.retries": 0}


@pytest.fixture
def registry():
    """A registry of its own."""
    with SchemaRegistry() as found:
        yield found


def client(registry):
    """A client of it."""
    return SchemaRegistryClient({"url": registry.url} | QUICK)


def encoded(serializer, value, field=MessageField.VALUE):
    """The bytes of a value, as a producer writes it."""
    return serializer(value, SerializationContext("t", field))


def avro(registry, amount):
    """An order in Avro."""
    return encoded(AvroSerializer(client(registry), AVRO), {"amount": amount})


def decoded(given, data, *, name="value"):
    """The value or key of a record, as a handler gets it; the declaration was pickled before."""
    check_decoding(Decoding(**{name: given}))
    given = pickle.loads(cloudpickle.dumps(given))
    raw = Record("t", 0, 0, data, data, 0)
    return getattr(record_decoder(Decoding(**{name: given})).decoded(raw), name)


def settings(registry, **more):
    """Settings of the client."""
    return {"url": registry.url} | QUICK | more


@pytest.mark.parametrize("name", ["key", "value"])
def test_avro_is_decoded_by_the_schema_of_its_writer(registry, name):
    """A dictionary; of the reader's schema if there is one; an object if it is made of it."""
    data = avro(registry, 7)
    given = SchemaRegistryDecoder("avro", settings(registry))
    assert decoded(given, data, name=name) == {"amount": 7}
    given = SchemaRegistryDecoder("avro", settings(registry), schema=READER)
    assert decoded(given, data, name=name) == {"amount": 7, "note": "no"}
    given = SchemaRegistryDecoder("avro", settings(registry), make=lambda row: Line(**row))
    assert decoded(given, data, name=name) == Line(7)
    assert decoded(given, None, name=name) is None


def test_json_schema_and_protobuf(registry):
    """Dictionaries and messages."""
    serializer = JSONSerializer(JSON_SCHEMA, client(registry))
    given = SchemaRegistryDecoder("json-schema", settings(registry), schema=JSON_SCHEMA)
    assert decoded(given, encoded(serializer, {"amount": 7})) == {"amount": 7}
    given = SchemaRegistryDecoder("json-schema", settings(registry))
    assert decoded(given, encoded(serializer, {"amount": 8})) == {"amount": 8}
    serializer = ProtobufSerializer(Payment, client(registry), {"use.deprecated.format": False})
    given = SchemaRegistryDecoder("protobuf", settings(registry), message=Payment)
    assert decoded(given, encoded(serializer, Payment(amount=9))) == Payment(amount=9)


def test_a_value_that_violates_its_json_schema_does_not_decode(registry):
    """It is the record's fault."""
    serializer = JSONSerializer(JSON_SCHEMA, client(registry))
    data = encoded(serializer, {"amount": 7}).replace(b"7", b'"x"')
    given = SchemaRegistryDecoder("json-schema", settings(registry), schema=JSON_SCHEMA)
    with pytest.raises(NotDecodable, match=r"value: .*'x' is not of type 'integer'"):
        decoded(given, data)


def test_a_factory_makes_a_deserializer_in_the_slot(registry):
    """Its client cannot be pickled; given itself, it is refused by name."""
    url = registry.url

    def make():
        return AvroDeserializer(SchemaRegistryClient({"url": url}))

    assert decoded(DecoderFactory(make), avro(registry, 7)) == {"amount": 7}
    assert decoded(DecoderFactory(make), None) is None
    with pytest.raises(InvalidOption, match=r"option value = .*cannot be pickled.*DecoderFactory"):
        check_decoding(Decoding(value=make()))


def test_other_deserializers_are_declared_as_they_are():
    """They have no client."""
    assert decoded(IntegerDeserializer(), b"\x00\x00\x00\x07") == 7
    with pytest.raises(NotDecodable, match=r"value: SerializationError"):
        decoded(IntegerDeserializer(), b"x")


@pytest.mark.parametrize("data", [b"", b"x" * 3, b"\x05" + b"x" * 30, b"\x00\x00\x00\x00\x63abc"])
def test_bytes_of_another_form_do_not_decode(registry, data):
    """Too short, without the magic byte, or of a schema that the registry does not have."""
    given = SchemaRegistryDecoder("avro", settings(registry))
    with pytest.raises(NotDecodable, match=r"^value: ") as caught:
        decoded(given, data)
    assert "\n" not in str(caught.value)


def test_a_process_reads_a_schema_once(registry):
    """Not for each record, and not for each batch."""
    decoding = Decoding(value=SchemaRegistryDecoder("avro", settings(registry)))
    data = avro(registry, 7)
    registry.requests.clear()
    for _ in range(3):
        report = run(lambda _: None, [(0, o, b"k") for o in range(5)], values=[data] * 5,
                     decoding=decoding)  # fmt: skip
        assert done(report) == list(range(5))
    assert len(set(registry.requests)) == len(registry.requests) <= 2, registry.requests
    assert any(path.startswith("/schemas/ids/1") for _, path in registry.requests)


#: What a proxy says while the registry behind it is away: status and content.
PAGES = {
    "page": (200, b"<html>Log in</html>"),
    "nothing": (200, b""),
    "list": (200, b"[]"),
    "404": (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),
    "404 page": (404, b"<html>Not found</html>"),
    "404 list": (404, b"[]"),
}


@pytest.mark.parametrize("trouble", ["503", "401", "away", *PAGES])
def test_a_registry_that_does_not_answer_makes_no_dead_letters(registry, trouble):
    """Its records are tried again as after any other error, and the reason hides the login."""
    login = {"basic.auth.user.info": "reader:4711"}
    data = avro(registry, 7)
    registry.authorization = "Basic " + base64.b64encode(b"reader:4711").decode()
    given = SchemaRegistryDecoder("avro", settings(registry, **login))
    assert decoded(given, data) == {"amount": 7}
    url = registry.url
    if trouble == "503":
        registry.status = 503
    elif trouble == "401":
        registry.authorization = "Basic other"
    elif trouble in PAGES:
        registry.status, registry.page = PAGES[trouble]
    else:
        url = "http://127.0.0.1:1"
    given = SchemaRegistryDecoder("avro", settings(registry, **login) | {"url": url})
    report = run(lambda _: None, [(0, 0, b"k")], values=[data], decoding=Decoding(value=given))
    assert (done(report), report.dead) == ([], [])
    (failure,) = report.partitions[0].failed
    assert failure.error
    assert "4711" not in failure.error + failure.trace


def test_secrets_are_not_shown():
    """A representation has the address without its login, and no other setting."""
    given = SchemaRegistryDecoder(
        "avro", {"url": "https://me:4711@registry", "basic.auth.user.info": "me:4711"}
    )
    assert repr(given) == "SchemaRegistryDecoder('avro', 'https://me:***@registry')"
    assert "4711" not in repr(vars(given))
    with pytest.raises(InvalidOption) as caught:
        check_decoding(Decoding(value=given))
    assert "4711" not in str(caught.value)
    assert "4711" not in repr(pickle.loads(pickle.dumps(given)).registry)
    odd = SchemaRegistryDecoder("avro", {"url": "me:4711@registry", "basic.auth.user.info": ""})
    with pytest.raises(InvalidOption, match=r"'\*\*\*'.*Invalid url \*\*\*") as caught:
        check_decoding(Decoding(value=odd))
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (SchemaRegistryDecoder("xml", {"url": "http://r"}), "give one of avro, json-schema, proto"),
        (SchemaRegistryDecoder("avro", {}), "Missing required configuration property url"),
        (SchemaRegistryDecoder("avro", {"url": "http://r", "ulr": "e"}), "Unrecognized properties"),
        (SchemaRegistryDecoder("avro", {"url": "http://r"}, schema="{"), "correct the settings"),
        (SchemaRegistryDecoder("protobuf", {"url": "http://r"}), "give message="),
        (SchemaRegistryDecoder("avro", {"url": "http://r"}, message=Payment), "give message="),
        (
            SchemaRegistryDecoder("protobuf", {"url": "http://r"}, schema="x", message=Payment),
            "not schema",
        ),
        (
            SchemaRegistryDecoder("avro", {"url": "http://r"}, deserializer={"x": 1}),
            "Unrecognized properties: x",
        ),
    ],
)
def test_wrong_settings_are_refused_before_the_job_starts(given, why):
    """Without a connection, with the argument and the cause."""
    with pytest.raises(InvalidOption, match="option key = SchemaRegistryDecoder") as caught:
        check_decoding(Decoding(key=given))
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("form", "module", "more"),
    [
        ("avro", "fastavro", {}),
        ("json-schema", "jsonschema", {}),
        ("protobuf", "google.protobuf", {"message": Payment}),
    ],
)
def test_a_missing_package_is_named_with_its_extra(form, module, more, monkeypatch):
    """The package that is missing, and what to install."""
    for name in [name for name in sys.modules if name.startswith("confluent_kafka.schema_reg")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    given = SchemaRegistryDecoder(form, {"url": "http://r"}, **more)
    with pytest.raises(InvalidOption, match=rf"is not installed: pip install 'coopconsume\[{form}"):
        check_decoding(Decoding(value=given))


def test_threads_share_a_deserializer(registry):
    """Handlers of a slot run side by side."""
    serializer = AvroSerializer(client(registry), AVRO)
    data = [encoded(serializer, {"amount": n}) for n in range(40)]
    amounts, lock = [], threading.Lock()

    def handler(record):
        with lock:
            amounts.append(record.value["amount"])

    decoding = Decoding(value=SchemaRegistryDecoder("avro", settings(registry)))
    rows = [(0, o, b"%d" % o) for o in range(40)]
    report = run(handler, rows, values=data, decoding=decoding, concurrency=8)
    assert sorted(amounts) == list(range(40))
    assert report.dead == []
