"""What holds an offset that is not done: where it stands, and what of it has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.runtime.plan.waiting import shown_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from coopconsume.runtime.plan.share import Share
    from coopconsume.runtime.plan.waiting import Waiting


def waiting_for(offset: int, shares: Collection[Share]) -> Waiting | None:
    """The failed record that an offset is, or waits for; None if there is none."""
    for share in shares:
        for waiting in share.failed():
            if waiting.offset == offset or offset in waiting.behind:
                return waiting
    return None


def told(offset: int, shares: Collection[Share], failed: Waiting | None) -> dict[str, Any]:
    """What holds an offset, for people and progress.

    Args:
        offset: Which.
        shares: All of its partition that are ours.
        failed: How it failed the last time, if it did.
    """
    slot = next((share.slot for share in shares if share.handles(offset)), None)
    state = "elsewhere"
    if slot is not None:
        state = "in flight"
    elif (blocker := waiting_for(offset, shares)) is not None:
        waits = "to do" if blocker.is_running else "failed"
        state = "parked" if blocker.is_parked else waits
    elif any(offset in s.todo or offset >= s.position for s in shares):
        state = "to do"
    return {
        "offset": offset,
        "state": state,
        "slot": slot,
        "key": None if failed is None or failed.key is None else shown_key(failed.key),
        "keyHash": failed.key_hash if failed else None,
        "attempts": failed.attempts if failed else 0,
        "error": failed.error if failed else "",
        "behind": len(failed.behind) if failed else 0,
    }
