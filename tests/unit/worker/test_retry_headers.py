"""Headers that `Retry` adds to a record, in a slot and between batches."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict

import pytest

from coopconsume.record import (
    MAX_ADDED_BYTES,
    Reject,
    Retry,
    RetryPolicy,
    checked_headers,
    with_added,
)
from coopconsume.worker.channel.messages import decode_report, encode_report
from coopconsume.worker.channel.wire import Identity
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.report import (
    DeadLetter,
    Failure,
    PartitionReport,
    PartitionWork,
    SlotReport,
)
from tests.odd import BareRetry
from tests.unit.worker.slot_harness import WAYS, done, held_up, run

OWN = (("trace", b"1"), ("step", b"old"), ("step", b"older"))
ADDED = (("step", b"bank"), ("none", None))
BOTH = (("trace", b"1"), *ADDED)


class Text(str):
    """A class of texts that the driver does not have."""

    __slots__ = ()


class Bytes(bytes):
    """The same for bytes."""

    __slots__ = ()


def test_added_headers_replace_those_of_their_names_and_keep_their_order():
    """Headers of one call keep their doubles; mappings and lists of pairs are taken."""
    assert with_added(OWN, ADDED) == BOTH
    assert with_added((), (("a", b"1"), ("a", b"2"))) == (("a", b"1"), ("a", b"2"))
    assert Retry(headers={"step": b"bank", "none": None}).headers == ADDED
    assert Retry(headers=[["step", b"bank"], ("none", None)]).headers == ADDED
    assert Retry(headers=OrderedDict(ADDED)).headers == ADDED
    again = pickle.loads(pickle.dumps(Retry(2.0, "why", ADDED)))
    assert (again.after, again.reason, again.headers) == (2.0, "why", ADDED)
    assert Retry(2.0, "why").args == (2.0, "why")
    ((name, value),) = Retry(headers={Text("n"): Bytes(b"v")}).headers
    assert (type(name), type(value)) == (str, bytes)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ("step=bank", "headers of type str: give a mapping or a list"),
        (7, "headers of type int"),
        (None, "headers of type NoneType"),
        ([("step", "bank")], "header 'step' is of type str: give bytes or None"),
        ({"step": 7}, "header 'step' is of type int"),
        ({b"step": b"bank"}, "a header of type tuple: give .name, bytes."),
        (["step"], "a header of type str"),
        ([("step", b"bank", 1)], "a header of type tuple"),
        ({"half \ud83d": b""}, "UTF-8 cannot encode the name of the header half"),
        ({"n": bytes(MAX_ADDED_BYTES)}, "have 1,025 bytes: give at most 1,024"),
        ({"ü" * 512: b"1"}, "have 1,025 bytes"),
    ],
)
def test_headers_that_make_no_sense_are_refused_with_the_reason(headers, said):
    """Where they are given, as other wrong arguments are."""
    with pytest.raises(ValueError, match=said):
        Retry(headers=headers)
    assert checked_headers({"n": bytes(MAX_ADDED_BYTES - 1)})


@pytest.mark.parametrize("way", WAYS)
def test_wrong_headers_cost_their_record_alone(way):
    """The error is the handler's own; other keys go on."""

    def handler(record):
        if record.offset == 1:
            raise Retry(headers={"step": "text"})

    report = run(handler, [(0, o, b"%d" % o) for o in range(4)], way=way)
    assert done(report) == [0, 2, 3]
    (failure,) = report.partitions[0].failed
    assert failure.error.startswith("ValueError: the value of header 'step' is of type str")
    assert failure.headers == ()


@pytest.mark.parametrize("headers", [7, {"n": bytes(2_000)}, [("n", object())]])
def test_a_class_of_its_own_with_wrong_headers_is_tried_again_without_them(headers):
    """What earlier attempts have added stays."""

    def handler(record):
        error = BareRetry()
        error.headers = headers
        raise error

    work = {0: PartitionWork(((0, 9),), {0: 1}, added={0: ADDED})}
    report = run(handler, [(0, 0, b"a")], work=work)
    (failure,) = report.partitions[0].failed
    assert "no header is added: ValueError: " in failure.error
    assert (failure.attempts, failure.headers) == (2, ADDED)


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_the_next_attempt_sees_the_headers_of_all_earlier_ones(way):
    """With those of the record in Kafka; another error changes nothing, a further header adds."""
    seen = {}
    answers = {0: Retry(headers={"step": b"mail"}), 1: ValueError("bad"), 2: Retry()}

    def handler(record):
        seen[record.offset] = record.headers
        return answers.get(record.offset)

    def frames(frame):
        for offset, headers in zip(frame["offset"], frame["headers"], strict=True):
            pairs = tuple((one["key"], one["value"]) for one in headers.as_py())
            seen[offset.as_py()] = pairs
        return [answers.get(offset.as_py()) for offset in frame["offset"]]

    added = {0: ADDED, 1: ADDED, 2: ADDED, 3: ADDED}
    work = {0: PartitionWork(((0, 9),), dict.fromkeys(added, 1), added=added)}
    rows = [(0, o, b"%d" % o) for o in range(5)]
    own = [OWN, (), OWN, OWN, OWN]
    if way == "frames":
        report = run(FrameHandler(frames, 10), rows, work=work, headers=own)
    else:
        report = run(handler, rows, work=work, headers=own, way=way)
    assert seen == {0: BOTH, 1: ADDED, 2: BOTH, 3: BOTH, 4: OWN}
    assert done(report) == [3, 4]
    failed = {one.offset: one.headers for one in report.partitions[0].failed}
    assert failed == {0: (("none", None), ("step", b"mail")), 1: ADDED, 2: ADDED}


