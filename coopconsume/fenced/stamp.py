"""The stamp that the writer puts on each record: one binary record header, and its codec.

The header ``fw`` comes first; the user's headers follow. Its value is big-endian:

========  =====  ===================================================================
bytes     size   field
========  =====  ===================================================================
0         1      format version, 2
1         1      kind: 0 data, 1 open, 2 checkpoint; plus 16 with ``visibility="filter"``
2-9       8      fence epoch of the owner
10-17     8      sequence number of the first record of the batch
18-25     8      offset that the first record of the batch is expected to get
26-33     8      session tag, drawn by the ``open`` record that the owner writes under
34-37     4      number of records in the batch
38-       1-64   batch id, ASCII
last 4    4      position of this record in its batch, from 0
========  =====  ===================================================================

In Spark SQL, `sql` decodes a field. A record of a fenced log is in place if its offset equals the
expected offset plus its position.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Visibility = Literal["read_committed", "filter"]
VISIBILITIES: Final = ("read_committed", "filter")
Kind = Literal["data", "open", "checkpoint"]
Header = tuple[str, bytes]

NAME: Final = "fw"
"""Name of the header; it is reserved for the writer."""
FORMAT: Final = 2
NO_TAG: Final = b"\0" * 8
"""Session tag of a log that nobody has opened."""

_KINDS: Final[tuple[Kind, ...]] = ("data", "open", "checkpoint")
_FILTER: Final = 16
_FIXED: Final = struct.Struct(">BBQQQ8sI")
_INDEX: Final = struct.Struct(">I")
_BATCH: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_LARGEST: Final = 2**63 - 1
_MOST_RECORDS: Final = 2**32 - 1
#: Bytes that the header takes at most.
LARGEST_STAMP: Final = _FIXED.size + 64 + _INDEX.size


class MalformedStamp(ValueError):
    """A header ``fw`` that is not a stamp of this format; its text says why."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The stamp of one record: see this module.

    Attributes:
        kind: ``data``; ``open``: an owner begins; ``checkpoint``: nothing but the numbers.
        seq: Sequence number of this record; of an ``open`` or ``checkpoint`` the next record's.
    """

    visibility: Visibility
    kind: Kind
    epoch: int
    seq: int
    n: int
    i: int
    batch: str
    expected: int
    tag: bytes = NO_TAG

    def __post_init__(self) -> None:
        is_whole = (
            0 <= self.i < self.n <= _MOST_RECORDS
            and (self.n == 1 or self.kind == "data")
            and (self.kind == "open") <= self.epoch <= _LARGEST
            and self.i <= self.seq <= _LARGEST - self.n
            and 0 <= self.expected <= _LARGEST - self.n
            and is_batch_id(self.batch)
            and len(self.tag) == len(NO_TAG)
        )
        if not is_whole:
            raise MalformedStamp(f"a number or the batch id is out of range: {self}")


def is_batch_id(text: str) -> bool:
    """Whether a text can be the id of a batch: 1 to 64 letters, digits, or one of ``._:-``."""
    return _BATCH.fullmatch(text) is not None


def encode(stamp: Stamp) -> Header:
    """The header of one record."""
    return NAME, _shared_part(stamp) + _INDEX.pack(stamp.i)


def encode_batch(head: Stamp, first: int = 0) -> Iterator[Header]:
    """The headers of a batch's records from the one of an index on, by the first one's stamp."""
    indexes = map(_INDEX.pack, range(first, head.n))
    return zip(repeat(NAME), map(_shared_part(head).__add__, indexes), strict=False)


def _shared_part(stamp: Stamp) -> bytes:
    kind = _KINDS.index(stamp.kind) + _FILTER * (stamp.visibility == "filter")
    first_seq, expected, tag = stamp.seq - stamp.i, stamp.expected, stamp.tag
    fixed = _FIXED.pack(FORMAT, kind, stamp.epoch, first_seq, expected, tag, stamp.n)
    return fixed + stamp.batch.encode()


def decode(headers: Sequence[Header]) -> Stamp | None:
    """The stamp of a record; None for a foreign record, which has no header ``fw``.

    Raises:
        MalformedStamp: The header is not the first one, comes twice, or is not of this format.
    """
    names = [name for name, _ in headers]
    if NAME not in names:
        return None
    if names[0] != NAME or names.count(NAME) > 1:
        raise MalformedStamp(f"headers {', '.join(names)}: {NAME} comes first, and once")
    value = headers[0][1]
    shortest = _FIXED.size + 1 + _INDEX.size
    if not value or value[0] != FORMAT:
        found = "no value" if not value else f"format {value[0]}"
        raise MalformedStamp(f"{found}, expected format {FORMAT}")
    if not shortest <= len(value) <= LARGEST_STAMP:
        raise MalformedStamp(f"{len(value)} bytes, expected {shortest} to {LARGEST_STAMP}")
    _, kind, epoch, first_seq, expected, tag, n = _FIXED.unpack_from(value)
    (i,) = _INDEX.unpack_from(value, len(value) - _INDEX.size)
    if kind & ~_FILTER >= len(_KINDS):
        raise MalformedStamp(f"kind {kind}")
    batch = value[_FIXED.size : -_INDEX.size].decode("latin-1")
    visibility: Visibility = "filter" if kind & _FILTER else "read_committed"
    return Stamp(
        visibility, _KINDS[kind & ~_FILTER], epoch, first_seq + i, n, i, batch, expected, tag
    )


def sql(field: str, header: str = "get(headers, 0).value") -> str:
    """A Spark SQL expression for one field of a stamp.

    Args:
        field: ``format``, ``kind`` (0 data, 1 open, 2 checkpoint), ``filter`` (boolean),
            ``epoch``, ``first_seq``, ``expected``, ``tag``, ``n``, ``batch`` or ``i``.
        header: SQL of the header's value.
    """

    def number(first: int | str, size: int) -> str:  # bytes are counted from 1
        value = f"conv(hex(substring({header}, {first}, {size})), 16, 10)"
        return f"TRY_CAST({value} AS BIGINT)"

    fields = {
        "format": number(1, 1),
        "kind": f"{number(2, 1)} & {_FILTER - 1}",
        "filter": f"({number(2, 1)} & {_FILTER}) > 0",
        "epoch": number(3, 8),
        "first_seq": number(11, 8),
        "expected": number(19, 8),
        "tag": f"substring({header}, 27, 8)",
        "n": number(35, 4),
        "batch": f"CAST(substring({header}, 39, length({header}) - 42) AS STRING)",
        "i": number(f"length({header}) - 3", 4),
    }
    return fields[field]
