"""Writes the group's offsets to Kafka beside the commits, and with them transactional outputs.

Each write runs in a thread of its own, one at a time: a Kafka that does not answer, or a topic that
does not take outputs, stops no commit.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final

from coopconsume.group.primary import WRITE_WITHIN
from coopconsume.runtime.events import OffsetsMirrored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.runtime.events import JobEvent
    from coopconsume.runtime.plan import Partition

#: Seconds between attempts to publish what is not published yet.
_PUBLISH_EVERY: Final = 0.5
#: Seconds between two writes of offsets without outputs, which nobody waits for.
_WRITE_EVERY: Final = 0.2
#: Seconds that the end of a job waits for outputs that are being published.
_LAST_PUBLISH: Final = 2.0


class Mirror:
    """Writes the group's offsets to Kafka.

    Every method is the loop's to call; the thread reports through ``post``.

    Args:
        assignment: What is owned; its ``primary`` has the group's offsets in Kafka.
        partitions: The partitions of the epoch.
        post: Puts an event into the queue of the loop.
    """

    def __init__(
        self,
        assignment: EpochAssignment,
        partitions: Mapping[TopicPartition, Partition],
        post: Callable[[JobEvent], None],
    ) -> None:
        self._assignment = assignment
        self._primary = assignment.primary
        self._partitions = partitions
        self._post = post
        #: Partitions whose outputs could not be published at the end of the last write.
        self._troubled: frozenset[TopicPartition] = frozenset()
        self._thread: threading.Thread | None = None
        self._is_wanted = False
        self._began_at = self._ended_at = -math.inf

    @property
    def is_busy(self) -> bool:
        """Whether a write is under way or wanted."""
        return self._thread is not None or self._is_wanted

    def wake(self) -> None:
        """Writes now, or once the write under way has ended and the next one is due.

        While the group rebalances Kafka takes no offsets; a later commit or look writes them.
        """
        if not self._assignment.is_between_epochs:
            self._is_wanted = True
            self._start()

    def write_if_due(self) -> None:
        """Writes what is wanted, or outputs that wait to be published, if a write is due."""
        is_due = time.monotonic() - self._ended_at > _PUBLISH_EVERY
        self._is_wanted |= is_due and self._primary.has_unpublished
        self._start()

    def close(self, *, well: bool, within: float = WRITE_WITHIN) -> None:
        """Writes nothing more, but for the last offsets if the job has ended well.

        Outputs that are not published are left to the next owner: their topic may be away.

        Args:
            well: Whether the job has ended well.
            within: Seconds that the last offsets may take; 0: they are not written. The commit log
                has them.
        """
        self._is_wanted = False
        if not (well and self._primary.is_publishing):
            self._primary.stop_publishing()
        until = time.monotonic() + within
        if self._thread is not None:
            self._thread.join(_LAST_PUBLISH if self._primary.publishes else within)
        is_writing = self._thread is not None and self._thread.is_alive()
        self._primary.stop_publishing()
        if well and within and not (self._primary.publishes or is_writing):
            self._primary.write_quietly(force=True, within=max(0.0, until - time.monotonic()))

    def _start(self) -> None:
        """Writes if that is wanted, due, and no write is under way."""
        now = time.monotonic()
        is_due = self._primary.publishes or now - self._began_at >= _WRITE_EVERY
        if self._thread is None and self._is_wanted and is_due:
            self._is_wanted, self._began_at = False, now
            self._thread = threading.Thread(
                target=self._write, name="coopconsume-mirror", daemon=True
            )
            self._thread.start()

    def _write(self) -> None:
        """In a thread of its own."""
        try:
            if self._primary.publishes:
                self._primary.write()
            else:
                self._primary.write_quietly()
        except BaseException as error:  # noqa: BLE001 - raised in the loop
            self._post(OffsetsMirrored(error))
        else:
            self._post(OffsetsMirrored())

    def ended(self) -> None:
        """Takes the end of a write."""
        self._thread = None
        self._ended_at = time.monotonic()

    def go_on(self) -> None:
        """Notes where outputs cannot be published for now, and writes what is wanted since."""
        troubled = self._primary.troubled
        for tp in self._troubled | troubled.keys():
            self._partitions[tp].ledger.unpublished = troubled.get(tp)
        self._troubled = frozenset(troubled)
        self._start()
