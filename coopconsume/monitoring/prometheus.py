"""Prometheus metrics of a query; needs the extra ``prometheus``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from coopconsume.monitoring.listener import QueryListener
from coopconsume.monitoring.numbers import COUNTERS, EPOCH, GAUGES, PHASES

if TYPE_CHECKING:
    from coopconsume.monitoring.listener import QueryProgressEvent, QueryTerminatedEvent

_OF_QUERY = ("group", "query")
_OF_PARTITION = (*_OF_QUERY, "topic", "partition")


class PrometheusListener(QueryListener):
    """Feeds a query's numbers into Prometheus; one listener may serve several queries.

    ``prometheus_client.start_http_server(port)`` serves them; on a batch job, push them.

    Args:
        registry: By default the global one.
    """

    def __init__(self, registry: Any = None) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, Summary

        registry = registry or REGISTRY
        self._lock = threading.Lock()
        self._totals: dict[str, dict[str, int]] = {}
        self._partitions: dict[str, set[tuple[str, ...]]] = {}
        self._counters = {
            n.field: Counter(_name(n.metric), n.doc, _OF_QUERY, registry=registry) for n in COUNTERS
        }
        self._gauges = {
            n.field: Gauge(_name(n.metric), n.doc, _OF_PARTITION, registry=registry) for n in GAUGES
        }
        self._epoch = Gauge(_name(EPOCH.metric), EPOCH.doc, _OF_QUERY, registry=registry)
        self._phases = Summary(
            f"{_name(PHASES.metric)}_seconds", PHASES.doc, (*_OF_QUERY, "phase"), registry=registry
        )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - PySpark's name
        """Count what was done since the last event."""
        progress = event.progress
        query = (progress["groupId"], progress["name"] or "")
        run = progress["runId"]
        with self._lock:
            before = self._totals.get(run, {})
            self._totals[run] = progress["totals"]
            for name, counter in self._counters.items():
                counter.labels(*query).inc(progress["totals"][name] - before.get(name, 0))
            for phase, millis in progress["durationMs"].items():
                if progress["numInputRows"]:
                    self._phases.labels(*query, phase).observe(millis / 1000)
            self._epoch.labels(*query).set(progress["epoch"])
            places = {(*query, p["topic"], str(p["partition"])): p for p in progress["partitions"]}
            self._forget(self._partitions.get(run, set()) - set(places))
            self._partitions[run] = set(places)
            for place, partition in places.items():
                for name, gauge in self._gauges.items():
                    gauge.labels(*place).set(partition[name])

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """What has ended, or is another member's by now, is not told any more."""
        with self._lock:
            self._totals.pop(event.runId, None)
            self._forget(self._partitions.pop(event.runId, set()))

    def _forget(self, places: set[tuple[str, ...]]) -> None:
        for place in places:
            for gauge in self._gauges.values():
                gauge.remove(*place)


def _name(metric: str) -> str:
    return metric.replace(".", "_")
