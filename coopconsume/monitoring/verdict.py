"""The verdict on a group: in one sentence how it is, and what is to be done (pure).

Who knows a group, from outside or as one of its jobs, states its `Condition`; `verdicts` judges it.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from coopconsume.texts import WITH_A_JOB, counted, due_in, one_line, some, span, tries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from coopconsume.kafka.parked_keys import BehindParked
    from coopconsume.kafka.retention import ExpiringOffsets

#: How urgent a verdict is: everything is done; members work; members wait for something that comes
#: by itself; somebody has to act; records are lost.
Level = Literal["ok", "working", "waiting", "action", "danger"]
#: What a verdict says, for programs.
Reason = Literal[
    "deleted", "retention", "nobody", "decision", "lostMember", "rebalancing", "failed", "stalled",
    "unknown", "working", "done",
]  # fmt: skip
#: The levels, in rising order of urgency.
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

#: Seconds without a commit from which on there is a reason, if there was something to do.
_LONG: Final = 25.0
#: Seconds of work that a group may be behind while it keeps up with new records.
_CLOSE: Final = 10.0
#: Seconds without a commit from which on they are shown. A killed member is listed for longer.
_QUIET: Final = 5.0
#: What shortens the wait for a lost member.
SHORTER_WAIT: Final = (
    "To wait for less next time, lower leaseGrace, or handlerTimeout if its slots have no channel "
    "to the driver"
)
#: Ends the sentence on what ends by itself.
_BY_ITSELF: Final = "Nobody has to act"
#: The most characters of an error.
_ERROR: Final = 120


@dataclass(frozen=True)
class RecordPlace:
    """A record to look at.

    Attributes:
        topic, partition, offset: Where it is.
        key: Its key for people, or what is known of it; None without one.
    """

    topic: str
    partition: int
    offset: int
    key: str | None = None

    @property
    def name(self) -> str:
        """Its key, with its partition and offset; without a key these alone."""
        place = f"{self.topic}-{self.partition}@{self.offset}"
        return f"{self.key} ({place})" if self.key else place


@dataclass(frozen=True)
class FailedRecord:
    """A failed record that is tried again.

    Attributes:
        place: Where it is.
        attempts: The number of its failed attempts; 0: no failed call of it has counted.
        error: Its last error.
        due: Seconds until its next attempt; None if that is not known.
        since: When it failed first; None if that is not known.
        holds: Whether records are known to wait behind it, or may do so; else it holds nothing.
    """

    place: RecordPlace
    attempts: int
    error: str
    due: float | None = None
    since: datetime | None = None
    holds: bool = True


@dataclass(frozen=True)
class LostMember:
    """A member that did not hand over its key ranges, and may still process them.

    Attributes:
        seconds: For how long at most it is waited for.
        until: The end of that time.
        partitions: The names of the partitions.
        since: Since when it is waited for; None if it is not known.
    """

    seconds: float
    until: datetime
    partitions: Sequence[str]
    since: datetime | None = None


@dataclass(frozen=True)
class Pace:
    """How fast a group works.

    Attributes:
        done: Offsets that are committed in a second.
        new: Offsets that its topics grow by in a second.
        seconds: The time over which these are means.
    """

    done: float
    new: float
    seconds: float


@dataclass(frozen=True)
class Condition:
    """What is known of a group, as far as it matters for its verdict.

    Attributes:
        group: The group id.
        lag: The number of offsets that are not done, in partitions with a known lag.
        unknown: The names of the partitions without one.
        is_worked_on: Whether the group has members or claims.
        without_owner: Partitions that nobody owns while others are owned, with their lag.
        last_active: When a member last wrote to the commit log; None if that is not known.
        is_rebalancing: Whether its members join a new generation.
        parked: Records that wait for a decision, and have none yet; some of them, if they are many.
            The first one holds most records, as far as they were counted.
        parked_count: Their number.
        parked_keys: The number of keys that they hold back; 0 if they hold back no other record.
        parked_since: Since when the first of them waits; None if that is not known.
        behind: The records behind them; None if they were not counted.
        behind_first: The records behind the first one of `parked`, as far as they were counted.
        failed: Failed records that are tried again.
        lost_member: The member that is waited for; None: there is no such member.
        stalled: Why its members commit nothing; empty if they do, or the reason is not known.
        is_away: Whether that is Kafka or the commit table, which does not answer.
        open_since: Since when a record could have been done and nothing is committed, or since when
            its handler runs; None if that is not known, or does not hold.
        open_records: Such records; some of them, if they are many.
        is_running: Whether their handlers are known to run.
        deleted: The number of offsets that retention has deleted and that were not done.
        deleted_of: The names of their partitions.
        expiring: What retention deletes next; None: nothing, or it is not known.
        pace: How fast it works; None after a single look.
        last_commit: When a member last committed; None if that is not known.
        place: The options of commands that name its cluster and its commit table.
        last_members: The names of the members that were there last, as far as they are known.
    """

    group: str
    lag: int = 0
    unknown: Sequence[str] = ()
    is_worked_on: bool = True
    without_owner: Sequence[tuple[str, int]] = ()
    last_active: datetime | None = None
    is_rebalancing: bool = False
    parked: Sequence[RecordPlace] = ()
    parked_count: int = 0
    parked_keys: int = 0
    parked_since: datetime | None = None
    behind: BehindParked | None = None
    behind_first: int = 0
    failed: Sequence[FailedRecord] = ()
    lost_member: LostMember | None = None
    stalled: str = ""
    is_away: bool = False
    open_since: datetime | None = None
    open_records: Sequence[RecordPlace] = ()
    is_running: bool = False
    deleted: int = 0
    deleted_of: Sequence[str] = ()
    expiring: ExpiringOffsets | None = None
    pace: Pace | None = None
    last_commit: datetime | None = None
    place: str = ""
    last_members: Sequence[str] = ()

    @property
    def to_do(self) -> int:
        """The number of offsets that members can process without a decision."""
        behind = self.behind.records if self.behind else 0
        return max(0, self.lag - self.parked_count - behind)

    @property
    def done_in(self) -> float | None:
        """In how many seconds these are done; None if that is not known, or never."""
        if self.pace is None or not self.to_do or self.pace.done <= self.pace.new:
            return None
        return self.to_do / (self.pace.done - self.pace.new)

    def command(self, words: str) -> str:
        """Returns a command on the group that runs as it is, without secrets."""
        return self.tool(words, self.group)

    def tool(self, words: str, *names: str) -> str:
        """Returns a command on these names instead of the group; otherwise as `command`."""
        command = shlex.join(["coopconsume", *words.split(), *names])
        return f"{command} {self.place}".rstrip()


@dataclass(frozen=True)
class Verdict:
    """How a group is.

    Attributes:
        level: How urgent it is.
        reason: What it says, for programs.
        sentence: What it says, for people.
        command: The command to run next; empty if nobody has to act, or the sentence says what is
            to be done.
        records: The first records that it is about.
        since: Since when that is so; None if it is not known.
    """

    level: Level
    reason: Reason
    sentence: str
    command: str = ""
    records: tuple[RecordPlace, ...] = ()
    since: datetime | None = None

    @property
    def severity(self) -> int:
        """The number of its level, from 0 (``ok``) to 4 (``danger``)."""
        return LEVELS.index(self.level)

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict for JSON."""
        since = None if self.since is None else self.since.isoformat()
        return asdict(self) | {"records": list(map(asdict, self.records)), "since": since}


