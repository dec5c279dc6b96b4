"""The parcels for one destination: when each is written, and which records wait for it. Pure.

Times are seconds on a monotonic clock. Parcels are written one at a time. While the destination
works, everything since the last write is one parcel. A parcel that fails is retried after a pause,
in turn with others, and divided, so that one bad record does not hold back the others. A parcel
that the destination refuses permanently is divided at once until its bad records are alone; these
are not retried.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from coopconsume.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.runtime.commit.parcels import Parcel

#: Seconds for which a commit waits for a parcel that is being written, to include it.
TOGETHER: Final = 0.5
#: Seconds of the pause after the first failure; each failure doubles it, up to a limit.
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
#: Failures after which a parcel is divided, and parcels at most.
_WHOLE: Final = 2
_MOST_PARTS: Final = 16


class Deliveries:
    """The parcels of one destination.

    Args:
        what: What is written, for people.
        patience: Seconds after which the records of a write that takes long count as held back.
        gives_up: Whether the destination is given up after that time, as the job is to end.
        in_order: Whether parcels are written strictly in their order, and never divided.

    Attributes:
        refused: Parcels that are not retried.
    """

    def __init__(
        self, what: str, patience: float, *, gives_up: bool = False, in_order: bool = False
    ) -> None:
        self.what = what
        self.refused: list[Parcel] = []
        self._patience = patience
        self._gives_up = gives_up
        self._in_order = in_order
        self._waiting: deque[Parcel] = deque()
        self._under_way: Parcel | None = None
        self._began = -math.inf
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._error = ""

    @property
    def has_any(self) -> bool:
        """Whether anything is not written."""
        return bool(self._under_way or self._waiting or self.refused)

    @property
    def parcels(self) -> list[Parcel]:
        """All parcels that are not written."""
        under_way = [self._under_way] if self._under_way else []
        return [*self.refused, *self._waiting, *under_way]

    def is_in_trouble(self, now: float) -> bool:
        """Whether the last write has failed, or the present one takes too long."""
        return bool(self._backoff.failures) or self._is_slow(now)

    def _is_slow(self, now: float) -> bool:
        return self._under_way is not None and now - self._began > self._patience

    def is_young(self, now: float) -> bool:
        """Whether a parcel is being written, and a commit should wait for it."""
        is_new = self._under_way is not None and now - self._began < TOGETHER
        return is_new and not self.is_in_trouble(now)

    def is_moving(self, now: float) -> bool:
        """Whether something is about to be written, as far as is known."""
        return bool(self._under_way or self._waiting) and not self.is_in_trouble(now)

    def add(self, parcel: Parcel) -> None:
        """Adds a parcel of records that have just been handled."""
        self._waiting.append(parcel)

    def begin(self, now: float) -> Parcel | None:
        """Returns the parcel to write now; None if there is nothing to write yet.

        `delivered` or `failed` must be called with the outcome before the next call.
        """
        if self._under_way is not None or not self._waiting or now < self._backoff.not_before:
            return None
        parcel = self._waiting.popleft()
        if parcel.is_fresh:
            others = list(self._waiting)
            self._waiting = deque(one for one in others if not one.is_fresh)
            for other in others:
                if other.is_fresh:
                    parcel.add(other)
        self._under_way, self._began = parcel, now
        return parcel

    def delivered(self) -> Parcel:
        """Takes the end of the current write; returns its parcel."""
        parcel = self._taken()
        self._answered()
        return parcel

    def failed(self, error: str, now: float, *, is_final: bool, is_denied: bool = False) -> None:
        """Takes the failure of the current write.

        Args:
            error: The reason.
            now: The time.
            is_final: Whether the destination refuses it permanently.
            is_denied: Whether the user lacks a right; nothing can be written until it is granted.
        """
        parcel = self._taken()
        parcel.failures += 1
        parcel.error = error
        if is_final and not self._in_order:
            self._answered()
            halves = parcel.halves()
            if len(halves) > 1:
                self._waiting.extendleft(reversed(halves))
            else:
                self._refuse(parcel)
            return
        self._error = error
        self._backoff.failed(now, is_denied=is_denied)
        if self._gives_up and self._backoff.is_lasting(now, self._patience):
            for one in (parcel, *self._waiting):
                one.error = one.error or error
                self._refuse(one)
            self._waiting.clear()
            return
        if self._in_order:
            self._waiting.appendleft(parcel)
            return
        parts = sum(not one.is_fresh for one in self._waiting)
        is_whole = is_denied or parcel.failures < _WHOLE or parts >= _MOST_PARTS
        self._waiting.extend((parcel,) if is_whole else parcel.halves())

    def concerns(self, slot: int) -> bool:
        """Whether records of a slot are not written."""
        return any(slot in one.slots for one in self.parcels)

    def _taken(self) -> Parcel:
        parcel, self._under_way = self._under_way, None
        assert parcel is not None, "nothing is under way"
        return parcel

    def _answered(self) -> None:
        """The destination is there: it has taken a parcel or refused it."""
        self._backoff.succeeded()
        self._error = ""

    def _refuse(self, parcel: Parcel) -> None:
        parcel.is_refused = True
        self.refused.append(parcel)

    def to_show(self, now: float) -> Iterator[Parcel]:
        """Returns parcels whose records are held back and whose error was not shown yet."""
        for parcel in self.parcels if self.is_in_trouble(now) else list(self.refused):
            slow = f"{self.what} have not been written for {self._patience:g} s"
            parcel.error = parcel.error or self._error or slow
            if parcel.shown != (parcel.error, parcel.is_refused):
                parcel.shown = parcel.error, parcel.is_refused
                yield parcel
