"""Audit of a whole log: counts its records by what they mean, and finds missing ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from coopconsume.fenced.deadline import Deadline
from coopconsume.fenced.fold import Fold, SequenceGap
from coopconsume.fenced.view import looking_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.fenced.engine import Engine
    from coopconsume.fenced.log import LogId, Raw

MOST_FINDINGS: Final = 20
_NOTED: Final = {
    "malformed": "its stamp cannot be read",
    "fenced": "it is not of the owner in force",
    "torn": "the records of its batch before it are missing",
}


@dataclass(frozen=True)
class Term:
    """The time of one owner.

    Attributes:
        epoch: Its fence epoch; 0 for writers that shared the log before anybody owned it.
        owner: Name of the owner; None if the record that tells it is gone.
        first_offset: Of its first record.
        records: Its records of data.
        batches: Its batches of data.
    """

    epoch: int
    owner: str | None
    first_offset: int
    records: int = 0
    batches: int = 0


@dataclass(frozen=True)
class Finding:
    """A record that does not count, or where records are missing.

    Attributes:
        offset: Offset of the record.
        what: ``gap`` for missing records, otherwise a `Verdict` of the fold.
        problem: What was found, in words.
    """

    offset: int
    what: str
    problem: str


@dataclass(frozen=True)
class Audit:
    """What a log contains.

    Attributes:
        first_offset: Where the audit began.
        next_offset: Where it ended: at the end of the log, or at the first gap.
        next_seq: Sequence number of the next record; None if no record tells it.
        epoch: The epoch in force; None if no record tells it.
        records: Records of data that count.
        rejected: Records at another offset than expected, or of a batch that counted before.
        fenced: Records of former owners.
        malformed: Records whose stamp cannot be read.
        torn: Records of batches that are not complete.
        foreign: Records without a stamp.
        unknown: Records before the first one that tells the log's state.
        terms: The owners, one after another.
        findings: The first records that are fenced, malformed or torn, at most `MOST_FINDINGS`,
            and the gap if there is one.
    """

    first_offset: int
    next_offset: int
    next_seq: int | None
    epoch: int | None
    records: int
    rejected: int
    fenced: int
    malformed: int
    torn: int
    foreign: int
    unknown: int
    terms: tuple[Term, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no records are missing, so that the log can be read and written."""
        return not any(finding.what == "gap" for finding in self.findings)

    @property
    def is_fenced_log(self) -> bool:
        """Whether any record has a stamp."""
        return bool(self.terms or self.rejected or self.fenced or self.torn or self.unknown)


@dataclass
class Auditor:
    """Takes in a log's records in the order of their offsets, up to the first gap.

    Its memory does not grow with the log, except by one `Term` for each epoch.

    Args:
        first_offset: Where the log begins.
        compacted: Whether the topic is compacted, so that records may be missing.
    """

    first_offset: int = 0
    compacted: bool = False
    _counts: Counter[str] = field(default_factory=Counter)
    _terms: list[Term] = field(default_factory=list)
    _findings: list[Finding] = field(default_factory=list)
    _records: int = 0

    def __post_init__(self) -> None:
        known = None if self.first_offset else 0
        self._fold = Fold(known, known, compacted=self.compacted)
        self._next = self.first_offset

    def add(self, raw: Raw) -> bool:
        """Takes in the next record; returns False once records are missing."""
        if not self._is_whole_so_far:
            return False
        torn = self._fold.torn
        try:
            verdict = self._fold.add(raw)
        except SequenceGap as gap:
            self._findings.append(Finding(gap.offset, "gap", gap.problem))
            return False
        if self._fold.torn > torn:
            self._note(raw.offset, "torn", f"{self._fold.torn - torn} records before it")
        if verdict == "counted":
            self._count()
        elif verdict != "partial":
            self._counts[verdict] += 1
            if verdict in _NOTED:
                self._note(raw.offset, verdict, _NOTED[verdict])
        self._next = raw.offset + 1
        return True

    @property
    def _is_whole_so_far(self) -> bool:
        return not self._findings or self._findings[-1].what != "gap"

    def _note(self, offset: int, what: str, problem: str) -> None:
        if len(self._findings) < MOST_FINDINGS:
            self._findings.append(Finding(offset, what, problem))

    def _count(self) -> None:
        stamp, owner, rows = self._fold.stamp, self._fold.owner, self._fold.rows
        assert stamp is not None
        name = None if owner is None else owner.name
        if not self._terms or self._terms[-1].epoch != stamp.epoch:
            self._terms.append(Term(stamp.epoch, name, rows[0].offset))
        if stamp.kind == "data":
            term = self._terms[-1]
            begun = stamp.i == 0
            self._terms[-1] = replace(
                term, records=term.records + len(rows), batches=term.batches + begun
            )
            self._records += len(rows)

    def result(self, end: int | None = None) -> Audit:
        """Returns what was found.

        Args:
            end: The end of the log, if it was read to it.
        """
        counts, fold = self._counts, self._fold
        reached = end if end is not None and self._is_whole_so_far else self._next
        return Audit(
            self.first_offset, reached, fold.next_seq, fold.epoch, self._records,
            counts["rejected"], counts["fenced"], counts["malformed"],
            fold.torn + len(fold.incomplete) + counts["torn"], counts["foreign"], counts["unknown"],
            tuple(self._terms), tuple(self._findings),
        )  # fmt: skip


def audit(
    options: Mapping[str, Any],
    topic: str,
    partition: int = 0,
    *,
    engine: str | Engine = "kafka-python",
    timeout: float = 30.0,
) -> tuple[LogId, Audit]:
    """Recompute a log from its records, from the first one that is kept to its end now.

    Args:
        options: As for `FencedWriter`.
        topic: The topic.
        partition: The partition.
        engine: As for `FencedWriter`.
        timeout: Seconds to wait for an answer.

    Raises:
        LogBlocked, LogReplaced, LogUnavailable: As for `FencedWriter.acquire`.
        OptionError, EngineNotUsable: As for `FencedWriter`.
    """
    with looking_at(options, topic, partition, engine, timeout) as (view, client):
        start = client.start(topic, partition)
        end = view.decided_end(Deadline(timeout))
        auditor = Auditor(start, view.is_compacted)
        for rows in client.read(topic, partition, start, end, timeout):
            if not all(map(auditor.add, rows)):
                break
        return view.log, auditor.result(end)