def verdict_document(found: Sequence[Verdict]) -> dict[str, Any]:
    """Returns verdicts for JSON: the most urgent one, with the others in a list."""
    first, *others = found
    return first.to_dict() | {"others": [one.to_dict() for one in others]}


def verdicts(found: Condition, now: datetime) -> tuple[Verdict, ...]:
    """Returns all that holds of a group, the most urgent first; at least one verdict.

    The first one is the verdict, others may be shown below it. The order is:

    1. Records are lost: retention has deleted records that are not done, or deletes them soon.
    2. Somebody must act: nobody works on the group or on a partition of it; then keys that wait
       for a decision, which only a member carries out.
    3. Members wait for something that ends by itself: a lost member, which holds whole key ranges;
       a rebalance; a failed record, which holds one key; another reason.
    4. Members work.
    5. All is done.

    Args:
        found: What is known of the group.
        now: The current time; the time zone of times in sentences is that of the times themselves.
    """
    urgent = [*_losses(found), *_tasks(found, now), *_waits(found, now)]
    return (*urgent, *_work(found, now, is_explained=bool(urgent)))


def _losses(found: Condition) -> Iterator[Verdict]:
    """Yields what retention has deleted, or deletes before it is done."""
    if found.deleted:
        offsets = counted(found.deleted, "offset")
        verb = "was" if found.deleted == 1 else "were"
        yield Verdict(
            "danger", "deleted",
            f"Retention has deleted {offsets} of {some(found.deleted_of)} that {verb} not done. "
            "With failOnDataLoss=false a job continues above them",
            found.command("lag"),
        )  # fmt: skip
    expiring = found.expiring
    if expiring is None:
        return
    done_in = None if found.parked_count else found.done_in
    if done_in is None or done_in >= expiring.seconds:
        records = counted(expiring.records, "record")
        verb = "is" if expiring.records == 1 else "are"
        remedy, words = "Raise retention.ms, or work faster", "lag"
        if found.parked_count:
            remedy = "Raise retention.ms, work faster, or decide on parked records"
            words = "records list"
        yield Verdict(
            "danger", "retention",
            f"Within {span(expiring.seconds)}, retention deletes up to {records} of "
            f"{some(expiring.names)} that {verb} not done. {remedy}",
            found.command(words),
        )  # fmt: skip


