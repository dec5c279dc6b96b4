"""What earlier calls have left of the records of a slot: attempts, headers, ends. Task-side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.record import with_added

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.record import Headers, RetryPolicy
    from coopconsume.worker.input_rows import InputRow
    from coopconsume.worker.report import GivenUp, PartitionWork


class RecordHistory:
    """What earlier calls have left of the records that a slot may start.

    Args:
        work: What it may start, by part.
        policy: When failed records are tried again.

    Attributes:
        is_known: Whether it has anything of any record.
        added: By part and offset, the headers that handlers have added to records that may be
            handled here again.
    """

    def __init__(self, work: Mapping[int, PartitionWork], policy: RetryPolicy) -> None:
        self.is_known = False
        self.added: dict[int, dict[int, Headers]] = {part: {} for part in work}
        self._most = policy.max_attempts
        #: Failures so far, by part and offset.
        self._attempts: dict[int, dict[int, int]] = {part: {} for part in work}
        #: How the workers of records have ended, see `PartitionWork.ended`.
        self._ended_with: dict[tuple[int, int], str] = {}
        #: Records that are given up without a call, see `PartitionWork.given_up`.
        self._given_up: dict[tuple[int, int], GivenUp] = {}
        for part, one in work.items():
            self.add(part, one)

    def add(self, part: int, work: PartitionWork) -> None:
        """Notes what is known of some more offsets of a partition."""
        if work.attempts or work.added or work.ended or work.given_up:
            self._attempts[part] |= work.attempts
            self.added[part] |= work.added
            self._ended_with |= {(part, offset): how for offset, how in work.ended.items()}
            self._given_up |= {(part, offset): one for offset, one in work.given_up.items()}
            self.is_known = True

    def attempt(self, part: int, offset: int) -> int:
        """Returns the number of the attempt that the next handler call is, from 1."""
        return self._attempts[part].get(offset, 0) + 1

    def has_failed(self, part: int, offset: int) -> bool:
        """Returns whether a call of a record has failed; it need not count as an attempt."""
        return offset in self._attempts[part]

    def headers(self, part: int, offset: int, own: Headers) -> Headers:
        """Returns the headers of a record, with those that handlers have added to it."""
        added = self.added[part].get(offset)
        return own if added is None else with_added(own, added)

    def added_to(self, row: InputRow) -> Headers:
        """Returns the headers that handlers have added to a record."""
        return self.added[row.part].get(row.offset, ())

    def keep_added(self, row: InputRow, added: Headers) -> None:
        """Keeps the headers that handlers have added to a record, for its next call here."""
        if added:
            self.added[row.part][row.offset] = added

    def forget_added(self, row: InputRow) -> None:
        """Forgets the headers of a record that is not handled here again."""
        self.added[row.part].pop(row.offset, None)

    @property
    def has_uncalled(self) -> bool:
        """Whether some records of the slot may be settled without a call, see `is_uncalled`."""
        return bool(self._ended_with or self._given_up) or any(
            self._is_spent(n + 1) for attempts in self._attempts.values() for n in attempts.values()
        )

    def is_uncalled(self, row: InputRow, attempt: int) -> bool:
        """Whether a record is settled without a call.

        An operator decided to give it up, or its last call ended its worker and does not count yet,
        or it had all its attempts.
        """
        at = row.part, row.offset
        return at in self._given_up or at in self._ended_with or self._is_spent(attempt)

    def _is_spent(self, attempt: int) -> bool:
        """Whether a record had all its attempts; the last one ended its worker."""
        return self._most is not None and attempt > self._most

    def take_given_up(self, row: InputRow) -> GivenUp | None:
        """Returns once how an operator decided to give a record up; None: nobody did."""
        return self._given_up.pop((row.part, row.offset), None)

    def take_end(self, row: InputRow) -> str | None:
        """Returns once how the last call of a record ended its worker; None: it did not."""
        return self._ended_with.pop((row.part, row.offset), None)
