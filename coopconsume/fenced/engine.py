"""Appends, and their failures.

Every failure is an `EngineDoubt`: the request may have taken effect or not, now or later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coopconsume.fenced.log import Consumed, Entry, LogId
    from coopconsume.fenced.stamp import Header, Stamp

#: States of a transaction that its coordinator still ends, as Kafka names them.
_ENDED_BY_COORDINATOR: Final = frozenset(
    {"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
)


@dataclass(eq=False)
class EngineDoubt(Exception):
    """A call of the client failed, or took too long.

    Attributes:
        problem: What went wrong, in words.
        refusal: The error to raise where it turns out that nothing happened, as trying again
            would not help; else None.
        is_out_of_range: Whether the brokers do not have the offset that was to be read.
        is_of_earlier_generation: Whether the group whose offsets were sent has a later generation.
    """

    problem: str
    refusal: Exception | None = None
    is_out_of_range: bool = False
    is_of_earlier_generation: bool = False


class LogAppend(NamedTuple):
    """What is appended to one log: records of one or several batches, and their stamps.

    Attributes:
        headers: The stamp of each record, as its header.
        stamps: The stamp of the first record of each batch.
        consumed: Offsets of the input, to be committed with the records.
    """

    log: LogId
    entries: Sequence[Entry]
    headers: Sequence[Header]
    stamps: Sequence[Stamp] = ()
    consumed: Sequence[Consumed] = ()


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
