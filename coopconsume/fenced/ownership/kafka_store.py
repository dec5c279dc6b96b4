"""A store of the registry in a Kafka topic of one partition.

`log_fold` defines which changes count. The topic has no retention; when it has grown, a writer
appends a snapshot and deletes the records before it.
"""

from __future__ import annotations

import logging
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from coopconsume.errors.fenced import OwnershipFormat, OwnershipUnavailable
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.ownership.log_fold import OwnershipFold, change
from coopconsume.fenced.ownership.wire import reporting
from coopconsume.kafka.call_limit import Deadline
from coopconsume.kafka.one_partition import OnePartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.fenced.ownership.model import Key, OwnershipEvent, Row

log = logging.getLogger(__name__)

TOPIC = "__fw_ownership"
"""The topic that is used if no other is named."""
_PATIENCE = 30.0
#: Seconds between two looks at the position while no record comes.
_LOOK_EVERY = 0.2


class KafkaStore:
    """An `OwnershipStore` in a topic of one partition.

    Rights: `READ` and `WRITE` on the topic, `CREATE` to create it, `DELETE` to shorten it.

    Args:
        options: How to reach Kafka: as for `FencedWriter`.
        topic: The topic.
        create: Whether to create a missing topic.
        replication_factor: Of a topic that is created; None for the brokers' default.
        snapshot_bytes: Bytes of changes after which the log is shortened.

    Raises:
        OptionError: An option makes no sense.
        OwnershipUnavailable: Kafka cannot be reached.
        OwnershipFormat: The topic has several partitions, or is missing and ``create`` is False.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str = TOPIC,
        *,
        create: bool = True,
        replication_factor: int | None = None,
        snapshot_bytes: int = 8 << 20,
    ) -> None:
        from kafka.errors import KafkaError

        self.place = f"topic {topic}"
        self._reporting = partial(reporting, self.place, (KafkaError,))
        self._most_bytes = snapshot_bytes
        settings = FencedSettings.parse(options)
        with self._reporting("opening"):
            self._log = OnePartition(
                topic, settings.kafka, settings.client_config(), answer=_PATIENCE, fetch_ms=100,
                producer={
                    "retry.backoff.ms": int(settings.kafka.get("retry.backoff.ms", 10)),
                    "message.timeout.ms": int(1000 * _PATIENCE),
                },
            )  # fmt: skip
            count = self._log.partitions(create=create, replicas=replication_factor)
        if not count:
            raise OwnershipFormat(self.place, "no such topic", "an ownership store")
        if count != 1:
            raise OwnershipFormat(self.place, f"{count} partitions", "one partition")
        self._rewind()

    def rows(self) -> Mapping[Key, Row]:
        """Returns all rows, read up to the end of the log."""
        with self._reporting("reading"):
            end = self._log.end()
        if end < self._fold.next_offset:
            self._rewind()  # The topic was created again, or its end was cut.
        self._read_to(end)
        if not self._fold.is_whole:
            remedy = "a snapshot (see `coopconsume owners check --repair`)"
            raise OwnershipFormat(self.place, "a log whose start is missing", remedy)
        return self._fold.rows

    def swap(self, rows: Sequence[Row], entries: Sequence[OwnershipEvent]) -> bool:
        """Appends a change, reads up to it, and returns whether it counts."""
        change_id = uuid.uuid4().hex
        value = change(change_id, rows, entries)
        with self._reporting("changing"):
            (offset,) = self._log.append([value], _PATIENCE)
        counted = change_id in self._read_to(offset + 1)
        if self._size >= self._most_bytes:
            self._shorten()
        return counted

    def check(self) -> OwnershipFold:
        """Reads the whole log; returns its rows, and which records are no changes."""
        self._read_to(self._rewind())
        return self._fold

    def repair(self) -> OwnershipFold:
        """Continues from the rest of a log whose start is missing; returns its `check`.

        Resources without a change in the rest are free, and their fence epochs restart. Fenced logs
        store their epochs themselves.
        """
        if not self.check().is_whole:
            self._fold.salvage()
            self._shorten()
        return self.check()

    def history(self, key: Key) -> Sequence[OwnershipEvent]:
        """Returns the history of a resource; at least the last 100 entries."""
        self.rows()
        return [*self._fold.history.get(key, ())]

    def wait(self, seconds: float) -> None:
        """Returns when something was appended, or after some seconds."""
        self._take(seconds)

    def close(self) -> None:
        """Closes the connections."""
        self._log.end_writing()
        self._log.end_reading()

    def _rewind(self) -> int:
        """Begins again with the first record; returns the end of the log."""
        with self._reporting("reading"):
            start, end = self._log.begin_reading()
        self._fold = OwnershipFold(self.place, start)
        self._size = 0
        return end

    def _read_to(self, end: int) -> set[str]:
        counted: set[str] = set()
        deadline = Deadline(_PATIENCE)
        # The last offsets may be markers of somebody's transactions: no record comes for them.
        while self._fold.next_offset < end and self._log.position() < end:
            found = self._take(_LOOK_EVERY)
            if found is not None:
                counted |= found
                deadline = Deadline(_PATIENCE)
            elif deadline.is_over:
                raise OwnershipUnavailable(self.place, "reading", f"no record for {_PATIENCE:g} s")
        return counted

    def _take(self, seconds: float) -> set[str] | None:
        """Reads available records, and returns the ids of changes that count; None if none came."""
        with self._reporting("reading"):
            records = self._log.read(seconds)
        if records is None:
            self._rewind()  # shortened by another while this one was away
            return set()
        self._size += sum(len(value or b"") for _, _, value in records)
        counted = {self._fold.take(offset, value) for offset, _, value in records}
        return {*filter(None, counted)} if records else None

    def _shorten(self) -> None:
        """Appends a snapshot, and deletes the records that it replaces."""
        upto, snapshot = self._fold.next_offset, self._fold.snapshot()
        # What the snapshot itself takes is read back soon.
        self._size = -sum(map(len, snapshot))
        try:
            with self._reporting("shortening"):
                self._log.append(snapshot, _PATIENCE)
                self._log.delete_before(upto)
        except OwnershipUnavailable as error:  # A longer log is only slower to open.
            log.warning("%s", error)
