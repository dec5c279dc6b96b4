"""A discrete-event simulation of members of a cooperative epoch, on the fold of the commit log.

Rows are delayed, their answers get lost, members repeat them; clocks run at different rates;
members are frozen, killed and fenced at any step, and successors join with the next epoch.
Everything follows from the seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from commits import (
    AcquireRequest,
    AcquisitionId,
    AcquisitionWatch,
    Epoch,
    OffsetRanges,
    Pending,
    Wanted,
)
from commits.fold import GroupState, LogState
from commits.rows import Event, Part
from commits.validation import request_events

AT = ("t", 0)
TIMEOUT, MARGIN, LONGEST_CALL = 3.0, 1.0, 0.7
#: Seconds of disturbances; then nothing happens to members, and all records must be done soon.
TROUBLE, BOUND = 12.0, 60.0


@dataclass
class Call:
    """A handler call, by the simulation's clock."""

    member: str
    offset: int
    start: float
    end: float = -1.0
    is_disturbed: bool = False


@dataclass
class Chunk:
    """Offsets that a member has acquired, and until when it may start them by its clock."""

    id: str
    offsets: list[int]
    deadline: float
    is_disturbed: bool = False


@dataclass
class Round:
    """What a member appends together."""

    id: str
    began: float
    events: list[Event]
    done: set[int]
    failed: set[int]
    renewed: dict[str, int]


@dataclass
class Log:
    """The rows, and what the fold answers at their places."""

    events: list[Event] = field(default_factory=list)
    state: LogState = field(default_factory=LogState)
    counted: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def append(self, events: list[Event]) -> None:
        events = sorted(events, key=lambda event: event.id)  # as a version of the table has them
        known = {event.id for event in events if self.state.knows(event)}
        marker = self.marker()
        for event, answer in self.state.fold(events):
            if not answer.counted and self.marker() != marker:
                self.wrong.append(f"{event.id} is refused and moves the marker")
            result = answer.results.get(AT)
            if event.kind != "commit" or result is None or event.id in known:
                continue
            if result.status == "committed" and answer.counted:
                (part,) = event.parts
                for offset in (part.offsets - result.not_held).offsets().tolist():
                    if offset in self.counted:
                        self.wrong.append(f"{offset} counts in {self.counted[offset]}, {event.id}")
                    self.counted[offset] = event.id
        self.events += events

    def marker(self) -> int:
        found = self.state.group("", "g").partitions.get(AT)
        return found.acquisitions.marker if found else 0

    def is_done(self, offset: int) -> bool:
        found = self.state.group("", "g").partitions.get(AT)
        return found is not None and not found.commits.uncommitted(offset, offset)


