"""What blocks the stable offset of a partition: the state of the first offset that is not done."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from coopconsume.runtime.plan.cursor import SlotCursor
    from coopconsume.runtime.plan.waiting_record import Waiting


def waiting_at(offset: int, cursors: Collection[SlotCursor]) -> Waiting | None:
    """Returns the failed record at an offset, or the one that it waits for; None: neither."""
    for cursor in cursors:
        for waiting in cursor.waiting.records():
            if waiting.offset == offset or offset in waiting.behind:
                return waiting
    return None


def blocker_at(
    offset: int, cursors: Collection[SlotCursor], failed: Waiting | None, now: float
) -> dict[str, Any]:
    """Returns the state of an offset that is not done, for progress events and messages.

    ``state`` is ``failed`` (waits for its next attempt in ``dueInSeconds``, in a real-time
    ``slot`` or for a batch), ``parked``, ``in flight`` (in ``slot``), ``to do``, or ``elsewhere``
    if the offset is not ours. It failed first ``failingSeconds`` ago, if that is known.

    Args:
        offset: The offset.
        cursors: The cursors of its partition that are ours.
        failed: Its last failure, if it has failed.
        now: The time, on the monotonic clock.
    """
    slot = next((cursor.slot for cursor in cursors if cursor.handles(offset)), None)
    state, due = "elsewhere", math.inf
    if slot is not None and failed is not None and failed.is_between_attempts(now):
        state, due = "failed", failed.due
    elif slot is not None:
        state = "in flight"
    elif (waiting := waiting_at(offset, cursors)) is not None:
        waits = "to do" if waiting.is_running else "failed"
        state, due = "parked" if waiting.is_parked else waits, waiting.due
    elif any(offset in s.todo or offset >= s.position for s in cursors):
        state = "to do"
    since = failed.since if failed else None
    return {
        "offset": offset,
        "state": state,
        "slot": slot,
        "key": failed.key if failed else None,
        "keyHash": failed.key_hash if failed else None,
        "attempts": failed.attempts if failed else 0,
        "failingSeconds": None if since is None else round(max(0.0, now - since), 1),
        "dueInSeconds": None if due == math.inf else round(max(0.0, due - now), 1),
        "error": failed.error if failed else "",
        "behind": len(failed.behind) if failed else 0,
    }
