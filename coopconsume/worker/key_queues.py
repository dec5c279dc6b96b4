"""Queues the rows of a slot by key and decides which one starts next. Pure.

A *lane* has the rows that must be handled strictly one after another: those of a key, those of a
partition or, without ordering, a single row. Rows wait in their lane in offset order, and only the
first row of a lane runs. Lanes that may start take turns. A row that is retried stays the first of
its lane.

It has no clock, thread or event loop: callers pass the time in seconds. Task-side code.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.worker.input_rows import InputRow
    from coopconsume.worker.rate_limit import Lane, RateLimiter


class KeyQueues:
    """The queued rows of a slot, by lane.

    Args:
        pace: Limits the rate at which rows start; None: no limit.
    """

    def __init__(self, pace: RateLimiter | None = None) -> None:
        self._pace = pace
        self._lanes: dict[Lane, deque[InputRow]] = {}
        # Lanes whose first row may start; by partition if there are rate limits.
        self._ready: dict[int, deque[Lane]] = {}
        self._later: list[tuple[float, int, Lane]] = []
        #: Lanes whose first row waits for a retry.
        self._retries: set[Lane] = set()
        #: Those, and lanes whose first row runs again.
        self._tried: set[Lane] = set()
        self._numbers = itertools.count()
        self._turn: deque[int] = deque()
        self._at_work: set[Lane] = set()
        self.rows = 0
        self.bytes = 0
        self.ready = 0

    def __bool__(self) -> bool:
        return bool(self._lanes)

    @property
    def running(self) -> int:
        """The number of rows that handlers run on."""
        return len(self._at_work)

    @property
    def at_work(self) -> Iterator[InputRow]:
        """The rows that handlers run on."""
        return (self._lanes[lane][0] for lane in self._at_work)

    @property
    def is_idle(self) -> bool:
        """Whether only rows that wait for a retry are queued, and rows behind them."""
        return len(self._lanes) == len(self._retries)

    @property
    def has_fresh(self) -> bool:
        """Whether there is a lane whose first row was not tried before."""
        return len(self._lanes) > len(self._tried)

    def add(self, lane: Lane, row: InputRow) -> bool:
        """Queues a row behind those of its lane; returns whether it may start now."""
        self.rows += 1
        self.bytes += len(row.value or b"")
        held = self._lanes.get(lane)
        if held is not None:
            held.append(row)
            return False
        self._lanes[lane] = deque((row,))
        return self._next_in(lane)

    def start(self, now: float) -> tuple[Lane, InputRow] | None:
        """Starts the next row and returns it; None if none may start now."""
        pace = self._pace
        while self._later and self._later[0][0] <= now:
            self._is_due(heapq.heappop(self._later)[2])
        if pace is None:
            for ready in self._ready.values():
                if ready:
                    return self._begin(ready.popleft())
            return None
        if not pace.slot.opens_at <= now:
            return None
        for _ in range(len(self._turn)):
            part = self._turn[0]
            self._turn.rotate(-1)
            if self._ready[part] and pace.of_share(part).opens_at <= now:
                lane, row = self._begin(self._ready[part].popleft())
                pace.started(lane, now)
                return lane, row
        return None

    def remove_running(self, lane: Lane, *, flows: bool) -> list[InputRow]:
        """Removes the running row of a lane.

        Args:
            lane: Its lane.
            flows: Whether the rows behind it may start; if not, they are removed too.

        Returns:
            The rows behind it that were removed.
        """
        held = self._lanes[lane]
        self._release(held.popleft())
        self._tried.discard(lane)
        self._at_work.remove(lane)
        if held and flows:
            self._next_in(lane)
            return []
        del self._lanes[lane]
        for row in held:
            self._release(row)
        return list(held)

    def postpone(self, lane: Lane, at: float) -> None:
        """Keeps the running row of a lane as its first one; it may start again at an instant."""
        self._at_work.remove(lane)
        self._retries.add(lane)
        self._tried.add(lane)
        opens_at = 0.0 if self._pace is None else self._pace.lane_opens_at(lane)
        heapq.heappush(self._later, (max(at, opens_at), next(self._numbers), lane))

    def drop(self, lane: Lane) -> list[InputRow]:
        """Removes a lane whose first row waits for a retry; returns its rows."""
        self._tried.remove(lane)
        if lane in self._retries:
            self._retries.remove(lane)
        else:  # It is due by now.
            self._ready_of(lane).remove(lane)
            self.ready -= 1
        rows = list(self._lanes.pop(lane))
        for row in rows:
            self._release(row)
        return rows

    def next_start(self, now: float) -> float | None:
        """Returns when the next row may start; None if a running one must be settled first."""
        pace = self._pace
        if pace is None:
            later = self._later[0][0] if self._later else None
            return now if self.ready else later
        opens = [pace.of_share(part).opens_at for part in self._turn if self._ready[part]]
        opens += [self._later[0][0]] if self._later else []
        return max(pace.slot.opens_at, min(opens)) if opens else None

    def held(self) -> Iterator[tuple[Lane, InputRow]]:
        """Yields all queued rows, the running ones included."""
        for lane, rows in self._lanes.items():
            for row in rows:
                yield lane, row

    def _is_due(self, lane: Lane) -> None:
        if lane in self._lanes:  # It may have been dropped.
            self._retries.discard(lane)
            self._make_ready(lane)

    def _next_in(self, lane: Lane) -> bool:
        """Queues a lane; returns whether its first row need not wait for the rate of its key."""
        opens_at = 0.0 if self._pace is None else self._pace.lane_opens_at(lane)
        if opens_at:
            heapq.heappush(self._later, (opens_at, next(self._numbers), lane))
        else:
            self._make_ready(lane)
        return not opens_at

    def _make_ready(self, lane: Lane) -> None:
        self._ready_of(lane).append(lane)
        self.ready += 1

    def _ready_of(self, lane: Lane) -> deque[Lane]:
        part = lane[0] if self._pace is not None else 0
        ready = self._ready.get(part)
        if ready is None:
            ready = self._ready[part] = deque()
            self._turn.append(part)
        return ready

    def _begin(self, lane: Lane) -> tuple[Lane, InputRow]:
        self.ready -= 1
        self._at_work.add(lane)
        return lane, self._lanes[lane][0]

    def _release(self, row: InputRow) -> None:
        self.rows -= 1
        self.bytes -= len(row.value or b"")
