"""The failed records of a partition: their attempts, and the last failure of each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from commits import OffsetRanges
    from coopconsume.record import Headers
    from coopconsume.runtime.plan.waiting_record import Waiting


class FailedRecords:
    """The records of a partition that have failed and are not done, dispatched or not.

    Attributes:
        attempts: Attempts so far, by offset.
        ended: How the workers of records have ended, by offset; that attempt does not count yet.
    """

    def __init__(self) -> None:
        self.attempts: dict[int, int] = {}
        self.ended: dict[int, str] = {}
        self._last: dict[int, Waiting] = {}

    def add(self, record: Waiting) -> Waiting:
        """Adds the last failure of a record, and returns it."""
        before = self._last.get(record.offset)
        if before is not None and before.is_parked == record.is_parked:
            record.since = before.since
        self.attempts[record.offset] = record.attempts
        self.ended.pop(record.offset, None)
        self._last[record.offset] = record
        return record

    def last(self, offset: int) -> Waiting | None:
        """Returns the last failure of a record; None: it has not failed."""
        return self._last.get(offset)

    @property
    def all(self) -> Collection[Waiting]:
        """The last failure of each."""
        return self._last.values()

    def restart(self, offset: int) -> None:
        """Has the attempts of a record count from the first one again."""
        self.attempts.pop(offset, None)

    def remove(self, offset: int) -> None:
        """Removes a record."""
        self.attempts.pop(offset, None)
        self.ended.pop(offset, None)
        self._last.pop(offset, None)

    def remove_all(self, offsets: OffsetRanges) -> None:
        """Removes the records of some offsets."""
        if self.attempts or self._last or self.ended:
            self.ended = {o: how for o, how in self.ended.items() if o not in offsets}
            self.attempts = {o: n for o, n in self.attempts.items() if o not in offsets}
            self._last = {o: one for o, one in self._last.items() if o not in offsets}

    def attempts_of(self, offsets: OffsetRanges) -> dict[int, int]:
        """Returns the attempts so far of those of some offsets that have failed."""
        return {o: n for o, n in self.attempts.items() if o in offsets}

    def ended_of(self, offsets: OffsetRanges) -> dict[int, str]:
        """Returns how the workers of those of some offsets have ended."""
        return {o: how for o, how in self.ended.items() if o in offsets}

    def headers_of(self, offsets: OffsetRanges) -> dict[int, Headers]:
        """Returns the headers that handlers have added to those of some offsets."""
        return {o: one.headers for o, one in self._last.items() if one.headers and o in offsets}
