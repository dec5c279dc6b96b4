"""The rules of the checker, computed over columns of calls and records."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from coopconsume.testing.history.calls import NOT_ENDED, OUTCOMES
from coopconsume.testing.history.recorder import NO_STATE, fingerprint
from coopconsume.testing.history.verdict import Finding, Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from coopconsume.testing.history.calls import History
    from coopconsume.testing.history.records import Offsets, Records, RecordSets

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max
_DONE, _RETRY, _REJECT, _POSTPONED = map(OUTCOMES.index, ("done", "retry", "reject", "postponed"))


@dataclass(frozen=True)
class Kill:
    """A kill of the job, or of some of its workers.

    Attributes:
        at_ns: ``time.monotonic_ns()`` after the last of them ended and before a new one started.
        committed: The offsets committed at that time, dead letters included.
        pids: The killed workers; None if the whole job was killed.
    """

    at_ns: int
    committed: Mapping[tuple[str, int], Offsets] = field(default_factory=dict)
    pids: frozenset[int] | None = None


@dataclass(frozen=True)
class Disturbance:
    """A period in which work of some processes may have been lost before it was committed.

    Attributes:
        since_ns: The start of the period, as ``time.monotonic_ns()``.
        until_ns: Its end; calls that these processes start later count again.
        pids: The processes.
    """

    since_ns: int
    until_ns: int
    pids: frozenset[int]


@dataclass(frozen=True)
class Deletion:
    """A deletion of the first records of some partitions by retention.

    Attributes:
        at_ns: The start of the deletion, as ``time.monotonic_ns()``.
        below: The first remaining offset, by (topic, partition).
    """

    at_ns: int
    below: Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class Seen:
    """Observations of a run besides its calls.

    Attributes:
        disturbances: The disturbances of its processes.
        commits: The committed offsets at many instants.
        gone: When a process was first seen to have ended, by its id; this ends its open calls.
        deletions: The deletions of records.
    """

    disturbances: Sequence[Disturbance] = ()
    commits: Sequence[tuple[int, Mapping[tuple[str, int], Offsets]]] = ()
    gone: Mapping[int, int] = field(default_factory=dict)
    deletions: Sequence[Deletion] = ()


def _highest_before(group: Numbers, value: Numbers) -> Numbers:
    """Returns for each row the position of a highest value before it in its group, or -1.

    Rows of one group are adjacent.
    """
    size = len(group)
    if not size:
        return np.empty(0, np.int64)
    rank = np.empty(size, np.int64)
    by_value = np.argsort(value, kind="stable")
    rank[by_value] = np.arange(size)
    block = np.cumsum(np.concatenate([[0], group[1:] != group[:-1]])) * size
    best = np.maximum.accumulate(block + rank)
    before = np.full(size, -1, np.int64)
    same = block[1:] == block[:-1]
    before[1:][same] = by_value[best[:-1][same] - block[:-1][same]]
    return before


class Case:
    """A history with its records; each rule is a method."""

    def __init__(
        self,
        *,
        history: History,
        records: Records,
        sets: RecordSets,
        kills: Sequence[Kill],
        seen: Seen,
        max_attempts: int | None,
        witnesses: int,
    ) -> None:
        self.history = history
        self.records = records
        self.sets = sets
        self._kills = kills
        self._seen = seen
        self._witnesses = witnesses
        self._committed = [records.mask(kill.committed) for kill in kills]
        self._row, self._other_key = records.rows(history)
        # Calls of known records only, in the order of their starts: positions in the history.
        self._calls = np.flatnonzero(self._row >= 0)
        self._rec = self._row[self._calls]
        self._start = history.start[self._calls]
        self._pid = np.array(
            [int(process.partition("-")[0]) for process in history.processes], np.int64
        )[history.process[self._calls]]
        self._taken = [self._took(kill) for kill in kills]
        self._end = self._ends()
        self._settles = self._settling(max_attempts)

    def _took(self, kill: Kill) -> Mask:
        """Returns the calls in processes that ``kill`` ended."""
        if kill.pids is None:
            return np.ones(len(self._calls), np.bool_)
        return np.isin(self._pid, [*kill.pids])

    def _ends(self) -> Numbers:
        end: Numbers = self.history.end[self._calls].copy()
        open_ = end == NOT_ENDED
        end[open_] = _NEVER
        for kill, taken in zip(reversed(self._kills), reversed(self._taken), strict=True):
            end[open_ & taken & (self._start <= kill.at_ns)] = kill.at_ns
        for pid, at_ns in self._seen.gone.items():
            late = open_ & (self._pid == pid) & (self._start <= at_ns)
            end[late] = np.minimum(end[late], at_ns)
        return end

    @cached_property
    def _committed_at(self) -> Numbers:
        """The first instant at which each record was seen as committed."""
        first = np.full(len(self.records), _NEVER, np.int64)
        for at_ns, book in self._seen.commits:
            first[self.records.mask(book) & (first > at_ns)] = at_ns
        return first

    @cached_property
    def _deleted_at(self) -> Numbers:
        """When the deletion of each record began."""
        first = np.full(len(self.records), _NEVER, np.int64)
        for deletion in self._seen.deletions:
            book = {place: [(0, below - 1)] for place, below in deletion.below.items()}
            mine = self.records.mask(book)
            first[mine] = np.minimum(first[mine], deletion.at_ns)
        return first

    @cached_property
    def _gone_at(self) -> Numbers:
        """From when on the successors of a deleted record need not wait for it.

        A call of the record may go on after its deletion, or start after it: the record had been
        read before. Then its successors wait for the end of that call.
        """
        gone = self._deleted_at.copy()
        is_deleted = gone[self._rec] < _NEVER
        np.maximum.at(gone, self._rec[is_deleted], self._end[is_deleted])
        return gone

    @cached_property
    def _succeeded(self) -> Mask:
        """Records with a call whose outcome is done."""
        succeeded = np.zeros(len(self.records), np.bool_)
        succeeded[self._rec[self.history.outcome[self._calls] == _DONE]] = True
        return succeeded

    @cached_property
    def _is_deleted(self) -> Mask:
        """Records that were deleted before they were handled."""
        handled = self._succeeded | self.sets.dead
        return (self._deleted_at < _NEVER) & ~handled & (self._committed_at > self._deleted_at)

    def deleted(self) -> int:
        """How many records were deleted before they were handled."""
        return int(self._is_deleted.sum())

    def _disturbed(self, earlier: Numbers, later: Numbers) -> Mask:
        """Whether what an earlier call did may have been lost before a later one started.

        Its own process was disturbed, while it ran or after it, and before the later one started.
        """
        lost = np.zeros(len(earlier), np.bool_)
        for one in self._seen.disturbances:
            mine = np.isin(self._pid[earlier], [*one.pids])
            lost |= (
                mine & (self._start[earlier] <= one.until_ns) & (one.since_ns < self._start[later])
            )
        return lost

    def _settling(self, max_attempts: int | None) -> Mask:
        outcome = self.history.outcome[self._calls]
        settles: Mask = (outcome == _DONE) | (outcome == _REJECT)
        if max_attempts is not None:
            attempt = self.history.attempt[self._calls]
            settles |= (outcome == _RETRY) & (attempt >= max_attempts)
            return settles
        last = np.full(len(self.records), -1, np.int64)
        last[self._rec] = np.arange(len(self._rec))
        last = last[self.sets.dead & (last >= 0)]
        settles[last] |= np.isin(outcome[last], (_RETRY, _POSTPONED))
        return settles

    def _finding(self, cases: Numbers, witness: Callable[[int], Witness]) -> Finding:
        shown = tuple(witness(int(case)) for case in cases[: self._witnesses])
        return Finding(len(cases), shown)

    def _witness(self, record: int, reason: str, calls: Sequence[int] = ()) -> Witness:
        (topic, partition), offset, key = self.records.describe(record)
        quoted = sorted({int(self._calls[call]) for call in calls})
        return Witness(
            topic,
            partition,
            offset=offset,
            key=key,
            reason=reason,
            calls=tuple(map(self.history.call, quoted)),
        )

    def _calls_of(self, record: int) -> list[int]:
        return [int(call) for call in np.flatnonzero(self._rec == record)]

    def in_flight(self) -> tuple[int, ...]:
        """For each kill of the whole job, the records started and not committed."""
        counts = []
        for kill, committed in zip(self._kills, self._committed, strict=True):
            if kill.pids is None:
                begun = np.zeros(len(self.records), np.bool_)
                begun[self._rec[self._start <= kill.at_ns]] = True
                counts.append(int((begun & ~committed).sum()))
        return tuple(counts)

    def lost(self) -> Finding:
        """Returns the records in no set, or in a set that the calls do not confirm."""
        sets = self.sets
        called = np.zeros(len(self.records), np.bool_)
        called[self._rec] = True
        nowhere = ~(sets.done | sets.pending | sets.dead | self._is_deleted)
        unhandled = sets.done & ~self._succeeded & ~self._is_deleted
        cases = np.flatnonzero(nowhere | unhandled | (sets.dead & ~called))

        def witness(record: int) -> Witness:
            if nowhere[record]:
                reason = "neither done nor pending nor dead-lettered"
            elif unhandled[record]:
                reason = "counted as done, without a call that succeeded"
            else:
                reason = "dead-lettered without a call"
            return self._witness(record, reason, self._calls_of(record)[-3:])

        return self._finding(cases, witness)

    def misplaced(self, not_produced: list[tuple[tuple[str, int], int]]) -> Finding:
        """Returns records in two sets or not produced, and calls of records not produced so."""
        sets = self.sets
        twice = np.flatnonzero(sets.pending & (sets.done | sets.dead))
        unknown = np.flatnonzero((self._row < 0) | self._other_key)

        def in_two(record: int) -> Witness:
            other = "done" if sets.done[record] else "dead-lettered"
            return self._witness(record, f"pending and {other}", self._calls_of(record)[-3:])

        def stray(index: int) -> Witness:
            call = self.history.call(index)
            reason = "called, but produced with another key"
            if self._row[index] < 0:
                reason = "called, but never produced"
            return Witness(
                call.topic,
                call.partition,
                offset=call.offset,
                key=call.key,
                reason=reason,
                calls=(call,),
            )

        found = [
            Witness(topic, partition, offset, None, "pending or dead-lettered, but never produced")
            for (topic, partition), offset in not_produced
        ]
        found += self._finding(twice, in_two).witnesses
        found += self._finding(unknown, stray).witnesses
        return Finding(
            len(not_produced) + len(twice) + len(unknown), tuple(found[: self._witnesses])
        )

    def order_breaks(self, scope: Numbers) -> Finding:
        """Returns the calls that started before a lower offset of their scope was settled."""
        # Records by scope and offset; calls life by life, as a kill undoes what was not committed.
        order = np.argsort(scope, kind="stable")
        settled = np.full(len(self.records), _NEVER, np.int64)
        undone_from = 0
        cases: list[tuple[int, int]] = []
        for life_end, committed in [*self._whole_kills(), (_NEVER, None)]:
            # An earlier life's call may end late; what counts is the life in which it ended.
            ended = self._settles & (self._end >= undone_from) & (self._end <= life_end)
            np.minimum.at(settled, self._rec[ended], self._end[ended])
            free = np.minimum(settled, self._gone_at)[order]
            before = _highest_before(scope[order], free)
            wait = np.full(len(self.records), -1, np.int64)
            wait[order] = np.where(before >= 0, free[before], -1)
            blocker = np.empty(len(self.records), np.int64)
            blocker[order] = order[before]
            begun = (self._start >= undone_from) & (self._start <= life_end)
            breaks = np.flatnonzero(begun & (self._start < wait[self._rec]))
            cases += [(int(call), int(blocker[self._rec[call]])) for call in breaks]
            if committed is not None:
                settled[~committed] = _NEVER
                undone_from = life_end + 1

        def witness(case: int) -> Witness:
            call, earlier = cases[case]
            offset = self.records.describe(earlier)[1]
            of_earlier = self._calls_of(earlier)
            around = [c for c in of_earlier if c < call][-2:] + [c for c in of_earlier if c > call][
                :1
            ]
            reason = f"started before offset {offset} of the same order was settled"
            if any(self._settles[c] and self._end[c] <= self._start[call] for c in of_earlier):
                reason += " again after the kill that undid it"
            return self._witness(int(self._rec[call]), reason, [*around, call])

        return self._finding(np.arange(len(cases)), witness)

    def _whole_kills(self) -> list[tuple[int, Mask | None]]:
        return [
            (kill.at_ns, committed)
            for kill, committed in zip(self._kills, self._committed, strict=True)
            if kill.pids is None
        ]

    def overlaps(self, scope: Numbers) -> Finding:
        """Returns the calls that started while another call of their scope ran."""
        group = scope[self._rec]
        order = np.lexsort((self._end, self._start, group))
        before = _highest_before(group[order], self._end[order])
        runs = (before >= 0) & (self._end[order][before] > self._start[order])
        cases = np.flatnonzero(runs)

        def witness(case: int) -> Witness:
            call, other = int(order[case]), int(order[before[case]])
            offset = self.records.describe(int(self._rec[other]))[1]
            reason = f"started while offset {offset} of the same order was running"
            return self._witness(int(self._rec[call]), reason, [other, call])

        return self._finding(cases, witness)

    def repeats(self) -> tuple[Finding, Finding]:
        """Returns repeats of settled records, and the repeats that no kill explains."""
        order = np.argsort(self._rec, kind="stable")
        settled_at = np.where(self._settles[order], np.arange(len(order)), -1)
        before = _highest_before(self._rec[order], settled_at)
        again = np.flatnonzero((before >= 0) & (settled_at[before] >= 0))
        call, earlier = order[again], order[before[again]]
        record = self._rec[call]
        explained = np.zeros(len(call), np.bool_)
        committed_before = np.zeros(len(call), np.bool_)
        for kill, committed, taken in zip(self._kills, self._committed, self._taken, strict=True):
            over = self._start[call] > kill.at_ns
            undone = over & taken[earlier] & (self._end[earlier] <= kill.at_ns)
            explained |= undone & ~committed[record]
            committed_before |= over & committed[record]
        committed_before |= self._committed_at[record] <= self._start[call]
        explained |= self._disturbed(earlier, call)
        fault = ~explained | committed_before

        def witness(case: int) -> Witness:
            reason = "started again after it was settled"
            if committed_before[case]:
                reason += ", though it was committed before"
            elif fault[case]:
                reason += ", without a kill or disturbance of its process in between"
            return self._witness(int(record[case]), reason, [int(earlier[case]), int(call[case])])

        def found(cases: Numbers) -> Finding:
            first = np.sort(np.unique(record[cases], return_index=True)[1])
            return self._finding(cases[first], witness)

        return found(np.arange(len(call))), found(np.flatnonzero(fault))

    def attempts_back(self) -> Finding:
        """Returns the calls whose attempt did not rise without a kill before them."""
        order = np.argsort(self._rec, kind="stable")
        call, last = order[1:], order[:-1]
        attempt = self.history.attempt[self._calls]
        back = (self._rec[call] == self._rec[last]) & ~self._settles[last]
        is_counted = self.history.outcome[self._calls][last] != _POSTPONED
        back &= attempt[call] < attempt[last] + is_counted
        for kill, taken in zip(self._kills, self._taken, strict=True):
            back &= ~(
                taken[last] & (self._start[last] <= kill.at_ns) & (kill.at_ns < self._start[call])
            )

        back &= ~self._disturbed(last, call)

        def witness(case: int) -> Witness:
            reason = f"attempt {attempt[call[case]]} after attempt {attempt[last[case]]}"
            return self._witness(
                int(self._rec[call[case]]), reason, [int(last[case]), int(call[case])]
            )

        return self._finding(np.flatnonzero(back), witness)

    def state_breaks(
        self, scope: Numbers, states: Mapping[tuple[str, int], Mapping[bytes, Any]] | None
    ) -> Finding:
        """Returns the calls and records at which the chain of a key's states is broken."""
        saw = self.history.saw
        chains: dict[int, dict[int, list[int]]] = {}
        for at_call in np.flatnonzero(np.isin(self._calls, [*saw])):
            record = int(self._rec[at_call])
            chains.setdefault(int(scope[record]), {}).setdefault(record, []).append(int(at_call))
        found: list[tuple[int, str, list[int]]] = []
        for chain in chains.values():
            # Rows of records are in the order of their offsets.
            order = sorted(chain)
            for at, record in enumerate(order):
                for call in chain[record]:
                    known = self._states_before(chain, order[:at], int(self._start[call]))
                    if saw[int(self._calls[call])] not in known:
                        reason = "saw a state that no done call of the record before it left"
                        before = chain[order[at - 1]][-2:] if at else []
                        found.append((record, reason, [*before, call]))
            if states is not None:
                found += self._broken_chain(chain, order, states)
        return self._finding(np.arange(len(found)), lambda case: self._witness(*found[case]))

    def _states_before(
        self, chain: Mapping[int, list[int]], before: Sequence[int], start: int
    ) -> set[str]:
        """Returns the states that a call of a key may see that starts at some time."""
        known: set[str] = set()
        outcome = self.history.outcome[self._calls]
        for record in reversed(before):
            over = [call for call in chain[record] if self._end[call] <= start]
            done = [call for call in over if outcome[call] == _DONE]
            known |= {self.history.left[int(self._calls[call])] for call in done}
            given_up = any(self._settles[call] and outcome[call] != _DONE for call in over)
            # What a kill undid of a record that was deleted then is never done again.
            if done and not given_up and self._deleted_at[record] >= start:
                return known
        return known | {NO_STATE}

    def _broken_chain(
        self,
        chain: Mapping[int, list[int]],
        order: Sequence[int],
        states: Mapping[tuple[str, int], Mapping[bytes, Any]],
    ) -> list[tuple[int, str, list[int]]]:
        """Follows the states of a key back from the final one."""
        place, _, key = self.records.describe(order[0])
        wanted = {fingerprint(states.get(place, {}).get(key or b""))}
        reason = "no done call of it left the final state"
        for record in reversed(order):
            if not self.sets.done[record]:
                continue
            calls = [int(self._calls[call]) for call in chain[record]]
            links = [call for call in calls if self.history.left.get(call, "") in wanted]
            is_deleted = self._deleted_at[record] < _NEVER
            if not links and not is_deleted:
                return [(record, reason, chain[record])]
            seen = {self.history.saw[call] for call in links}
            wanted = wanted | seen if is_deleted else seen
            reason = "no done call of it left what the next done record saw"
        if NO_STATE not in wanted:
            return [(order[0], "the first done record saw a state", chain[order[0]])]
        return []
