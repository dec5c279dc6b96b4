"""All uses of kafka-python's private names (kafka-python 3.0.12)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from coopconsume.kafka.pattern import TopicPattern

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The types of coordinators in Kafka's protocol.
GROUP_COORDINATOR: Final = 0
TRANSACTION_COORDINATOR: Final = 1


def connected(client_type: Any, **config: Any) -> Any:
    """Create an admin client or a consumer.

    If no broker answers, its constructor raises and leaves a thread and connections behind, which
    this function closes.
    """
    from kafka.net.compat import KafkaNetClient

    clients: list[Any] = []

    def client(**settings: Any) -> Any:
        clients.append(KafkaNetClient(**settings))
        return clients[0]

    try:
        return client_type(**config, kafka_client=client)
    except BaseException:
        for one in clients:
            one.close()
        raise


def broker_version(admin: Any) -> tuple[int, ...]:
    """Return the version of the brokers, as an admin client has found it."""
    found: tuple[int, ...] = admin._manager.broker_version  # noqa: SLF001
    return found


def run(admin: Any, call: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
    """Run a coroutine in the I/O thread of an admin client, which is its first argument."""
    answer: T = admin._manager.run(call, admin, *args)  # noqa: SLF001
    return answer


async def send(admin: Any, request: Any, node: int) -> Any:
    """Send a request to a broker, for a coroutine of `run`; return the answer."""
    return await admin._manager.send(request, node_id=node)  # noqa: SLF001


async def coordinators(
    admin: Any, names: Sequence[str], kind: int = GROUP_COORDINATOR
) -> dict[str, int]:
    """Return the brokers that coordinate some groups or transactional ids, for `run`."""
    found: dict[str, int] = await admin._find_coordinator_ids(names, kind)  # noqa: SLF001
    return found


def forget_coordinators(admin: Any) -> None:
    """Clear the coordinator cache of an admin client.

    The client never refreshes it, and keeps asking a coordinator that has lost its groups or died.
    """
    admin._manager.cluster._coordinators.clear()  # noqa: SLF001


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


def close_member(consumer: Any, timeout_ms: int) -> bool:
    """Close a consumer, which leaves its group.

    Args:
        consumer: The consumer.
        timeout_ms: How long its group's answer is waited for.

    Returns:
        Whether the group has answered, or the consumer had nothing to leave.
    """
    coordinator = consumer._coordinator  # noqa: SLF001
    handle = getattr(coordinator, "_handle_leave_group_response", None)
    answers: list[Any] = []
    is_member = (
        handle is not None
        and coordinator.is_dynamic_member()
        and coordinator._generation.has_member_id()  # noqa: SLF001
    )

    def note(answer: Any) -> None:
        answers.append(answer)
        handle(answer)  # type: ignore[misc]

    if is_member:
        coordinator._handle_leave_group_response = note  # noqa: SLF001
    consumer.close(autocommit=False, timeout_ms=timeout_ms)
    return bool(answers) or not is_member


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


def watch_heartbeats(
    consumer: Any, clock: Callable[[], float], accepted: Callable[[int, float], None]
) -> None:
    """Call a function with each heartbeat that the group's coordinator has accepted.

    It is accepted as well while the group rebalances: only the next generation ends this one.

    Args:
        consumer: The consumer.
        clock: The time, in seconds.
        accepted: Gets the generation of the heartbeat, and when it was sent; called in the
            consumer's I/O thread.
    """
    from kafka.errors import RebalanceInProgressError

    coordinator = consumer._coordinator  # noqa: SLF001
    send = getattr(coordinator, "_send_heartbeat_request", None)
    if send is None:
        log.debug("this kafka-python does not send heartbeats as version 3.0.12 does")
        return

    async def send_and_note() -> Any:
        generation, sent = coordinator._generation.generation_id, clock()  # noqa: SLF001
        try:
            answer = await send()
        except RebalanceInProgressError:
            accepted(generation, sent)
            raise
        accepted(generation, sent)
        return answer

    coordinator._send_heartbeat_request = send_and_note  # noqa: SLF001
