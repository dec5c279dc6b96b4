"""Handlers of typed records in a slot: every runner, what does not decode, and what it costs."""

from __future__ import annotations

import json
import logging
import math
import random
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka.serialization import Deserializer, MessageField

from assignors import MAX_KEY_HASH
from coopconsume.decoding import Decoding
from coopconsume.decoding import record_decoder as module
from coopconsume.record import Record, Retry, RetryPolicy
from coopconsume.state.schema import StateSchema
from coopconsume.state.slot_state import StateSpec
from coopconsume.values.callables import parts_of
from coopconsume.worker import async_runner, handler_logs
from coopconsume.worker import slot as slot_module
from coopconsume.worker.handler_logs import RecordLogFilter
from coopconsume.worker.report import PartitionWork
from tests.unit.decoding.declared import Order
from tests.unit.worker.slot_harness import RETRIES_LATER, WAYS, done, in_way, prepared, run

ORDERS = Decoding(value=Order, key="text")
ROWS = [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"a"), (0, 3, b"b")]
#: That of offset 1 is not an order.
VALUES = [b'{"amount": 0}', b'{"amount": "x"}', b'{"amount": 2}', b'{"amount": 3}']
REASON = "NotDecodable: value.amount: Expected `int`, got `str`"


def handled(way, *, values=VALUES, **more):
    """The report of a slot, and what its handler got: offset, key and amount."""
    seen = []

    def handler(record):
        seen.append((record.offset, record.key, record.value.amount))

    more = {"decoding": ORDERS} | more
    report = run(handler, ROWS, way=way, values=values, **more)
    return report, sorted(seen)


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_decode_is_a_dead_letter_at_once(way):
    """With its raw bytes and the reason; its handler is not called, and its key goes on."""
    report, seen = handled(way)
    assert seen == [(0, "a", 0), (2, "a", 2), (3, "b", 3)]
    assert done(report) == [0, 1, 2, 3]
    (letter,) = report.dead
    assert (letter.offset, letter.key, letter.value) == (1, b"b", VALUES[1])
    assert (letter.reason, letter.attempts) == (REASON, 1)
    assert letter.trace == f"coopconsume.errors.{REASON}\n", "no frame says more"
    assert not report.end.fatal
    assert not report.end.error


class _Odd(Exception):
    """An error that raises as it is looked at."""

    @property
    def __cause__(self):
        raise RuntimeError("no cause")


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_a_decoder_that_cannot_be_looked_at_costs_its_record(way):
    """The records before and behind it are handled as ever."""

    def decode(data):
        if data == VALUES[1]:
            raise _Odd
        return data

    seen = []
    report = run(
        lambda record: seen.append((record.offset, record.value)), ROWS, way=way, values=VALUES,
        decoding=Decoding(value=decode), policy=RetryPolicy(max_attempts=1),
    )  # fmt: skip
    assert sorted(seen) == [(offset, VALUES[offset]) for offset in (0, 2, 3)]
    assert [letter.offset for letter in report.dead] == [1]
    assert not report.end.error


