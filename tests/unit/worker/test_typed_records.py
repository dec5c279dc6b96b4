"""Handlers of typed records in a slot: every runner, what does not decode, and what it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from assignors import MAX_KEY_HASH
from coopconsume.decoding import Decoding
from coopconsume.decoding import record_decoder as module
from coopconsume.record import RetryPolicy
from coopconsume.state.schema import StateSchema
from coopconsume.state.slot_state import StateSpec
from coopconsume.worker import slot as slot_module
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
def test_nothing_is_added_where_nothing_is_declared(way, monkeypatch):
    """A runner calls the very handler that was given."""
    seen = []
    for name in ("run_serial", "run_threads", "run_coroutines"):
        runner = getattr(slot_module, name)

        def spied(rows, handler, *more, runner=runner):
            seen.append(handler)
            return runner(rows, handler, *more)

        monkeypatch.setattr(slot_module, name, spied)
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
