"""How a producer wants to have a log: beside others, alone, or alone as soon as it can (PIP-68)."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["AccessMode"]


class AccessMode(StrEnum):
    """Access to a log, in Pulsar's terms (PIP-68).

    Attributes:
        SHARED: Beside any number of other shared producers.
        EXCLUSIVE: Alone; refused at once if anybody else is there.
        EXCLUSIVE_WITH_FENCING: Alone, at once: whoever is there or waits is fenced.
        WAIT_FOR_EXCLUSIVE: Alone, as soon as those before it have gone, in the order of asking.
    """

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    EXCLUSIVE_WITH_FENCING = "exclusive-with-fencing"
    WAIT_FOR_EXCLUSIVE = "wait-for-exclusive"
