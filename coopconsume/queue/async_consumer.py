"""`AsyncQueueConsumer`: the queue consumer for asyncio."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, Self

from coopconsume.queue.acknowledge_type import ACCEPT
from coopconsume.queue.consumer import QueueConsumer
from coopconsume.record import KeyT_co, ValueT_co

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.queue.acknowledge_type import AcknowledgeType
    from coopconsume.queue.consumer import QueueCommit
    from coopconsume.record import Record


class AsyncQueueConsumer(Generic[KeyT_co, ValueT_co]):
    """A `QueueConsumer` whose calls do not block the event loop; they run in one thread, in turn.

    The arguments and errors are those of `QueueConsumer`. A call that is cancelled still ends in
    its thread; records that it acquired are free again when their hold ends.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._consumer = QueueConsumer(*args, **kwargs)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-queue")
        self._is_closed = False

    async def poll(
        self,
        max_records: int = 500,
        timeout: float = 1.0,  # noqa: ASYNC109
    ) -> list[Record[KeyT_co, ValueT_co]]:
        """Acquire free records; see `QueueConsumer.poll`."""
        found: list[Record[KeyT_co, ValueT_co]] = await self._run(
            self._consumer.poll, max_records, timeout
        )
        return found

    async def acknowledge(
        self,
        record: Record[Any, Any],
        kind: AcknowledgeType | str = ACCEPT,
        *,
        delay: float = 0.0,
        reason: object = "",
    ) -> None:
        """Acknowledge a record; see `QueueConsumer.acknowledge`."""
        await self._run(
            lambda: self._consumer.acknowledge(record, kind, delay=delay, reason=reason)
        )

    async def commit(self, timeout: float = 30.0) -> QueueCommit:  # noqa: ASYNC109
        """Write the acknowledgements; see `QueueConsumer.commit`."""
        done: QueueCommit = await self._run(self._consumer.commit, timeout)
        return done

    async def close(self) -> None:
        """Close the consumer; see `QueueConsumer.close`."""
        try:
            await self._run(self._consumer.close)
        finally:
            self._end_thread()

    async def __aenter__(self) -> Self:
        try:
            await self._run(self._consumer.__enter__)
        except BaseException:
            self._end_thread()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _end_thread(self) -> None:
        self._is_closed = True
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        if self._is_closed:
            return call(*args)  # a closed consumer answers at once
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)
