"""Watches chunks of other members on the clock of one process. Pure."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from commits.model import AcquisitionId
from commits.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits.acquisitions import Acquisition
    from commits.model import TopicPartition


class AcquisitionWatch:
    """Finds chunks that were held for too long.

    A chunk is overdue if it was watched for the whole time limit without a renewal, by this watch
    and by those whose notes the log has, see `commits.watch`. Its holder counts the same time from
    before its request and stops earlier by a safety margin, so that clocks need not agree.

    Args:
        timeout: The time limit in seconds, above 0; None for the longest time that a batch of the
            chunk's holder may run.
        jitter: The source of jitter: of all members that watch a chunk, about one notes it.

    Raises:
        ValueError: If the time limit is not above 0.
    """

    def __init__(self, timeout: float | None = None, jitter: random.Random | None = None) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"the time limit must be above 0 seconds, not {timeout}")
        self._timeout = timeout
        self._watch: Watch[AcquisitionId] = Watch(jitter or random.Random())  # noqa: S311

    def overdue(
        self, acquisitions: Mapping[TopicPartition, Iterable[Acquisition]], now: float
    ) -> tuple[AcquisitionId, ...]:
        """Return the overdue chunks, for `AcquireRequest.expire`.

        Args:
            acquisitions: The chunks of all members, as `CommitStore.acquisitions` returns them.
            now: The monotonic time in seconds, taken after the read.
        """
        current = {
            AcquisitionId(*at, chunk.id, chunk.renewals): chunk
            for at, chunks in acquisitions.items()
            for chunk in chunks
        }
        self._watch.keep(current)
        for chunk_id, chunk in current.items():
            seconds = max(1, chunk.life_ms) / 1000 if self._timeout is None else self._timeout
            self._watch.saw(chunk_id, seconds, chunk.watched_ms / 1000, now)
        return tuple(self._watch.overdue(now))

    def notes(self, now: float, *, is_last: bool = False) -> dict[AcquisitionId, int]:
        """Return for how many milliseconds chunks have lasted, for `AcquireRequest.watched`.

        Members that live for less than the time limit so watch a chunk together.

        Args:
            now: The monotonic time in seconds.
            is_last: Whether this member leaves; if not, notes are due now and then.
        """
        due = self._watch.next_note()
        if not is_last and (due is None or now < due):
            return {}
        return {chunk: round(1000 * lasted) for chunk, lasted in self._watch.notes(now).items()}
