"""Appends of many threads or coroutines at once: one transaction, an answer for each."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from coopconsume.errors import AppendOutcomeUnknown, LogUnavailable, OffsetMismatch, WriterNotOpen
from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced import Appended, FencedWriter
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.log import Expectation, LogId
from coopconsume.fenced.requests import Groups, Request
from tests.fenced_checker import Outcomes, problems
from tests.model.fenced_broker import Broker, FakeEngine, Fate

OPTIONS = {"kafka.bootstrap.servers": "nowhere:1"}
VISIBILITIES = ["read_committed", "filter"]
_PATIENCE = 60.0


class HeldUpLog:
    """A broker that counts requests and can hold one of them up, and a writer."""

    def __init__(self, visibility: str, timeout: float = _PATIENCE) -> None:
        self.requests: Counter[str] = Counter()
        self.held, self.go = threading.Event(), threading.Event()
        self.hold = False
        self.broker = Broker(self._fate, lambda: None)
        self.writer = FencedWriter(
            OPTIONS, "t", visibility=visibility, engine=FakeEngine(self.broker), timeout=timeout
        ).acquire()  # type: ignore[arg-type]
        self.requests.clear()

    def _fate(self, name: str) -> Fate:
        self.requests[name] += 1
        if self.hold and name == "append":
            self.hold = False
            self.held.set()
            assert self.go.wait(_PATIENCE)
        return "done"

    def hold_up(self) -> threading.Thread:
        """Starts an append that stays under way until `go` is set."""
        self.hold = True
        thread = threading.Thread(target=self.writer.append, args=([b"first"],))
        thread.start()
        assert self.held.wait(_PATIENCE)
        return thread


def outcomes_of(answers: list[Appended]) -> Outcomes:
    """The outcomes that the callers got."""
    acked = {a.batch_id: (a.first_offset, a.first_seq, a.count) for a in answers}
    return Outcomes(acked)


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_coroutines_share_transactions_and_have_their_own_answers(visibility: str) -> None:
    """Each record is there once, in as few transactions as there were pauses."""
    log = HeldUpLog(visibility)
    first = log.hold_up()

    async def run() -> list[Appended]:
        calls = [asyncio.ensure_future(log.writer.append_async([b"%d" % i])) for i in range(64)]
        await asyncio.sleep(0)  # Each of them runs until it waits.
        assert len(log.writer._groups._waiting) == 64
        log.go.set()
        return await asyncio.gather(*calls)

    answers = asyncio.run(run())
    first.join(_PATIENCE)
    assert sorted(a.first_seq for a in answers) == list(range(1, 65))
    assert log.requests["append"] == 2
    checked = outcomes_of(answers)
    checked.unknown.update(log.writer._session.fold.batches)
    assert not problems(log.broker.visible(), checked)


def test_threads_that_wait_are_written_together() -> None:
    """The expectation of each one is compared with the place that it gets."""
    log = HeldUpLog("read_committed")
    first = log.hold_up()
    outcomes: dict[int, object] = {}

    def append(seq: int) -> None:
        try:
            outcomes[seq] = log.writer.append([b"x"], expected_seq=seq)
        except OffsetMismatch as error:
            outcomes[seq] = error

    # In their order: the ones that expect 1, 2 and 3 are right, 7 and 2 are not.
    threads = []
    for waiting, seq in enumerate((1, 7, 2, 3), 1):
        threads.append(threading.Thread(target=append, args=(seq,), daemon=True))
        threads[-1].start()
        while len(log.writer._groups._waiting) < waiting and threads[-1].is_alive():
            threads[-1].join(0.001)
    log.go.set()
    for thread in (first, *threads):
        thread.join(_PATIENCE)
    assert outcomes.keys() == {1, 2, 3, 7}
    assert [getattr(outcomes[seq], "first_seq", None) for seq in (1, 2, 3)] == [1, 2, 3]
    mismatch = outcomes[7]
    assert isinstance(mismatch, OffsetMismatch)
    assert (mismatch.expected, mismatch.actual) == (7, 2)
    assert log.requests["commit"] == 2


def test_a_thread_goes_on_as_soon_as_it_has_its_answer() -> None:
    """It does not wait until the other threads of its group have taken the lock, one by one."""
    go, lock = threading.Event(), threading.RLock()

    def settle(group: list[Request]) -> None:
        for request in group:
            request.settle(Appended(request.batch_id, 0, 0, 0, 1))
        assert go.wait(5 * _PATIENCE)

    groups, log = Groups(1 << 20, lock, settle), LogId("t", "id", 0)
    requests = [Request([], Expectation()) for _ in range(3)]
    threads = [
        threading.Thread(target=groups.run, args=(request, log, None), daemon=True)
        for request in requests
    ]
    with lock:
        for thread in threads:
            thread.start()
        while len(groups._waiting) < len(threads):
            threads[0].join(0.001)
    for thread in threads:
        thread.join(_PATIENCE)
    alive = [thread.is_alive() for thread in threads]
    go.set()
    assert alive == [False, False, False]
    groups.close()
    late = Request([], Expectation())
    with lock:
        thread = threading.Thread(target=groups.run, args=(late, log, None), daemon=True)
        thread.start()
        while not groups._waiting:
            thread.join(0.001)
    thread.join(_PATIENCE)
    assert late.done(), "a writer that is closed meanwhile"


def test_one_append_that_kafka_does_not_take_refuses_no_other() -> None:
    """The rest of its group is appended without it."""
    log = HeldUpLog("read_committed", timeout=2)
    broker, writer = log.broker, log.writer
    good = [writer._request([b"g%d" % i]) for i in range(3)]
    bad = writer._request([b"bad"])
    channel = writer._session.channel
    assert channel is not None
    write = broker.write

    def refuse(raws: list, transaction: object) -> list[int]:
        if any(raw.value == b"bad" for raw in raws):
            raise EngineDoubt("too large", AppendRefused("too large"))
        return write(raws, transaction)  # type: ignore[arg-type]

    broker.write = refuse  # type: ignore[method-assign,assignment]
    for request in (good[0], bad, *good[1:]):
        writer._groups.put(request)
    writer._groups.settle_waiting()
    assert [request.result(0).first_seq for request in good] == [0, 1, 2]
    with pytest.raises(AppendRefused, match="too large"):
        bad.result(0)


def test_a_call_has_its_own_time() -> None:
    """While others append it may be withdrawn; once it was sent, it is unknown."""
    log = HeldUpLog("read_committed")
    first = log.hold_up()
    with pytest.raises(LogUnavailable, match=r"0\.05 s"):
        log.writer.append([b"late"], timeout=0.05)
    sent = log.writer._request([b"sent"], batch_id="b1", timeout=0.05)
    log.writer._groups.give_up(sent, log.writer.log)
    with pytest.raises(AppendOutcomeUnknown, match="b1"):
        sent.result(0)
    log.go.set()
    first.join(_PATIENCE)
    assert log.writer.append([b"next"]).first_seq == 1
    with pytest.raises(AppendRefused, match="timeout"):
        log.writer.append([b"x"], timeout=0)


def test_a_call_keeps_to_its_time_beside_calls_with_more() -> None:
    """A call that finds the writer idle does not wait for the answers of other requests."""
    log = HeldUpLog("read_committed")
    patient = log.writer._request([b"patient"])
    log.writer._groups.put(patient)
    log.hold = True
    outcomes: list[object] = []

    def append() -> None:
        try:
            outcomes.append(log.writer.append([b"urgent"], timeout=0.05))
        except (AppendOutcomeUnknown, LogUnavailable) as error:
            outcomes.append(error)

    thread = threading.Thread(target=append, daemon=True)
    thread.start()
    assert log.held.wait(_PATIENCE)
    thread.join(_PATIENCE / 2)
    is_late = thread.is_alive()
    log.go.set()
    thread.join(_PATIENCE)
    assert not is_late
    assert isinstance(outcomes[0], AppendOutcomeUnknown | LogUnavailable)
    log.writer._groups.settle_waiting()
    assert patient.result(0).first_seq == 0


def test_a_cancelled_coroutine_takes_its_records_back() -> None:
    """If they were not sent yet."""
    log = HeldUpLog("read_committed")
    first = log.hold_up()

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await log.writer.append_async([b"late"])
        log.go.set()
        assert (await log.writer.append_async([b"next"])).first_seq == 1
        log.writer.close()
        with pytest.raises(WriterNotOpen):
            await log.writer.append_async([b"x"])

    asyncio.run(run())
    first.join(_PATIENCE)


def test_an_append_that_always_fails_ends_with_its_time() -> None:
    """The log is taken again each time, and has nothing of it."""
    log = HeldUpLog("read_committed", timeout=0.2)
    write = log.broker.write

    def fail(raws: list, transaction: object) -> list[int]:
        if raws[0].value == b"x":
            raise EngineDoubt("no")
        return write(raws, transaction)  # type: ignore[arg-type]

    log.broker.write = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(LogUnavailable, match="no"):
        log.writer.append([b"x"])
    assert log.writer.append([b"y"]).first_seq == 0
