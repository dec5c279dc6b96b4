"""Reads dead letters from a table or a topic, and writes marks for decisions."""

from __future__ import annotations

import heapq
import logging
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from commits.arrow_dataset import arrow_dataset
from commits.secrets import hidden
from coopconsume.errors import BrokerUnreachable, TopicNotFound
from coopconsume.kafka.headers import Headers, message_headers
from coopconsume.kafka.producer import Message, Producer
from coopconsume.kafka.records import RecordReader
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.sinks.base import NULL_HEADERS, ORIGIN, topic_of
from coopconsume.sinks.letters import HEADERS, decisions_table
from coopconsume.sinks.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from deltalake import DeltaTable

    from coopconsume.options import Options

log = logging.getLogger(__name__)

#: The header of a mark in a topic that names the decision. Its other headers name the letter.
DECISION = "coopconsume.decision"
#: Columns that marks of earlier versions do not have.
_WHO = ("decided_by", "decision_reason")
_MARKS = pa.schema(
    [
        ("decision", pa.string()),
        ("decided_at", pa.timestamp("us", "UTC")),
        *((name, pa.string()) for name in _WHO),
    ]
)
_TOPIC_WHO = ("coopconsume.decided_by", "coopconsume.decision_reason")
_TOPIC_AT = "coopconsume.decided_at"
_MARKED_BY = (
    "coopconsume.topic",
    "coopconsume.partition",
    "coopconsume.offset",
    "coopconsume.commit",
    "coopconsume.group",
)
#: The fields that are left out of a letter unless it is read whole.
_BULKY: dict[str, Any] = {"value": None, "headers": (), "trace": ""}
#: The columns that hold times.
_TIMES = ("timestamp", "rejected_at")
_READ_TIMEOUT = 1.0
_PATIENCE = 30.0


LetterStatus = Literal["parked", "replaying", "discarding", "open", "replayed", "discarded"]


@dataclass(frozen=True)
class Letter:
    """A dead letter as it was written, with its status.

    Attributes:
        topic, topic_id, partition, offset: The position of the record.
        key, value, headers, timestamp: The record; the timestamp in milliseconds since the epoch.
        attempts: The number of handler calls.
        reason, trace: Why it was given up.
        rejected_at: When it was given up, in milliseconds since the epoch.
        commit: The id of the commit that it was written with.
        decision: ``replay``, ``discard``, or empty if there is no decision.
        by: Who decided, when and why; empty if there is no decision.
        status: ``parked``: its key waits for a decision. ``replaying`` or ``discarding``: an
            operator decided, and the next poll of a job applies it. ``open``: later records of
            its key were processed, and there is no decision. ``replayed`` or ``discarded``: the
            decision was applied.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    attempts: int
    reason: str
    trace: str
    rejected_at: int
    commit: str
    decision: str = ""
    by: DecidedBy = field(default_factory=DecidedBy)
    status: LetterStatus = "open"

    @property
    def id(self) -> tuple[str, int, int, str]:
        """A unique id; a record may have several letters."""
        return self.topic, self.partition, self.offset, self.commit


class LetterStore(Protocol):
    """A table or topic of dead letters."""

    def read(self, counts: Callable[[str], bool], *, whole: bool) -> list[Letter]:
        """Returns the letters of one group whose commits count, in the order of writing.

        It is the order in each partition of a topic, and else that of the writers' clocks.

        Args:
            counts: Returns whether the commit with an id counts.
            whole: Whether to read values, headers and traces, which may be large.
        """

    def mark(self, letters: Iterable[Letter], decision: str, by: DecidedBy) -> None:
        """Records a decision on letters."""


class _TableStore:
    """Letters in a Delta table; decisions are in a second table, ``…_decisions``."""

    def __init__(self, path: str) -> None:
        self._path = path.rstrip("/")

    def read(self, counts: Callable[[str], bool], *, whole: bool) -> list[Letter]:
        table = _table_at(self._path)
        if table is None:
            log.warning(
                "there is no table of dead letters at %s: check the path; the first dead letter "
                "creates the table",
                hidden(self._path),
            )
            return []
        decisions, marks = _table_at(decisions_table(self._path)), {}
        if decisions is not None:
            marks = {
                (m["_topic"], m["_partition"], m["_offset"], m["_commit"]): _mark(m)
                for m in arrow_dataset(decisions).to_table().to_pylist()
            }
        commits = arrow_dataset(table).to_table(columns=["_commit"]).column("_commit").unique()
        alive = [commit for commit in commits.to_pylist() if counts(commit)]
        if not alive:
            return []
        names = [field.name for field in table.schema().fields]
        wanted = [name for name in names if whole or name not in _BULKY]
        rows = arrow_dataset(table).to_table(columns=wanted, filter=pc.field("_commit").isin(alive))
        for name in _TIMES:
            # A record may have a timestamp that no datetime can hold.
            micros = rows.column(name).cast(pa.int64())
            rows = rows.set_column(wanted.index(name), name, micros)
        letters = [_of_row(row) for row in rows.to_pylist()]
        return sorted(
            (replace(letter, **marks.get(letter.id, {})) for letter in letters),
            key=lambda letter: letter.rejected_at,
        )

    def mark(self, letters: Iterable[Letter], decision: str, by: DecidedBy) -> None:
        rows = [
            {
                "decision": decision,
                "decided_at": by.at_ms * 1000,
                "decided_by": by.name,
                "decision_reason": by.reason,
                "_topic": letter.topic,
                "_topic_id": letter.topic_id,
                "_partition": letter.partition,
                "_offset": letter.offset,
                "_commit": letter.commit,
            }
            for letter in letters
        ]
        if rows:
            _add_columns(decisions_table(self._path))
            _MarkTable(decisions_table(self._path), _MARKS).append_rows(rows)


def _table_at(path: str) -> DeltaTable | None:
    """Returns a table, if there is one."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    # Not `is_deltatable`: no other thread runs while that waits for an object store.
    with suppress(TableNotFoundError):
        return DeltaTable(path)
    return None


