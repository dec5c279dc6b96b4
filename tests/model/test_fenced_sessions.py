"""Sessions that go on in another writer, and the last batch of a job: against what was done."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coopconsume.errors import (
    AppendOutcomeUnknown,
    AppendRefused,
    InvalidOption,
    LogReplaced,
    LogUnavailable,
    OffsetMismatch,
    ProducerBusy,
    ProducerFenced,
)
from coopconsume.fenced import Entry, FencedWriter, audit
from coopconsume.fenced.engine import EngineDoubt, LogAppend
from coopconsume.fenced.log import MULTI, Appended, LogId, Raw
from coopconsume.fenced.stamp import Stamp, decode, encode
from coopconsume.fenced.view import _TAIL
from tests.fenced_checker import Outcomes, problems
from tests.model.fenced_broker import (
    OPTIONS,
    Broker,
    FakeChannel,
    FakeEngine,
    Fate,
    reader_of,
    writer_of,
)

#: The session, by how much its epoch is beside the one in force (None: not given), how many
#: batches it writes, whose they are.
TURNS = st.tuples(
    st.sampled_from(["anna", "ben", None]), st.sampled_from([None, -1, 0, 0, 1, 3]),
    st.integers(0, 90), st.sampled_from(["job", "other"]),
)  # fmt: skip


def expected(session: str | None, given: int | None, owner: str | None, epoch: int) -> int | None:
    """The epoch that a writer has to get; None: it is fenced."""
    if given is None:
        return epoch if session is not None and session == owner else epoch + 1
    if given < epoch or (given == epoch and session != owner):
        return None
    return given


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
@settings(max_examples=30, deadline=None)
@given(st.lists(TURNS, max_size=6))
def test_a_session_keeps_its_epoch_unless_another_had_a_turn(visibility: str, turns: list) -> None:
    """However far back its open record lies; and a job finds its last batch."""
    broker = Broker()
    owner, epoch, outcomes = None, 0, Outcomes()
    last: dict[str, Appended] = {}
    for turn, (session, beside, batches, job) in enumerate(turns):
        known = None if session is None or beside is None else max(1, epoch + beside)
        writer = writer_of(broker, visibility=visibility, session=session, epoch=known)
        wanted = expected(session, known, owner, epoch)
        if wanted is None:
            written, producers = len(broker.slots), dict(broker.ids)
            with pytest.raises(ProducerFenced):
                writer.acquire()
            assert (len(broker.slots), broker.ids) == (written, producers), "nobody is disturbed"
            continue
        writer.acquire()
        assert writer.epoch == wanted
        owner, epoch = writer.session, wanted
        for name in ("job", "other", "none"):
            assert writer.last_batch(f"{name}:") == last.get(name)
        for i in range(batches):
            last[job] = done = writer.append([b"a", b"b"], batch_id=f"{job}:{turn}.{i}")
            outcomes.acked[done.batch_id] = (done.first_offset, done.first_seq, done.count)
        assert writer.last_batch(f"{job}:") == last.get(job)
        writer.close()
    assert not problems(broker.visible(), outcomes)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 150), st.integers(0, 700), st.integers(0, 3))
@example(100, 1, 0)
def test_the_last_batch_of_a_job_is_found_wherever_it_begins(
    count: int, behind: int, opened: int
) -> None:
    """Also if it begins in one part of the log that is read, and ends in another one."""
    broker = Broker()
    first = writer_of(broker).acquire()
    done = first.append([b"a"] * count, batch_id="job:7")
    if behind:
        first.append([b"b"] * behind, batch_id="other")
    for _ in range(opened):
        writer_of(broker).acquire()
    last = writer_of(broker).acquire()
    assert last.last_batch("job:") == last.resolve("job:7") == done
    assert writer_of(broker).acquire().last_batch("job:", since=done.first_offset + 1) is None
    again = writer_of(broker).acquire()
    assert again.append([b"a"] * count, batch_id="job:7") == done
    peeked = FencedWriter.peek(OPTIONS, "t", engine=FakeEngine(broker))
    assert (peeked.next_seq, peeked.session) == (count + behind, again.session)


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
@pytest.mark.parametrize("request_", [None, "read", "init", "commit"])
def test_only_the_owner_that_is_named_is_fenced(visibility: str, request_: str | None) -> None:
    """A later owner keeps the log, also while it is being taken."""
    broker = Broker()
    writer = partial(writer_of, broker, visibility=visibility)
    first = writer().acquire(replaces_epoch=0)
    seen = FencedWriter.peek(OPTIONS, "t", engine=FakeEngine(broker)).epoch  # type: ignore[arg-type]
    second, late = writer(), writer()
    asked = iter([True])

    def fate(name: str) -> str:
        if name == request_ and next(asked, False):
            second.acquire()
        return "done"

    broker.fate = fate  # type: ignore[assignment]
    if request_ is None or (visibility == "filter" and request_ in ("init", "commit")):
        second.acquire()
        next(asked, None)
    with pytest.raises(ProducerBusy, match="epoch is 2, expected 1"):
        late.acquire(replaces_epoch=seen)
    assert second.append([b"mine"]).epoch == 2
    with pytest.raises(ProducerFenced):
        first.append([b"late"])
    with pytest.raises(ProducerBusy):
        writer().acquire(replaces_epoch=0)
    assert late.acquire(replaces_epoch=2).append([b"now"]).epoch == 3


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_an_owner_is_fenced_by_choice(visibility: str, caplog: pytest.LogCaptureFixture) -> None:
    """`fence_owner`: False leaves it alone, True fences it; without it, a warning names it."""
    broker = Broker()
    writer = partial(writer_of, broker, visibility=visibility)
    first = writer(owner="anna", fence_owner=False).acquire()
    first.append([b"a"])
    written, producers = len(broker.slots), dict(broker.ids)
    refused = writer(fence_owner=False)
    for again in (refused, refused, writer(fence_owner=False, session="other")):
        with pytest.raises(ProducerBusy, match="epoch is 1, expected 0: it is held by 'anna'"):
            again.acquire()
    assert (len(broker.slots), broker.ids) == (written, producers), "nobody is disturbed"
    assert first.append([b"b"]).epoch == 1

    first.release()
    assert first.acquire().epoch == 2, "its own log, which nobody had in between"
    assert refused.acquire(replaces_epoch=2).append([b"c"]).epoch == 3, "a name is a choice"
    with pytest.raises(ProducerFenced):
        first.append([b"late"])
    refused.release()
    with pytest.raises(ProducerBusy), writer(fence_owner=False, session="mine"):
        pass
    same = writer(session="mine", fence_owner=True).acquire()
    assert writer(session="mine", fence_owner=False).acquire().epoch == same.epoch == 4
    with pytest.raises(ProducerBusy, match="epoch is 4, expected 3"):
        refused.acquire()  # somebody had it since it was released
    assert not caplog.records, "all of these were choices"

    plain = writer(owner="ben").acquire()
    assert plain.epoch == 5
    assert len(caplog.messages) == 1
    warning = caplog.messages[0]
    assert "t-0 was taken from" in warning
    assert "(epoch 4)" in warning
    assert "fence_owner=True" in warning
    plain.release()
    assert plain.acquire().epoch == 6
    assert len(caplog.messages) == 1, "it took its own log"


@pytest.mark.parametrize("lost", range(1, 6))
def test_a_doubt_on_the_way_to_the_state_does_not_make_it_up(lost: int) -> None:
    """The log's last records are foreign, so that more than one window is read to find it."""
    broker = Broker()
    first = writer_of(broker).acquire()
    done = first.append([b"a", b"b"])
    for _ in range(1_000):
        broker.foreign()
    reads = iter(range(1, 100))
    broker.fate = lambda name: "lost" if name == "read" and next(reads) == lost else "done"
    second = writer_of(broker).acquire()
    assert (second.epoch, second.next_seq) == (first.epoch + 1, done.last_seq + 1)
    outcomes = Outcomes()
    outcomes.acked[done.batch_id] = (done.first_offset, done.first_seq, done.count)
    assert not problems(broker.visible(), outcomes)


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=12))
def test_of_two_writers_of_one_session_the_later_one_stays(visibility: str, acts: list) -> None:
    """A process that was frozen wakes beside its successor: it is fenced, the successor goes on."""
    broker, outcomes = Broker(), Outcomes()
    first = writer_of(broker, visibility=visibility, session="mine").acquire()
    second = writer_of(broker, visibility=visibility, session="mine", epoch=first.epoch).acquire()
    assert (second.epoch, second.session) == (first.epoch, "mine")
    for i, act in enumerate(acts):
        if act == "a":
            with pytest.raises(ProducerFenced):
                first.append([b"a"], batch_id=f"a{i}")
            outcomes.refused.add(f"a{i}")
        else:
            done = second.append([b"b"], batch_id=f"b{i}")
            outcomes.acked[done.batch_id] = (done.first_offset, done.first_seq, done.count)
    assert not problems(broker.visible(), outcomes)


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_a_topic_created_again_stops_its_former_owner(visibility: str, clock: list[float]) -> None:
    """Its log is by chance as long as the one before; what the former owner writes is no part."""
    broker, outcomes = Broker(), Outcomes()
    old = writer_of(broker, visibility=visibility).acquire()
    broker.slots.clear()
    broker.topic_id = "another"
    new = writer_of(broker, visibility=visibility).acquire()
    assert (old.epoch, old.next_offset) == (new.epoch, new.next_offset)
    old.append([b"late"], batch_id="late")
    clock[0] += 2.0
    with pytest.raises(LogReplaced):
        old.append([b"later"])
    with pytest.raises(OffsetMismatch):
        new.append([b"x"], expected_offset=new.next_offset)
    done = new.append([b"x"], expected_seq=0)
    outcomes.acked[done.batch_id] = (done.first_offset, done.first_seq, done.count)
    assert [record.value for record in reader_of(broker).read()] == [b"x"]
    _, audited = audit(OPTIONS, "t", engine=FakeEngine(broker))  # type: ignore[arg-type]
    assert (audited.ok, audited.fenced, audited.records) == (True, 1, 1)
    assert [finding.what for finding in audited.findings] == ["fenced"]


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 150), st.booleans(), st.booleans(), st.integers(1, 3))
def test_a_batch_id_counts_once_at_any_distance(
    visibility: str, between: int, restarts: bool, expects: bool, count: int
) -> None:
    """Repeated by a new process, too; the same id with other records is an error."""
    broker, outcomes = Broker(), Outcomes()
    mine = writer_of(broker, visibility=visibility).acquire()
    mine._session.fold.remembered = 5
    rows = [Entry(b"%d" % i, b"k", [("h", b"x")]) for i in range(count)]
    first = mine.append(rows, batch_id="transfer-7")
    outcomes.acked["transfer-7"] = (first.first_offset, first.first_seq, count)
    for i in range(between):
        mine.append([b"other"], batch_id=f"o{i}")
        outcomes.unknown.add(f"o{i}")
    if restarts:
        mine.close()
        mine = writer_of(broker, visibility=visibility).acquire()
    expected = {"expected_seq": mine.next_seq} if expects else {}
    assert mine.append(rows, batch_id="transfer-7", **expected) == first
    for other in (rows[1:] or [b"x"], [*rows[:-1], rows[-1]._replace(value=b"y")],
                  [*rows[:-1], rows[-1]._replace(headers=[])]):  # fmt: skip
        with pytest.raises(AppendRefused, match=r"transfer-7.*other records"):
            mine.append(other, batch_id="transfer-7")
    done = mine.append(rows, batch_id="transfer-8")
    outcomes.acked["transfer-8"] = (done.first_offset, done.first_seq, count)
    assert not problems(broker.visible(), outcomes)


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_looking_takes_nothing(visibility: str) -> None:
    """The end, the owner and its epoch; the owner writes on."""
    broker = Broker()
    owner = writer_of(broker, visibility=visibility, owner="anna").acquire()
    first = owner.append([b"a", b"b"], batch_id="one:0")
    slots, ids = len(broker.slots), dict(broker.ids)
    seen = FencedWriter.peek(OPTIONS, "t", engine=FakeEngine(broker))  # type: ignore[arg-type]
    assert (seen.owner, seen.epoch, seen.next_seq, seen.end) == ("anna", 1, 2, owner.next_offset)
    assert (seen.session, seen.visibility) == (owner.session, visibility)
    assert (len(broker.slots), broker.ids) == (slots, ids)
    second = owner.append([b"c"], expected_seq=seen.next_seq, batch_id="one:1")
    assert owner.last_batch("one:", since=second.first_offset) == second
    assert owner.last_batch("one:0", since=first.first_offset) == first
    assert owner.last_batch("one:0", since=first.first_offset + 1) is None


