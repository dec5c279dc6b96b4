"""The lost slots of a job of the demo, from the lines of its log.

The job logs such a line before it plans the slot's records again. So each repeat of them starts
later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from coopconsume.testing.history import Disturbance, Kill, Seen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Committed = Mapping[tuple[str, int], list[tuple[int, int]]]


@dataclass(frozen=True)
class LostSlot:
    """A slot whose worker ended before the slot did, or that never reported.

    Attributes:
        slot: Its number.
        pid: The process id of its worker; 0: it is not known.
        reason: What happened, in words.
        at_ns: When the job logged it, as ``time.monotonic_ns()``.
        until_ns: Until when handlers of it may run; ``at_ns`` if its worker has ended.
        committed: Offsets that were committed before.
    """

    slot: int
    pid: int
    reason: str
    at_ns: int
    until_ns: int
    committed: Committed

    @classmethod
    def of(cls, event: Mapping[str, Any], committed: Committed) -> LostSlot:
        """Returns the slot that a line of the log with ``lostSlot`` is about."""
        facts = event["context"]["lostSlot"]
        logged = datetime.fromisoformat(event["ts"]).timestamp()
        at_ns = time.monotonic_ns() - int(1e9 * (time.time() - logged))
        until_ns = at_ns + int(1e9 * facts["mayRunFor"])
        return cls(
            facts["slot"],
            facts["pid"],
            reason=facts["reason"],
            at_ns=at_ns,
            until_ns=until_ns,
            committed=committed,
        )

    @property
    def has_ended(self) -> bool:
        """Whether its worker has ended."""
        return self.until_ns == self.at_ns


def excuses(lost: Sequence[LostSlot]) -> tuple[list[Kill], Seen]:
    """Returns what lost slots excuse, for the checker: repeats of what was not committed then."""
    ended = [Kill(one.at_ns, one.committed, frozenset({one.pid})) for one in lost if one.has_ended]
    disturbances = [
        Disturbance(one.at_ns, one.until_ns, frozenset({one.pid}))
        for one in lost
        if one.pid and not one.has_ended
    ]
    return ended, Seen(disturbances, [(one.at_ns, one.committed) for one in lost])