def _tasks(found: Condition, now: datetime) -> Iterator[Verdict]:
    """Yields what somebody has to do."""
    if not found.is_worked_on:
        yield from _nobody(found, now)
    elif found.without_owner:
        names = [name for name, _ in found.without_owner]
        lag = sum(lag for _, lag in found.without_owner)
        topics = "its topic" if len(names) == 1 else "their topics"
        yield Verdict(
            "action",
            "nobody",
            f"Nobody works on {some(names)}: {_wait(lag)}. Start a member that subscribes to "
            f"{topics}",
            found.command("groups describe"),
        )
    if found.parked_count:
        yield Verdict(
            "action", "decision", _decision(found, now),
            found.command("records list"), tuple(found.parked), since=found.parked_since,
        )  # fmt: skip


def _nobody(found: Condition, now: datetime) -> Iterator[Verdict]:
    """Yields that a job is to be started, unless it had nothing to do: all waits for decisions."""
    if not (found.to_do or found.unknown):
        return
    what = _wait(found.lag) if found.lag else _unknown(found.unknown)
    is_known = found.last_active is not None
    who = f"Nobody {'has worked' if is_known else 'works'} on this group"
    who += _since(found.last_active, now)
    start = f"If you run its job, start it{' again' if is_known else ''}"
    last = some(found.last_members)
    start += f"; it ran last as {last}" if last else ""
    yield Verdict(
        "action",
        "nobody",
        f"{who}: {what}. {start}",
        found.command("groups describe"),
        since=found.last_active,
    )


def _decision(found: Condition, now: datetime) -> str:
    number, what = found.parked_keys or found.parked_count, "key" if found.parked_keys else "record"
    verb, them = ("waits", "it") if number == 1 else ("wait", "them")
    since, behind = _since(found.parked_since, now), found.behind
    sentence = f"{counted(number, what)} {verb} for your decision{since}"
    first = found.parked[0].name if found.parked else ""
    if behind is None or not behind.records:
        named = f"{', the first is' if number > 1 else ':'} {first}" if first else ""
        is_nothing = behind is not None and behind.is_all
        return sentence + named + (f", nothing behind {them}" if is_nothing else "")
    least = "" if behind.is_all else "at least "
    records = f"{least}{counted(behind.records, 'record')} behind"
    if number == 1:
        return f"{sentence}: {records} {first or them}"
    most = f", {found.behind_first:,} of these behind {first}" if found.behind_first else ""
    return f"{sentence}: {records} {them}{most}"


def _waits(found: Condition, now: datetime) -> Iterator[Verdict]:
    """Yields what members wait for."""
    lost = found.lost_member
    if lost is not None:
        since = f"{_since(lost.since, now)}," if lost.since else ""
        until = f"{since} until {_clock(lost.until, now)} ({span(lost.seconds)})"
        yield Verdict(
            "waiting", "lostMember",
            f"Waiting for a lost member{until}: it did not hand over its key ranges of "
            f"{some(lost.partitions)}, and its handlers may still run. {_BY_ITSELF}. "
            f"{SHORTER_WAIT}",
            since=lost.since,
        )  # fmt: skip
    if found.is_rebalancing:
        yield Verdict(
            "waiting", "rebalancing",
            f"Rebalancing: its members join a new generation, {_not_done(found.lag)}. "
            f"{_BY_ITSELF}",
        )  # fmt: skip
    if found.failed:
        yield _held(found, now)
    if found.stalled:
        command = found.tool("doctor") if found.is_away else ""
        yield Verdict("waiting", "stalled", _capital(found.stalled), command)
    elif _hangs(found, now):
        yield _stalled(found, now)


