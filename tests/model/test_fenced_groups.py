"""Appends of many threads or coroutines at once: one transaction, an answer for each."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from coopconsume.errors import AppendOutcomeUnknown, LogUnavailable, OffsetMismatch, WriterNotOpen
from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced import Appended, FencedWriter
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.log import LogId
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


class HeldUpGroups:
    """Groups whose second one, or any one on demand, is held up; and the threads that wait."""

    def __init__(self) -> None:
        self.lock, self.log = threading.RLock(), LogId("t", "id", 0)
        self.groups = Groups(1 << 20, self.lock, self._settle)
        self.taken = 0
        self.held, self.go = threading.Event(), threading.Event()
        self.held_group = 2
        self.threads: list[threading.Thread] = []

    def _settle(self, group: list[Request]) -> None:
        self.taken += 1
        if self.taken == self.held_group:
            self.held.set()
            assert self.go.wait(5 * _PATIENCE)
        for request in group:
            request.settle(Appended(request.batch_id, 0, 0, 0, 1))

    def run(self, *requests: Request, timeouts: dict[int, float] | None = None) -> None:
        """Starts threads that wait for a request each, in their order."""
        with self.lock:
            for i, request in enumerate(requests):
                timeout = (timeouts or {}).get(i)
                args = (request, self.log, timeout)
                thread = threading.Thread(target=self._answer, args=args, daemon=True)
                self.threads.append(thread)
                thread.start()
                while request not in self.groups._waiting:
                    thread.join(0.001)

    def _answer(self, request: Request, log: LogId, timeout: float | None) -> None:
        with suppress(AppendOutcomeUnknown):
            self.groups.run(request, log, timeout)

    def ended(self) -> list[bool]:
        """Whether each thread has ended, once no more of them do."""
        for thread in self.threads:
            thread.join(0.2)
        return [not thread.is_alive() for thread in self.threads]


def test_a_thread_goes_on_once_its_group_is_settled() -> None:
    """It does not wait for the next group, nor until others have taken the lock, one by one."""
    held = HeldUpGroups()
    requests = [Request([]) for _ in range(3)]
    held.run(*requests, Request([], batch_id=requests[0].batch_id))
    for thread in held.threads[:3]:
        thread.join(_PATIENCE)
    assert held.held.wait(_PATIENCE)
    ended = held.ended()
    held.go.set()
    assert ended == [True, True, True, False]
    held.threads[3].join(_PATIENCE)
    assert not held.threads[3].is_alive()
    held.groups.close()
    late = Request([])
    held.run(late)
    held.threads[-1].join(_PATIENCE)
    assert late.outcome is not None, "a writer that is closed meanwhile"


def test_a_thread_that_has_given_up_is_not_woken_in_place_of_another() -> None:
    """Its time was over while its group was under way."""
    held = HeldUpGroups()
    held.held_group = 1
    requests = [Request([]) for _ in range(3)]
    held.run(*requests, timeouts={0: 0.05})
    assert held.held.wait(_PATIENCE)
    held.threads[0].join(_PATIENCE)
    assert isinstance(requests[0].outcome, AppendOutcomeUnknown)
    held.go.set()
    for thread in held.threads[1:]:
        thread.join(_PATIENCE)
    assert held.ended() == [True, True, True]
    held.groups.close()


def test_a_thread_that_gives_up_as_it_is_woken_wakes_the_next_one() -> None:
    """The others of the group are not left waiting."""
    held = HeldUpGroups()
    held.held_group = 1
    give_up, gives_up, go = held.groups.give_up, threading.Event(), threading.Event()

    def slow(request: Request, log: LogId) -> None:
        gives_up.set()
        assert go.wait(_PATIENCE)
        give_up(request, log)

    held.groups.give_up = slow  # type: ignore[method-assign]
    held.run(*(Request([]) for _ in range(3)), timeouts={0: 0.05})
    assert gives_up.wait(_PATIENCE)
    assert held.held.wait(_PATIENCE)
    held.go.set()
    with held.lock:  # The group is settled, and its first thread woken.
        go.set()
    for thread in held.threads:
        thread.join(_PATIENCE)
    assert held.ended() == [True, True, True]
    held.groups.close()


@pytest.mark.parametrize("when", ["before it asks", "after it has asked", "as it is woken"])
def test_a_signal_in_the_main_thread_leaves_no_other_thread_waiting(when: str) -> None:
    """Wherever it comes: as the main thread asks for its group to be settled, or is woken."""
    held, mine, left = HeldUpGroups(), Request([]), threading.Event()
    held.held_group = 0
    groups = held.groups
    submit, wake_next, locked = groups._pool.submit, groups._wake_next, threading.Event()

    def signal(now: str) -> None:
        if now == when and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    def interrupted_submit(*args: Any) -> object:
        signal("before it asks")
        future = submit(*args)
        signal("after it has asked")
        return future

    def interrupted_wake_next() -> None:
        signal("as it is woken")
        wake_next()

    def start_others() -> None:
        with held.lock:
            locked.set()
            while mine not in groups._waiting and not left.wait(0.001):
                pass
            held.run(*(Request([]) for _ in range(3)))

    groups._pool.submit = interrupted_submit  # type: ignore[method-assign,assignment]
    groups._wake_next = interrupted_wake_next  # type: ignore[method-assign]
    starter = threading.Thread(target=start_others, daemon=True)
    starter.start()
    assert locked.wait(_PATIENCE)
    with suppress(KeyboardInterrupt):
        groups.run(mine, held.log, _PATIENCE)
    left.set()
    starter.join(_PATIENCE)
    for thread in held.threads:
        thread.join(_PATIENCE / 10)
    assert held.ended() == [True, True, True]
    groups.close()


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
        writer._groups._waiting.append(request)
    writer._groups.settle_waiting()
    assert [request.result().first_seq for request in good] == [0, 1, 2]
    with pytest.raises(AppendRefused, match="too large"):
        bad.result()


def test_a_call_has_its_own_time() -> None:
    """While others append it may be withdrawn; once it was sent, it is unknown."""
    log = HeldUpLog("read_committed")
    first = log.hold_up()
    with pytest.raises(LogUnavailable, match=r"0\.05 s"):
        log.writer.append([b"late"], timeout=0.05)
    sent = log.writer._request([b"sent"], batch_id="b1", timeout=0.05)
    log.writer._groups.give_up(sent, log.writer.log)
    with pytest.raises(AppendOutcomeUnknown, match="b1"):
        sent.result()
    log.go.set()
    first.join(_PATIENCE)
    assert log.writer.append([b"next"]).first_seq == 1
    with pytest.raises(AppendRefused, match="timeout"):
        log.writer.append([b"x"], timeout=0)


def test_a_call_keeps_to_its_time_beside_calls_with_more() -> None:
    """A call that finds the writer idle does not wait for the answers of other requests."""
    log = HeldUpLog("read_committed")
    patient = log.writer._request([b"patient"])
    log.writer._groups._waiting.append(patient)
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
    assert patient.result().first_seq == 0


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
