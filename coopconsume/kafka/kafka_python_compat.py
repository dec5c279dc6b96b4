"""All uses of kafka-python's private names by a group member (kafka-python 3.0.12)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coopconsume.kafka.pattern import TopicPattern

log = logging.getLogger(__name__)


def request_rejoin(consumer: Any) -> None:
    """Request that the consumer rejoins its group at the next poll."""
    consumer._coordinator.request_rejoin()  # noqa: SLF001


def subscribe(
    consumer: Any, topics: Sequence[str], pattern: TopicPattern | None, listener: Any
) -> None:
    """Subscribe to topics, or to all topics that a pattern matches.

    kafka-python matches a pattern at the start of names. It therefore gets a pattern that matches
    no name, which this function replaces before kafka-python uses it.
    """
    if pattern is None:
        consumer.subscribe(topics=topics, listener=listener)
        return
    consumer.subscribe(pattern=r"(?!)", listener=listener)
    consumer._subscription.subscribed_pattern = pattern  # noqa: SLF001
    consumer._cluster.request_update()  # noqa: SLF001


async def pause(consumer: Any, seconds: float) -> None:
    """Sleep in the event loop of the consumer's I/O thread."""
    await consumer._net.sleep(seconds)  # noqa: SLF001


def coordinate(consumer: Any, timeout_ms: int) -> bool:
    """Join the group if needed and send heartbeats: the part of a poll before the fetch.

    A consumer that fetches nothing would sleep for the rest of a poll.

    Returns:
        Whether it is complete; otherwise the next call continues it.
    """
    return bool(consumer._coordinator.poll(timeout_ms=timeout_ms))  # noqa: SLF001


def keep_answers(consumer: Any) -> None:
    """Keep the answer of a join that arrives between two polls.

    A join of kafka-python continues after the end of a poll. If it is complete before the next
    poll, kafka-python starts another one. That would be another rebalance of the whole group, and
    an epoch that nobody uses.
    """
    coordinator = consumer._coordinator  # noqa: SLF001
    join, complete = (
        getattr(coordinator, name, None)
        for name in ("_do_join_and_sync_async", "_on_join_complete_async")
    )
    if join is None or complete is None:
        log.debug("this kafka-python does not join groups as version 3.0.12 does")
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
