"""The entries of a group's history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commits.model import Doubt
    from commits.partition_commits import Answer
    from commits.rows import Event, Part


def history_entry(
    version: int, event: Event, answer: Answer, doubts: Sequence[Doubt] = ()
) -> dict[str, Any]:
    """Return the history entry of an event, its answer and the shares in doubt after it.

    See `CommitStore.history`.
    """
    filtered = {(topic, number): count for topic, number, count in event.detail.get("filtered", ())}
    return {
        "version": version,
        "written_at": event.written_at,
        "kind": event.kind,
        "id": event.id,
        "epoch": event.epoch.number if event.epoch else None,
        "nonce": event.epoch.nonce if event.epoch else None,
        "generation": event.generation,
        "member": event.member,
        "counted": answer.counted,
        "reason": answer.reason,
        "detail": dict(event.detail),
        "doubts": list(doubts),
        "partitions": [
            _partition(part, answer, filtered.get(part.topic_partition, 0)) for part in event.parts
        ],
    }


def _partition(part: Part, answer: Answer, filtered: int) -> dict[str, Any]:
    result = answer.results.get(part.topic_partition)
    return {
        "topic": part.topic,
        "partition": part.partition,
        "first": part.first,
        "last": part.last,
        "count": len(part.offsets),
        "filtered": filtered,
        "holes": len(part.holes),
        "pending": len(part.pending),
        "status": result.status if result else "",
        "reason": result.reason if result else "",
        "stable_offset": result.stable_offset if result else None,
    }
