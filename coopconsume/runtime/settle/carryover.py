"""The state of slots that outlives a batch: failures in a row, open gates. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commits.model import TopicPartition


class SlotCarryover:
    """Keeps the failures in a row of each slot, and until when rate limits close its gates.

    Attributes:
        streaks: Failures in a row, by slot.
    """

    def __init__(self) -> None:
        self.streaks: dict[int, int] = {}
        self._opens: dict[int, dict[TopicPartition | None, float]] = {}

    def failed(self, slot: int, streak: int, *, restarts: bool) -> None:
        """Notes with how many failures in a row a slot has ended a batch.

        Args:
            slot: The slot.
            streak: Failures, those of batches before included.
            restarts: Whether the circuit breaker has just opened or closed, or is open: then the
                count of every slot starts again.
        """
        if restarts:
            self.streaks.clear()
        else:
            self.streaks[slot] = streak

    def closed(
        self,
        slot: int,
        gates: Mapping[int | None, float],
        names: Sequence[TopicPartition],
        now: float,
    ) -> None:
        """Notes in how many seconds a slot's gates open, by part; names are those of the parts."""
        opens = self._opens.setdefault(slot, {})
        opens |= {None if part is None else names[part]: now + left for part, left in gates.items()}

    def gates(
        self, slots: Iterable[int], names: Sequence[TopicPartition], now: float
    ) -> dict[int, dict[int | None, float]]:
        """Returns in how many seconds the gates of each slot open, by part."""
        parts: dict[TopicPartition | None, int | None] = {p: i for i, p in enumerate(names)}
        parts[None] = None
        return {
            slot: {parts[p]: at - now for p, at in self._opens[slot].items() if p in parts}
            for slot in slots
            if slot in self._opens
        }