class _Proxy:
    """A handler that has every attribute, as a client of a remote service."""

    def __init__(self):
        self.seen = []

    def __call__(self, record):
        self.seen.append(record.offset)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: None


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_that_has_every_attribute_is_called_as_it_is(way):
    """What the library adds to functions is not looked for in it."""
    handler = _Proxy()
    assert parts_of(handler) is None
    report = run(handler, ROWS, way=way, values=VALUES)
    assert sorted(handler.seen) == done(report) == [0, 1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_null_reaches_a_handler_whose_type_allows_it(way):
    """It is not decoded; a type that does not allow it has a dead letter."""
    values, seen = [VALUES[0], None, None, VALUES[3]], []

    def handler(record):
        seen.append((record.offset, record.key, record.value))

    report = run(handler, ROWS, way=way, values=values, decoding=Decoding("text", Order | None))
    assert sorted(seen, key=lambda one: one[0]) == [
        (0, "a", Order(0)), (1, "b", None), (2, "a", None), (3, "b", Order(3)),
    ]  # fmt: skip
    assert (done(report), report.dead) == ([0, 1, 2, 3], [])
    report, seen = handled(way, values=values)
    assert [offset for offset, *_ in seen] == [0, 3]
    assert {letter.reason for letter in report.dead} == {
        "NotDecodable: value: it is null, and Order does not allow None"
    }


def _decoded(data):
    """A decoder of a user: some of its errors end a loop of Python."""
    if data == b"stop":
        raise StopIteration("no order")
    return data.decode()


class _Deserializer(Deserializer):
    """The same, which also gets the topic and the headers of a record."""

    def __call__(self, value, ctx=None):
        """Decodes a value, which ends with the number in its header."""
        assert (ctx.topic, ctx.field) == ("t", MessageField.VALUE)
        ((_, number),) = ctx.headers
        assert value == b"stop" or value.split(b"-")[-1] == number
        return _decoded(value)


def _loads(data):
    return json.loads(data)


def raw(cell):
    """The bytes of a key or a value."""
    return cell.encode() if isinstance(cell, str) else cell


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding("text", _decoded), Decoding("text", _Deserializer()), Decoding(value=_decoded),
        Decoding("text"), Decoding(value="text"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ordering", ["key", "unordered"])
@pytest.mark.parametrize("way", WAYS)
def test_each_record_has_its_own_fields(way, ordering, decoding):
    """Behind any that do not decode, by key or value, that fail, and that wait behind one."""
    choice, seen = random.Random(54), {}
    rows = [(0, n, choice.choice([b"a", b"b", b"c", b"\xff"])) for n in range(200)]
    values = [choice.choice([b"stop", b"\xff", b"fails", b"v"]) for _ in rows]
    values = [one if one == b"stop" else b"%s-%d" % (one, n) for n, one in enumerate(values)]
    headers = [[("n", b"%d" % n)] for n in range(200)]

    def handler(record):
        seen[record.offset] = record
        if raw(record.value).startswith(b"fails") and record.offset > 100:
            raise Retry

    report = run(
        handler, rows, way=way, values=values, headers=headers, ordering=ordering,
        decoding=decoding, policy=RETRIES_LATER, batch_rows=60,
    )  # fmt: skip
    letters = {letter.offset: letter for letter in report.dead}
    failed = {failure.offset for failure in report.partitions[0].failed}
    waiting = {offset for offset, _ in report.partitions[0].blocked}
    assert failed, "some keys wait"
    assert letters
    assert bool(waiting) == (ordering == "key")
    assert {*seen} | {*letters} | waiting == {*range(200)}
    for n, (_, _, key) in enumerate(rows):
        fields = (values[n], (("n", b"%d" % n),))
        if n in seen:
            one = seen[n]
            assert (raw(one.key), raw(one.value), one.headers) == (key, *fields)
            assert (one.topic, one.partition, one.attempt) == ("t", 10, 1)
        elif n in letters:
            letter = letters[n]
            assert (letter.key, letter.value, letter.headers) == (key, *fields)
            is_of_key = decoding.key is not None and key == b"\xff"
            assert ("key" if is_of_key else "value") == letter.reason.split(": ")[1]
            assert "AssertionError" not in letter.reason


@pytest.mark.parametrize(
    ("declared", "size", "ahead"),
    [("json", 10, True), ("json", 100_000, False), (_loads, 10, False)],
)
def test_small_values_are_decoded_before_their_turn_if_no_code_of_the_user_runs(
    declared, size, ahead, monkeypatch
):
    """Which record hangs as it is decoded is known by that, and of large values there is one."""
    loads, calls = json.loads, []
    monkeypatch.setattr(json, "loads", lambda data: (calls.append("decode"), loads(data))[1])
    rows = [(0, n, b"a") for n in range(40)]
    values = [b'"%s"' % (b"v" * size)] * 40
    decoding = Decoding(value=declared)
    report = run(
        lambda record: calls.append("handle"), rows, values=values, decoding=decoding, batch_rows=40
    )
    assert done(report) == [*range(40)]
    assert calls.count("decode") == calls.count("handle") == 40
    assert (calls.index("handle") > 1) == ahead


def test_a_large_value_among_small_ones_is_decoded_right_before_its_call(monkeypatch):
    """If memory runs out, it is no record before it that is charged an attempt."""
    loads, handled, before = json.loads, [], []

    def decode(data):
        if len(data) > 100_000:
            before.append(len(handled))
        return loads(data)

    monkeypatch.setattr(json, "loads", decode)
    rows = [(0, n, b"a") for n in range(40)]
    values = [b'"v"'] * 40
    values[5] = b'"%s"' % (b"v" * 200_000)
    report = run(
        lambda record: handled.append(record.offset), rows, values=values,
        decoding=Decoding(value="json"), batch_rows=40,
    )  # fmt: skip
    assert handled == done(report) == [*range(40)]
    assert before == [5]


def test_an_interrupt_of_a_decoder_costs_one_record(monkeypatch):
    """Those behind it are handled with their own values: none is lost, and none is a letter."""
    loads, seen, interrupts = json.loads, {}, iter([17])

    def decode(data):
        if loads(data) == 20 and next(interrupts, 0):
            raise KeyboardInterrupt
        return loads(data)

    monkeypatch.setattr(json, "loads", decode)
    report = run(
        lambda record: seen.update({record.offset: record.value}),
        [(0, n, b"%d" % n) for n in range(100)], values=[b"%d" % n for n in range(100)],
        decoding=Decoding(value="json"), policy=RETRIES_LATER, batch_rows=50,
    )  # fmt: skip
    (failure,) = report.partitions[0].failed
    assert 16 <= failure.offset <= 20, "the record in whose turn it came"
    assert seen == {n: n for n in range(100) if n != failure.offset}
    assert (report.dead, report.end.error) == ([], "")


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_decode_is_parked_if_the_policy_says_so(way):
    """A letter is written, and later records of the key wait for a decision."""
    report, seen = handled(way, policy=RetryPolicy(undecodable="park"))
    assert seen == [(0, "a", 0), (2, "a", 2)]
    assert done(report) == [0, 2]
    assert [letter.offset for letter in report.dead] == [1]
    (failure,) = report.partitions[0].failed
    assert (failure.offset, failure.delay, failure.error) == (1, math.inf, REASON)
    assert [offset for offset, _ in report.partitions[0].blocked] == [3]


@pytest.mark.parametrize("way", WAYS)
def test_other_records_are_not_parked_by_that(way):
    """A handler that gives up has a letter, and its key goes on."""

    def handler(record):
        if record.offset == 0:
            raise ValueError

    policy = RetryPolicy(max_attempts=1, undecodable="park")
    report = run(handler, ROWS, way=way, policy=policy)
    assert done(report) == [0, 1, 2, 3]
    assert [letter.offset for letter in report.dead] == [0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dead_letters", [True, False])
def test_what_does_not_decode_is_tried_again_if_the_policy_says_so(way, dead_letters):
    """Also without a place for dead letters: the record holds back its key alone, not the job."""
    undecodable = "retry" if dead_letters else "reject"
    policy = replace(RETRIES_LATER, undecodable=undecodable)
    report, seen = handled(way, policy=policy, dead_letters=dead_letters)
    assert seen == [(0, "a", 0), (2, "a", 2)]
    assert (done(report), report.dead) == ([0, 2], [])
    (failure,) = report.partitions[0].failed
    assert (failure.offset, failure.delay, failure.error) == (1, 1_000.0, REASON)
    assert not report.end.fatal


@pytest.mark.parametrize("way", WAYS)
def test_a_retried_record_that_does_not_decode_has_its_attempts(way):
    """The last one makes it a dead letter."""
    policy = RetryPolicy(max_attempts=3, undecodable="retry")
    work = {0: PartitionWork(((0, 99),), attempts={1: 2})}
    report, _ = handled(way, policy=policy, work=work)
    assert [(letter.offset, letter.attempts) for letter in report.dead] == [(1, 3)]
    assert done(report) == [0, 1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_decode_does_not_open_the_circuit_breaker(way):
    """It says nothing of a service; a handler's error does."""
    values = [b"?"] * 4
    report, _ = handled(way, values=values, break_after=2)
    assert not report.end.tripped
    assert sorted(letter.offset for letter in report.dead) == [0, 1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_breaks_makes_no_dead_letters(way):
    """The record is tried again as after any other error."""

    def decode(data):
        raise ConnectionRefusedError("registry")

    report, seen = handled(way, decoding=Decoding(value=decode))
    assert (seen, done(report), report.dead) == ([], [], [])
    assert {f.error for f in report.partitions[0].failed} == {"ConnectionRefusedError: registry"}


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_of_a_typed_handler_counts_as_any_other(way):
    """A handler that raises fails its record."""

    def handler(record):
        if record.value.amount == 2:
            raise ValueError("no")

    report = run(handler, ROWS, way=way, values=VALUES, decoding=ORDERS)
    assert done(report) == [0, 1, 3]
    assert [f.error for f in report.partitions[0].failed] == ["ValueError: no"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("log_lines", [0, 2])
def test_a_typed_handler_gets_a_record_and_what_it_logs_has_that_of_kafka(
    way, log_lines, monkeypatch
):
    """Whatever watches its calls gets a record, too; the slot alone has the fields."""
    monkeypatch.setattr(handler_logs, "_has_filter", False)
    seen, formatted, log = [], [], logging.getLogger("typed")
    output = logging.Handler()
    output.emit = lambda entry: formatted.append((entry.offset, entry.key))
    output.addFilter(RecordLogFilter())
    log.addHandler(output)

    def handler(record):
        seen.append(record)
        log.warning("amount %d", record.value.amount)

    try:
        for _ in range(2):
            more = {"values": VALUES, "decoding": ORDERS, "log_lines": log_lines}
            assert done(run(handler, ROWS, way=way, **more)) == [0, 1, 2, 3]
    finally:
        log.removeHandler(output)
    assert {type(record) for record in seen} == {Record}
    assert sorted(formatted) == sorted([(0, "a"), (2, "a"), (3, "b")] * 2)
    record = next(record for record in seen if record.offset == 2)
    assert record == Record("t", 10, 2, "a", Order(2), record.timestamp, (), 1)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_added_where_nothing_is_declared(way, monkeypatch):
    """A runner calls the very handler that was given."""
    seen = []
    homes = {"SerialRunner": slot_module, "ThreadRunner": slot_module, "AsyncRunner": async_runner}
    for name, home in homes.items():
        runner = getattr(home, name)

        def spied(handler, *more, runner=runner):
            seen.append(handler)
            return runner(handler, *more)

        monkeypatch.setattr(home, name, spied)
    monkeypatch.setattr(module, "RecordDecoder", None)
    handler, concurrency = in_way(way, lambda record: None)
    slot, batches = prepared(handler, ROWS, None, concurrency)
    assert done(slot.run(3, batches)) == [0, 1, 2, 3]
    assert seen == [handler]


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_with_state_gets_typed_records_and_the_state_of_the_bytes(way, tmp_path):
    """What does not decode changes no state; the state's keys are those of Kafka."""
    state = StateSpec(
        str(tmp_path / "state"), str(tmp_path / "stores"), StateSchema(pa.int64()), {"t": "id"},
        -1, -1, ranges={3: {("t", 10): ((0, MAX_KEY_HASH),)}},
    )  # fmt: skip

    def handler(record, state):
        assert state.key == record.key.encode()
        state.set(state.get(0) + record.value.amount)

    handler, concurrency = in_way(way, handler, with_state=True)
    more = {"values": VALUES, "decoding": ORDERS, "state": state}
    slot, batches = prepared(handler, ROWS, None, concurrency, **more)
    report = slot.run(3, batches)
    assert done(report) == [0, 1, 2, 3]
    assert [letter.value for letter in report.dead] == [VALUES[1]]
    changes = pa.ipc.open_stream(report.changes).read_all().sort_by("_offset").to_pylist()
    assert [(row["key"], row["value"]) for row in changes] == [(b"a", 0), (b"a", 2), (b"b", 3)]
