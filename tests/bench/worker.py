"""A worker that does nothing, for members of a group whose jobs are not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assignors import Share
    from coopconsume.group.epoch_assignment import EpochAssignment


class IdleWorker:
    """Has nothing to hand over, and begins every assignment from the start."""

    def begin(self, assignment: EpochAssignment) -> None:
        """Nothing begins."""

    def continue_work(self, _timeout: float) -> bool:
        """The assignment is handed over."""
        return False

    def give_up(self, _shares: Sequence[Share], _timeout: float) -> Sequence[Share] | None:
        """All of it is to be handed over."""
        return None

    def extend(self, _load: Callable[[], EpochAssignment]) -> EpochAssignment | None:
        """All of it is to be handed over."""
        return None

    def hand_over(self, _timeout: float) -> Sequence[Share]:
        """Nothing is left running."""
        return []

    def drop(self) -> None:
        """Nothing is running."""

    def fail(self, error: BaseException) -> None:
        """Raises the error."""
        raise error
