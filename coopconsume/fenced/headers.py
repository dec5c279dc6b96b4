"""The stamp that the writer puts on each record, as record headers: codec and checks.

Numbers are decimal text, so that people and SQL can read them. A stamp is:

``fw-v``         format, and how readers see what counts: ``1c`` read_committed, ``1f`` filter
``fw-kind``      ``data``; ``open``: an owner begins; ``checkpoint``: nothing but the numbers
``fw-epoch``     fence epoch of the owner
``fw-seq``       sequence number of this record (of an ``open`` or ``checkpoint``: the next one's)
``fw-n``         records of the batch
``fw-i``         which of them this is, from 0
``fw-batch``     id of the batch
``fw-expected``  offset that the batch has to begin at
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.fenced.log import Visibility

Kind = Literal["data", "open", "checkpoint"]
_KINDS: Final[dict[bytes, Kind]] = {b"data": "data", b"open": "open", b"checkpoint": "checkpoint"}
PREFIX: Final = "fw-"
NAMES: Final = (
    "fw-v", "fw-kind", "fw-epoch", "fw-seq", "fw-n", "fw-i", "fw-batch", "fw-expected",
)  # fmt: skip
COUNT: Final = len(NAMES)
_MODES: Final[dict[bytes, Visibility]] = {b"1c": "read_committed", b"1f": "filter"}
_MODE_BYTES: Final = {name: code for code, name in _MODES.items()}
_NUMBER: Final = re.compile(rb"0|[1-9][0-9]{0,18}")
_BATCH: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_MOST: Final = 2**63 - 1
#: Headers that say which record of its batch one is, for the first of them.
_PLACES: Final = tuple(("fw-i", b"%d" % i) for i in range(1024))


class MalformedStamp(ValueError):
    """Headers that begin with ``fw-`` but are no stamp; its text says why."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the headers of a record say. The module tells what each field means."""

    visibility: Visibility
    kind: Kind
    epoch: int
    seq: int
    n: int
    i: int
    batch: str
    expected: int

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise MalformedStamp(problem.format(self))

    def _problem(self) -> str:
        largest = max(self.epoch, self.seq + self.n, self.expected + self.n)
        rules = (
            (0 <= self.i < self.n, "record {0.i} of {0.n} in its batch"),
            (self.n == 1 or self.kind == "data", "kind {0.kind} with fw-n {0.n}"),
            (self.epoch >= (self.kind == "open"), "fw-epoch {0.epoch} of kind {0.kind}"),
            (self.seq >= self.i * (self.kind == "data"), "fw-seq {0.seq} of record {0.i}"),
            (self.expected >= 0, "fw-expected {0.expected}"),
            (is_batch_id(self.batch), "fw-batch {0.batch!r}"),
            (largest <= _MOST, "a number beyond 64 bits"),
        )
        for kept, problem in rules:
            if not kept:
                return problem
        return ""


def is_batch_id(text: str) -> bool:
    """Whether a text can be the id of a batch: 1 to 64 letters, digits, or one of ``._:-``."""
    return _BATCH.fullmatch(text) is not None


def encode(stamp: Stamp) -> list[tuple[str, bytes]]:
    """The headers of one record."""
    values = (
        _MODE_BYTES[stamp.visibility], stamp.kind.encode(), b"%d" % stamp.epoch,
        b"%d" % stamp.seq, b"%d" % stamp.n, b"%d" % stamp.i, stamp.batch.encode(),
        b"%d" % stamp.expected,
    )  # fmt: skip
    return list(zip(NAMES, values, strict=True))


def encode_batch(head: Stamp) -> list[list[tuple[str, bytes]]]:
    """The headers of each record of a batch, from its first stamp; what is equal is shared."""
    first = encode(head)
    if head.n == 1:
        return [first]
    v, kind, epoch, _, n, _, batch, expected = first
    places = _PLACES if head.n <= len(_PLACES) else [place(i) for i in range(head.n)]
    seqs = range(head.seq, head.seq + head.n)
    return [
        [v, kind, epoch, ("fw-seq", b"%d" % seq), n, at, batch, expected]
        for seq, at in zip(seqs, places, strict=False)
    ]


def place(i: int) -> tuple[str, bytes]:
    """The header that says which record of its batch one is."""
    return _PLACES[i] if i < len(_PLACES) else ("fw-i", b"%d" % i)


def decode(headers: Sequence[tuple[str, bytes]]) -> Stamp | None:
    """The stamp of a record; None if it has none, so that it is a foreign one.

    The stamp's headers come first, in the order of `NAMES`; the user's follow.

    Raises:
        MalformedStamp: There is something like a stamp that is none, or of an unknown format.
    """
    if not any(name.startswith(PREFIX) for name, _ in headers):
        return None
    found = tuple(name for name, _ in headers[:COUNT])
    if found != NAMES or any(name.startswith(PREFIX) for name, _ in headers[COUNT:]):
        raise MalformedStamp(f"headers {', '.join(name for name, _ in headers)}")
    mode, kind, epoch, seq, n, i, batch, expected = (value for _, value in headers[:COUNT])
    visibility = _MODES.get(mode)
    if visibility is None:
        raise MalformedStamp(f"fw-v {mode!r}; a newer version may know it")
    known = _KINDS.get(kind)
    if known is None:
        raise MalformedStamp(f"fw-kind {kind!r}")
    return Stamp(
        visibility, known, _number("fw-epoch", epoch), _number("fw-seq", seq), _number("fw-n", n),
        _number("fw-i", i), _text("fw-batch", batch), _number("fw-expected", expected),
    )  # fmt: skip


def _number(name: str, value: bytes | None) -> int:
    if value is None or _NUMBER.fullmatch(value) is None:
        raise MalformedStamp(f"{name} {value!r}")
    return int(value)


def _text(name: str, value: bytes | None) -> str:
    try:
        return (value or b"").decode("ascii")
    except UnicodeDecodeError:
        raise MalformedStamp(f"{name} {value!r}") from None
