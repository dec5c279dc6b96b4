"""The records that a consumer of a queue holds, and their acknowledgements until these start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges
from coopconsume.errors.queue import NotHeld
from coopconsume.queue.acknowledge_type import REJECT, RELEASE, RENEW, AcknowledgeType
from coopconsume.worker.handler_answers import reason_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from coopconsume.queue.acknowledgements import Settled
    from coopconsume.queue.rows import Offsets
    from coopconsume.record import Record


@dataclass(slots=True)
class _Held:
    #: As it is in Kafka, and as `poll` has returned it.
    record: Record
    given: Record[Any, Any]
    #: When the hold ends, on the monotonic clock.
    until: float
    kind: AcknowledgeType | None = None
    delay: float = 0.0
    reason: str = ""


class HeldRecords:
    """The records that are held, each with its acknowledgement if there is one already.

    A grant adds records, `acknowledge` notes an acknowledgement, `take` removes what is written
    now, and a renewal moves the end of a hold or ends it. `replace` moves the records of a log
    that was replaced to others, whose acknowledgements do not count.

    Args:
        topic: The topic of the records.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._held: dict[tuple[int, int], _Held] = {}
        #: Records that were handed out of a log that was replaced, and not acknowledged since.
        self._replaced: dict[tuple[int, int], Record[Any, Any]] = {}
        self._not_counted: list[tuple[int, int]] = []

    def add(self, record: Record, until: float) -> None:
        """Add a record that is held until a time."""
        self._held[record.partition, record.offset] = _Held(record, record, until)

    def give(self, record: Record, given: Record[Any, Any]) -> None:
        """Note the decoded form in which `poll` returns a record."""
        self._held[record.partition, record.offset].given = given

    def acknowledge(
        self, record: Record[Any, Any], kind: AcknowledgeType, delay: float, reason: object
    ) -> None:
        """Note the acknowledgement of a record.

        Raises:
            NotHeld: The record is not held, or it is acknowledged already.
        """
        place = record.partition, record.offset
        held = self._held.get(place)
        if place in self._replaced and self._replaced[place] == record:
            del self._replaced[place]
            self._not_counted.append(place)
            return
        is_ours = held is not None and record.topic == self._topic
        if held is None or not is_ours or held.kind not in (None, RENEW):
            raise NotHeld(record.topic, record.partition, record.offset, record.offset)
        held.kind, held.delay, held.reason = kind, delay, reason_of(reason)

    def release_rejected(self) -> None:
        """Release rejected records: there is no place for dead letters."""
        for held in self._held.values():
            held.kind = RELEASE if held.kind is REJECT else held.kind

    def release_rest(self) -> None:
        """Release the records that are not acknowledged, or only renewed."""
        for held in self._held.values():
            held.kind = held.kind if held.kind not in (None, RENEW) else RELEASE

    def take(
        self, kinds: Collection[AcknowledgeType]
    ) -> dict[tuple[AcknowledgeType, float], Offsets]:
        """Return the acknowledgements of some kinds, by kind and delay, once."""
        found: dict[tuple[AcknowledgeType, float], list[tuple[int, int]]] = {}
        for place, held in [*self._held.items()]:
            if held.kind is None or held.kind not in kinds:
                continue
            found.setdefault((held.kind, held.delay), []).append(place)
            if held.kind is RENEW:
                held.kind = None
            else:
                del self._held[place]
        return {how: _offsets(places) for how, places in found.items()}

    def rejected(self) -> list[tuple[Record, str]]:
        """Return the rejected records as they are in Kafka, each with its reason."""
        return [(held.record, held.reason) for held in self._held.values() if held.kind is REJECT]

    def rejected_until(self, soon: float) -> Offsets:
        """Return the offsets of rejected records whose holds end before a time."""
        return _offsets(
            [
                place
                for place, held in self._held.items()
                if held.kind is REJECT and held.until < soon
            ]
        )

    def renewed(self, settled: Settled) -> None:
        """Note what was renewed, and drop what was not."""
        for place in places_of(settled.refused):
            self._held.pop(place, None)
        for place in places_of(settled.done):
            if place in self._held:
                self._held[place].until = settled.until

    def replace(self, partitions: Collection[int]) -> None:
        """Hold the records of partitions no more: another log has replaced theirs."""
        for place in [place for place in self._held if place[0] in partitions]:
            self._replaced[place] = self._held.pop(place).given

    def do_not_count(self, places: list[tuple[int, int]]) -> None:
        """Note records whose acknowledgements do not count."""
        self._not_counted += places

    def not_counted(self) -> list[tuple[int, int]]:
        """Return the records whose acknowledgements do not count, once."""
        found, self._not_counted = self._not_counted, []
        return found

    def clear(self) -> None:
        """Hold nothing any more."""
        self._held.clear()


def places_of(offsets: Offsets) -> list[tuple[int, int]]:
    """Return partition and offset of each record."""
    return [(p, int(offset)) for p, found in offsets.items() for offset in found.offsets()]


def _offsets(places: list[tuple[int, int]]) -> Offsets:
    found: dict[int, list[int]] = {}
    for partition, offset in places:
        found.setdefault(partition, []).append(offset)
    return {p: OffsetRanges.from_offsets(offsets) for p, offsets in found.items()}
