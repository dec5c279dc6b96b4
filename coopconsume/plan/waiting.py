"""A failed record that is not due yet, and what waits behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from coopconsume.plan.reads import is_far_apart

#: Bytes of a key that people are shown.
SHOWN_KEY_BYTES = 100


@dataclass
class Waiting:
    """A failed record that is not due yet, and what waits behind it.

    Attributes:
        offset, key_hash: Which record.
        attempts: Failures so far.
        due: When it is tried again, on the monotonic clock; infinity: it is parked until
            somebody decides about it.
        error: What the handler said.
        key: Its key for people, where this process has seen it.
        behind: Offsets of the same lane that must wait for it.
        is_trying: Whether it is due and to be tried again, alone, while they wait on.
    """

    offset: int
    key_hash: int
    attempts: int
    due: float
    error: str
    key: bytes | None = None
    behind: list[int] = field(default_factory=list)
    is_trying: bool = False

    @property
    def is_far(self) -> bool:
        """Whether what waits behind it is not read in passing."""
        behind = self.behind
        # A lower one behind it was done by a worker that ended: it goes first again.
        return bool(behind) and min(behind) > self.offset and is_far_apart(self.offset, max(behind))

    @property
    def held(self) -> list[int]:
        """The offsets that are not to be started now."""
        return self.behind if self.is_trying else [self.offset, *self.behind]

    @property
    def is_parked(self) -> bool:
        """Whether it waits until somebody decides about it."""
        return self.due == math.inf


def shown_key(key: bytes) -> str:
    """A key for people."""
    return key[:SHOWN_KEY_BYTES].decode("utf-8", "backslashreplace")
