"""What operators ask of a log: what blocks it, what it contains, which records are missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Unpack

from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.kafka_engine import Engine
from coopconsume.fenced.multi import LOGS_HEADER, LogName
from coopconsume.fenced.reader import LogReader, ReaderOptions, view_of
from coopconsume.fenced.view import LogView, open_engine
from coopconsume.fenced.writer import FencedWriter
from coopconsume.kafka.call_limit import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.fenced.engine import OpenTransaction
    from coopconsume.fenced.fold import Fold, Verdict
    from coopconsume.fenced.log import LogId, Raw
    from coopconsume.fenced.stamp import Visibility

_Counts = defaultdict[str, dict[str, int]]
MOST_FINDINGS: Final = 20
_NOTED: Final = {
    "malformed": "its stamp cannot be read",
    "fenced": "it is not of the owner in force",
    "torn": "the records of its batch before it are missing",
}


@dataclass(frozen=True)
class Term:
    """The time of one owner: its first offset, and how many records and batches of data it wrote.

    Attributes:
        epoch: Its fence epoch; 0 for writers that shared the log before anybody owned it.
        owner: Name of the owner; None if the record that names it was removed.
    """

    epoch: int
    owner: str | None
    first_offset: int
    records: int = 0
    batches: int = 0


@dataclass(frozen=True)
class AuditFinding:
    """A record that does not count, or missing records before it (``what`` is ``gap``)."""

    offset: int
    what: str
    problem: str


@dataclass(frozen=True)
class Audit:
    """What a log contains.

    Attributes:
        first_offset: Where the audit began.
        next_offset: The end of the log.
        next_seq, epoch, visibility: The state at the end; None if no record shows it.
        records: Records of data that count.
        rejected: Records at another offset than expected, or of a batch that counted before.
        fenced: Records of former owners.
        malformed: Records whose stamp cannot be read.
        torn: Records of batches that are not complete.
        foreign: Records without a stamp.
        unknown: Records before the first one that shows the log's state.
        terms: The owners, one after another.
        findings: The first records that are fenced, malformed or torn, at most `MOST_FINDINGS`,
            and all gaps that nobody has accepted (`repair`).
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
    findings: tuple[AuditFinding, ...]
    visibility: Visibility | None = None

    @property
    def gaps(self) -> tuple[AuditFinding, ...]:
        """Where records are missing."""
        return tuple(finding for finding in self.findings if finding.what == "gap")

    @property
    def ok(self) -> bool:
        """Whether no records are missing, so that the log can be read and written."""
        return not self.gaps

    @property
    def is_fenced_log(self) -> bool:
        """Whether any record has a stamp."""
        return bool(self.terms or self.rejected or self.fenced or self.torn or self.unknown)


@dataclass(frozen=True)
class Blockage:
    """What keeps a log from being read to its end: open transactions, the oldest first."""

    topic: str
    partition: int
    stable: int
    end: int
    transactions: tuple[OpenTransaction, ...]


class _Tally:
    """Counts records; its memory does not grow with the log, except by a `Term` for each epoch."""

    def __init__(self, fold: Fold) -> None:
        self.counts: Counter[str] = Counter()
        self.terms: list[Term] = []
        self.findings: list[AuditFinding] = []
        self._fold = fold
        self._torn = 0

    def take(self, raw: Raw, verdict: Verdict) -> None:
        """Takes in a record that does not count, or the first one of a batch that counts."""
        found, self._torn = self._fold.torn - self._torn, self._fold.torn
        self.counts[verdict] += 1
        for what, problem in (
            ("torn", found and f"{found} records before it"),
            (verdict, _NOTED.get(verdict)),
        ):
            if problem and len(self.findings) < MOST_FINDINGS:
                self.findings.append(AuditFinding(raw.offset, what, problem))

    def count(self, rows: Sequence[Raw]) -> None:
        """Takes in the records of a batch that counts."""
        self.take(rows[0], "counted")
        stamp, owner = self._fold.stamp, self._fold.owner
        assert stamp is not None
        if not self.terms or self.terms[-1].epoch != stamp.epoch:
            name = None if owner is None else owner.name
            self.terms.append(Term(stamp.epoch, name, rows[0].offset))
        if stamp.kind == "data":
            last = self.terms[-1]
            records, batches = last.records + len(rows), last.batches + (stamp.i == 0)
            self.terms[-1] = replace(last, records=records, batches=batches)


