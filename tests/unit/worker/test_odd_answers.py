"""Handlers that raise or return odd things: each costs its own record, with a clear reason."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import pickle
import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.errors import HandlerNotUsable
from coopconsume.record import MAX_WAIT, Reject, Retry, RetryPolicy
from coopconsume.runtime.checks import check_handler
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.outcome import TaskOutcome
from coopconsume.worker.output_rows import OutputRows
from coopconsume.worker.report import PartitionWork
from tests.odd import ODD_ERRORS, BareRetry, OddText, Silent, SlyText
from tests.unit.worker import slot_harness
from tests.unit.worker.slot_harness import RETRIES_LATER, WAYS, done

EVERY_WAY = [*WAYS, "frames"]
NUMBERS = pa.schema([("n", pa.int64())])
ROWS = [(0, o, b"%d" % (o % 3)) for o in range(7)]


def run(handler, rows, **more):
    """Run rows through a handler in this process: whatever it does, the slot comes to its end."""
    try:
        return slot_harness.run(handler, rows, **more)
    except BaseException as error:  # noqa: BLE001 - SystemExit too
        pytest.fail(f"the handler ended its slot: {error!r}")


def answering(way, answer, *, raises=False, rows=ROWS, **more):
    """Run rows through a handler that answers oddly for offset 1; `answer` makes the answer."""

    def handler(record):
        if record.offset != 1:
            return None
        if raises:
            raise answer()
        return answer()

    def frames(frame):
        return [answer() if o == 1 else None for o in frame["offset"].to_pylist()]

    def raising(frame):
        if frame["offset"][0].as_py() == 1:
            raise answer()

    if way == "frames":
        one = FrameHandler(raising if raises else frames, 1)
        return run(one, rows, policy=more.pop("policy", RETRIES_LATER), **more)
    return run(handler, rows, way=way, policy=more.pop("policy", RETRIES_LATER), **more)


def is_utf8(text):
    """Whether a text has no surrogates."""
    return not any(0xD800 <= ord(one) <= 0xDFFF for one in text)


def failure(report):
    """The one failure of a report; all other keys are done, and it travels to the driver."""
    assert done(report) == [0, 2, 3, 5, 6], "other keys are done"
    assert not report.end.fatal
    (found,) = report.partitions[0].failed
    assert (found.offset, found.attempts) == (1, 1)
    assert [o for o, _ in report.partitions[0].blocked] == [4]
    assert type(found.error) is str
    assert type(found.delay) is float
    assert 0 <= found.delay <= MAX_WAIT
    assert is_utf8(found.error)
    assert len(found.error) <= 500
    assert pickle.loads(pickle.dumps(report)) == report
    return found


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize(("make", "text"), ODD_ERRORS)
def test_an_odd_error_costs_its_record_alone(way, make, text):
    """Raised or returned: other keys go on, the failure says what it can, and it is counted."""
    for raises in (True, False):
        found = failure(answering(way, make, raises=raises))
        assert text in found.error


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize(("make", "text"), ODD_ERRORS)
def test_an_odd_error_makes_a_dead_letter(way, make, text):
    """Its reason and trace are text that any table and topic takes."""
    report = answering(way, make, raises=True, policy=RetryPolicy(max_attempts=1, jitter=0))
    (letter,) = report.dead
    assert text in letter.reason
    for said in (letter.reason, letter.trace):
        assert type(said) is str
        assert is_utf8(said)
    assert letter.trace
    assert len(letter.trace) <= 8_000
    assert done(report) == list(range(7))


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (b"caf\xe9", "caf\\xe9"),
        (None, "rejected"),
        (404, "404"),
        ({"code": 4}, "{'code': 4}"),
        ("half \ud83d", "half \\ud83d"),
        (OddText(), "Reject"),
        (SlyText("sly"), "sly"),
    ],
    ids=range(8),
)
def test_the_reason_of_a_reject_may_be_anything(way, reason, text):
    """An error object, bytes, a number: shown as text, the trace of an error with it."""
    report = answering(way, lambda: Reject(reason), raises=True)
    (letter,) = report.dead
    assert text in letter.reason
    assert type(letter.reason) is str
    if isinstance(reason, ValueError):
        assert "ValueError: bad" in letter.trace
    assert done(report) == list(range(7))
    assert report.stats.failures == 1


class Doubling(RetryPolicy):
    """A policy that says something else than a number, or raises."""

    says: object = math.nan

    def delay(self, attempt):
        """An odd wait."""
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def gives_up(self, attempt, error):
        """An odd decision."""
        raise RuntimeError("the policy fails")


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("says", [math.nan, math.inf, -1, None, "5", OSError("no")])
def test_an_odd_policy_waits_as_the_default_one(way, says):
    """A subclass may answer anything: what is no wait is replaced by the default's."""
    policy = Doubling(jitter=0)
    object.__setattr__(policy, "says", says)
    found = failure(answering(way, OSError, raises=True, policy=policy))
    assert 0.5 <= found.delay <= 1.1