def test_a_batch_of_nobody_in_force_is_no_last_batch() -> None:
    """A part of the log may begin with a record that counts only as far as that part shows."""
    broker = Broker()
    owner = writer_of(broker, visibility="filter").acquire()
    owner.append([b"a"] * 10)
    at = len(broker.slots)
    stray = Stamp("filter", "data", 9, owner.next_seq, 1, 0, "job:7", at)
    broker.write([Raw(0, 0, None, b"", [encode(stray)])], None)
    owner.refresh()
    owner.append([b"b"] * (_TAIL - 1))
    assert owner.last_batch("job:") is None
    assert owner.resolve("job:7") is None


@pytest.mark.parametrize("records", [1, 30])
def test_a_topic_created_again_during_a_call_is_not_a_corrupt_log(records: int) -> None:
    """Its end, or its records, are of the new topic although the id was still that of the old."""
    broker = Broker()
    writer = writer_of(broker, visibility="filter").acquire()
    writer.append([b"a"] * 5)

    def recreate(name: str) -> str:
        if name == "ends" and broker.topic_id == "topic-id":
            broker.topic_id = "another"
            broker.slots.clear()
            for seq in range(records):
                tag = writer._session.fold.tag
                stamp = Stamp("filter", "data", writer.epoch, seq, 1, 0, f"b{seq}", seq, tag)
                broker.write([Raw(0, 0, None, b"", [encode(stamp)])], None)
        return "done"

    broker.fate = recreate  # type: ignore[assignment]
    with pytest.raises(LogReplaced):
        writer.refresh()


