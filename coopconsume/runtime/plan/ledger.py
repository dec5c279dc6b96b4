"""The ledger of a partition: what is done, what of it is committed, and how much may be. Pure."""

from __future__ import annotations

from commits import OffsetRanges
from commits.offsets import MAX_OFFSET
from coopconsume.runtime.plan.range_limit import read_limit


class OffsetLedger:
    """The offsets of a partition that are done, up to their commit.

    What is done is in ``done`` as far as it lies above the stable offset, and in one of these:
    ``undelivered``, ``to_commit``, ``holes_to_commit``, or what the commit log has (`committed`).
    `check` says so.

    Args:
        stable: The stable offset in the commit log.
        committed: What the log has above it.
        is_whole: Whether the slots of this member together have the whole key range.
        max_ranges: With 80 % of so many ranges above the stable offset nothing new is read.
        max_outputs_waiting: Records that may be done above the stable offset, as their outputs wait
            until it passes them; None: outputs do not wait.

    Attributes:
        to_commit: Records that are done and are not committed.
        holes_to_commit: Offsets without a record, likewise.
        filtered_to_commit: Those of ``to_commit`` and ``undelivered`` that did not pass the filter.
        undelivered: Handled records that are committed once their dead letters or rows are written.
        is_stalled: Whether what they gave cannot be written for now: they count as pending.
        unpublished: From which offset on outputs cannot be published for now, and why; None: they
            can.
        log_ranges: Ranges in the commit log, those of other members among them.
        log_last: The highest offset in the commit log, of any member; -1: none above the stable
            offset.
        is_ours: Whether any key range of the partition is still ours. If not, what slots still
            report of it counts for nothing.
        is_quiet: Whether nothing is left to do, commit or wait for, so that turns of the loop pass
            over the partition.
    """

    def __init__(
        self,
        stable: int,
        committed: OffsetRanges,
        *,
        is_whole: bool,
        max_ranges: int = 1_000_000,
        max_outputs_waiting: int | None = None,
    ) -> None:
        self.stable = stable
        self.done = committed
        self.to_commit = self.holes_to_commit = self.filtered_to_commit = OffsetRanges()
        self.undelivered = OffsetRanges()
        self.is_stalled = False
        self.is_whole = is_whole
        self.max_ranges = max_ranges
        self.max_outputs_waiting = max_outputs_waiting
        self.unpublished: tuple[int, str] | None = None
        self.log_ranges = committed.range_count
        self.log_last = -1 if committed.last is None else committed.last
        self.is_ours = True
        self.is_quiet = False
        self._end = stable
        self._first_open_since = (-1, 0.0)

    @property
    def end(self) -> int:
        """The end of the partition's log, as far as it was seen."""
        return self._end

    @end.setter
    def end(self, end: int) -> None:
        if end != self._end:
            self._end, self.is_quiet = end, False

    def wake(self) -> None:
        """Notes that something has changed: the partition is not quiet until it is looked at."""
        self.is_quiet = False

    # -- what is known

    @property
    def committed(self) -> OffsetRanges:
        """What the commit log has above its stable offset, as far as it is ours."""
        return self.done - self.to_commit - self.holes_to_commit - self.undelivered

    @property
    def has_uncommitted(self) -> bool:
        """Whether anything that is done waits for its commit."""
        return bool(self.to_commit or self.holes_to_commit or self.undelivered)

    @property
    def stalled(self) -> int:
        """How many records wait as what they gave cannot be written for now."""
        return len(self.undelivered) if self.is_stalled else 0

    @property
    def ranges(self) -> int:
        """Ranges above the stable offset, as they count for the limit.

        Where others have parts of the partition, their records lie between ours: only the log
        knows how many ranges there are.
        """
        return self.done.range_count if self.is_whole else self.log_ranges

    @property
    def outputs_waiting(self) -> int:
        """Records whose outputs wait to be published; 0 if outputs do not wait.

        They wait behind a record that is not done, or as their topic does not take them for now:
        then offsets below the stable offset are counted.
        """
        if self.max_outputs_waiting is None:
            return 0
        behind = self.stable - self.unpublished[0] if self.unpublished else 0
        return len(self.done) - (self.first_open() - self.stable) + max(0, behind)

    @property
    def has_outputs_enough(self) -> bool:
        """Whether so many outputs wait that nothing new may be read."""
        most = self.max_outputs_waiting
        return most is not None and self.outputs_waiting >= most

    @property
    def is_at_limit(self) -> bool:
        """Whether there are so many ranges, or outputs wait, that nothing new may be read."""
        return self.ranges >= read_limit(self.max_ranges) or self.has_outputs_enough

    def first_open(self, passed: OffsetRanges | None = None) -> int:
        """Returns the stable offset as it will be once all that is done is committed.

        Args:
            passed: Offsets that are passed over like those that are done.
        """
        done = self.done if passed is None else self.done | passed
        end = done.range_end(self.stable)
        return self.stable if end is None else end + 1

    def stable_age(self, now: float) -> float:
        """Returns for how many seconds the first open offset has been the same, as far as known."""
        first = self.first_open()
        if self._first_open_since[0] != first:
            self._first_open_since = first, now
        return now - self._first_open_since[1]

    def check(self) -> None:
        """Checks that each offset that is done is in one place.

        Raises:
            AssertionError: One is in two of them, or below the stable offset.
        """
        done = self.done | self.undelivered
        assert done.first is None or done.first >= self.stable, "done below the stable offset"
        assert not self.to_commit & self.undelivered, "committed before its rows are written"
        assert not self.to_commit & self.holes_to_commit, "a record and a hole"
        assert not self.holes_to_commit.clip(self.stable, MAX_OFFSET) - self.done, "a hole is open"
        open_ones = self.to_commit | self.undelivered
        filtered = self.filtered_to_commit.clip(self.stable, MAX_OFFSET)
        assert not filtered - open_ones, "filtered, and not to commit"

    # -- what happens

    def _add(self, done: OffsetRanges) -> None:
        """Adds what is done, as far as the stable offset has not passed it meanwhile."""
        self.is_quiet = False
        self.done |= done.clip(self.stable, MAX_OFFSET)

    def settle(self, done: OffsetRanges, filtered: OffsetRanges | None = None) -> None:
        """Adds records that are done; those that did not pass the filter are among them."""
        self._add(done)
        self.to_commit |= done
        if filtered is not None:
            self.filtered_to_commit |= filtered

    def add_holes(self, holes: OffsetRanges) -> None:
        """Adds proven holes."""
        self._add(holes)
        self.holes_to_commit |= holes

    def add_committed(self, committed: OffsetRanges) -> None:
        """Adds what the commit log has of key ranges that come."""
        self._add(committed)

    def replace_committed(self, committed: OffsetRanges) -> None:
        """Takes what the commit log has above the stable offset, of any member."""
        self.is_quiet = False
        ours = self.to_commit | self.holes_to_commit | self.undelivered
        self.done = ((self.done & ours) | committed).clip(self.stable, MAX_OFFSET)

    def discard(self, offset: int) -> None:
        """Counts a parked record as done: the decision on it is its commit."""
        self._add(OffsetRanges([(offset, offset)]))

    def defer(self, offsets: OffsetRanges) -> None:
        """Defers offsets: they are committed once their dead letters or rows are written."""
        self.is_quiet = False
        self.undelivered |= offsets.clip(self.stable, MAX_OFFSET)
        self.to_commit -= offsets

    def hold_back(self, offset: int) -> None:
        """Counts a deferred record as not done, as its letter or rows cannot be written now."""
        self.is_quiet = False
        self.done -= OffsetRanges([(offset, offset)])

    def delivered(self, offsets: OffsetRanges) -> None:
        """Takes deferred records whose dead letters or rows are written and committed."""
        self.undelivered -= offsets
        self._add(offsets)

    def log_has(self, ranges: int, last: int) -> None:
        """Takes how many ranges the commit log has, and the highest offset in it; -1: none."""
        self.log_ranges, self.log_last = ranges, last

    def commit_answered(self, offsets: OffsetRanges, holes: OffsetRanges) -> None:
        """Takes what the commit log has committed."""
        self.is_quiet = False
        self.to_commit -= offsets
        self.filtered_to_commit -= offsets
        self.holes_to_commit -= holes

    def not_held(self, offsets: OffsetRanges) -> None:
        """Takes offsets of a commit that did not count: another member has acquired them."""
        self.is_quiet = False
        self.done -= offsets.clip(self.stable, MAX_OFFSET)

    def close(self) -> None:
        """Forgets what is not committed: nothing of the partition is ours any more."""
        self.is_ours = self.is_quiet = False
        self.to_commit = self.holes_to_commit = self.filtered_to_commit = OffsetRanges()

    def advance(self, stable: int) -> bool:
        """Takes a stable offset or a start of the log; returns whether it lies above the last."""
        self.is_quiet = False
        if stable <= self.stable:
            return False
        self.stable = stable
        self.done = self.done.clip(stable, MAX_OFFSET)
        self.undelivered = self.undelivered.clip(stable, MAX_OFFSET)
        if self.filtered_to_commit:
            self.filtered_to_commit &= self.to_commit | self.undelivered
        return True
