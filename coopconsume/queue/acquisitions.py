"""The acquisitions of one consumer: what it asks for, and what a majority grants. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.backoff import Backoff
from coopconsume.queue.requests import AppendRow
from coopconsume.queue.rows import common, minus, without

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from random import Random

    from coopconsume.queue.acknowledgements import Acknowledgements
    from coopconsume.queue.own_holds import OwnHolds
    from coopconsume.queue.replica import ReplicaAnswer, ReplicaState
    from coopconsume.queue.replica_set import ReplicaSet
    from coopconsume.queue.requests import Requests
    from coopconsume.queue.rows import Offsets, ReplicaRow


_WINDOW, _WIDEST = 10_000, 1 << 30
#: Pauses after requests without a majority, in multiples of the time limit of a quorum.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 8.0


@dataclass(frozen=True, slots=True)
class Granted:
    """The result of an acquisition.

    Attributes:
        offsets: The offsets that this consumer holds; possibly none.
        until: The end of the hold on this consumer's clock.
    """

    offsets: Offsets
    until: float


@dataclass(slots=True)
class _Acquisition:
    request: int
    asked: Offsets
    #: The replicas that were asked, the local one first.
    replicas: list[int]
    until: float
    deadline: float
    answers: dict[int, ReplicaAnswer] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether the local replica has answered."""
        return self.replicas[0] in self.answers


