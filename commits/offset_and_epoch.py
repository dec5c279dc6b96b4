"""An offset with its leader epoch. Slots use it, too: the standard library is all it needs."""

from __future__ import annotations

from typing import NamedTuple


class OffsetAndEpoch(NamedTuple):
    """An offset that a partition's log had reached in a leader epoch (KIP-320).

    If the leader epoch ends at a lower offset in the log of today, an unclean election has cut the
    log since.

    Attributes:
        offset: The offset after the last record.
        leader_epoch: The leader epoch.
    """

    offset: int
    leader_epoch: int
