"""The lease of a slot, and the leases that the driver grants. Pure: callers pass the time.

A slot sends requests, each stamped with its own clock. The driver answers how long the lease still
holds, counted from the loop's last renewal. The slot counts that time from its request. So the
lease of a slot never ends later than the driver assumes, however long a message takes. The same
answer says when the process of the slot ends, if it hears nothing more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    #: (batch, slot)
    At = tuple[int, int]

#: Requests of a slot in the time of one lease.
_ASKS = 5
_NANO = 1_000_000_000


class Lease:
    """The lease of a slot; once it has ended it cannot be renewed.

    Attributes:
        until: When it ends, on the slot's monotonic clock; 0: it has not begun.

    Args:
        seconds: How long a renewal lasts at most.
    """

    def __init__(self, seconds: float) -> None:
        self.until = 0.0
        self._seconds = seconds
        self._ask_at = 0.0

    def ask(self, now: float) -> int | None:
        """Returns the stamp of a request if it is time to send one; otherwise None."""
        if now < self._ask_at:
            return None
        self._ask_at = now + self._seconds / _ASKS
        return int(now * _NANO)

    def granted(self, stamp: int, seconds: float, now: float) -> bool:
        """Takes the answer to the request with this stamp; returns whether the lease holds."""
        # A message cannot grant more than one lease.
        until = stamp / _NANO + min(seconds, self._seconds)
        if until > now and not self.is_lost(now):
            self.until = max(self.until, until)
        return self.holds(now)

    def holds(self, now: float) -> bool:
        """Whether records may start."""
        return now < self.until

    def is_lost(self, now: float) -> bool:
        """Whether it has ended."""
        return 0 < self.until <= now

    def next_step_in(self, now: float) -> float:
        """Returns the seconds until the next request is due, or the lease ends."""
        at = min(self._ask_at, self.until) if self.holds(now) else self._ask_at
        return max(0.0, at - now)


class Life:
    """Until when the process of a slot may live; each answer of the driver sets that forward.

    Attributes:
        until: On the clock of the timer that ends the process; infinity: for ever.
    """

    def __init__(self) -> None:
        self.until = math.inf
        #: When requests were made, by their stamps.
        self._asked: dict[int, float] = {}

    def asked(self, stamp: int, now: float) -> None:
        """Notes a request, by the clock of the timer: it runs on while the host sleeps."""
        self._asked[stamp] = now

    def granted(self, stamp: int, seconds: float) -> None:
        """Takes the answer to the request with this stamp."""
        at = self._asked.get(stamp)
        if at is None:
            return  # A later one was answered before.
        self._asked = {other: when for other, when in self._asked.items() if other > stamp}
        self.until = at + seconds if self.until == math.inf else max(self.until, at + seconds)


class Grants:
    """The leases that the driver has granted, and the slots that it has stopped.

    Args:
        seconds: How long a renewal lasts.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[At, float] = {}
        self._stopped: set[At] = set()

    def renew(self, slots: Iterable[At], since: float) -> None:
        """Lets slots start records for the time of a lease, counted from an instant."""
        until = since + self._seconds
        for at in slots:
            self._until[at] = max(until, self._until.get(at, until))

    def left(self, at: At, now: float) -> float:
        """Returns how many seconds a slot may still start records; 0 or less: none."""
        return 0.0 if at in self._stopped else self._until.get(at, now) - now

    def has_granted(self, at: At) -> bool:
        """Whether a slot has got a lease, which may have ended."""
        return at in self._until

    def stop(self, slots: Iterable[At]) -> None:
        """Stops slots: no renewal lets them start records again."""
        self._stopped.update(slots)

    def is_stopped(self, at: At) -> bool:
        """Whether a slot was stopped."""
        return at in self._stopped

    def forget(self, batch: int) -> None:
        """Forgets the slots of a batch that has ended."""
        self._until = {at: until for at, until in self._until.items() if at[0] != batch}
        self._stopped = {at for at in self._stopped if at[0] != batch}