def _held(found: Condition, now: datetime) -> Verdict:
    """Returns that a failed record holds its key: the one that has failed most often."""
    ordered = sorted(found.failed, key=lambda one: (not one.holds, -one.attempts))
    worst, others = ordered[0], len(ordered) - 1
    due = ""
    if worst.due is not None:
        when = due_in(worst.due, is_worked_on=found.is_worked_on)
        due = f", next {when}" if when == WITH_A_JOB else f", next in {when}"
    names = worst.place.name + _since(worst.since, now)
    by = "by " if worst.holds else ""
    names += f", and {by}{counted(others, 'other record')}" if others else ""
    error = one_line(worst.error, _ERROR)
    how = f"Held by {names}" if worst.holds else f"Failed, with nothing behind it so far: {names}"
    sentence = f"{how}: {error} ({tries(worst.attempts)}{due})"
    places = tuple(one.place for one in ordered[:5])
    command = found.command("records list")
    return Verdict("waiting", "failed", sentence, command, places, since=worst.since)


def _hangs(found: Condition, now: datetime) -> bool:
    """Whether members have had something to do for long, and have committed nothing."""
    since = found.open_since
    return since is not None and (now - since).total_seconds() >= _LONG


def _stalled(found: Condition, now: datetime) -> Verdict:
    places = tuple(found.open_records)
    what = "No commit"
    if found.is_running:
        what = f"The handler of {some([one.name for one in places])} runs"
    sentence = f"{what}{_since(found.open_since, now)}: {_not_done(found.to_do)}"
    command = found.command("lag")
    return Verdict("waiting", "stalled", sentence, command, places, since=found.open_since)


def _work(found: Condition, now: datetime, *, is_explained: bool) -> Iterator[Verdict]:
    """Yields how the work goes on; nothing if nobody works or nothing is left to say."""
    if not found.is_worked_on and (found.lag or found.unknown):
        return
    if found.to_do and not _hangs(found, now):
        yield _pace(found, now, is_explained=is_explained)
    elif found.unknown:
        topics = dict.fromkeys(name.rpartition("-")[0] for name in found.unknown)
        command = found.tool("topics describe", *topics)
        yield Verdict("waiting", "unknown", _capital(_unknown(found.unknown)), command)
    elif not is_explained:
        yield Verdict("ok", "done", "All done")


def _pace(found: Condition, now: datetime, *, is_explained: bool) -> Verdict:
    """Returns when the work is done, as far as that is known."""
    pace, done_in = found.pace, found.done_in
    if pace is not None and not is_explained and pace.seconds >= _LONG and _rests(found, pace):
        return Verdict(
            "waiting", "stalled",
            f"No commit for {span(pace.seconds)}: {_not_done(found.to_do)}", found.command("lag"),
        )  # fmt: skip
    if done_in is not None:
        return Verdict("working", "working", f"Working, done in {span(done_in)}")
    if pace is not None and pace.done and found.to_do > _CLOSE * pace.done:
        rates = f"{pace.done:,.0f} records done and {pace.new:,.0f} new in a second"
        return Verdict("working", "working", f"Working, not catching up: {rates}")
    sentence = f"Working: {_not_done(found.to_do)}"
    if pace is None and found.last_commit is not None:
        quiet = (now - found.last_commit).total_seconds()
        if quiet >= _QUIET:
            sentence += f", the last commit was {span(quiet)} ago"
    return Verdict("working", "working", sentence)


def _rests(found: Condition, pace: Pace) -> bool:
    """Whether nothing was committed though there was something to do all the time."""
    return pace.done == 0 and round(found.to_do - pace.new * pace.seconds) > 0


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _not_done(records: int) -> str:
    return f"{counted(records, 'record')} not done"


def _wait(records: int) -> str:
    return f"{counted(records, 'record')} {'waits' if records == 1 else 'wait'}"


def _unknown(names: Sequence[str]) -> str:
    have = "has" if len(names) == 1 else "have"
    return f"no lag is known of {some(names)}, which {have} no committed offset or cannot be seen"


def _since(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f" since {_clock(at, now)}"


def _clock(at: datetime, now: datetime) -> str:
    """Returns a time with its zone, and with its date if that is not today's."""
    is_today = at.date() == now.astimezone(at.tzinfo).date()
    return f"{at:%H:%M:%S %Z}" if is_today else f"{at:%Y-%m-%d %H:%M:%S %Z}"
