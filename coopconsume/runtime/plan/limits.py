"""The limits of a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of a plan; a partition's own limit on ranges applies as well.

    Attributes:
        window: Offsets in a batch.
        max_pending: Pending records of a partition, and records that wait behind them.
    """

    window: int
    max_pending: int
