"""What runs the handlers of a slot, by any means: the one protocol of all runners. Task-side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa


class Runner(ABC):
    """Runs the handlers of a slot, and says which rows it has.

    All but `run` are called in the channel's thread too, with the lock of the outcome held.
    """

    @abstractmethod
    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Handles the rows; returns once no handler runs and none will start."""

    @abstractmethod
    def flush(self) -> None:
        """Adds the rows that are done so far to the outcome's draft."""

    @abstractmethod
    def at_work(self) -> list[tuple[int, int, int]]:
        """Returns the rows that handlers may run on, as in `SlotReport.kept`."""

    @abstractmethod
    def queued(self) -> Iterable[tuple[int, int]]:
        """Returns (part, offset) of the other rows that it has, those to try again included."""

    @abstractmethod
    def give_back(self) -> None:
        """Starts nothing more."""

    def calls(self) -> list[tuple[int, int]]:
        """Returns the first row of each handler call, as (part, offset)."""
        return [(part, offset) for part, offset, _ in self.at_work()]

    @abstractmethod
    def leave_withheld(self, now: float) -> None:
        """Leaves the retries of withheld key ranges to a later batch.

        Args:
            now: The time, on the monotonic clock.
        """

    @property
    def is_held_up(self) -> bool:
        """Whether a row waits only because all handlers are busy."""
        return False
