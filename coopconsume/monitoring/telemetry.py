"""OpenTelemetry metrics of a query; needs the extra ``otel``."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from coopconsume.monitoring.listener import QueryListener
from coopconsume.monitoring.numbers import COUNTERS, GAUGES, JOB_GAUGES, PHASES, is_reported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.monitoring.listener import QueryProgressEvent, QueryTerminatedEvent
    from coopconsume.monitoring.numbers import Number


class OpenTelemetryListener(QueryListener):
    """Updates OpenTelemetry metrics from the progress of queries; it can serve several queries.

    The metrics have the attributes ``messaging.system``, ``messaging.consumer.group.name`` and
    ``messaging.client.id``. Metrics of a partition also have ``messaging.destination.name`` and
    ``messaging.destination.partition.id``.

    Args:
        meter_provider: The meter provider; by default the global one.
    """

    def __init__(self, meter_provider: Any = None) -> None:
        from opentelemetry import metrics

        meter = (meter_provider or metrics).get_meter("coopconsume")
        self._lock = threading.Lock()
        self._last: dict[str, dict[str, Any]] = {}
        self._counters = {
            number.field: meter.create_counter(number.metric, number.unit, number.doc)
            for number in COUNTERS
        }
        self._phases = meter.create_histogram(PHASES.metric, PHASES.unit, PHASES.doc)
        for number in (*GAUGES, *JOB_GAUGES):
            meter.create_observable_gauge(
                number.metric, [partial(self._observe, number)], number.unit, number.doc
            )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - PySpark's name
        """Update the metrics by the progress since the last event."""
        progress = event.progress
        with self._lock:
            before = self._last.get(progress["runId"])
            self._last[progress["runId"]] = progress
        of_query = _of_query(progress)
        totals = before["totals"] if before else {}
        for name, counter in self._counters.items():
            counter.add(progress["totals"][name] - totals.get(name, 0), of_query)
        for phase, millis in progress["durationMs"].items():
            if progress["numInputRows"]:
                self._phases.record(millis / 1000, of_query | {"coopconsume.phase": phase})

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Stop reporting the query."""
        with self._lock:
            self._last.pop(event.runId, None)

    def _observe(self, number: Number, _: Any) -> Iterator[Any]:
        """Yields a number of each running query, or of each of its partitions."""
        from opentelemetry.metrics import Observation

        with self._lock:
            running = list(self._last.values())
        for progress in running:
            of_query = _of_query(progress)
            if number in JOB_GAUGES:
                yield Observation(progress[number.field], of_query)
                continue
            for partition in progress["partitions"]:
                attributes = {
                    "messaging.destination.name": partition["topic"],
                    "messaging.destination.partition.id": str(partition["partition"]),
                }
                if is_reported(number, partition):
                    yield Observation(partition[number.field], of_query | attributes)


def _of_query(progress: dict[str, Any]) -> dict[str, str]:
    return {
        "messaging.system": "kafka",
        "messaging.consumer.group.name": progress["groupId"],
        "messaging.client.id": progress["clientId"],
        "coopconsume.query.name": progress["name"] or "",
    }
