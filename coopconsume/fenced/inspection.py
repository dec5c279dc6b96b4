"""Logs as an operator sees them: where they end, who owns them, what blocks them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.deadline import Deadline
from coopconsume.fenced.fold import Owner
from coopconsume.fenced.kafka_engine import Engine
from coopconsume.fenced.view import looking_at

if TYPE_CHECKING:
    from collections.abc import Mapping

#: States of a transaction that its coordinator still ends, as Kafka names them.
_ENDED_BY_COORDINATOR: Final = frozenset(
    {"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


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


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that blocks a log.

    Attributes:
        producer_id, producer_epoch: Of its producer, by Kafka.
        first_offset: Where it begins in the log.
        last_write: When its producer last wrote there, in UTC.
        transactional_id, state, timeout_ms: As its coordinator has them, which aborts it after the
            timeout; None if no coordinator knows it.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_write: datetime
    transactional_id: str | None
    state: str | None
    timeout_ms: int | None

    @property
    def hangs(self) -> bool:
        """Whether no coordinator will end it: it is not known, or was ended without its markers."""
        return self.state not in _ENDED_BY_COORDINATOR


@dataclass(frozen=True)
class Blockage:
    """What keeps a log from being read to its end: open transactions, the oldest first."""

    topic: str
    partition: int
    stable: int
    end: int
    transactions: tuple[OpenTransaction, ...]


def head(
    options: Mapping[str, Any],
    topic: str,
    partition: int = 0,
    *,
    engine: str | Engine = "kafka-python",
    timeout: float = 30.0,
) -> Head:
    """Returns the end and the owner of a log by its last records, without taking it from its owner.

    The arguments and errors are those of `LogReader` and its `read`.
    """
    with looking_at(options, topic, partition, engine, timeout) as view:
        start, ends = view.start(), view.ends()
        deadline = Deadline(timeout)
        _, fold, _ = view.fold_back(ends.stable, deadline, lambda fold, _: fold.owner is not None)
    owner = fold.owner or Owner("", "", "")
    return Head(
        topic, view.log.topic_id, partition, start, ends.stable, ends.end, fold.next_seq,
        fold.epoch, owner.name or None, owner.session or None, fold.visibility,
    )  # fmt: skip


def blocked(options: Mapping[str, Any], topic: str, partition: int = 0) -> Blockage:
    """Returns which open transactions keep a log from being read to its end."""
    engine = Engine(FencedSettings.parse(options))
    with looking_at(options, topic, partition, engine, 0.0, compacted=False) as view:
        ends = view.ends()
        found = () if ends.stable == ends.end else _open(engine, topic, partition)
    return Blockage(topic, partition, ends.stable, ends.end, found)


def _open(engine: Engine, topic: str, partition: int) -> tuple[OpenTransaction, ...]:
    from kafka import TopicPartition

    at = TopicPartition(topic, partition)
    names = engine.open_transactions(topic, partition)
    with engine.asking(topic) as admin:
        producers = admin.describe_producers([at])[at].active_producers
        known = [name for name in names.values() if name is not None]
        details = admin.describe_transactions(known) if known else {}
    found = []
    for p in producers:
        if p.producer_id in names:
            name = names[p.producer_id]
            about = details.get(name)
            found.append(OpenTransaction(
                p.producer_id, p.producer_epoch, p.current_transaction_start_offset,
                _moment(p.last_timestamp), name, about and str(about.state.value),
                about and about.transaction_timeout_ms,
            ))  # fmt: skip
    return tuple(sorted(found, key=lambda t: t.first_offset))


def _moment(millis: int) -> datetime:
    """Returns the time of a record, which may be any number, or the nearest `datetime`."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (OSError, OverflowError, ValueError):
        return _LATEST if millis > 0 else _EARLIEST
