"""Records of one append, put into kafka-python's Kafka batch together.

kafka-python encodes each record by itself, the name and the value of each header anew, and makes a
future for each. Of an append, nearly all headers are the same, and one future tells the offset of
all that are in one Kafka batch: the leader numbers them one after another. So the first record is
sent as ever, and the others are written behind it, in the same bytes.

For this, private parts of kafka-python 3.0 are used; with another version, or where the records do
not fit into the batch, nothing is done here, and each record is sent by itself.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.fenced.log import Entry

_VERSION: Final = "3.0."
_NULL: Final = b"\x01"  # the length -1
_ATTRIBUTES: Final = b"\x00"


class KafkaBatch:
    """One Kafka batch of a producer of kafka-python, with all records of an append.

    Attributes:
        size: How many records are in it.
    """

    def __init__(self, batch: Any, size: int) -> None:
        self.size = size
        self._batch = batch

    @property
    def is_whole(self) -> bool:
        """Whether it was answered as the one batch that it was."""
        return bool(self._batch.is_done and self._batch.record_count == self.size)


def extend(
    producer: Any,
    topic: str,
    partition: int,
    entries: Sequence[Entry],
    headers: Sequence[list[tuple[str, bytes]]],
) -> KafkaBatch | None:
    """Put records into the batch of a producer in which there is one that was just sent.

    Args:
        producer: The producer, on which nobody else calls.
        topic: The topic.
        partition: The partition.
        entries: The records.
        headers: The first headers of each.

    Returns:
        The batch; None if nothing was done.
    """
    import kafka

    if not kafka.__version__.startswith(_VERSION):
        return None
    at = kafka.TopicPartition(topic, partition)
    accumulator = producer._accumulator  # noqa: SLF001
    with accumulator._tp_lock(at):  # noqa: SLF001 - the sender takes batches away under it
        batches = accumulator._batches[at]  # noqa: SLF001
        if len(batches) != 1 or batches[0].record_count != 1 or batches[0].records.is_full():
            return None
        records = batches[0].records
        builder = records._builder  # noqa: SLF001
        first = builder._first_timestamp  # noqa: SLF001
        now = int(1000 * time.time())
        times = [now if e.timestamp is None else e.timestamp for e in entries]
        written = encode_records(entries, headers, [t - first for t in times], 1)
        if builder.size() + len(written) > builder._batch_size:  # noqa: SLF001
            return None
        last = len(entries)
        builder._buffer += written  # noqa: SLF001
        builder._num_records, builder._last_offset = last + 1, last  # noqa: SLF001
        builder._max_timestamp = max(builder._max_timestamp, *times)  # noqa: SLF001
        records._next_offset = last + 1  # noqa: SLF001
        return KafkaBatch(batches[0], last + 1)


def encode_records(
    entries: Sequence[Entry],
    headers: Sequence[list[tuple[str, bytes]]],
    delays: Sequence[int],
    first: int,
) -> bytes:
    """Records in the bytes of Kafka's record batches, version 2.

    Args:
        entries: The records.
        headers: The first headers of each; those of the entry follow.
        delays: Milliseconds of each after the first record of the batch.
        first: Place in the batch of the first of them.
    """
    known: dict[tuple[str, bytes], bytes] = {}
    parts: list[bytes] = []
    for i, (value, key, more, _) in enumerate(entries):
        found = [*headers[i], *more] if more else headers[i]
        record = [_ATTRIBUTES, varint(delays[i]), varint(first + i), *_sized(key), *_sized(value)]
        record.append(varint(len(found)))
        for header in found:
            text = known.get(header)
            if text is None:
                text = known[header] = _header(*header)
            record.append(text)
        body = b"".join(record)
        parts += (varint(len(body)), body)
    return b"".join(parts)


def _header(name: str, value: bytes) -> bytes:
    return b"".join((*_sized(name.encode()), *_sized(value)))


def _sized(value: bytes | None) -> tuple[bytes, bytes]:
    return (_NULL, b"") if value is None else (varint(len(value)), value)


@lru_cache(maxsize=8192)
def varint(number: int) -> bytes:
    """A number of 64 bits as Kafka's records have it: zigzag, seven bits a byte, low ones first."""
    left = (number << 1) ^ (number >> 63)
    found = bytearray()
    while left > 0x7F:  # noqa: PLR2004 - seven bits
        found.append(0x80 | (left & 0x7F))
        left >>= 7
    found.append(left)
    return bytes(found)
