"""Says what a job or `poll` waits for. Pure: the loop and the poller collect the facts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from coopconsume.monitoring.verdict import SHORTER_WAIT
from coopconsume.runtime.plan.attempts import next_attempt
from coopconsume.runtime.plan.range_limit import limit_warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from coopconsume.runtime.plan import Partition

Reason = Literal[
    "group", "handOver", "handlers", "slots", "stop", "paused", "circuitBreaker", "commitLog",
    "kafka", "lostMember", "lostSlots", "failedSlots", "limit", "retry", "decision", "otherMembers",
    "trigger", "newRecords", "nextBatch",
]  # fmt: skip

_NAMED = 5
#: Seconds in which slots usually start.
_SOON = 2.0
#: Seconds for which the first batch of a job may start before that is something to look into:
#: Spark starts workers and generates code for it.
_FIRST_BATCH = 30.0


@dataclass(frozen=True)
class WaitingFor:
    """What a job or `poll` waits for.

    Attributes:
        reason: Its kind, for programs.
        message: One sentence for people: what is waited for, until when if that is known, and what
            shortens it.
    """

    reason: Reason
    message: str

    def describe(self) -> dict[str, str]:
        """Returns the fields of progress events and of ``query.status``."""
        return {"reason": self.reason, "message": self.message}


_DECISION = WaitingFor(
    "decision",
    "waiting for a decision on parked records (coopconsume dead-letters replay or discard, or "
    "coopconsume records retry or skip), and for new records",
)
_NEW_RECORDS = WaitingFor("newRecords", "waiting for new records")


@dataclass(frozen=True)
class OldestCall:
    """A handler call that takes long.

    Attributes:
        topic, partition, offset: Its record, or the first one of its frame.
        seconds: For how long it has run.
    """

    topic: str
    partition: int
    offset: int
    seconds: float

    @property
    def place(self) -> tuple[str, int, int]:
        """Topic, partition and offset."""
        return self.topic, self.partition, self.offset

    def describe(self) -> dict[str, Any]:
        """Returns the fields of progress events."""
        return {
            "topic": self.topic, "partition": self.partition, "offset": self.offset,
            "seconds": round(self.seconds, 1),
        }  # fmt: skip


@dataclass(frozen=True)
class BatchFacts:
    """A batch that Spark works on.

    Attributes:
        number: Its number.
        age: Seconds since it was given to Spark.
        slots: How many of its slots have not ended.
        started: How many of them have started; None: unknown, as they have no channel.
        silent: Seconds since a slot reported, or since the batch was given to Spark.
        tasks: Tasks that Spark runs for it; None: unknown.
        oldest_call: The handler call that has run for longest; None: no call takes long, or it is
            not known.
    """

    number: int
    age: float
    slots: int
    started: int | None
    silent: float
    tasks: int | None = None
    oldest_call: OldestCall | None = None


@dataclass(frozen=True)
class JobFacts:
    """What the loop knows at one moment; times are seconds from now.

    Attributes:
        joining: Why the consumer has no key ranges; empty if it has.
        partitions: What is known of the owned partitions.
        batches: Batches that Spark works on.
        hand_over: Until when the group waits for running handlers; None: no hand-over.
        is_stopping: Whether the query is stopping.
        is_paused: Whether the query is paused.
        breaker: Until when the circuit breaker is open; None: it is not.
        breaker_reason: The error that opened it.
        kafka: Why the last look at Kafka failed; empty if it did not.
        unanswered: For how long the commit table has not answered, and why; empty if it has.
        barred: Until when slots may be at work on what is lost, by slot.
        failing: Slots that have failed: until when they get no batch, and why they have failed.
        next_trigger: Until when no batch starts, by the trigger's interval.
        is_starting: Whether the job has not handled any record yet.
    """

    joining: str = ""
    partitions: Sequence[Partition] = ()
    batches: Sequence[BatchFacts] = ()
    hand_over: float | None = None
    is_stopping: bool = False
    is_paused: bool = False
    breaker: float | None = None
    breaker_reason: str = ""
    kafka: str = ""
    unanswered: str = ""
    barred: Mapping[int, float] = field(default_factory=dict)
    failing: Mapping[int, tuple[float, str]] = field(default_factory=dict)
    next_trigger: float = 0.0
    is_starting: bool = False


def waiting_for(facts: JobFacts, now: float) -> WaitingFor:
    """Returns what a job waits for that has committed nothing for some seconds.

    Args:
        facts: What the loop knows.
        now: The time on the clock of the partitions.
    """
    return next(_causes(facts, now))


def _causes(facts: JobFacts, now: float) -> Iterator[WaitingFor]:
    """Yields what holds the job back; the first one counts."""
    if facts.joining:
        yield WaitingFor("group", facts.joining)
    if facts.hand_over is not None:
        yield WaitingFor(
            "handOver",
            f"waiting for running handlers until {_until(facts.hand_over)}, by drainTimeout: the "
            "group rebalances",
        )
    if facts.is_stopping:
        yield WaitingFor("stop", "waiting for running handlers and the last commit: stopping")
    if facts.is_paused:
        rest = ", running handlers go on to their end" if facts.batches else ""
        yield WaitingFor("paused", f"paused by pause(): resume() continues{rest}")
    yield from _of_stores(facts)
    if facts.batches:
        yield _running(facts.batches, is_starting=facts.is_starting)
    if facts.breaker is not None:
        yield WaitingFor(
            "circuitBreaker",
            f"paused by the circuit breaker until {_until(facts.breaker)}: {facts.breaker_reason}",
        )
    found = lost_member(facts.partitions, now)
    if found is not None:
        yield found
    yield from _of_slots(facts)
    todo = [p for p in facts.partitions if not p.is_drained]
    yield from _of_work(todo, facts, now) if todo else _of_drained(facts.partitions, now)


def _of_stores(facts: JobFacts) -> Iterator[WaitingFor]:
    """Yields that the commit table or Kafka is away, where no batch makes up for it."""
    if facts.unanswered:
        yield _unanswered(facts.unanswered)
    if facts.kafka and all(batch.started == 0 for batch in facts.batches):
        yield WaitingFor("kafka", f"waiting for Kafka: {facts.kafka}")


def _of_slots(facts: JobFacts) -> Iterator[WaitingFor]:
    """Yields why slots get no batch for now."""
    if facts.barred:
        left = max(facts.barred.values())
        yield WaitingFor(
            "lostSlots",
            f"waiting for {_count(len(facts.barred), 'lost slot')} until {_until(left)}: the "
            "handlers may still run",
        )
    if facts.failing:
        left, why = max(facts.failing.values())
        slots = _count(len(facts.failing), "failed slot")
        yield WaitingFor(
            "failedSlots", f"waiting to start {slots} again until {_until(left)}: {why}"
        )


@dataclass(frozen=True)
class PollFacts:
    """What `poll` knows at one moment; times are seconds from now.

    Attributes:
        group: Id of the group.
        joining: Why the consumer has no key ranges; empty if it has.
        hand_over: Whether the group rebalances, and waits for answers to polled records.
        partitions: How many partitions it has key ranges of.
        paused: How many of them are paused.
        full: Partitions with so many waiting keys that nothing new is handed out.
        at_limit: Partitions with so many committed ranges that nothing new is handed out.
        in_doubt: For how long earlier owners are waited for, by partition.
        next_due: When the next record is retried; None: no record is retried by itself.
        pending: How many records wait for a retry or a decision.
        parked: How many records wait for a decision.
        unanswered: For how long the commit table has not answered, and why; empty if it has.
    """

    group: str
    joining: str = ""
    hand_over: bool = False
    partitions: int = 0
    paused: int = 0
    full: Sequence[str] = ()
    at_limit: Sequence[str] = ()
    in_doubt: Mapping[str, float] = field(default_factory=dict)
    next_due: float | None = None
    pending: int = 0
    parked: int = 0
    unanswered: str = ""


def poll_waits_for(facts: PollFacts) -> WaitingFor:
    """Returns what `poll` waits for that has found no records."""
    return next(_causes_of_poll(facts))


def _causes_of_poll(facts: PollFacts) -> Iterator[WaitingFor]:
    """Yields what holds `poll` back; the first one counts."""
    if facts.hand_over:
        yield WaitingFor(
            "handOver",
            f"group {facts.group} rebalances and waits for answers to polled records, by "
            "drainTimeout: call commit, retry, reject or poll",
        )
    if facts.joining:
        yield WaitingFor("group", facts.joining)
    if facts.unanswered:
        yield _unanswered(facts.unanswered)
    if not facts.partitions:
        yield WaitingFor(
            "group",
            f"no key ranges for this member: the other members of group {facts.group} have all",
        )
    found = _lost_member(facts.in_doubt)
    if found is not None:
        yield found
    if facts.paused:
        yield WaitingFor(
            "paused",
            f"{facts.paused} of {_count(facts.partitions, 'partition')} paused by pause(): "
            "resume() continues",
        )
    yield from _limits_of_poll(facts)
    if facts.next_due is not None:
        yield WaitingFor(
            "retry",
            f"waiting for the next retry until {_until(facts.next_due)}, {facts.pending:,} pending",
        )
    if facts.parked:
        yield _DECISION
    yield _NEW_RECORDS


def _limits_of_poll(facts: PollFacts) -> Iterator[WaitingFor]:
    """Yields the limits at which `poll` hands out nothing new."""
    if facts.full:
        yield WaitingFor(
            "limit",
            f"waiting at a limit: too many keys of {_some(facts.full)} wait for records that come "
            "again",
        )
    if facts.at_limit:
        yield WaitingFor(
            "limit",
            f"waiting at a limit: {_some(facts.at_limit)} reached 80 % of maxNumRanges. Nothing "
            "new is handed out until open records below committed ones are committed or rejected",
        )


def _unanswered(words: str) -> WaitingFor:
    return WaitingFor("commitLog", f"the commit table has not answered {words}")


def lost_member(partitions: Sequence[Partition], now: float) -> WaitingFor | None:
    """Returns for which earlier owners a job waits, until when, and why; None: for none."""
    return _lost_member({f"{p.topic}-{p.partition}": p.in_doubt(now) for p in partitions})


def _lost_member(waits: Mapping[str, float]) -> WaitingFor | None:
    names = [name for name, wait in waits.items() if wait > 0]
    if not names:
        return None
    return WaitingFor(
        "lostMember",
        f"waiting for a lost member until {_until(max(waits.values()))}: it did not hand over its "
        f"key ranges of {_some(names)}, and its handlers may still run. {SHORTER_WAIT}",
    )


def _some(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are."""
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def _running(batches: Sequence[BatchFacts], *, is_starting: bool) -> WaitingFor:
    oldest = max(batches, key=lambda batch: batch.age)
    silent = min(batch.silent for batch in batches)
    slots = sum(batch.slots for batch in batches)
    started = sum(batch.slots if batch.started is None else batch.started for batch in batches)
    has_begun = started > 0 or oldest.started is None
    calls = [batch.oldest_call for batch in batches if batch.oldest_call is not None]
    if is_starting and not calls and oldest.age < _FIRST_BATCH:
        return _starting(oldest.age, slots, started, has_begun=has_begun)
    if has_begun:
        late = f", {_count(slots - started, 'slot')} not started" if started < slots else ""
        call = max(calls, key=lambda one: one.seconds, default=None)
        named = (
            f"that of {call.topic}-{call.partition}@{call.offset} runs for {call.seconds:.0f} s, "
            if call is not None
            else ""
        )
        return WaitingFor(
            "handlers",
            f"waiting for handlers: {named}nothing reported for {silent:.0f} s, batch "
            f"{oldest.number} runs for {oldest.age:.0f} s{late}",
        )
    if oldest.age < _SOON:
        return WaitingFor("slots", f"waiting for Spark: batch {oldest.number} begins")
    why = {
        None: "Spark reads the records, or has no free core",
        0: "Spark runs no task of it: it still plans the batch, other jobs use all cores, or no "
        "executor is registered",
    }.get(oldest.tasks, f"Spark runs {_count(oldest.tasks or 0, 'task')} that read from Kafka")
    return WaitingFor(
        "slots",
        f"waiting for Spark: none of {_count(slots, 'slot')} of batch {oldest.number} has started "
        f"for {oldest.age:.0f} s. {why}",
    )