@pytest.mark.parametrize("way", WAYS)
def test_handlers_without_the_records_own_headers_see_the_added_ones(way):
    """Where `includeHeaders` is not set."""
    seen = []

    def handler(record):
        seen.append((record.offset, record.attempt, record.headers))

    work = {0: PartitionWork(((0, 9),), added={0: ADDED})}
    run(handler, [(0, 0, b"a"), (0, 1, b"b")], work=work, way=way)
    assert sorted(seen) == [(0, 1, ADDED), (1, 1, ())]


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_a_retry_within_the_batch_sees_the_headers(way):
    """Each attempt those of all before it; they end with the record."""
    seen, settled = [], threading.Event()

    def handler(record):
        if record.offset == 0:
            return
        seen.append(record.headers)
        if record.attempt < 3:
            raise Retry(after=0.0, headers={f"h{record.attempt}": b"x"})
        settled.set()

    rows = [(0, 0, b"slow"), (0, 1, b"a")]
    handler = held_up(way, handler, settled)
    report = run(handler, rows, concurrency=2, policy=RetryPolicy(backoff=0, jitter=0))
    assert done(report) == [0, 1]
    assert seen == [(), (("h1", b"x"),), (("h1", b"x"), ("h2", b"x"))]


@pytest.mark.parametrize("way", WAYS)
def test_no_more_than_the_limit_is_kept_of_all_attempts_together(way):
    """The record is tried again with what it had; the reason says why."""

    def handler(record):
        raise Retry(reason="later", headers={"b": bytes(600)})

    had = (("a", bytes(600)),)
    work = {0: PartitionWork(((0, 9),), {0: 1}, added={0: had})}
    report = run(handler, [(0, 0, b"a")], work=work, way=way)
    (failure,) = report.partitions[0].failed
    assert failure.headers == had
    assert failure.error.startswith("later (no header is added: ValueError: the added headers of")
    work = {0: PartitionWork(((0, 9),), {0: 1}, added={0: (("b", bytes(900)),)})}
    report = run(handler, [(0, 0, b"a")], work=work, way=way)
    (failure,) = report.partitions[0].failed
    assert failure.headers == (("b", bytes(600)),)  # It replaces what was there.


@pytest.mark.parametrize("way", [*WAYS, "frames"])
def test_a_dead_letter_has_the_added_headers(way):
    """Those of its last attempt included, and apart from the record's own, for who writes it."""

    def handler(record):
        if record.offset == 0:
            raise Reject("no")
        raise Retry(headers={"last": b"1"})

    def frames(frame):
        answers = {0: Reject("no"), 1: Retry(headers={"last": b"1"})}
        return [answers[offset.as_py()] for offset in frame["offset"]]

    work = {0: PartitionWork(((0, 9),), {0: 1, 1: 1}, added={0: ADDED, 1: ADDED})}
    rows = [(0, 0, b"a"), (0, 1, b"b")]
    policy = RetryPolicy(max_attempts=2)
    if way == "frames":
        handler, way = FrameHandler(frames, 10), None
    report = run(handler, rows, work=work, headers=[OWN, OWN], policy=policy, way=way)
    letters = {one.offset: (one.headers, one.added) for one in report.dead}
    last = (*ADDED, ("last", b"1"))
    assert letters == {0: (BOTH, ADDED), 1: ((*BOTH, ("last", b"1")), last)}


def test_a_worker_that_ends_takes_no_header_with_it():
    """A record whose last attempt ended its worker is given up with what was added before."""
    work = {0: PartitionWork(((0, 9),), {0: 2}, added={0: ADDED})}
    policy = RetryPolicy(max_attempts=2)
    report = run(print, [(0, 0, b"a")], work=work, headers=[OWN], policy=policy)
    ((headers, added),) = [(one.headers, one.added) for one in report.dead]
    assert (headers, added) == (BOTH, ADDED)


def test_added_headers_travel_over_the_channel():
    """Of failures and of dead letters, null values included; so does the hash of a letter."""
    failure = Failure(7, 70, b"k", 2, 1.5, "why", "trace", ADDED)
    letter = DeadLetter("t", 0, 9, None, b"v", 5, BOTH, 2, "no", "trace", ADDED, 2**63 - 1, b"o")
    parts = {0: PartitionReport(failed=[failure], retrying=[failure])}
    report = SlotReport(5, 1, seq=3, pid=8, partitions=parts, dead=[letter])
    assert decode_report(encode_report(report), Identity("run", 5, 1, 8)) == report