class Patient(RetryPolicy):
    """As on the page on handlers: waits and decisions of its own, beside those of the fields."""

    def delay(self, attempt):
        """The same wait each time."""
        return 3_600.0

    def gives_up(self, attempt, error):
        """By the text of the error, too."""
        return super().gives_up(attempt, error) or "unknown customer" in str(error)


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_policy_of_ones_own_decides(way):
    """How long a record waits, and which one is given up."""

    def known():
        return OSError("no route")

    def unknown():
        return OSError("unknown customer")

    found = failure(answering(way, known, raises=True, policy=Patient(max_attempts=5)))
    assert found.delay == 3_600.0
    for policy, make in ((Patient(max_attempts=5), unknown), (Patient(max_attempts=1), known)):
        report = answering(way, make, raises=True, policy=policy)
        assert [letter.reason for letter in report.dead] == [f"OSError: {make()}"]


ODD_WAITS = [math.inf, -math.inf, math.nan, 1e300, 10**400, -1, "5", b"5", object(), [1]]


@pytest.mark.parametrize("after", ODD_WAITS)
def test_a_retry_that_cannot_be_waited_for_is_refused(after):
    """Where it is made, it says what may be given."""
    with pytest.raises(ValueError, match=r"give seconds from 0 to 31536000"):
        Retry(after=after)


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("after", ODD_WAITS)
def test_a_retry_that_was_changed_waits_as_the_policy_says(way, after):
    """Whether an attribute or a subclass changed the wait; the text says so."""

    def make():
        error = Retry(after=5, reason="later")
        error.after = after
        return error

    for raises in (True, False):
        found = failure(answering(way, make, raises=raises))
        assert found.delay == 1_000.0
        assert found.error.startswith("later (after=")
        assert "is not a number of seconds" in found.error


@pytest.mark.parametrize("after", [0, 5, 2.5, True, Decimal("1.5"), Fraction(1, 2), np.float32(3)])
def test_any_number_of_seconds_is_a_wait(after):
    """Whatever its type, it travels as a plain float; copied and unpickled it is the same."""
    for make in (
        lambda: Retry(after=after),
        lambda: pickle.loads(pickle.dumps(Retry(after=after))),
        lambda: copy.copy(Retry(after=after)),
    ):
        assert failure(answering("plain", make, raises=True)).delay == float(after)


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("make", [lambda: Retry, lambda: BareRetry, BareRetry])
def test_the_class_of_an_outcome_is_as_good_as_an_instance(way, make):
    """Raised or returned, also of a subclass that does not call `Retry.__init__`."""
    for raises in (True, False):
        found = failure(answering(way, make, raises=raises))
        assert (found.delay, found.error) == (1_000.0, "retry asked for")
    assert [d.offset for d in answering(way, lambda: Reject).dead] == [1]


