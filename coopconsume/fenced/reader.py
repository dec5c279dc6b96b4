"""Readers of fenced logs: the records that count, in their order, each rule looked at."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from coopconsume.closing import Closing
from coopconsume.errors.fenced import LogTruncated
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.fold import Owner
from coopconsume.fenced.log import LogRecord, Rows
from coopconsume.fenced.view import LogView, open_engine
from coopconsume.kafka.call_limit import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coopconsume.fenced.kafka_engine import Engine

_record = partial(tuple.__new__, LogRecord)


class ReaderOptions(TypedDict, total=False):
    """Keyword arguments of whatever reads a log: see `LogReader`."""

    engine: str | Engine | None
    compacted: bool | None
    timeout: float


@dataclass(frozen=True)
class Head:
    """Where a log goes on, and who owns it.

    Attributes:
        start: The first offset that is kept.
        stable: The last stable offset; what lies from there to the end is not decided.
        next_seq: Sequence number of the next record; None if no record shows it.
        epoch: The epoch in force; None if no record shows it.
        owner, session: Name of its owner, and id of its writer; None if the last records do not
            show them.
        visibility: How readers see what counts; None if no record shows it.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    stable: int
    end: int
    next_seq: int | None
    epoch: int | None
    owner: str | None
    session: str | None
    visibility: str | None


class LogReader(Closing):
    """Reads a log as its rules have it, whichever way its writers made it visible.

    Records of transactions that were aborted are not seen, those of a filtered log that do not
    count are passed over, and so is what was written by others. That the rules are kept is looked
    at, not trusted. Reading again goes on where it stopped.

    Example:
        >>> with LogReader({"kafka.bootstrap.servers": "localhost:9092"}, "ledger") as reader:
        ...     for record in reader.read():
        ...         print(record.seq, record.value)

    Args:
        options, topic, partition, engine: As for `FencedWriter`.
        start: Offset to begin at; by default the first one that is kept. Where it is above 0, what
            is below the first batch that shows the log's state is passed over.
        compacted: Whether the topic is compacted, so that records may be missing; by default Kafka
            is asked.
        timeout: Seconds to wait for an answer.

    Raises:
        OptionError, EngineNotUsable: As for `FencedWriter`.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic: str,
        partition: int = 0,
        *,
        start: int | None = None,
        engine: str | Engine | None = None,
        compacted: bool | None = None,
        timeout: float = 30.0,
    ) -> None:
        settings = FencedSettings.parse(options)
        self._engine = open_engine(engine, settings, timeout)
        self.timeout = timeout
        self._start = start
        self._view = LogView(self._engine, topic, partition, compacted=compacted)
        #: The last batch that was read, and what is not given out of it.
        self._rows = Rows()
        self._offsets = iter(self._rows.offsets)
        self._records: Iterator[LogRecord] = iter(())

    @property
    def position(self) -> int:
        """Offset of the first record that was not returned, or of the log's end; -1 before."""
        left, incomplete = length_hint(self._offsets), self._view.fold.incomplete.offsets
        if left:
            return self._rows.offsets[-left]
        return incomplete[0] if incomplete else self._view.offset

    @property
    def next_seq(self) -> int | None:
        """Sequence number of the record that comes next; None while not known."""
        return self._view.fold.next_seq

    @property
    def epoch(self) -> int | None:
        """The fence epoch in force at `position`; None while not known."""
        return self._view.fold.epoch

    def end(self) -> int:
        """The end of the log now, once everything below it is decided.

        Raises:
            LogBlocked: A transaction stays open below it.
            LogReplaced, LogUnavailable: As for `FencedWriter.acquire`.
        """
        with self._view.looked_up():
            return self._view.decided_end(Deadline(self.timeout))

    def read(self, stop: int | None = None, *, stable: bool = False) -> Iterator[LogRecord]:
        """The records of data that count, from `position` on.

        Args:
            stop: Offset at which to stop, such as `FencedWriter.opened_at`; by default the end of
                the log now.
            stable: Do not wait for transactions that are open: read what is decided now.

        Raises:
            LogCorrupt: Records are missing.
            LogTruncated: Retention has removed records that were not read yet.
            LogBlocked, LogReplaced, LogUnavailable: As for `FencedWriter.acquire`.
        """
        view = self._view
        with view.looked_up():
            end = view.ends().stable if stable else view.decided_end(Deadline(self.timeout))
            stop = end if stop is None else min(stop, end)
            if view.offset < 0:
                kept = view.start()
                if self._start is not None and self._start < kept:
                    raise LogTruncated(*view.log.tp, self._start, kept)
                view.begin_at(kept if self._start is None else self._start)
            while length_hint(self._offsets) and self.position < stop:
                yield next(self._records)
            for rows in view.counted(stop, Deadline(self.timeout)):
                stamp = view.fold.stamp
                if stamp is None or stamp.kind != "data":
                    continue
                self._rows, self._offsets = rows, iter(rows.offsets)
                _, timestamps, keys, values, (first, *others) = rows.fields
                # A record is only made when it is given out.
                self._records = map(_record, zip(
                    count(stamp.seq), self._offsets, repeat(stamp.epoch), repeat(stamp.batch),
                    keys, values, (tuple(first[1:]), *others), timestamps, strict=False,
                ))  # fmt: skip
                yield from self._records

    def close(self) -> None:
        """Close the connections; harmless when repeated."""
        self._engine.close()


@contextmanager
def view_of(reader: LogReader) -> Iterator[LogView]:
    """Opens a reader for one look at what its log is made of."""
    view = reader._view  # noqa: SLF001 - of this module, and not among the names that editors offer
    with reader, view.looked_up():
        yield view


def head(
    options: Mapping[str, Any], topic: str, partition: int = 0, **how: Unpack[ReaderOptions]
) -> Head:
    """Returns the end and the owner of a log by its last records, without taking it from its owner.

    The arguments and errors are those of `LogReader` and its `read`.
    """
    reader = LogReader(options, topic, partition, **how)
    with view_of(reader) as view:
        start, ends = view.start(), view.ends()
        _, fold, _ = view.fold_back(
            ends.stable, Deadline(reader.timeout), lambda fold, _: fold.owner
        )
    owner = fold.owner or Owner("", "", "")
    return Head(
        topic, view.log.topic_id, partition, start, ends.stable, ends.end, fold.next_seq,
        fold.epoch, owner.name or None, owner.session or None,
        None if fold.stamp is None else fold.stamp.visibility,
    )  # fmt: skip