class Acquisitions:
    """The acquisition in flight, the results of earlier ones, and what is not asked for yet.

    `start` asks one replica for free offsets. Its answer, those of the others (`take`) and time
    limits (`tick`) move the acquisition until it has a result, which `granted` returns once.
    Offsets without a majority are not asked for before a pause is over.

    Args:
        replicas: The replicas.
        requests: The requests of the consumer.
        holds: The holds of the consumer: a result adds one.
        acknowledgements: The acknowledgements of the consumer: it does not ask for their offsets.
        random: The source of jitter.
        local: The replica that is asked first.
    """

    def __init__(
        self,
        replicas: ReplicaSet,
        requests: Requests,
        holds: OwnHolds,
        acknowledgements: Acknowledgements,
        random: Random,
        *,
        local: int,
    ) -> None:
        self._replicas = replicas
        self._requests = requests
        self._holds = holds
        self._acknowledgements = acknowledgements
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, random)
        self._local = local
        #: Replicas that have not answered in time, until something new is read of their logs.
        self._silent: set[int] = set()
        self._current: _Acquisition | None = None
        self._granted: deque[Granted] = deque()
        #: Offsets that had no majority, and until when they are not asked for.
        self._paused: list[tuple[float, Offsets]] = []

    @property
    def is_acquiring(self) -> bool:
        """Whether an acquisition has no result yet."""
        return self._current is not None

    def start(self, limit: int, ends: Mapping[int, int], now: float) -> list[AppendRow]:
        """Start to acquire free offsets, the lowest ones first; `QueueMember.acquire` has more."""
        local = self._first()
        wanted = self._candidates(self._replicas.states[local], limit, ends, now)
        if not wanted:
            return []
        request = self._requests.new_number()
        until = self._holds.usable_until(now)
        deadline = min(until, now + self._requests.repeat_after)
        self._current = _Acquisition(request, wanted, [local], until, deadline)
        return [self._requests.send(local, self._acquire_row(request, wanted), now)]

    def granted(self) -> Granted | None:
        """Return the next result, once; None if there is no new one."""
        return self._granted.popleft() if self._granted else None

    def withdraw(self, offsets: Offsets) -> None:
        """Withdraw offsets that are acknowledged now from the acquisition and from results.

        The acquisition may ask for them again if their hold has ended here. Its answers may be
        older than the row that acknowledges them, so it does not grant them any more.
        """
        if self._current is not None:
            self._current.asked = minus(self._current.asked, offsets)
        self._granted = deque(
            Granted(minus(found.offsets, offsets), found.until) for found in self._granted
        )

    def forget(self, partitions: Collection[int]) -> None:
        """Forget partitions whose log was replaced."""
        if self._current is not None:
            self._current.asked = without(self._current.asked, partitions)
        self._granted = deque(
            Granted(without(found.offsets, partitions), found.until) for found in self._granted
        )
        self._paused = [(at, without(offsets, partitions)) for at, offsets in self._paused]

    def heard_from(self, replica: int) -> None:
        """Note that a row of a replica's log was read."""
        self._silent.discard(replica)

    def take(
        self, replica: int, row: ReplicaRow, answer: ReplicaAnswer, now: float
    ) -> list[AppendRow]:
        """Take the answer of a replica to a row of this consumer."""
        found = self._current
        is_answer = found is not None and found.request == row.request and row.kind == "acquire"
        if found is None or not is_answer or replica in found.answers:
            return []
        found.answers[replica] = answer
        rows: list[AppendRow] = []
        if len(found.answers) == 1 and found.is_local:
            found.asked = common(answer.ok, found.asked)
            if found.asked:
                rows = self._ask(found, self._replicas.majority - 1, now)
        elif tomb := common(answer.tomb, found.asked):
            tombstone = self._requests.row("tombstone", found.request, tomb)
            rows.append(AppendRow(found.replicas[0], tombstone))
        # Further answers cannot change a majority for all offsets.
        if not minus(found.asked, self._replicas.by_majority(found.answers.values())):
            return rows + self._decide(found, now)
        if len(found.answers) == len(found.replicas):
            rows += self._ask(found, len(self._replicas.states), now) or self._decide(found, now)
        return rows

    def tick(self, now: float) -> list[AppendRow]:
        """End pauses; ask further replicas, or decide, if answers are not there in time."""
        self._paused = [(at, offsets) for at, offsets in self._paused if at > now]
        found = self._current
        if found is None or now < found.deadline:
            return []
        self._silent.update(r for r in found.replicas if r not in found.answers)
        more = self._ask(found, len(self._replicas.states), now) if found.is_local else []
        return more or self._decide(found, now)

    def next_due(self) -> float | None:
        """Return when `tick` has something to do; None if nothing is known."""
        times = [] if self._current is None else [self._current.deadline]
        return min([*times, *(at for at, _ in self._paused)], default=None)

    def _first(self) -> int:
        """Return the local replica, or the next one that is not silent and has all logs."""
        n = len(self._replicas.states)
        order = [(self._local + i) % n for i in range(n)]
        return min(order, key=lambda r: (self._replicas.lacks_logs(r), r in self._silent))

    def _candidates(
        self, state: ReplicaState, limit: int, ends: Mapping[int, int], now: float
    ) -> Offsets:
        """Return the lowest offsets that are free in the eyes of a replica and of this consumer."""
        found: Offsets = {}
        paused = [(until, offsets) for until, offsets in self._paused if until > now]
        for partition, end in sorted(ends.items()):
            if not self._replicas.has(state, partition) or limit <= 0:
                continue
            busy = state.held(partition)
            for others in (
                *(offsets[partition] for _, offsets in paused if partition in offsets),
                *self._holds.of(partition, now),
                *self._acknowledgements.of(partition),
            ):
                busy |= others
            chosen = _lowest(state, partition, busy, limit, end)
            if chosen:
                found[partition] = chosen
                limit -= len(chosen)
        return found

    def _ask(self, found: _Acquisition, count: int, now: float) -> list[AppendRow]:
        """Ask so many more replicas, those that are not silent first; none if its time is over."""
        others = [r for r in range(len(self._replicas.states)) if r not in found.replicas]
        chosen = sorted(others, key=self._silent.__contains__)[:count]
        if not chosen or now >= found.until:
            return []
        found.replicas += chosen
        found.deadline = min(found.until, now + self._requests.limit.seconds)
        row = self._acquire_row(found.request, found.asked)
        return [self._requests.send(replica, row, now) for replica in chosen]

    def _acquire_row(self, request: int, offsets: Offsets) -> ReplicaRow:
        return self._requests.row("acquire", request, offsets, self._holds.seconds)

    def _decide(self, found: _Acquisition, now: float) -> list[AppendRow]:
        """End an acquisition: what a majority granted is its result, the rest is released."""
        self._current = None
        granted: Offsets = {}
        if found.is_local and now < found.until:
            granted = common(self._replicas.by_majority(found.answers.values()), found.asked)
            for answer in found.answers.values():
                granted = minus(granted, answer.tomb)
        self._granted.append(Granted(granted, found.until))
        if granted:
            self._holds.add(found.until, granted)
        left = minus(found.asked, granted)
        if not left:
            self._backoff.succeeded()
            return []
        pause = self._requests.limit.seconds * self._backoff.failed(now)
        self._paused.append((now + pause, left))
        row = self._requests.row("release", found.request, left)
        return [AppendRow(replica, row) for replica in found.replicas]


def _lowest(
    state: ReplicaState, partition: int, busy: OffsetRanges, limit: int, end: int
) -> OffsetRanges:
    """Return the lowest offsets that are neither done nor busy, at most `limit` of them."""
    done = state.done(partition)
    first, chosen = done.stable_offset, OffsetRanges()
    width = max(_WINDOW, limit)
    while first < end and len(chosen) < limit:
        last = min(first + width - 1, end - 1)
        free = done.uncommitted(first, last) - busy
        wanted = limit - len(chosen)
        chosen |= free.head(wanted)
        first = last + 1
        width = min(2 * width, _WIDEST)  # free offsets may be far apart
    return chosen