IGNORED = [0, 7, True, False, "done", b"x", 1.5, {"n": 1}, [1, 2], (), object(), range(3)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answer", IGNORED)
def test_without_an_output_what_is_returned_is_ignored(way, answer):
    """As by PySpark's foreach: the record is done."""
    report = answering(way, lambda: answer)
    assert done(report) == list(range(7))
    assert report.stats.failures == 0
    assert report.outputs is None


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("schema", [None, NUMBERS])
def test_an_outcome_among_rows_counts(way, schema):
    """A Retry in a list, or yielded, is not lost, with an output or without one."""

    def generated():
        yield {"n": 1}
        yield Retry(reason="yielded")

    for make in (lambda: [{"n": 1}, Retry(reason="yielded")], generated):
        report = answering(way, make, schema=schema)
        assert failure(report).error == "yielded"
        assert report.outputs is None


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("schema", [None, NUMBERS])
def test_a_generator_that_raises_half_way_fails_its_record(way, schema):
    """It is the handler's own code: it runs, and none of its rows counts if it fails."""
    steps = []

    def generated():
        steps.append(1)
        yield {"n": 1}
        raise OSError("half way")

    report = answering(way, generated, schema=schema)
    assert failure(report).error == "OSError: half way"
    assert report.outputs is None
    assert steps == [1]


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("schema", [None, NUMBERS])
def test_what_nobody_awaits_fails_its_record(way, schema):
    """A coroutine or an async generator has not done its work: never done, with the remedy."""

    async def coroutine():
        raise AssertionError

    async def generator():
        yield

    for make in (coroutine, generator):
        found = failure(answering(way, make, schema=schema))
        assert "async def" in found.error


MISFITS = [
    (7, "returned 7 of type int"), (True, "of type bool"), ("rows", "of type str"),
    (b"rows", "of type bytes"), ([7], "row 7 of type int"), ({"n": "x"}, "'x'"),
    ([{"n": 1}, {"n": 2**63}], "9223372036854775808"), ({"n": Silent()}, "output schema"),
    ([{"n": 1}, None], "row None"), (object(), "of type object"), ("\ud800", "\\ud800"),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("answer", "text"), MISFITS)
def test_with_an_output_what_does_not_fit_fails_its_record(way, answer, text):
    """The failure names what was returned and what may be; rows of other records stand."""

    def handler(record):
        return answer if record.offset == 1 else {"n": record.offset}

    report = run(handler, ROWS, way=way, schema=NUMBERS, policy=RETRIES_LATER)
    assert text in failure(report).error
    table = pa.ipc.open_stream(report.outputs).read_all().to_pydict()
    assert sorted(table["n"]) == sorted(table["_offset"]) == [0, 2, 3, 5, 6]


@pytest.mark.parametrize("answer", [7, 1.5, object(), {"n": "x"}])
def test_a_row_of_a_frame_with_an_odd_outcome_fails_alone(answer):
    """A frame handler answers for each row: a row without an outcome is never done."""
    schema = NUMBERS if isinstance(answer, dict) else None
    report = answering("frames", lambda: answer, schema=schema)
    failure(report)


def test_flags_and_texts_in_a_list_are_as_in_a_column():
    """True is done, false and texts are tried again, NumPy's among them."""
    answers = [True, False, "later", np.True_, np.False_, None, "\ud800"]
    report = run(FrameHandler(lambda frame: answers, 7), [(0, o, b"%d" % o) for o in range(7)])
    assert done(report) == [0, 3, 5]
    errors = [f.error for f in report.partitions[0].failed]
    assert errors == ["retry asked for", "later", "retry asked for", "\\ud800"]


@pytest.mark.parametrize("kind", ["plain", "async", "generator"])
def test_a_frame_handler_that_ends_oddly_costs_its_frame(kind):
    """SystemExit, KeyboardInterrupt, GeneratorExit: its rows fail, later frames are handled."""
    for error in (SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()):

        def plain(frame, error=error):
            if frame["offset"][0].as_py() == 0:
                raise error

        async def coroutine(frame, error=error):
            await asyncio.sleep(0)
            plain(frame, error)

        def generator(frame, error=error):
            plain(frame, error)
            yield from [None] * frame.num_rows

        handler = {"plain": plain, "async": coroutine, "generator": generator}[kind]
        report = run(FrameHandler(handler, 2), [(0, o, b"%d" % o) for o in range(4)])
        assert done(report) == [2, 3]
        texts = [f.error.split(":")[0] for f in report.partitions[0].failed]
        assert texts == [type(error).__name__] * 2


def test_endless_answers_of_a_frame_handler_are_refused():
    """It is not waited for their end."""
    report = run(FrameHandler(lambda frame: itertools.repeat(None), 2), [(0, 0, b"a")])
    assert "answered more than 1 times for 1 rows" in report.partitions[0].failed[0].error


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_task_of_a_handler_does_not_stop_the_event_loop(error):
    """SystemExit in a task stops asyncio's loop: the handler fails, all others go on."""

    async def ends():
        raise error

    async def handler(record):
        if record.offset == 1:
            await asyncio.create_task(ends())
        await asyncio.sleep(0)

    report = run(handler, ROWS, concurrency=4, policy=RETRIES_LATER)
    assert failure(report).error == error.__name__


def test_a_handler_that_cancels_itself_costs_its_record_alone():
    """The cancellation does not go on to the records that come after it."""

    async def handler(record):
        if record.offset == 1:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        if record.offset == 3:
            asyncio.current_task().cancel()  # Nothing is awaited: the record is done.

    report = run(handler, ROWS, concurrency=1, policy=RETRIES_LATER)
    assert failure(report).error == "CancelledError"


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_group_of_one_error_is_that_error(way):
    """As asyncio's TaskGroup raises it: its Retry and Reject count; of several all are named."""
    wrapped = ExceptionGroup("tasks", [ExceptionGroup("inner", [Retry(after=7, reason="busy")])])
    found = failure(answering(way, lambda: wrapped, raises=True))
    assert found.delay == pytest.approx(7.0, abs=0.5)
    assert found.error == "busy"
    report = answering(way, lambda: ExceptionGroup("g", [Reject("never")]), raises=True)
    assert [d.reason for d in report.dead] == ["never"]
    several = ExceptionGroup("two", [OSError("a"), Reject("b")])
    found = failure(answering(way, lambda: several, raises=True))
    assert found.error == "ExceptionGroup: two (2 sub-exceptions): OSError: a; b"


def test_nothing_is_given_up_without_a_place_for_it():
    """A policy may say so all the same: the record is tried again, never dropped."""
    policy = RetryPolicy(give_up_on=(OSError,), jitter=0)
    report = run(_fails, [(0, 0, b"k")], policy=policy, dead_letters=False)
    assert not report.dead
    assert [f.offset for f in report.partitions[0].failed] == [0]


def _fails(record):
    raise OSError


@pytest.mark.parametrize("way", EVERY_WAY)
def test_an_error_of_the_slot_itself_ends_its_task_at_once(way, monkeypatch):
    """It is no handler's: the slot fails, rather than to wait for a record that never settles."""

    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(TaskOutcome, "settle", broken)
    begun = time.monotonic()
    if way in ("threads", "coroutines"):
        report = answering(way, OSError, raises=True, batch_time=900.0)
        assert report.end.error == "ZeroDivisionError"
        assert 1 not in done(report)
        assert report.partitions[0].resume == 0
    else:
        with pytest.raises(pytest.fail.Exception, match="ZeroDivisionError"):
            answering(way, OSError, raises=True, batch_time=900.0)
    assert time.monotonic() - begun < 600


# -- output rows


def test_rows_are_taken_as_they_are_when_returned():
    """A handler may use one dictionary, and one list, for all its rows."""
    schema = pa.schema([("n", pa.int64()), ("some", pa.list_(pa.int64()))])
    row, some = {}, []

    def handler(record):
        some.append(record.offset)
        row.update(n=record.offset, some=some)
        return row

    report = run(handler, [(0, o, b"k") for o in range(3)], schema=schema)
    table = pa.ipc.open_stream(report.outputs).read_all()
    assert table.column("some").to_pylist() == [[0], [0, 1], [0, 1, 2]]
    assert table.column("n").to_pylist() == [0, 1, 2]


def test_rows_of_a_key_stay_in_order_however_they_are_checked():
    """Values that Arrow itself must check stand between others."""

    def handler(record):
        return {"n": np.int64(record.offset) if record.offset % 3 else record.offset}

    rows = [(0, o, b"k") for o in range(1_000)]
    report = run(handler, rows, schema=NUMBERS)
    table = pa.ipc.open_stream(report.outputs).read_all()
    assert table.column("n").to_pylist() == table.column("_offset").to_pylist() == list(range(1000))


def test_a_null_where_none_may_be_fails_its_record():
    """Also within structs and lists: the table would refuse the whole commit."""
    strict = pa.field("a", pa.int64(), nullable=False)
    columns = [strict, pa.field("b", pa.struct([strict])), pa.field("c", pa.list_(strict))]
    rows = OutputRows(pa.schema(columns))
    for row in (
        {"a": None}, {}, {"a": 1, "b": {"a": None}}, {"a": 1, "c": [None]}, {"a": np.int64(1),
        "b": {}},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"does not fit the output schema"):
            rows.checked([row])
    for row in ({"a": 1}, {"a": 1, "b": None, "c": None}, {"a": np.int64(1), "b": None}):
        rows.add(rows.checked([row]), 0, 0, 0)


MISFIT_VALUES = [
    (1.5, "column n: 1.5"), (Decimal("4.7"), "column n: Decimal('4.7')"), (True, "column n: True"),
    (2**63, "column n: 9223372036854775808"), (Silent(), "column n: <Silent"),
]  # fmt: skip


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize(("value", "text"), MISFIT_VALUES, ids=range(len(MISFIT_VALUES)))
def test_a_value_that_does_not_fit_exactly_fails_its_record(way, value, text):
    """In each way to run handlers, with the column and the value; nothing of it is written."""
    report = answering(way, lambda: {"n": value}, schema=NUMBERS)
    found = failure(report)
    assert "does not fit the output schema (n int64): " + text in found.error
    assert report.outputs is None


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_column_that_is_not_known_fails_its_record(way):
    """A misspelt name is no null; the failure names the close one."""
    for row in ({"N": 1}, {"n": 1, "m": None}, {"n": 1, 1: 2}):
        found = failure(answering(way, lambda row=row: [row], schema=NUMBERS))
        assert "there is no field" in found.error
    assert "did you mean n?" in failure(answering(way, lambda: {"N": 1}, schema=NUMBERS)).error


@given(
    st.lists(st.one_of(st.integers(-9, 9), st.floats(), st.just(np.int64(5)), st.none()),
             min_size=1, max_size=9),
)  # fmt: skip
def test_the_rows_of_records_that_fit_are_written_in_order(values):
    """Whatever stands between them."""
    rows, expected = OutputRows(NUMBERS), []
    for offset, value in enumerate(values):
        try:
            cells = rows.checked([{"n": value}])
        except ValueError:
            assert not -(2**63) <= value < 2**63 or value != int(value)
            continue
        rows.add(cells, 0, offset, 7)
        expected.append({"n": value, "_part": 0, "_offset": offset, "_key_hash": 7})
    data = rows.encode()
    assert (data is None) == (not expected)
    assert data is None or pa.ipc.open_stream(data).read_all().to_pylist() == expected


# -- retry policies


def test_jitter_is_added_and_never_subtracted():
    """A backoff of one second is at least one second; the bound is that before jitter."""
    policy = RetryPolicy(backoff=1.0, max_backoff=8.0, jitter=0.5)
    for attempt, least in ((1, 1.0), (2, 2.0), (4, 8.0), (9, 8.0), (5_000, 8.0)):
        waits = {policy.delay(attempt) for _ in range(200)}
        assert least <= min(waits) < max(waits) <= 1.5 * least
    assert RetryPolicy().delay(1) >= 1.0


@pytest.mark.parametrize(
    "odd",
    [
        {"backoff": math.nan}, {"backoff": math.inf, "max_backoff": math.inf},
        {"max_backoff": math.inf}, {"max_backoff": 1e300}, {"max_backoff": math.nan},
        {"jitter": math.nan}, {"timeout": math.nan}, {"timeout": math.inf},
        {"max_attempts": math.nan}, {"max_attempts": 0},
    ],
)  # fmt: skip
def test_a_policy_of_odd_numbers_is_refused(odd):
    """The message names the field."""
    with pytest.raises(ValueError, match=next(iter(odd))):
        RetryPolicy(**odd)


# -- handlers of the wrong signature


class Shop:
    """Handlers as methods."""

    def on_order(self, record):
        """A method of one argument."""

    def on_two(self, record, more):
        """A method of two."""

    def __call__(self, record):
        """As a handler."""


async def _generates(record):
    yield record


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (lambda: None, "takes|too many"),
        (lambda _record, _more: None, "missing a required argument"),
        (lambda _record, *, _more: None, "missing a required argument"),
        (Shop().on_two, "missing a required argument"),
        (dict, "it is a class"),
        ("tests.unit.worker.test_odd_answers:Shop.on_order", "missing a required argument"),
        (_generates, "async generator"),
        (FrameHandler(lambda: None, 5), r"handler\(frame\)"),
        (7, "not callable"),
    ],
)
def test_a_handler_that_cannot_be_called_with_a_record_is_refused(handler, text):
    """At once, with its parameters, and not record by record."""
    with pytest.raises(HandlerNotUsable, match=text):
        check_handler(handler)