def test_an_idle_owner_writes_checkpoints_if_it_is_asked_to() -> None:
    """So that retention leaves a record with the numbers; a failed one is repeated."""
    broker = Broker()
    with writer_of(broker, checkpoint_every=0.02) as owner:
        owner.append([b"a"])
        written, until = len(broker.slots), time.monotonic() + 60
        while len(broker.slots) < written + 4 and time.monotonic() < until:
            threading.Event().wait(0.01)
        assert len(broker.slots) >= written + 4
        assert owner.append([b"b"]).first_seq == 1
    kinds = [stamp.kind for raw in broker.visible() if (stamp := decode(raw.headers))]
    assert kinds.count("data") == 2
    assert kinds.count("checkpoint") >= 2
    with pytest.raises(InvalidOption, match="checkpoint_every"):
        FencedWriter(OPTIONS, "t", checkpoint_every=0)


def test_what_no_session_can_be_is_refused() -> None:
    """At once, with the argument's name."""
    for name, arguments in (
        ("session", {"session": ""}), ("session", {"session": "s", "shared": True}),
        ("epoch", {"epoch": 1}), ("epoch", {"session": "s", "epoch": 0}),
        ("fence_owner", {"shared": True, "fence_owner": True}),
    ):  # fmt: skip
        with pytest.raises(InvalidOption, match=name):
            FencedWriter(OPTIONS, "t", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_an_id_that_another_append_took_meanwhile_is_refused(visibility: str) -> None:
    """A writer that has not read it yet finds it as it appends: its place is no answer."""
    broker = Broker()
    one, two = (writer_of(broker, shared=True, visibility=visibility).acquire() for _ in range(2))
    first = one.append([b"1"], batch_id="x")
    with pytest.raises(AppendRefused, match="other records"):
        two.append([b"2"], batch_id="x")
    assert two.append([b"1"], batch_id="x") == first


def raising(problem: str) -> Callable[..., NoReturn]:
    """A call that ends in a doubt."""

    def call(*_: object) -> NoReturn:
        raise EngineDoubt(problem)

    return call


def values(broker: Broker) -> list[bytes | None]:
    """What a reader gets of the log."""
    with reader_of(broker) as reader:
        return [record.value for record in reader.read()]


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_an_append_that_another_writer_made_meanwhile_is_not_made_again(visibility: str) -> None:
    """A second batch of an id does not count, so that the next one would leave a gap."""
    broker = Broker()
    one, two = (writer_of(broker, shared=True, visibility=visibility).acquire() for _ in range(2))
    first = one.append([b"1"], batch_id="x")
    two._session.identified_at = -math.inf  # It looks at the log again before it appends.
    assert two.append([b"1"], batch_id="x") == first
    two.append([b"2"])
    one.append([b"3"])
    assert values(broker) == [b"1", b"2", b"3"]


def test_an_id_whose_records_cannot_be_compared_has_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The records in the log may be those of another append."""
    broker = Broker()
    one = writer_of(broker).acquire()
    one.append([b"1"], batch_id="x")
    one.append([b"2"])
    with monkeypatch.context() as patched:
        patched.setattr(one._session, "read", raising("away"))
        with pytest.raises(LogUnavailable, match="away"):
            one.append([b"3"], batch_id="x")
    broker.kept = 3
    with pytest.raises(AppendOutcomeUnknown, match="retention"):
        one.append([b"3"], batch_id="x")
    assert one.append([b"4"]).first_seq == 2


def test_an_own_append_that_cannot_be_compared_is_not_reported_as_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its commit was not answered, and then the log cannot be read."""
    broker = Broker()
    one = writer_of(broker).acquire()
    doubts = ["commit"]
    broker.fate = lambda name: "unanswered" if name in doubts and not doubts.clear() else "done"
    with monkeypatch.context() as patched:
        patched.setattr(one._session, "check_answer", raising("away"))
        with pytest.raises(AppendOutcomeUnknown):
            one.append([b"1"], batch_id="x")
    assert one.append([b"1"], batch_id="x").first_seq == 0
    assert values(broker) == [b"1"]


def test_a_fenced_writer_has_no_answer_for_the_id_of_another_append() -> None:
    """It has one for an append that the log has."""
    broker = Broker()
    one = writer_of(broker).acquire()
    first = one.append([b"1"], batch_id="x")
    writer_of(broker, fence_owner=True).acquire()
    with pytest.raises(ProducerFenced):
        one.append([b"2"])
    with pytest.raises(AppendRefused, match="other records"):
        one.append([b"3"], batch_id="x")
    assert one.append([b"1"], batch_id="x") == first


def test_headers_are_compared_by_what_they_say() -> None:
    """A caller may give them as lists, and the client returns tuples."""
    one = writer_of(Broker()).acquire()
    first = one.append([Entry(b"1", None, [("a", b"x")])], batch_id="x")
    listed: Any = [["a", b"x"]]
    assert one.append([Entry(b"1", None, listed)], batch_id="x") == first
    with pytest.raises(AppendRefused, match="other records"):
        one.append([Entry(b"1", None, [("a", b"y")])], batch_id="x")


def test_a_transaction_that_began_before_the_marker_of_an_owner_keeps_no_id_from_it() -> None:
    """The owner's last append ends behind it: the log is read so far once it is ended."""
    broker = Broker()
    log, name = LogId("t", broker.topic_id, 0), f"{MULTI}other"
    entry, stamp = Entry(b"x"), Stamp("read_committed", "data", 0, 0, 1, 0, "b0", 1)

    def fate(request: str) -> Fate:
        if request == "commit":
            broker.fate = lambda _: "done"
            other = FakeChannel({log.tp: broker}, name)
            other.init(1)
            other.append([LogAppend(log, [entry], [encode(stamp)])], 1)
        return "done"

    broker.fate = fate
    writer = writer_of(broker, timeout=2).acquire()
    assert writer.next_offset > broker.ends().stable
    assert writer.append([b"a"], batch_id="b1").first_seq == 0
