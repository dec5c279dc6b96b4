"""When a slot may start records, as its lease says. Pure: times come in as seconds.

A slot asks, and stamps its question with its own clock. The driver answers how long the lease
still holds, counted from the loop's last renewal. The slot counts that time from its question. So
the lease of a slot never ends later than the driver thinks, however long a message was on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    #: (batch, slot)
    At = tuple[int, int]

#: Questions of a slot in the time of one lease.
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
        """Returns the stamp of a question if one is to be asked now."""
        if now < self._ask_at:
            return None
        self._ask_at = now + self._seconds / _ASKS
        return int(now * _NANO)

    def granted(self, stamp: int, seconds: float, now: float) -> bool:
        """The driver has answered the question with this stamp; returns whether the lease holds."""
        # Nobody grants more than a lease, even if a message says so.
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

    def next_start_in(self, now: float) -> float:
        """Returns the seconds until there is something to ask, or the lease ends."""
        at = min(self._ask_at, self.until) if self.holds(now) else self._ask_at
        return max(0.0, at - now)


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
        """These slots may start records for the time of a lease, counted from an instant."""
        until = since + self._seconds
        for at in slots:
            self._until[at] = max(until, self._until.get(at, until))

    def left(self, at: At, now: float) -> float:
        """Returns how many seconds a slot may still start records; 0 or less: none."""
        return 0.0 if at in self._stopped else self._until.get(at, now) - now

    def stop(self, slots: Iterable[At]) -> None:
        """These slots start nothing more, whatever is renewed."""
        self._stopped.update(slots)

    def is_stopped(self, at: At) -> bool:
        """Whether a slot was stopped."""
        return at in self._stopped

    def forget(self, batch: int) -> None:
        """A batch has ended."""
        self._until = {at: until for at, until in self._until.items() if at[0] != batch}
        self._stopped = {at for at in self._stopped if at[0] != batch}