@pytest.mark.parametrize(
    "handler",
    [
        print, Shop().on_order, Shop(), Shop, lambda *records: None, lambda record, more=1: None,
        FrameHandler(lambda frame: None, 5), "tests.unit.worker.test_odd_answers:_fails",
    ],
)  # fmt: skip
def test_a_handler_of_one_argument_is_taken(handler):
    """However it is written."""
    check_handler(handler)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, *range(len(ODD_ERRORS))])),
             min_size=1, max_size=30),
    st.sampled_from(EVERY_WAY), st.booleans(), st.sampled_from([None, 2]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_whatever_handlers_raise_every_record_is_in_one_book(plan, way, raises, most):
    """Odd errors of any records, in any way: order of keys, attempts, nothing lost, no crash."""
    rows = [(0, o, b"%d" % key) for o, (key, _) in enumerate(plan)]
    odd = {o: ODD_ERRORS[which][0] for o, (_, which) in enumerate(plan) if which is not None}

    def handler(record):
        if record.offset in odd:
            error = odd[record.offset]()
            if raises:
                raise error
            return error
        return None

    def frames(frame):
        return [odd[o]() if o in odd else None for o in frame["offset"].to_pylist()]

    policy = RetryPolicy(max_attempts=most, backoff=1_000.0, max_backoff=1_000.0)
    work = {0: PartitionWork(((0, 99),), attempts=dict.fromkeys(odd, 1))}
    if way == "frames":
        report = run(FrameHandler(frames, 3), rows, policy=policy, work=work)
    else:
        report = run(handler, rows, way=way, policy=policy, work=work)
    pickle.loads(pickle.dumps(report))
    outcome = report.partitions[0]
    accounted = [
        *done(report),
        *(f.offset for f in outcome.failed),
        *(o for o, _ in outcome.blocked),
    ]
    assert sorted(accounted) == list(range(len(rows)))
    assert not report.end.fatal
    if most is None:
        first = {}
        for o, (key, _) in enumerate(plan):
            if o in odd:
                first.setdefault(key, o)
        assert {f.offset for f in outcome.failed} == set(first.values())
        assert all(f.attempts == 2 for f in outcome.failed)
    else:
        assert {d.offset for d in report.dead} == set(odd)
        assert done(report) == list(range(len(rows)))
