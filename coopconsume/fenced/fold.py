"""State of a fenced log: a pure fold over its records, in the order of their offsets.

Writers keep these rules. The fold checks them and trusts nobody:

1. Sequence numbers of the batches that count follow each other.
2. A batch begins at the offset that its stamp expects.
3. Epochs only grow. A batch counts only under the epoch and session tag of the last ``open``
   record that counts.
4. The records of a batch are contiguous and complete. It counts once its last record is seen.
5. A batch id counts once, as far as ids are remembered.

What breaks rule 2, 3, 4 or 5 is passed over, so that nobody who writes into the topic can stop the
owner or a reader. A gap in the sequence numbers of the owner in force cannot be passed over, as
records are missing: `SequenceGap`. A later ``open`` record may list its offset: an operator has
accepted the loss. The batch then counts if its number is above the one expected.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Literal

import xxhash

from coopconsume.fenced.log import Appended, Entry, Raw, Rows, json_object
from coopconsume.fenced.stamp import NAME, Header, Stamp, decode, encode_batch

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from pyroaring import BitMap64


@dataclass(eq=False)
class SequenceGap(Exception):
    """A batch of the owner in force, at an offset, does not follow the one before (rule 1)."""

    offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class Owner:
    """Value of an ``open`` record: who opened the epoch.

    Attributes:
        name: Name given by the user.
        session: Id of the writer's session.
        topic_id: Id of the topic it was written to. A copy of a log has another topic id.
        incarnation: How many writers have gone on with the session, this one included; from 1.
        repaired: Offsets of the batches behind gaps that an operator has accepted.
    """

    name: str
    session: str
    topic_id: str
    incarnation: int = 1
    repaired: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """The owner as the value of a record."""
        fields = asdict(self)
        return json.dumps({"owner": fields.pop("name")} | fields).encode()

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Owner:
        """Parses the value of an ``open`` record, or raises `ValueError`."""
        fields = json_object(value)
        *texts, incarnation = map(fields.get, ("owner", "session", "topic_id", "incarnation"))
        repaired = fields.get("repaired", [])
        if type(repaired) is not list or {*map(type, texts)} != {str}:
            raise ValueError("a field is missing, or of another type")
        if {*map(type, [incarnation, *repaired])} != {int}:
            raise ValueError("a number is missing, or of another type")
        name, session, topic_id = map(str, texts)
        return cls(name, session, topic_id, fields["incarnation"], tuple(repaired))


Verdict = Literal[
    "counted",  # it completes a batch that counts: `Fold.rows`
    "partial",  # its batch is not complete yet
    "foreign",  # it has no stamp
    "malformed",  # its stamp, or the owner it names, cannot be read
    "rejected",  # it is at another offset than expected, or its batch id has counted before
    "fenced",  # it is of a former owner
    "torn",  # the records of its batch before it are missing
    "unknown",  # no record before it shows the state
]


class Fold:
    """State of a log up to an offset, and what each further record means.

    If the state where it begins is not known (None), records are ``unknown`` up to the first one
    that shows it. In a ``compacted`` log records, or parts of batches, may be missing because newer
    records have their keys. ``repaired`` has offsets of batches that count although records before
    them are missing.

    Attributes:
        epoch, tag, next_seq: Epoch and session tag in force, and number of the next record.
        owner: Who opened the epoch in force; None if that was before the fold began.
        batches: The last batches that counted, by id; ``remembered`` of them.
        stamp: Stamp of the first record of the last batch that counted, if there was one.
        rows: Records of the last batch that counted; only the first one still has its stamp.
        torn: Number of records of batches that were begun and not completed.
        ids: Hashes of the ids of all batches that the log has; None if not known.
        keys: Last sequence number of each key of the log; None if not known.
        incomplete: Records of the batch that is not complete yet.
        is_certain: False if a record was ``fenced`` although the fold has not seen who opened
            the epoch in force: then that record's owner may be the one in force.
    """

    remembered: ClassVar[int] = 10_000

    def __init__(
        self,
        epoch: int | None = 0,
        next_seq: int | None = 0,
        *,
        compacted: bool = False,
        repaired: Container[int] = (),
    ) -> None:
        self.epoch = epoch
        self.tag: bytes | None = None
        self.next_seq = next_seq
        self.owner: Owner | None = None
        self.batches: OrderedDict[str, Appended] = OrderedDict()
        self.stamp: Stamp | None = None
        self.rows = Rows()
        self.torn = 0
        self.ids: BitMap64 | None = None
        self.keys: KeyIndex | None = None
        self.is_certain = True
        self._began_empty = epoch == 0 == next_seq
        self._compacted = compacted
        self._repaired = repaired
        self._open_batch: tuple[Stamp, Owner | None] | None = None  # not all of it is seen
        self.incomplete = Rows()

    @property
    def has_forgotten(self) -> bool:
        """Whether there may be batches that counted and are no longer in ``batches``."""
        return len(self.batches) >= self.remembered

    def take(self, rows: Rows, at: int) -> tuple[int, Verdict]:
        """Takes in the next record, and more of the same batch if they follow.

        Returns:
            The number of records taken in, at least 1, and what the last one means.

        Raises:
            SequenceGap: Records are missing; the fold is of no further use.
        """
        if self._open_batch is not None:
            taken = self._follow(self._open_batch[0], rows, at)
            if taken:
                complete = len(self.incomplete) == self._open_batch[0].n
                return taken, self._complete() if complete else "partial"
            self._tear()
        raw = rows[at]
        try:
            stamp = decode(raw.headers)
            if stamp is None:
                return 1, "foreign"
            owner = Owner.from_bytes(raw.value) if stamp.kind == "open" else None
        except ValueError:
            return 1, "malformed"
        passed = self._passed_over(raw, stamp, owner) or self._behind_gap(raw, stamp)
        if passed is not None:
            return 1, passed
        self._open_batch, self.incomplete = (stamp, owner), Rows.of([raw])
        if stamp.n == 1 or self._compacted:
            return 1, self._complete()
        return 1, "partial"

    def wrote(self, stamp: Stamp, entries: Sequence[Entry]) -> None:
        """Takes in a batch by what its writer knows of it, without reading it."""
        self._tear()
        owner = Owner.from_bytes(entries[0].value) if stamp.kind == "open" else None
        self._count(stamp, owner, map(attrgetter("key"), entries))

    def _follow(self, head: Stamp, rows: Rows, at: int) -> int:
        """Takes in the records from an index on that follow in a batch; returns their number."""
        partial, i = self.incomplete, len(self.incomplete)
        offset, stop = partial.offsets[0] + i, at + head.n - i
        offsets, headers = rows.offsets[at:stop], rows.headers[at:stop]
        kept: list[Sequence[Header]] = []
        for found, its, stamp in zip(offsets, headers, encode_batch(head, i), strict=False):
            if found != offset or not its or its[0] != stamp:
                break
            if len(its) > 1 and any(name == NAME for name, _ in its[1:]):
                break
            kept.append(tuple(its[1:]) if len(its) > 1 else ())
            offset += 1
        for mine, more in zip(partial.fields[:-1], rows.fields, strict=False):
            mine.extend(more[at : at + len(kept)])
        partial.headers.extend(kept)
        return len(kept)

    def _tear(self) -> None:
        """Gives up the incomplete batch, if there is one: something else follows its records."""
        if self._open_batch is not None:
            self.torn += len(self.incomplete)
            self._open_batch, self.incomplete = None, Rows()

    def _passed_over(self, raw: Raw, stamp: Stamp, owner: Owner | None) -> Verdict | None:
        """Why a record with a stamp does not count; None if it begins a batch that may count."""
        filtered = stamp.visibility == "filter"
        if raw.offset != stamp.expected + stamp.i or (filtered and self._compacted):
            return "rejected"
        if self._is_fenced(stamp, owner):
            return "fenced"
        if stamp.i and not self._compacted:
            return "unknown" if self.next_seq is None else "torn"
        known, first_offset = self.batches.get(stamp.batch), raw.offset - stamp.i
        if known is not None and (not self._compacted or known.first_offset != first_offset):
            return "rejected"
        if self._compacted and self.next_seq is not None and _after(stamp) < self.next_seq:
            return "rejected"
        return None

    def _behind_gap(self, raw: Raw, stamp: Stamp) -> Verdict | None:
        """Why a batch does not count that does not follow the one before; None if it counts."""
        if not self._compacted and self.next_seq not in (None, stamp.seq):
            if raw.offset not in self._repaired:
                problem = f"sequence number {stamp.seq}, expected {self.next_seq}"
                raise SequenceGap(raw.offset, problem)
            if stamp.seq < (self.next_seq or 0):
                return "rejected"
        return None

    def _is_fenced(self, stamp: Stamp, owner: Owner | None) -> bool:
        """Whether a record's owner is not the one in force, and does not become it."""
        if self.epoch is None:
            return False
        if owner is not None:
            known = self.owner
            is_other = known is not None and (
                owner.session != known.session or owner.incarnation < known.incarnation
            )
            fenced = stamp.epoch < self.epoch or (stamp.epoch == self.epoch and is_other)
        elif self._compacted and stamp.epoch > self.epoch:
            fenced = False  # The open record may have been compacted away.
        else:
            fenced = stamp.epoch != self.epoch or self.tag not in (None, stamp.tag)
        if fenced and self.owner is None and not self._began_empty:
            self.is_certain = False
        return fenced

    def _complete(self) -> Verdict:
        assert self._open_batch is not None
        (stamp, owner), self._open_batch = self._open_batch, None
        self.rows, self.incomplete = self.incomplete, Rows()
        self._count(stamp, owner, self.rows.keys)
        self.stamp = stamp
        return "counted"

    def _count(self, stamp: Stamp, owner: Owner | None, keys: Iterable[bytes | None]) -> None:
        """Notes a batch by the stamp of its first record, and its owner if it opens an epoch."""
        is_new = owner is not None or stamp.epoch != self.epoch
        if is_new or self.tag is None:
            self.tag = stamp.tag
        if is_new:
            self.epoch, self.owner = stamp.epoch, owner
        if self.keys is not None and stamp.kind == "data":
            self.keys.add(keys, stamp.seq)
        self.next_seq = _after(stamp)
        if stamp.batch not in self.batches:
            seq = stamp.seq - stamp.i
            self.remember(Appended(stamp.batch, stamp.expected, seq, stamp.n, stamp.epoch))

    def remember(self, batch: Appended) -> None:
        """Notes a batch that counts, so that it is found by its id."""
        self.batches[batch.batch_id] = batch
        if self.ids is not None:
            self.ids.add(hash_of(batch.batch_id))
        if len(self.batches) > self.remembered:
            self.batches.popitem(last=False)


