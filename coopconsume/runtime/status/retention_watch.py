"""Foresees for a job's verdict what Kafka's retention deletes before it is done."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from coopconsume.kafka.retention import OpenOffsets, forecast_retention
from coopconsume.runtime.events import RetentionForeseen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from commits.model import TopicPartition
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.kafka.retention import RetentionForecast
    from coopconsume.runtime.events import JobEvent
    from coopconsume.runtime.plan import Partition

log = logging.getLogger(__name__)

#: Seconds between two forecasts, and before the first one.
_LOOK_EVERY: Final = 30.0


class RetentionWatch:
    """Asks Kafka in a thread beside the loop what retention deletes next.

    Nothing waits for the answer. Where Kafka does not answer, the next look tries again.

    Args:
        cluster: The connection to the cluster.
        foresees: Takes a forecast, for the verdict.
        post: Puts an event into the loop's queue.
    """

    def __init__(
        self,
        cluster: Cluster,
        foresees: Callable[[RetentionForecast | None], None],
        post: Callable[[JobEvent], None],
    ) -> None:
        self._cluster = cluster
        self._foresees = foresees
        self._post = post
        self._is_asking = False
        self._look_at = time.monotonic() + _LOOK_EVERY

    def look(self, partitions: Iterable[Partition]) -> None:
        """Begins to ask about what is not done in partitions, if the last answer is old."""
        now = time.monotonic()
        if self._is_asking or now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY
        asks = threading.Thread(
            target=self._ask, args=(open_offsets(partitions),), name="coopconsume-retention",
            daemon=True,
        )  # fmt: skip
        with suppress(RuntimeError):  # no thread can be started: the next look may do
            asks.start()
            self._is_asking = True

    def take(self, event: RetentionForeseen) -> None:
        """Takes an answer."""
        self._is_asking = False
        self._foresees(event.forecast)

    def _ask(self, partitions: dict[TopicPartition, OpenOffsets]) -> None:
        forecast: RetentionForecast | None = None
        try:
            forecast = forecast_retention(self._cluster, partitions)
        except Exception as error:  # noqa: BLE001 - the job does not depend on it
            log.debug("what retention deletes next is not known: %s", error)
        self._post(RetentionForeseen(forecast))


def open_offsets(partitions: Iterable[Partition]) -> dict[TopicPartition, OpenOffsets]:
    """Returns what is not committed of partitions that have any of it."""
    found = {}
    for one in partitions:
        ledger = one.ledger
        if ledger.stable < ledger.end:
            done = ledger.committed
            found[one.topic, one.partition] = OpenOffsets(ledger.stable, ledger.end, done)
    return found
