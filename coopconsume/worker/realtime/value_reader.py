"""Reads the values and headers of records by offset, if the fetch server keeps none.

With ``key.range.hashing.content=key`` the portions of a fetch server have no values and headers.
The slot reads them from Kafka, and returns the completed records piece by piece.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from coopconsume.worker.realtime.errors import ReadFailed, opening
from coopconsume.worker.realtime.fetch_messages import Portion
from coopconsume.worker.realtime.log_reach import Start
from coopconsume.worker.realtime.reader import headers_of
from coopconsume.worker.report import FILTERED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from commits.model import TopicPartition
    from coopconsume.worker.realtime.source import KafkaSource

    #: Offset, value and headers.
    Found = tuple[int, bytes | None, list[dict[str, Any]]]

#: Bytes of one fetch, unless a record batch has more.
FETCH_BYTES: Final = 64 << 10
#: Records of one poll, at most.
_MOST: Final = 1_000
#: Seconds after which a record that is not returned counts as unreadable.
_PATIENCE: Final = 60.0


def value_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """Returns Kafka settings with which little is fetched beside the wanted records."""
    return {**kafka, "max.partition.fetch.bytes": str(FETCH_BYTES)}


class ValueReader:
    """Completes portions with values and headers, one after another.

    Args:
        open_source: Opens a source, given where partitions are read from.
        places: (topic, partition) by index.
    """

    def __init__(
        self,
        open_source: Callable[[Mapping[TopicPartition, Start]], KafkaSource],
        places: tuple[TopicPartition, ...],
    ) -> None:
        self._open = open_source
        self._places = places
        self._source: KafkaSource | None = None
        self._portions: deque[Portion] = deque()
        #: The source returns no offset below this one next; None: it is at another place.
        self._at: int | None = None
        self._asked_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether there are incomplete portions."""
        return bool(self._portions)

    @property
    def broker_bytes(self) -> int:
        """Bytes that the brokers have sent for values."""
        return self._source.broker_bytes if self._source else 0

    def add(self, portions: Iterable[Portion]) -> None:
        """Queues portions."""
        self._portions.extend(portions)

    def poll(self, timeout: float) -> list[Portion]:
        """Returns the next complete portions, or parts of them, in order.

        Args:
            timeout: Seconds to wait for the next value.

        Raises:
            ReadFailed: A record is no longer in the log, or cannot be read.
        """
        found: list[Portion] = []
        while self._portions and not _wanted(self._portions[0]):
            found.append(self._portions.popleft())
            self._at = None
        if found or not self._portions:
            return found
        portion = self._portions[0]
        wanted = _wanted(portion)
        source = self._read_from(portion, wanted[0])
        values: list[Found] = []
        for record in source.poll(timeout, _MOST).records:
            offset = record.offset()
            assert offset is not None
            self._at = offset + 1
            if len(values) == len(wanted) or offset < wanted[len(values)]:
                continue
            if offset > wanted[len(values)]:
                raise ReadFailed(self._missing(portion, wanted[len(values)]))
            if _is_newer(record.leader_epoch(), portion):
                raise ReadFailed(self._missing(portion, offset))
            values.append((offset, record.value(), headers_of(record)))
        if values:
            self._asked_at = time.monotonic()
            piece, rest = _divided(portion, values)
            if rest is None:
                self._portions.popleft()
                self._at = None
            else:
                self._portions[0] = rest
            return [piece]
        if time.monotonic() - self._asked_at > _PATIENCE:
            raise ReadFailed(self._missing(portion, wanted[0]))
        return []

    def close(self) -> None:
        """Ends it."""
        if self._source is not None:
            self._source.close()

    def _read_from(self, portion: Portion, offset: int) -> KafkaSource:
        """Returns the source, positioned at an offset of a portion or before it."""
        if self._source is not None and self._at is not None and offset <= self._at:
            return self._source
        epoch = None if portion.reached is None else portion.reached.leader_epoch
        starts = {self._places[portion.part]: Start(offset, epoch)}
        if self._source is None:
            with opening():
                self._source = self._open(starts)
        else:
            self._source.assign(starts)
        self._at, self._asked_at = offset, time.monotonic()
        return self._source

    def _missing(self, portion: Portion, offset: int) -> str:
        topic, partition = self._places[portion.part]
        return f"{topic}-{partition}: the record at offset {offset} could not be read by its offset"


def _is_newer(leader_epoch: int | None, portion: Portion) -> bool:
    """Whether a record was written after the log of a portion was cut below its offset."""
    known = portion.reached
    return known is not None and leader_epoch is not None and leader_epoch > known.leader_epoch


def _wanted(portion: Portion) -> list[int]:
    """Returns the offsets whose values are needed: those of records that pass the filter."""
    rows = portion.rows
    if rows is None:
        return []
    offsets: list[int] = rows.column("offset").to_pylist()
    if FILTERED not in rows.schema.names:
        return offsets
    marks = rows.column(FILTERED).to_pylist()
    return [offset for offset, mark in zip(offsets, marks, strict=True) if not mark]


def _divided(portion: Portion, values: list[Found]) -> tuple[Portion, Portion | None]:
    """Divides a portion after the last value: returns the completed part, and the rest."""
    rows = portion.rows
    assert rows is not None
    offsets = rows.column("offset").to_pylist()
    count = offsets.index(values[-1][0]) + 1
    is_all = count == len(offsets)
    following = portion.next if is_all else offsets[count]
    known = {offset: rest for offset, *rest in values}
    columns: list[Any] = []
    for field in rows.schema:
        column = rows.column(field.name).slice(0, count)
        if field.name in ("value", "headers"):
            place = ("value", "headers").index(field.name)
            cells = [known[o][place] if o in known else None for o in offsets[:count]]
            column = pa.array(cells, field.type)
        columns.append(column)
    below = tuple(hole for hole in portion.holes if hole[0] < following)
    piece = Portion(
        portion.part, portion.first, following,
        pa.RecordBatch.from_arrays(columns, schema=rows.schema), below, portion.reached,
    )  # fmt: skip
    if is_all:
        return piece, None
    above = tuple(hole for hole in portion.holes if hole[0] >= following)
    rest = rows.slice(count)
    return piece, Portion(portion.part, following, portion.next, rest, above, portion.reached)
