"""What a member needs of kafka-python and has no public name there, all in one place (3.0.12)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.kafka.pattern import TopicPattern

log = logging.getLogger(__name__)


def request_rejoin(consumer: Any) -> None:
    """Join again with the next poll."""
    consumer._coordinator.request_rejoin()  # noqa: SLF001


def subscribe(
    consumer: Any, topics: Sequence[str], pattern: TopicPattern | None, listener: Any
) -> None:
    """Subscribe to topics, or to all topics that a pattern matches.

    kafka-python compares a pattern with the beginnings of names, so it gets one that matches none,
    and ours in its place before it looks at any topic.
    """
    if pattern is None:
        consumer.subscribe(topics=topics, listener=listener)
        return
    consumer.subscribe(pattern=r"(?!)", listener=listener)
    consumer._subscription.subscribed_pattern = pattern  # noqa: SLF001
    consumer._cluster.request_update()  # noqa: SLF001


async def pause(consumer: Any, seconds: float) -> None:
    """Sleep on the loop of its I/O thread."""
    await consumer._net.sleep(seconds)  # noqa: SLF001


def coordinate(consumer: Any, timeout_ms: int) -> bool:
    """Join if need be, and show that somebody is there: what a poll does before it fetches.

    Whoever fetches nothing would sleep for the rest of a poll.

    Returns:
        Whether it is through; else it goes on with the next call.
    """
    return bool(consumer._coordinator.poll(timeout_ms=timeout_ms))  # noqa: SLF001


def keep_answers(consumer: Any) -> None:
    """Take the answer of a join that came in between two polls.

    kafka-python lets a join go on when a poll ends, and starts another one when it has ended by the
    next poll. That is another rebalance for the whole group, and an epoch nobody works under.
    """
    coordinator = consumer._coordinator  # noqa: SLF001
    join, complete = (
        getattr(coordinator, name, None)
        for name in ("_do_join_and_sync_async", "_on_join_complete_async")
    )
    if join is None or complete is None:
        log.debug("kafka-python joins in another way than that of 3.0.12")
        return
    kept: list[tuple[Any, bytes]] = []

    async def join_once() -> bytes:
        if kept:
            generation, earlier = kept.pop()
            if coordinator._generation is generation:  # noqa: SLF001
                return earlier
        answer: bytes = await join()
        kept[:] = [(coordinator._generation, answer)]  # noqa: SLF001
        return answer

    async def complete_once(*joined: Any) -> None:
        kept.clear()
        await complete(*joined)

    coordinator._do_join_and_sync_async = join_once  # noqa: SLF001
    coordinator._on_join_complete_async = complete_once  # noqa: SLF001