class Member:
    """A process: its view of the log, its chunks, one handler at a time, one append at a time."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.rate, self.skew = 1 + world.random.uniform(-0.04, 0.04), world.random.uniform(0, 99)
        self.watch, self.view, self.read = AcquisitionWatch(TIMEOUT, world.random), LogState(), 0
        self.numbers = itertools.count()
        self.chunks: dict[str, Chunk] = {}
        self.done: set[int] = set()
        self.failed: dict[int, int] = {}
        self.due: dict[int, float] = {}
        self.call: Call | None = None
        self.frozen_until, self.is_alive = 0.0, True
        self.pace = world.random.choice([0.1, LONGEST_CALL, LONGEST_CALL])
        self.later(0.0, self.begin_round)
        self.later(0.0, self.work)

    def clock(self) -> float:
        return self.skew + self.rate * self.world.now

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Act after a while, unless this process was killed; a frozen one acts when it wakes."""

        def run() -> None:
            if self.is_alive and self.world.now < self.frozen_until:
                self.world.at(self.frozen_until, run)
            elif self.is_alive:
                act()

        self.world.at(self.world.now + seconds, run)

    def soon(self, act: Callable[[], None]) -> None:
        self.later(self.world.random.uniform(0, 0.1), act)

    # -- handlers

    def work(self) -> None:
        now = self.clock()
        for chunk in self.chunks.values():
            if chunk.offsets and now < chunk.deadline:
                offset = chunk.offsets.pop(0)
                self.call = self.world.start(self.name, offset, is_disturbed=chunk.is_disturbed)
                self.later(self.world.random.uniform(0, self.pace), self.end_call)
                return
        self.soon(self.work)

    def end_call(self) -> None:
        call, self.call = self.call, None
        assert call is not None
        call.end = self.world.now
        if self.world.random.random() < 0.1:
            self.failed[call.offset] = self.failed.get(call.offset, 0) + 1
        else:
            self.done.add(call.offset)
        self.work()

    # -- the log

    def catch_up(self) -> None:
        new = self.world.log.events[self.read :]
        self.read += len(new)
        for _ in self.view.fold(new):
            pass

    def begin_round(self) -> None:
        self.catch_up()
        group = self.view.group("", "g")
        if group.in_force is None or group.fenced(group.in_force.epoch, self.name):
            if self.chunks:  # fenced: a new process takes its place
                self.world.kill(self)
            else:
                self.soon(self.begin_round)
            return
        now, draw = self.clock(), self.world.random
        state = group.partitions[AT]
        chunks = list(state.acquisitions.chunks.values())
        overdue = self.watch.overdue({AT: chunks}, now)
        has_work = any(chunk.offsets and now < chunk.deadline for chunk in self.chunks.values())
        count = 0 if has_work and draw.random() < 0.9 else draw.randint(1, 12)
        held = state.acquisitions.held_by("")
        for chunk in chunks:
            held |= chunk.offsets
        due = [o for o in state.pending if self.due.setdefault(o, now) <= now and o not in held]
        wanted = Wanted(count, self.world.end - 1, OffsetRanges.from_offsets(due))
        request_id = f"{self.name}-{next(self.numbers)}"
        held_now = {chunk.id: chunk.renewals for chunk in chunks}
        renewed = {o: held_now[o] for o in self.chunks if o in held_now and draw.random() < 0.3}
        request = AcquireRequest(
            request_id,
            {AT: wanted} if count else {},
            tuple(AcquisitionId(*AT, one) for one in renewed),
            overdue,
            self.watch.notes(now),
        )
        commit = Event(
            "commit", request_id, "", "g", group.in_force.epoch, member=self.name,
            parts=(
                Part(
                    *AT, offsets=OffsetRanges.from_offsets(self.done),
                    pending=tuple(Pending(o, attempts=n) for o, n in self.failed.items()),
                ),
            ),
        )  # fmt: skip
        events = request_events(replace(commit, parts=()), request)
        if self.done or self.failed:
            events.append(commit)
        if not events or (len(events) == 1 and not state.pending and self.is_idle(group)):
            self.soon(self.begin_round)
            return
        self.append(Round(request_id, now, events, {*self.done}, {*self.failed}, renewed))

    def is_idle(self, group: GroupState) -> bool:
        """Whether there is nothing to do, to commit or to expire."""
        state = group.partitions[AT]
        return not self.done and state.commits.stable_offset >= self.world.end

    def append(self, one: Round) -> None:
        draw = self.world.random
        arrives = draw.random() < 0.9
        if arrives:  # also if this process dies or freezes meanwhile
            delay = draw.choice([0.0, 0.05, 0.05, 0.5])
            self.world.at(self.world.now + delay, lambda: self.world.log.append(one.events))
            if draw.random() < 0.8:
                self.later(delay + draw.uniform(0, 0.1), lambda: self.end_round(one))
                return
        self.later(draw.uniform(0.1, 0.6), lambda: self.append(one))

    def end_round(self, one: Round) -> None:
        self.catch_up()
        group = self.view.group("", "g")
        last = one.events[-1]
        if not self.view.knows(last) and group.fenced(last.epoch, self.name):
            self.soon(self.begin_round)
            return
        if not group.fenced(last.epoch, self.name) or last.id in group.counted:
            self.done -= one.done
            for offset in one.failed:
                self.failed.pop(offset, None)
                self.due[offset] = self.clock() + self.world.random.uniform(0, 1)
        chunks = group.partitions[AT].acquisitions.chunks
        for name, renewals in one.renewed.items():
            # A renewal under an epoch that is not in force any more does not count.
            if name in self.chunks and name in chunks and chunks[name].renewals > renewals:
                deadline = max(self.chunks[name].deadline, one.began + TIMEOUT - MARGIN)
                self.chunks[name].deadline = deadline
        got = group.acquired(f"{one.id}/request").get(AT)
        if got:
            # What it works on, or has an outcome of that is not committed, is not handled again.
            own = {*self.done, *self.failed, *([self.call.offset] if self.call else [])}
            left = [offset for offset in got.offsets().tolist() if offset not in own]
            name = f"{one.id}/request"
            self.chunks[name] = Chunk(name, left, one.began + TIMEOUT - MARGIN)
        self.chunks = {name: chunk for name, chunk in self.chunks.items() if name in chunks}
        self.soon(self.begin_round)


