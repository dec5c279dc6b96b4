"""What can be said of a whole log by its records alone: a pure count, and the first wrong thing."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from coopconsume.fenced.deadline import Deadline
from coopconsume.fenced.engine import EngineDoubt, make_engine
from coopconsume.fenced.errors import LogUnavailable
from coopconsume.fenced.fold import Fold, RuleBroken
from coopconsume.fenced.settings import Settings
from coopconsume.fenced.view import LogView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.fenced.engine import Engine
    from coopconsume.fenced.log import LogId, Raw

RULES = {
    0: "stamps are well formed",
    1: "sequence numbers follow each other",
    2: "a batch is where it was expected",
    3: "epochs only grow, each opened by one owner",
    4: "the records of a batch stand together, all of them",
    5: "a batch is there once",
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
    """The first wrong thing in a log.

    Attributes:
        offset: Where.
        rule: Number of the rule that is broken, as in `RULES`.
        problem: What is wrong.
    """

    offset: int
    rule: int
    problem: str


@dataclass(frozen=True)
class Audit:
    """What a log says.

    Attributes:
        first_offset: Where the audit began.
        next_offset: Where it ended: at the end of the log, or at the first wrong thing.
        next_seq: Sequence number of the next record; None if no record tells it.
        epoch: The epoch in force; None if no record tells it.
        records: Records of data that count.
        rejected: Records of a filtered log that do not count.
        foreign: Records of others.
        unknown: Records before the first one that tells the log's state.
        terms: The owners, one after another.
        finding: The first wrong thing; None if all is well.
    """

    first_offset: int
    next_offset: int
    next_seq: int | None
    epoch: int | None
    records: int
    rejected: int
    foreign: int
    unknown: int
    terms: tuple[Term, ...]
    finding: Finding | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.finding is None


@dataclass
class Auditor:
    """Takes in a log's records, in the order of their offsets, up to the first wrong thing.

    Args:
        first_offset: Where the log begins.
        compacted: Whether the topic is compacted, so that records may be missing.
    """

    first_offset: int = 0
    compacted: bool = False
    _counts: dict[str, int] = field(default_factory=dict)
    _terms: list[Term] = field(default_factory=list)
    _records: int = 0

    def __post_init__(self) -> None:
        known = None if self.first_offset else 0
        self._fold = Fold(known, known, compacted=self.compacted, remembered=sys.maxsize)
        self._next = self.first_offset
        self._finding: Finding | None = None

    def add(self, raw: Raw) -> bool:
        """Take in the next record; returns whether all is well so far."""
        if self._finding is not None:
            return False
        try:
            verdict = self._fold.add(raw)
        except RuleBroken as broken:
            self._finding = Finding(broken.offset, broken.rule, broken.problem)
            return False
        self._counts[verdict] = self._counts.get(verdict, 0) + 1
        if verdict == "counted":
            self._count(raw)
        self._next = raw.offset + 1
        return True

    def _count(self, raw: Raw) -> None:
        stamp, owner = self._fold.stamp, self._fold.owner
        assert stamp is not None
        name = None if owner is None else owner.name
        if not self._terms or self._terms[-1].epoch != stamp.epoch:
            self._terms.append(Term(stamp.epoch, name, raw.offset))
        if stamp.kind == "data":
            term = self._terms[-1]
            begun = raw.offset == self._fold.batches[stamp.batch].first_offset
            self._terms[-1] = replace(term, records=term.records + 1, batches=term.batches + begun)
            self._records += 1

    def result(self, end: int | None = None) -> Audit:
        """What was found.

        Args:
            end: The end of the log, where it was read to it.
        """
        finding = self._finding
        if finding is None and not self._fold.whole and not self.compacted:
            finding = Finding(self._next, 4, "the log ends within a batch")
        counts = self._counts
        return Audit(
            self.first_offset, end if finding is None and end is not None else self._next,
            self._fold.next_seq, self._fold.epoch, self._records, counts.get("rejected", 0),
            counts.get("foreign", 0), counts.get("unknown", 0), tuple(self._terms), finding,
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
    settings = Settings.parse(options)
    client = make_engine(engine, settings, timeout) if isinstance(engine, str) else engine
    try:
        view = LogView(client, topic, partition)
        view.identify()
        start = client.start(topic, partition)
        end = view.decided_end(Deadline(timeout))
        auditor = Auditor(start, view.is_compacted)
        for rows in client.read(topic, partition, start, end, timeout):
            if not all(map(auditor.add, rows)):
                break
        return view.log, auditor.result(end)
    except EngineDoubt as doubt:
        raise doubt.refusal or LogUnavailable(topic, partition, "reading", doubt.problem) from doubt
    finally:
        client.close()
