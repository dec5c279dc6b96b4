"""Whether conditional appends to several logs can have happened one after another.

Only the calls and their answers count: nothing is read from the logs. The state is the number of
records of each log; an append is a compare-and-set of all of its logs at once, so that the history
is judged as a whole and not log by log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coopconsume.testing.history.linear import NEVER, search

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


State = frozenset[tuple[str, int]]


@dataclass(frozen=True, eq=False)
class Append:
    """One append, as its caller saw it.

    Attributes:
        called: When it was called; any clock that all callers share.
        answered: When the answer came; `NEVER` if it is not known whether it was appended.
        counts: Number of records for each log.
        expected: Sequence number that was expected of each log; a log without one is not checked.
        placed: The first sequence number of each log, if it was appended; None if it was refused
            as a log went on elsewhere.
        actual: Of a refused append, the logs that went on elsewhere, and where.
    """

    called: float
    answered: float
    counts: Mapping[str, int]
    expected: Mapping[str, int]
    placed: Mapping[str, int] | None = None
    actual: Mapping[str, int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether its outcome is not known."""
        return self.answered == NEVER

    def after(self, state: State) -> tuple[bool, State]:
        """Whether its answer is right if it happens in some state, and the state after it."""
        at = dict(state)
        fits = all(at.get(log, 0) == seq for log, seq in self.expected.items())
        added = {log: at.get(log, 0) + count for log, count in self.counts.items()}
        grown = frozenset((at | added).items())
        if self.is_open:
            return True, grown if fits else state
        if self.placed is not None:
            in_place = all(at.get(log, 0) == seq for log, seq in self.placed.items())
            return fits and in_place, grown
        is_actual = all(at.get(log, 0) == seq for log, seq in (self.actual or {}).items())
        return not fits and is_actual, state


@dataclass(frozen=True)
class Unplaced:
    """A history that cannot have happened one after another.

    Attributes:
        explained: The longest beginning that can be explained, in an order that does.
        stuck: Appends, none of them possible as the next.
        state: Number of records of each log after those explained.
    """

    explained: tuple[Append, ...]
    stuck: tuple[Append, ...]
    state: State


def check_appends(appends: Iterable[Append]) -> Unplaced | None:
    """Judges a history of appends to logs that were empty at first.

    Args:
        appends: All appends of all callers; those that failed with nothing appended may be left
            out.

    Returns:
        None if the history is linearisable.
    """
    found = search(list(appends), State())
    return None if found is None else Unplaced(*found)
