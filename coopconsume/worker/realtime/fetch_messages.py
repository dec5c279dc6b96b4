"""Requests of a slot to the fetch server of its host, the answers, and their wire format.

A request is JSON. An answer is the length of a JSON header, the header, and the rows of its
portions as Arrow record batches, whose schema both sides know.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from commits import OffsetAndEpoch
from coopconsume.worker.channel.wire import ProtocolError
from coopconsume.worker.realtime.wanted import LAST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.worker.realtime.spec import Ranges

#: How far below the end of a log a server may begin to read for a slot that gets chunks.
NEAR: Final = 20_000
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class Ask:
    """What a fetch asks for of one partition.

    Attributes:
        part: Index of the partition.
        offset: The first offset that the slot does not have.
        ranges: Its key ranges.
        is_joining: The slot reads this partition itself until the server has the offset. If it is
            the next one that the server reads, the server answers at once.
        last: The last offset that the slot wants.
        end: An offset up to which the log is known to reach; `LAST`: the offset is the next one of
            a slot that reads on.
        leader_epoch: In which the log reached `begin`; None: not known.
    """

    part: int
    offset: int
    ranges: Ranges
    is_joining: bool = False
    last: int = LAST
    end: int = LAST
    leader_epoch: int | None = None

    @property
    def begin(self) -> int:
        """From where on a server reads that does not read the partition yet.

        Neither beyond the end of the log, nor from an old record on that is tried again: the slot
        reads that itself.
        """
        is_next = self.end == LAST or self.end - NEAR <= self.offset <= self.end
        return self.offset if is_next else self.end


@dataclass(frozen=True)
class Fetch:
    """A request of a slot for the next records of its partitions.

    Attributes:
        asks: One for each partition.
        max_bytes: Bytes of records after which no more are added to the answer.
        max_wait: Seconds after which the answer comes without records.
    """

    asks: tuple[Ask, ...]
    max_bytes: int
    max_wait: float


@dataclass(frozen=True)
class Portion:
    """The records of one partition that are in a slot's key ranges, over a range of offsets.

    Attributes:
        part: Index of the partition.
        first: The offset that was asked for.
        next: The offset to ask for next; ``rows`` has all of the slot's records below it.
        rows: In the columns of a slot's rows, by ascending offsets; None without rows.
        holes: (first, last) of offsets below ``next`` at which there is no record.
        reached: How far the log reached in which leader epoch as the server read it; None: not
            known.
    """

    part: int
    first: int
    next: int
    rows: pa.RecordBatch | None = None
    holes: tuple[tuple[int, int], ...] = ()
    reached: OffsetAndEpoch | None = None


@dataclass(frozen=True)
class Evicted:
    """Says that the server does not have the offset that was asked for: the slot reads it itself.

    Attributes:
        part: Index of the partition.
        start: The first offset that the server can answer for.
    """

    part: int
    start: int


@dataclass(frozen=True)
class FetchAnswer:
    """The answer to a `Fetch`; it leaves out partitions without new records.

    Attributes:
        portions: Of partitions whose offset is in the server's memory.
        evicted: Of partitions whose offset is not.
        broker_bytes: Bytes that the server has read from the brokers since its last answer to any
            slot.
    """

    portions: tuple[Portion, ...] = ()
    evicted: tuple[Evicted, ...] = ()
    broker_bytes: int = 0


def encode_fetch(fetch: Fetch) -> bytes:
    """Returns a request as bytes."""
    asks = [
        [one.part, one.offset, one.is_joining, one.ranges, one.last, one.end, one.leader_epoch]
        for one in fetch.asks
    ]
    return json.dumps([fetch.max_bytes, fetch.max_wait, asks], separators=(",", ":")).encode()


def decode_fetch(data: bytes) -> Fetch:
    """The inverse of `encode_fetch`.

    Raises:
        ProtocolError: The bytes are no request.
    """
    try:
        max_bytes, max_wait, asks = json.loads(data)
        found = tuple(
            Ask(
                _count(part),
                _count(offset),
                _pairs(ranges),
                is_joining is True,
                _count(last),
                _count(end),
                None if epoch is None else _count(epoch),
            )
            for part, offset, is_joining, ranges, last, end, epoch in asks
        )
        return Fetch(found, _count(max_bytes), float(max_wait))
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"no fetch: {error}") from None


def encode_answer(answer: FetchAnswer) -> bytes:
    """Returns an answer as bytes."""
    rows = [None if one.rows is None else one.rows.serialize() for one in answer.portions]
    portions = [
        [one.part, one.first, one.next, None if data is None else len(data), one.holes, one.reached]
        for one, data in zip(answer.portions, rows, strict=True)
    ]
    evicted = [[one.part, one.start] for one in answer.evicted]
    header = json.dumps([portions, evicted, answer.broker_bytes], separators=(",", ":")).encode()
    return b"".join((_LENGTH.pack(len(header)), header, *filter(None, rows)))


def decode_answer(data: bytes, schema: pa.Schema) -> FetchAnswer:
    """The inverse of `encode_answer`.

    Args:
        data: The message.
        schema: Of the rows.

    Raises:
        ProtocolError: The bytes are no answer.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        named, evicted, broker_bytes = json.loads(data[_LENGTH.size : at])
        portions = []
        for part, first, following, size, holes, reached in named:
            rows = None
            if size is not None:
                end = at + _count(size)
                if end > len(data):
                    raise ProtocolError("an answer with rows that are longer than the answer")
                rows = pa.ipc.read_record_batch(pa.py_buffer(data[at:end]), schema)
                at = end
            portions.append(
                Portion(
                    _count(part),
                    _count(first),
                    _count(following),
                    rows,
                    _pairs(holes),
                    None if reached is None else OffsetAndEpoch(*map(_count, reached)),
                )
            )
        if at != len(data):
            raise ProtocolError("an answer with more bytes than it names")
        return FetchAnswer(
            tuple(portions),
            tuple(Evicted(_count(part), _count(start)) for part, start in evicted),
            _count(broker_bytes),
        )
    except (TypeError, ValueError, struct.error, pa.ArrowException, OSError) as error:
        raise ProtocolError(f"no answer to a fetch: {error}") from None


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} where a count was expected")
    return value


def _pairs(values: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((_count(first), _count(last)) for first, last in values)
