"""How far logs reached in which leader epoch; positions are checked against that. Pure.

A broker can say where a leader epoch ended (KIP-320). If that is below a position up to which the
log reached in that epoch, the log was cut by an unclean election. A position that was reached in a
later epoch lies above the end of the earlier one after an ordinary election, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commits import OffsetAndEpoch


class Start(NamedTuple):
    """Where to read a log from, and in which leader epoch the log reached that; None: not known."""

    offset: int
    leader_epoch: int | None = None


class LogReach:
    """How far logs reached in which leader epoch, by what was read of them.

    Args:
        known: How far they are known to reach, by index of the partition.
    """

    def __init__(self, known: Mapping[int, OffsetAndEpoch]) -> None:
        self._known = dict(known)

    def saw(self, part: int, reached: OffsetAndEpoch | None) -> None:
        """Notes how far the log of a partition was seen to reach."""
        before = self._known.get(part)
        if reached is not None and (before is None or reached.offset > before.offset):
            self._known[part] = reached

    def start(self, part: int, offset: int) -> Start:
        """Returns where to read a partition from; without an epoch beyond what was seen."""
        known = self._known.get(part)
        is_reached = known is not None and offset <= known.offset
        return Start(offset, known.leader_epoch if known is not None and is_reached else None)