def audit(
    options: Mapping[str, Any], topic: str, partition: int = 0, **how: Unpack[ReaderOptions]
) -> tuple[LogId, Audit]:
    """Recomputes a log from its records, from the first one that is kept to its end now.

    The arguments and errors are those of `LogReader` and its `read`; a gap is a finding, no error.
    """
    reader = LogReader(options, topic, partition, **how)
    with view_of(reader) as view:
        start, deadline = view.start(), Deadline(reader.timeout)
        view.begin_at(start)
        fold = view.fold
        tally = _Tally(fold)
        gaps: dict[int, str] = {}
        view.gaps, view.on_passed = gaps, tally.take
        end = view.decided_end(deadline)
        for rows in view.counted(end, deadline):
            tally.count(rows)
    counts, missing = tally.counts, [AuditFinding(at, "gap", text) for at, text in gaps.items()]
    return view.log, Audit(
        start,
        end,
        next_seq=fold.next_seq,
        epoch=fold.epoch,
        records=sum(term.records for term in tally.terms),
        rejected=counts["rejected"],
        fenced=counts["fenced"],
        malformed=counts["malformed"],
        torn=fold.torn + len(fold.incomplete) + counts["torn"],
        foreign=counts["foreign"],
        unknown=counts["unknown"],
        terms=tuple(tally.terms),
        findings=(*tally.findings, *missing),
        visibility=None if fold.stamp is None else fold.stamp.visibility,
    )


def blocked(options: Mapping[str, Any], topic: str, partition: int = 0) -> Blockage:
    """Returns which open transactions keep a log from being read to its end."""
    engine = Engine(FencedSettings.parse(options))
    reader = LogReader(options, topic, partition, engine=engine, compacted=False)
    with view_of(reader) as view:
        ends = view.ends()
        found = () if ends.stable == ends.end else engine.open_transactions(topic, partition)
    return Blockage(topic, partition, ends.stable, ends.end, tuple(found))


def repair(
    options: Mapping[str, Any],
    topic: str,
    partition: int = 0,
    *,
    apply: bool = False,
    owner: str | None = None,
    **how: Unpack[ReaderOptions],
) -> tuple[AuditFinding, ...]:
    """Finds gaps in the sequence numbers of a log, and accepts that their records are lost.

    The log is then acquired, which fences its owner, by an ``open`` record that lists the gaps.
    Readers and writers pass over these gaps from then on. No record is removed or changed: the
    batch behind a gap counts if its sequence number is above the one expected, else it does not.

    The record is only written if ``apply`` is True; by default the gaps are only listed. The other
    arguments and the errors are those of `FencedWriter` and its `acquire`.

    Returns:
        The gaps that no earlier repair has accepted, each at the batch behind it.
    """
    _, found = audit(options, topic, partition, **how)
    if apply and found.gaps:
        writer = FencedWriter(
            options,
            topic,
            partition,
            visibility=found.visibility or "read_committed",
            owner=owner,
            fence_owner=True,
            **how,
        )
        with closing(writer):
            writer.acquire(repairs=[gap.offset for gap in found.gaps])
    return found.gaps


@dataclass(frozen=True)
class MultiAudit:
    """What the logs have of appends over several logs.

    Attributes:
        whole: Number of appends that are in all of their logs that were looked at.
        torn: Ids of appends that are in some of their logs only, or with other record counts.
        unknown: Number of appends whose part may have been below a log's first offset now.
    """

    whole: int
    torn: tuple[str, ...]
    unknown: int

    @property
    def ok(self) -> bool:
        """Whether no append is torn."""
        return not self.torn


def audit_logs(
    options: Mapping[str, Any],
    logs: Iterable[LogName],
    *,
    engine: str | Engine | None = None,
    timeout: float = 30.0,
) -> MultiAudit:
    """Reads logs from their start to their end, and compares the parts of each append over several.

    Its memory grows with the number of such appends. Parts of appends in other logs than ``logs``
    are not looked at. The other arguments and the errors are those of `LogReader` and its `read`.
    """
    with closing(open_engine(engine, FencedSettings.parse(options), timeout)) as client:
        views = [LogView(client, topic, partition) for topic, partition in logs]
        starts: dict[str, int] = {}
        #: By append and log, the number of its records: as they name it, and as it was found.
        named: _Counts = defaultdict(dict)
        there: _Counts = defaultdict(dict)
        for view in views:
            with view.looked_up():
                view.begin_at(view.start())
                starts[str(view.log)] = view.offset
                _read(view, named, there, timeout)
        begun = list(named)
        # What was written meanwhile may be missing in a log that was read before.
        for view in views:
            with view.reporting("reading"):
                _read(view, named, there, timeout)
    whole, unknown, torn = 0, 0, []
    for batch_id in begun:
        wanted = {log: count for log, count in named[batch_id].items() if log in starts}
        if there[batch_id] == wanted:
            whole += 1
        elif any(starts[log] for log in wanted.keys() - there[batch_id].keys()):
            unknown += 1
        else:
            torn.append(batch_id)
    return MultiAudit(whole, tuple(torn), unknown)


def _read(view: LogView, named: _Counts, there: _Counts, timeout: float) -> None:
    deadline = Deadline(timeout)
    for rows in view.counted(view.decided_end(deadline), deadline):
        stamp = view.fold.stamp
        name, logs = rows[0].headers[1] if len(rows[0].headers) > 1 else ("", b"")
        if stamp is None or name != LOGS_HEADER:
            continue
        for part in logs.decode(errors="replace").split(","):
            log, _, count = part.rpartition(":")
            named[stamp.batch][log] = int(count) if count.isdecimal() else -1
        there[stamp.batch][str(view.log)] = stamp.n if stamp.kind == "data" else 0
