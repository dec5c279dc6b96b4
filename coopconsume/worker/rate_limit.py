"""Limits the records that start in a second: in a slot, of a share, of a key. Pure; task-side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A partition's index in the batch and a key hash: its records start one after another.
Lane = tuple[int, int]
#: Seconds of missed starts that a slot or share may catch up on.
_SLACK = 0.05


@dataclass(frozen=True)
class Rates:
    """Records that may start in a second; None: no limit.

    Attributes:
        per_slot: In one slot, over all its partitions.
        per_share: In one slot, of one partition.
        per_key: Of one key.
    """

    per_slot: float | None = None
    per_share: float | None = None
    per_key: float | None = None

    def __bool__(self) -> bool:
        return any(rate is not None for rate in (self.per_slot, self.per_share, self.per_key))


class Gate:
    """Opens at a rate, and catches up on a short time in which nothing passed.

    Attributes:
        opens_at: When the next record may pass, in seconds.
    """

    __slots__ = ("_slack", "_step", "opens_at")

    def __init__(self, rate: float | None, slack: float = _SLACK) -> None:
        self._step = 1.0 / rate if rate else 0.0
        self._slack = slack
        self.opens_at = 0.0

    def passed(self, now: float) -> None:
        """Counts a record that passes while the gate is open."""
        if self._step:
            self.opens_at = max(self.opens_at, now - self._slack) + self._step


class RateLimiter:
    """The gates of one slot.

    Args:
        rates: The limits.
        gates: The answer of `gates` at the end of the slot's last batch, less the time since.
        now: The time, in seconds.
    """

    def __init__(
        self, rates: Rates, gates: Mapping[int | None, float] | None = None, now: float = 0.0
    ) -> None:
        self._rates = rates
        self._shares: dict[int, Gate] = {}
        self._keys: dict[Lane, Gate] = {}
        self.slot = Gate(rates.per_slot)
        for part, left in (gates or {}).items():
            (self.slot if part is None else self.of_share(part)).opens_at = now + left

    def of_share(self, part: int) -> Gate:
        """The gate of a partition's share."""
        gate = self._shares.get(part)
        if gate is None:
            gate = self._shares[part] = Gate(self._rates.per_share)
        return gate

    def started(self, lane: Lane, now: float) -> None:
        """A row of a lane was started."""
        self.slot.passed(now)
        self.of_share(lane[0]).passed(now)
        if self._rates.per_key:
            # Without slack: what a key missed is not made good in a burst.
            self._keys.setdefault(lane, Gate(self._rates.per_key, 0.0)).passed(now)

    def gates(self, now: float) -> dict[int | None, float]:
        """Returns the seconds until gates open, by partition; the key None stands for the slot.

        A negative number is what a gate may still catch up on; gates that are open for longer are
        left out.
        """
        gates: list[tuple[int | None, Gate]] = [(None, self.slot), *self._shares.items()]
        left = ((part, gate.opens_at - now) for part, gate in gates)
        return {part: seconds for part, seconds in left if seconds > -_SLACK}

    def lane_opens_at(self, lane: Lane) -> float:
        """Returns when its key's rate lets the next row of a lane start; 0: now."""
        gate = self._keys.get(lane)
        return 0.0 if gate is None else gate.opens_at
