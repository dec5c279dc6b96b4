"""Access modes of a producer (PIP-68)."""

from __future__ import annotations

from enum import StrEnum


class AccessMode(StrEnum):
    """Access to a log, in Pulsar's terms (PIP-68).

    Attributes:
        SHARED: Any number of shared producers write to the log.
        EXCLUSIVE: One producer; refused at once if there is another one.
        EXCLUSIVE_WITH_FENCING: One producer, at once; fences current and waiting producers.
        WAIT_FOR_EXCLUSIVE: One producer; waits until earlier ones are closed, in order.
    """

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    EXCLUSIVE_WITH_FENCING = "exclusive-with-fencing"
    WAIT_FOR_EXCLUSIVE = "wait-for-exclusive"
