"""Finds the keys of blockers that failed before the job began where the commit log has none.

It has none of records that an earlier version or a job with ``keepFailedKeys=false`` has written.
With the option ``orderingKey`` only Spark knows these keys.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Final

from coopconsume.kafka.blocker_records import read_blockers
from coopconsume.record import shown_key
from coopconsume.runtime.events import BlockersRead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from commits.model import TopicPartition
    from coopconsume.options import Options
    from coopconsume.runtime.events import JobEvent
    from coopconsume.runtime.plan import Partition

log = logging.getLogger(__name__)

#: Seconds between two looks at which keys are missing, and so between two reads.
_LOOK_EVERY: Final = 10.0


class BlockerKeys:
    """Reads the records of blockers in a thread beside the loop, for their keys.

    Keys are for people: nothing waits for them. A record is read once; where that fails, another
    look tries again.

    Args:
        options: The options of the consumer.
        post: Puts an event into the loop's queue.
    """

    def __init__(self, options: Options, post: Callable[[JobEvent], None]) -> None:
        self._options = options
        self._post = post
        self._known: dict[TopicPartition, tuple[int, bytes | None]] = {}
        self._is_reading = False
        self._look_at = -math.inf

    def look(self, partitions: Iterable[Partition]) -> None:
        """Begins to read the records of blockers whose keys are not known, if there are any."""
        now = time.monotonic()
        if self._is_reading or now < self._look_at or self._options.ordering_key is not None:
            return
        self._look_at = now + _LOOK_EVERY
        wanted = self._name(partitions)
        if wanted:
            self._is_reading = True
            read = threading.Thread(
                target=self._read, args=(wanted,), name="coopconsume-blocker-keys", daemon=True
            )
            read.start()

    def take(self, event: BlockersRead, partitions: Iterable[Partition]) -> None:
        """Takes the keys that were read."""
        self._is_reading = False
        self._known |= event.keys
        self._name(partitions)

    def _name(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """Gives blockers their keys; returns the offsets of those whose record was not read."""
        unread = {}
        for partition in partitions:
            failed = partition.lanes.failed.last(partition.ledger.first_open())
            if failed is None or not failed.has_unknown_key:
                continue
            tp = partition.topic, partition.partition
            offset, key = self._known.get(tp, (-1, None))
            if offset == failed.offset:
                failed.key = shown_key(key)
            else:
                unread[tp] = failed.offset
        return unread

    def _read(self, wanted: dict[TopicPartition, int]) -> None:
        keys: dict[TopicPartition, tuple[int, bytes | None]] = {}
        try:
            found = read_blockers(self._options, wanted, log_level=logging.DEBUG)
            keys = {tp: (wanted[tp], record.key) for tp, record in found.items()}
        except Exception as error:  # noqa: BLE001 - the job does not depend on it
            log.debug("keys of blockers cannot be read: %s", error)
        self._post(BlockersRead(keys))