class KeyIndex:
    """Sequence number of the last record of each key in a log, in bounded memory.

    It keeps the last numbers of the ``remembered`` keys written last, and a hash of each other key.
    """

    remembered: ClassVar[int] = 100_000

    def __init__(self) -> None:
        from pyroaring import BitMap64

        self._last: OrderedDict[bytes, int] = OrderedDict()
        self._hashes = BitMap64()

    def add(self, keys: Iterable[bytes | None], first_seq: int) -> None:
        """Takes in records in their order, the first one with a sequence number."""
        last = self._last
        for seq, key in enumerate(keys, first_seq):
            if key is not None:
                last[key] = seq
                last.move_to_end(key)
        while len(last) > self.remembered:
            key, _ = last.popitem(last=False)
            self._hashes.add(xxhash.xxh64_intdigest(key))

    def last_seq(self, key: bytes) -> int | None:
        """The last record of a key, or None; `LookupError` if its number is not kept any more."""
        found = self._last.get(key)
        if found is None and xxhash.xxh64_intdigest(key) in self._hashes:
            raise LookupError(key)
        return found


def hash_of(batch_id: str) -> int:
    """The 64-bit hash of a batch id in `Fold.ids`."""
    return xxhash.xxh64_intdigest(batch_id.encode())


def repaired_by(raw: Raw) -> tuple[int, ...]:
    """The gaps that a record accepts: none unless it is an ``open`` record in its place."""
    with suppress(ValueError):
        stamp = decode(raw.headers)
        if stamp is not None and stamp.kind == "open" and stamp.expected == raw.offset:
            return Owner.from_bytes(raw.value).repaired
    return ()


def _after(stamp: Stamp) -> int:
    """The sequence number behind a record's batch."""
    return stamp.seq - stamp.i + stamp.n if stamp.kind == "data" else stamp.seq