def _add_columns(path: str) -> None:
    """Adds the columns to a table of marks that an earlier version has made."""
    from deltalake import write_deltalake

    table = _table_at(path)
    known = set(_WHO) if table is None else {field.name for field in table.schema().fields}
    missing = [name for name in _WHO if name not in known]
    if table is not None and missing:
        # Not `alter`: no other thread runs while that waits for an object store.
        none = pa.table({name: pa.array([], pa.string()) for name in missing})
        write_deltalake(table, none, mode="append", schema_mode="merge")


def _mark(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a letter that a mark in a table sets."""
    at = row["decided_at"]
    by = DecidedBy(
        row.get("decided_by") or "",
        row.get("decision_reason") or "",
        0 if at is None else round(at.timestamp() * 1000),
    )
    return {"decision": row["decision"], "by": by}


class _MarkTable(Table):
    what = "table of decisions"

    def append_rows(self, rows: list[dict[str, Any]]) -> None:
        self._append(pa.Table.from_pylist(rows, schema=pa.schema([*_MARKS, *ORIGIN])))


def _of_row(row: dict[str, Any]) -> Letter:
    headers = row.get("headers") or ()
    return Letter(
        topic=row["_topic"],
        topic_id=row["_topic_id"],
        partition=row["_partition"],
        offset=row["_offset"],
        key=row["key"],
        value=row.get("value"),
        headers=tuple((header["key"], header["value"]) for header in headers),
        timestamp=_millis(row["timestamp"]),
        attempts=row["attempts"],
        reason=row["reason"],
        trace=row.get("trace") or "",
        rejected_at=_millis(row["rejected_at"]),
        commit=row["_commit"],
    )


def _millis(micros: int | None) -> int:
    return 0 if micros is None else micros // 1000


class _TopicStore:
    """Letters in a Kafka topic; a decision is a record with the same key and no value."""

    def __init__(self, topic: str, options: Options) -> None:
        self._topic = topic
        self._options = options

    def read(self, counts: Callable[[str], bool], *, whole: bool) -> list[Letter]:
        letters: dict[int, list[Letter]] = {}
        marks: dict[tuple[str, int, int, str], dict[str, Any]] = {}
        for partition, key, value, headers in self._records():
            found = {name: value or b"" for name, value in headers}
            if found.get("coopconsume.group", b"").decode() != self._options.group_id:
                continue
            if DECISION in found:
                name, reason = (found.get(header, b"").decode() for header in _TOPIC_WHO)
                by = DecidedBy(name, reason, int(found.get(_TOPIC_AT, b"0")))
                marks[_mark_of(found)] = {"decision": found[DECISION].decode(), "by": by}
            elif counts(found["coopconsume.commit"].decode()):
                letter = _of_record(key, value, headers)
                kept = letters.setdefault(partition, [])
                kept.append(letter if whole else replace(letter, **_BULKY))
        # A clock may step back, but each partition of the topic keeps its order.
        merged = heapq.merge(*letters.values(), key=lambda letter: letter.rejected_at)
        return [replace(letter, **marks.get(letter.id, {})) for letter in merged]

    def mark(self, letters: Iterable[Letter], decision: str, by: DecidedBy) -> None:
        messages = []
        for letter in letters:
            values = (
                letter.topic,
                letter.partition,
                letter.offset,
                letter.commit,
                self._options.group_id,
            )
            headers = [(n, str(v).encode()) for n, v in zip(_MARKED_BY, values, strict=True)]
            headers.append((DECISION, decision.encode()))
            headers += zip(_TOPIC_WHO, (by.name.encode(), by.reason.encode()), strict=True)
            headers.append((_TOPIC_AT, str(by.at_ms).encode()))
            messages.append(Message(self._topic, letter.key, None, headers))
        with closing(Producer(self._options, "decisions on dead letters")) as producer:
            producer.write(messages)

    def _records(
        self,
    ) -> Iterator[tuple[int, bytes | None, bytes | None, Headers]]:
        """Yields the current records of the topic, in the order of each partition."""
        servers = self._options.kafka["bootstrap.servers"]
        # All of them: the commit that a letter names decides whether it counts.
        with closing(
            RecordReader(self._options.kafka, {"isolation.level": "read_uncommitted"})
        ) as reader:
            numbers = reader.partitions(self._topic)
            if not numbers and self._options.dead_letter_partitions:
                return  # The first letter creates it.
            if not numbers:
                raise TopicNotFound(self._topic, servers)
            bounds = {(self._topic, p): reader.bounds((self._topic, p)) for p in numbers}
            reader.assign({at: first for at, (first, _) in bounds.items()})
            deadline = time.monotonic() + _PATIENCE
            while any(reader.positions[at] < end for at, (_, end) in bounds.items()):
                taken = reader.read(_READ_TIMEOUT)
                for at in taken.lost:  # Retention has deleted some meanwhile.
                    reader.seek(at, reader.bounds(at)[0])
                if taken.records:
                    deadline = time.monotonic() + _PATIENCE
                elif time.monotonic() > deadline:
                    raise BrokerUnreachable(servers, f"topic {self._topic!r} cannot be read")
                for (_, partition), records in taken.records.items():
                    for record in records:
                        headers = message_headers(record)
                        if any(name == "coopconsume.commit" for name, _ in headers):
                            yield partition, record.key(), record.value(), headers


def _mark_of(found: dict[str, bytes]) -> tuple[str, int, int, str]:
    topic, partition, offset, commit, _ = (found[name].decode() for name in _MARKED_BY)
    return topic, int(partition), int(offset), commit


def _of_record(key: bytes | None, value: bytes | None, headers: Headers) -> Letter:
    nulls: set[int] = set()
    if headers[-1][0] == NULL_HEADERS:
        nulls = {int(place) for place in (headers[-1][1] or b"").split(b",")}
        headers = headers[:-1]
    # Our headers come last; those before them belong to the record, whatever their names.
    own = len(headers) - len(HEADERS)
    found = {name: (value or b"").decode(errors="replace") for name, value in headers[own:]}
    topic, topic_id, partition, offset, stamp, attempts, reason, trace, at, _, commit = (
        found[name] for name in HEADERS
    )
    kept = tuple((n, None if i in nulls else v) for i, (n, v) in enumerate(headers[:own]))
    return Letter(
        topic,
        topic_id,
        partition=int(partition),
        offset=int(offset),
        key=key,
        value=value,
        headers=kept,
        timestamp=int(stamp),
        attempts=int(attempts),
        reason=reason,
        trace=trace,
        rejected_at=int(at),
        commit=commit,
    )


def open_letters(place: str, options: Options) -> LetterStore:
    """Opens the dead letters at the path of a Delta table, or at ``kafka:`` and a topic."""
    topic = topic_of(place)
    return _TableStore(place) if topic is None else _TopicStore(topic, options)