def _starting(age: float, slots: int, started: int, *, has_begun: bool) -> WaitingFor:
    """Returns what the first batch of a job does until its first record is handled."""
    since = f"the first batch was given to Spark {age:.0f} s ago"
    if has_begun:
        work = "works on its" if started == 1 else "work on their"
        return WaitingFor(
            "handlers",
            f"starting: {started:,} of {_count(slots, 'slot')} {work} first records; {since}",
        )
    return WaitingFor("slots", f"starting: Spark starts {_count(slots, 'slot')}; {since}")


def _of_work(todo: Sequence[Partition], facts: JobFacts, now: float) -> Iterator[WaitingFor]:
    """Yields what holds back partitions that have something to do."""
    if facts.next_trigger > 0:
        yield WaitingFor(
            "trigger", f"waiting for the trigger's interval until {_until(facts.next_trigger)}"
        )
    at_limit = [p for p in todo if p.ledger.is_at_limit]
    if at_limit:
        yield _limit(at_limit[0], now)
    dues = [due - now for p in todo if (due := next_attempt(p, now)) is not None]
    if dues and math.isfinite(min(dues)):
        pending = sum(p.supply.pending for p in todo)
        yield WaitingFor(
            "retry", f"waiting for the next retry until {_until(min(dues))}, {pending:,} pending"
        )
    yield WaitingFor("nextBatch", "waiting for the next batch")


def _of_drained(partitions: Sequence[Partition], now: float) -> Iterator[WaitingFor]:
    """Yields what partitions wait for in which a job can do nothing."""
    stopped = [p for p in partitions if p.ledger.is_at_limit and p.supply.parked and p.supply.left]
    if stopped:
        yield _limit(stopped[0], now)
    if any(p.supply.parked for p in partitions):
        yield _DECISION
    blockers = [found for p in partitions if not p.ledger.is_quiet and (found := p.blocker(now))]
    if any(found["state"] == "elsewhere" for found in blockers):
        yield WaitingFor("otherMembers", "waiting for other members: the open records are theirs")
    yield _NEW_RECORDS


def _limit(partition: Partition, now: float) -> WaitingFor:
    return WaitingFor("limit", f"waiting at a limit: {limit_warning(partition, now)}")


def _until(seconds: float) -> str:
    """Returns the time some seconds from now, in UTC as in a verdict, and how long that is."""
    left = max(0.0, seconds)
    at = time.strftime("%H:%M:%S UTC", time.gmtime(time.time() + left))
    return f"{at} ({left:.0f} s)"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
