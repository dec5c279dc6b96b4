"""What a fenced log says: a pure fold over its records, in the order of their offsets.

The rules that writers keep, and that are looked at here, not trusted:

1. The numbers of the records that count follow each other (``fw-seq``).
2. A batch begins at the offset it expected.
3. Epochs only grow, each begun by an ``open`` record; one owner has an epoch.
4. The records of a batch stand together, all of them.
5. A batch is there once (as far as ids are remembered).

Where the log is read by ``filter``, a batch at another place than it expected does not count: that
is how a late one of a former owner refuses itself. With ``read_committed`` such a batch was never
committed, and seeing one is an error.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from coopconsume.fenced.headers import COUNT, MalformedStamp, Stamp, decode, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.fenced.log import Raw

_OWNER: Final = ("owner", "session", "topic_id")


class RuleBroken(Exception):
    """A record breaks a rule.

    Attributes:
        offset: The record's.
        rule: Number of the rule, as the module has them; 0: the stamp itself is malformed.
        problem: What is wrong.
    """

    def __init__(self, offset: int, rule: int, problem: str) -> None:
        super().__init__(offset, rule, problem)
        self.offset = offset
        self.rule = rule
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole batch, in its place.

    Attributes:
        first_offset: Offset of its first record.
        stamp: Of its first record.
        seq: Sequence number of its first record.
    """

    first_offset: int
    stamp: Stamp
    seq: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Who wrote an ``open`` record.

    Attributes:
        name: As given by the user.
        session: Id of the writer object.
        topic_id: The topic that it was written to; a copy of a log has another one.
    """

    name: str
    session: str
    topic_id: str

    def to_bytes(self) -> bytes:
        """As the value of a record."""
        fields = {"owner": self.name, "session": self.session, "topic_id": self.topic_id}
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Owner:
        """The reverse.

        Raises:
            ValueError: The value is something else.
        """
        fields = json.loads(value or b"")
        words = [fields.get(n) for n in _OWNER] if isinstance(fields, dict) else [None]
        if not all(isinstance(word, str) for word in words):
            raise ValueError("a field is missing")
        return cls(*map(str, words))


Verdict = Literal["counted", "rejected", "foreign", "unknown"]


class Fold:
    """The state of a log up to some place, and what each further record means.

    Args:
        epoch: Epoch in force at the place where the fold begins; None if not known, then records
            are ``unknown`` up to the first one that tells the state.
        next_seq: Number of the next record there; None if not known.
        compacted: Whether records, or parts of batches, may be missing because newer ones have
            their keys.
        remembered: How many ids of batches are remembered, to find one that is there twice.

    Attributes:
        epoch: Epoch in force; None while not known.
        next_seq: Number of the next record that counts; None while not known.
        owner: Who opened the epoch in force; None if that was before the fold began.
        batches: The last batches that counted, by id; at most as many as are remembered.
        stamp: Of the first record of the last batch that counted, as far as there was one.
        seq: Sequence number of the last record that counted.
    """

    def __init__(
        self,
        epoch: int | None = 0,
        next_seq: int | None = 0,
        *,
        compacted: bool = False,
        remembered: int = 10_000,
    ) -> None:
        self.epoch = epoch
        self.next_seq = next_seq
        self.owner: Owner | None = None
        self.batches: OrderedDict[str, Batch] = OrderedDict()
        self.stamp: Stamp | None = None
        self.seq = -1
        self._compacted = compacted
        self._remembered = remembered
        self._head: Stamp | None = None  # of the batch whose records are not all seen
        self._next_headers: list[tuple[str, bytes]] = []  # of its next one, as they have to be
        self._first = 0
        self._seen = 0

    @property
    def whole(self) -> bool:
        """Whether no batch is begun and not ended."""
        return self._head is None

    def add(self, raw: Raw) -> Verdict:
        """Take in the next record; of a batch that counts, each record is ``counted``.

        A batch of several records counts with its first one, and its rules are broken if the
        others do not follow: see `whole`.

        Raises:
            RuleBroken: The record breaks a rule; the fold is of no further use.
        """
        if self.follow((raw,), 0):
            return "counted"
        try:
            stamp = decode(raw.headers)
        except MalformedStamp as error:
            raise RuleBroken(raw.offset, 0, f"malformed stamp: {error}") from None
        if self._compacted:
            return "foreign" if stamp is None else self._add_alone(raw, stamp)
        if self._head is not None:
            missing = f"{self._seen} of {self._head.n} records of batch {self._head.batch}"
            raise RuleBroken(raw.offset, 4, f"only {missing} before another record")
        if stamp is None:
            return "foreign"
        if stamp.visibility == "filter" and raw.offset != stamp.expected + stamp.i:
            return "rejected"
        if stamp.i:
            return self._headless(raw.offset, stamp)
        return self._begin(raw, stamp)

    def wrote(self, first_offset: int, stamp: Stamp, value: bytes | None) -> None:
        """Take in a batch by what its writer knows of it, without reading it.

        Args:
            first_offset: Offset of its first record.
            stamp: Of its first record.
            value: Of its first record, where it is an ``open`` one.
        """
        assert self._head is None
        seq = self.next_seq or 0
        if stamp.kind == "open":
            self.epoch, self.owner = stamp.epoch, Owner.from_bytes(value)
        self.next_seq = seq + (stamp.n if stamp.kind == "data" else 0)
        self._remember(Batch(first_offset, stamp, seq))

    def follow(self, rows: Sequence[Raw], at: int) -> int:
        """Take in records, as far as they are the next ones of the batch at hand.

        Args:
            rows: Records in their order.
            at: The first of them that is to be looked at.

        Returns:
            How many were taken in; the one behind them has to be added.
        """
        head = self._head
        if head is None:
            return 0
        i, offset, seq = self._seen, self._first, head.seq
        wanted = self._next_headers
        for raw in rows[at : at + head.n - i]:
            wanted[3], wanted[5] = ("fw-seq", b"%d" % (seq + i)), place(i)
            found = raw.headers
            if raw.offset != offset + i or (found != wanted and [*found[:COUNT]] != wanted):
                break
            i += 1
        taken, self._seen = i - self._seen, i
        self.seq += taken
        if i == head.n:
            self._head = None
        return taken

    def _headless(self, offset: int, stamp: Stamp) -> Verdict:
        if self.epoch is None or self.next_seq is None:
            return "unknown"
        raise RuleBroken(offset, 4, f"record {stamp.i} of batch {stamp.batch} without those before")

    def _begin(self, raw: Raw, stamp: Stamp) -> Verdict:
        offset = raw.offset
        if self.epoch is None or self.next_seq is None:
            self.next_seq = stamp.seq
            # An open record tells the epoch by itself; any other one names that in force.
            self.epoch = 0 if stamp.kind == "open" else stamp.epoch
        if stamp.expected != offset:
            raise RuleBroken(offset, 2, f"batch {stamp.batch} expected offset {stamp.expected}")
        seq = stamp.seq
        if seq != self.next_seq:
            raise RuleBroken(offset, 1, f"sequence number {seq}, expected {self.next_seq}")
        self._check_epoch(raw, stamp)
        self._remember(Batch(offset, stamp, seq))
        self.stamp, self.seq = stamp, seq
        if stamp.kind == "data":
            self.next_seq = seq + stamp.n
        if stamp.n > 1:
            self._head, self._first, self._seen = stamp, offset, 1
            self._next_headers = [*raw.headers[:COUNT]]
        return "counted"

    def _add_alone(self, raw: Raw, stamp: Stamp) -> Verdict:
        """Where others may be missing, each record stands for itself, and the order must hold."""
        if stamp.visibility == "filter":
            raise RuleBroken(raw.offset, 1, "a filtered record in a compacted topic")
        if stamp.expected != raw.offset - stamp.i:
            raise RuleBroken(raw.offset, 2, f"batch {stamp.batch} expected {stamp.expected}")
        after = stamp.seq - stamp.i + stamp.n if stamp.kind == "data" else stamp.seq
        if self.next_seq is not None and after < self.next_seq:
            raise RuleBroken(raw.offset, 1, f"sequence number {stamp.seq} below {self.next_seq}")
        if self.epoch is not None and stamp.epoch < self.epoch:
            raise RuleBroken(raw.offset, 3, f"epoch {stamp.epoch} after {self.epoch}")
        if stamp.kind == "open":
            self._opened(raw, stamp)
        elif stamp.epoch != self.epoch:
            self.owner = None
        if stamp.batch not in self.batches:
            self._remember(Batch(raw.offset - stamp.i, stamp, stamp.seq - stamp.i))
        self.stamp, self.seq = stamp, stamp.seq
        self.epoch, self.next_seq = stamp.epoch, after
        return "counted"

    def _check_epoch(self, raw: Raw, stamp: Stamp) -> None:
        assert self.epoch is not None
        if stamp.epoch < self.epoch:
            raise RuleBroken(raw.offset, 3, f"epoch {stamp.epoch} after epoch {self.epoch}")
        if stamp.kind == "open":
            self._opened(raw, stamp)
        elif stamp.epoch > self.epoch:
            raise RuleBroken(raw.offset, 3, f"epoch {stamp.epoch} was not opened")

    def _opened(self, raw: Raw, stamp: Stamp) -> None:
        try:
            owner = Owner.from_bytes(raw.value)
        except ValueError:
            raise RuleBroken(raw.offset, 0, "an open record that names no owner") from None
        known = self.owner is not None and stamp.epoch == self.epoch
        if known and self.owner is not None and self.owner.session != owner.session:
            raise RuleBroken(raw.offset, 3, f"epoch {stamp.epoch} opened by two owners")
        self.epoch, self.owner = stamp.epoch, owner

    def _remember(self, batch: Batch) -> None:
        if batch.stamp.batch in self.batches:
            raise RuleBroken(batch.first_offset, 5, f"batch {batch.stamp.batch} for a second time")
        self.batches[batch.stamp.batch] = batch
        if len(self.batches) > self._remembered:
            self.batches.popitem(last=False)
