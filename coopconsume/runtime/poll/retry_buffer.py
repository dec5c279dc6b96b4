"""What of polled records is to come again later, and the keys that wait for it: a pure core.

A key with a record that waits is left out of new frames. Which offsets they passed over is kept, so
that the key's later records come right behind it, and nothing else is read again.

No clock, no socket, no Spark: times come in, on the monotonic clock.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.group.owned import Failed
from coopconsume.record import checked_headers, with_added

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from coopconsume.record import Headers

#: Keys that come again in one frame; the rest waits for the next one.
KEYS_AT_ONCE = 50


class RetryBuffer:
    """The records of one partition that wait for a retry.

    Args:
        pending: The pending records, as the commit log has them.
    """

    def __init__(self, pending: Iterable[Failed] = ()) -> None:
        self._records: dict[int, Failed] = {}
        self._passed: dict[int, OffsetRanges] = {}
        self._attempts: dict[int, int] = {}
        self._added: dict[int, Headers] = {}
        for record in pending:
            self._add(replace(record))

    def __len__(self) -> int:
        return len(self._records)

    @property
    def keys(self) -> frozenset[int]:
        """Hashes of the keys that wait."""
        return frozenset(self._passed)

    @property
    def parked(self) -> list[Failed]:
        """Records that wait until somebody decides about them."""
        return [record for record in self._records.values() if record.is_parked]

    def waiting(self, offset: int) -> Failed | None:
        """Returns a record that waits; None: it was handed out, is done, or has not failed."""
        return self._records.get(offset) if offset in self._attempts else None

    def next_due(self) -> float | None:
        """Returns when a key comes again, on the monotonic clock; None: none does by itself."""
        due: dict[int, float] = {}
        for record in self._records.values():
            due[record.key_hash] = max(due.get(record.key_hash, 0.0), record.due)
        return min((at for at in due.values() if at < math.inf), default=None)

    def attempt(self, offset: int) -> int:
        """Returns the number of the last attempt at a record, from 1."""
        return self._attempts.get(offset, 0) + 1

    def added(self, offset: int, more: Headers = ()) -> Headers:
        """Returns all headers that were added to a record, with further ones.

        Raises:
            ValueError: They are too large.
        """
        known = self._added.get(offset, ())
        return checked_headers(with_added(known, more)) if more else known

    def with_added(self, offsets: OffsetRanges) -> dict[Headers, OffsetRanges]:
        """Returns those of some offsets whose records have added headers, by the headers."""
        found: dict[Headers, list[int]] = {}
        for offset, headers in self._added.items():
            if offset in offsets:
                found.setdefault(headers, []).append(offset)
        return {headers: OffsetRanges.from_offsets(of) for headers, of in found.items()}

    def hold_back(
        self,
        offset: int,
        key_hash: int,
        due: float,
        error: str,
        headers: Headers = (),
        key: str | None = None,
    ) -> Failed:
        """Holds a failed record back: it comes again at ``due``, and its key waits behind it.

        Args:
            offset: Its offset.
            key_hash: The hash that it is dealt by.
            due: When it comes again, on the monotonic clock.
            error: Why it failed.
            headers: All headers that were added to it.
            key: Its key for people, if it has one.
        """
        record = Failed(
            offset,
            key_hash,
            attempts=self.attempt(offset),
            due=due,
            error=error,
            headers=headers,
            key=key,
        )
        self._add(record)
        return record

    def _add(self, record: Failed) -> None:
        self._records[record.offset] = record
        self._attempts[record.offset] = record.attempts
        if added := record.headers:
            self._added[record.offset] = added
        self._passed.setdefault(record.key_hash, OffsetRanges())

    def pass_over(self, taken: OffsetRanges) -> None:
        """Notes that a frame hands out these offsets, without the keys that wait."""
        for key_hash in self._passed:
            self._passed[key_hash] |= taken

    def due(self, now: float, end: int) -> dict[int, OffsetRanges]:
        """Returns keys whose records are all due, with the offsets to look for them at.

        Args:
            now: The time, on the monotonic clock.
            end: All undone offsets below it were handed out or passed over. A key with a record
                from there on still waits: lower records of it may come first.
        """
        due: dict[int, float] = {}
        for record in self._records.values():
            # A key goes on in order: the record that is due last decides.
            at = record.due if record.offset < end else math.inf
            due[record.key_hash] = max(due.get(record.key_hash, 0.0), at)
        free = sorted(key_hash for key_hash, at in due.items() if at <= now)[:KEYS_AT_ONCE]
        own: dict[int, list[int]] = {key_hash: [] for key_hash in free}
        for offset, record in self._records.items():
            if record.key_hash in own:
                own[record.key_hash].append(offset)
        return {
            key_hash: self._passed[key_hash] | OffsetRanges.from_offsets(offsets)
            for key_hash, offsets in own.items()
        }

    def release(self, keys: Iterable[int]) -> None:
        """Ends the wait of keys: their records are handed out, or done."""
        for key_hash in keys:
            del self._passed[key_hash]
            for offset in [o for o, r in self._records.items() if r.key_hash == key_hash]:
                del self._records[offset]

    def has_from(self, offset: int) -> bool:
        """Whether a record from an offset on waits."""
        return any(waiting >= offset for waiting in self._records)

    def replay(self, offset: int, now: float) -> None:
        """Has a parked record come again, from its first attempt on; harmless if not parked."""
        record = self._records.get(offset)
        if record is not None and record.is_parked:
            record.due = now
            self._attempts[offset] = 0

    def mark_done(self, offsets: Container[int], now: float) -> None:
        """Removes done records; keys that wait for nothing else continue."""
        for offset in [o for o in self._records if o in offsets]:
            record = self._records[offset]
            # It stays until its key is released, and is found to be done by then.
            record.due = now if record.due == math.inf else min(record.due, now)
        self._attempts = {o: n for o, n in self._attempts.items() if o not in offsets}
        self._added = {o: h for o, h in self._added.items() if o not in offsets}

    def forget_below(self, stable: int) -> None:
        """Forgets all below ``stable``: the log begins there, or it is done."""
        if any(offset < stable for offset in self._records):
            self.mark_done(range(stable), 0.0)
