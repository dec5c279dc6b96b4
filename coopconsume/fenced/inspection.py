"""Logs as an operator sees them: where they end, who owns them, what blocks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.deadline import Deadline
from coopconsume.fenced.fold import Owner
from coopconsume.fenced.kafka_engine import Engine
from coopconsume.fenced.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.fenced.engine import OpenTransaction
    from coopconsume.fenced.reader import ReaderOptions


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
class Blockage:
    """What keeps a log from being read to its end: open transactions, the oldest first."""

    topic: str
    partition: int
    stable: int
    end: int
    transactions: tuple[OpenTransaction, ...]


def head(
    options: Mapping[str, Any], topic: str, partition: int = 0, **how: Unpack[ReaderOptions]
) -> Head:
    """Returns the end and the owner of a log by its last records, without taking it from its owner.

    The arguments and errors are those of `LogReader` and its `read`.
    """
    with LogReader(options, topic, partition, **how) as reader, reader.view.looked_up():
        view, deadline = reader.view, Deadline(reader.timeout)
        start, ends = view.start(), view.ends()
        _, fold, _ = view.fold_back(ends.stable, deadline, lambda fold, _: fold.owner is not None)
    owner = fold.owner or Owner("", "", "")
    return Head(
        topic, view.log.topic_id, partition, start, ends.stable, ends.end, fold.next_seq,
        fold.epoch, owner.name or None, owner.session or None, fold.visibility,
    )  # fmt: skip


def blocked(options: Mapping[str, Any], topic: str, partition: int = 0) -> Blockage:
    """Returns which open transactions keep a log from being read to its end."""
    engine = Engine(FencedSettings.parse(options))
    reader = LogReader(options, topic, partition, engine=engine, compacted=False)
    with reader, reader.view.looked_up():
        ends = reader.view.ends()
        found = () if ends.stable == ends.end else engine.open_transactions(topic, partition)
    return Blockage(topic, partition, ends.stable, ends.end, tuple(found))
