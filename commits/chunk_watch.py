"""Watches chunks of other members on the clock of one process. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commits.model import AcquisitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits.acquisitions import Acquisition
    from commits.model import TopicPartition


class AcquisitionWatch:
    """Finds chunks that were held for too long.

    A chunk is overdue if this watch has seen it for the whole time limit without a renewal. Its
    holder counts the same time from before its request and stops earlier by a safety margin, so
    that clocks need not agree.

    Args:
        timeout: The time limit in seconds, above 0.

    Raises:
        ValueError: If the time limit is not above 0.
    """

    def __init__(self, timeout: float) -> None:
        if not timeout > 0:
            raise ValueError(f"the time limit must be above 0 seconds, not {timeout}")
        self._timeout = timeout
        self._seen: dict[AcquisitionId, float] = {}

    def overdue(
        self, acquisitions: Mapping[TopicPartition, Iterable[Acquisition]], now: float
    ) -> tuple[AcquisitionId, ...]:
        """Return the overdue chunks, for `AcquireRequest.expire`.

        Args:
            acquisitions: The chunks of all members, as `CommitStore.acquisitions` returns them.
            now: The monotonic time in seconds, taken after the read.
        """
        current = [
            AcquisitionId(*at, chunk.id, chunk.renewals)
            for at, chunks in acquisitions.items()
            for chunk in chunks
        ]
        self._seen = {chunk: self._seen.get(chunk, now) for chunk in current}
        return tuple(chunk for chunk in current if now - self._seen[chunk] >= self._timeout)