class World:
    """Members, the log, disturbances and the checks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now, self.log = 0.0, Log()
        self.steps: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.calls: list[Call] = []
        self.members: dict[str, Member] = {}
        self.end = self.random.randint(20, 60)
        self.is_calm = False
        for _ in range(self.random.randint(2, 3)):
            self.join()
        self.open_epoch()
        start = Event("start", "start", "", "g", self.epoch, member=min(self.members),
                      parts=(Part(*AT, first=0),))  # fmt: skip
        self.log.append([start])
        self.at(0.1, self.disturb)

    @property
    def wrong(self) -> list[str]:
        """What went wrong."""
        return self.log.wrong

    @property
    def epoch(self) -> Epoch | None:
        """The epoch in force."""
        in_force = self.log.state.group("", "g").in_force
        return in_force.epoch if in_force else None

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.steps, (when, next(self.numbers), act))

    def join(self) -> None:
        name = f"m{next(self.numbers)}"
        self.members[name] = Member(self, name)

    def open_epoch(self) -> None:
        number = self.log.state.group("", "g").highest + 1
        members = {name: [[*AT, 0, 2**63 - 1]] for name in self.members}
        detail = {"members": members, "topic_ids": {}, "sharing": "cooperative"}
        self.log.append([
            Event("epoch", f"e{number}", "", "g", Epoch(number, "n"), self.epoch, detail=detail)
        ])  # fmt: skip

    def kill(self, member: Member) -> None:
        member.is_alive = False
        if member.call:
            member.call.is_disturbed = True
            member.call.end = self.now
        self.disturbed(member)
        del self.members[member.name]
        self.join()
        self.at(self.now + self.random.uniform(0, 0.5), self.open_epoch)

    def disturbed(self, member: Member) -> None:
        for call in self.calls:
            if call.member == member.name and not self.log.is_done(call.offset):
                call.is_disturbed = True
        for chunk in member.chunks.values():
            chunk.is_disturbed = True

    def disturb(self) -> None:
        if self.now > TROUBLE:
            self.is_calm = True
            return
        member = self.random.choice([*self.members.values()])
        kind = self.random.choice(["kill", "freeze", "freeze", "epoch", "grow", "nothing"])
        if kind == "kill":
            self.kill(member)
        elif kind == "freeze":
            member.frozen_until = self.now + self.random.uniform(0, 2 * TIMEOUT)
            self.disturbed(member)
        elif kind == "epoch":
            self.open_epoch()
        elif kind == "grow":
            self.end += self.random.randint(1, 20)
        self.at(self.now + self.random.uniform(0, 2), self.disturb)

    def start(self, name: str, offset: int, *, is_disturbed: bool) -> Call:
        if self.log.is_done(offset) and not is_disturbed:
            self.wrong.append(f"{name} starts {offset} at {self.now}, which is committed")
        for other in self.calls:
            if other.offset != offset or other.is_disturbed or is_disturbed:
                continue
            if other.end < 0:
                self.wrong.append(f"{name} starts {offset}, on which {other.member} is at work")
        call = Call(name, offset, self.now, is_disturbed=is_disturbed)
        self.calls.append(call)
        return call

    def run(self) -> float:
        """Run until all records are done; returns the seconds from the last disturbance to it."""
        while self.steps and self.now < TROUBLE + BOUND:
            self.now, _, act = heapq.heappop(self.steps)
            act()
            if self.is_calm and len(self.log.counted) == self.end:
                return self.now - TROUBLE
        missing = [offset for offset in range(self.end) if offset not in self.log.counted]
        self.wrong.append(f"not done {BOUND} s after the last disturbance: {missing}")
        return BOUND
