"""Prometheus metrics of a query; needs the extra ``prometheus``."""

from __future__ import annotations

import math
import threading
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from coopconsume.monitoring.listener import QueryListener
from coopconsume.monitoring.numbers import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    JOB_GAUGES,
    PHASES,
    is_reported,
)
from coopconsume.worker.histogram import BOUNDS, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.monitoring.listener import QueryProgressEvent, QueryTerminatedEvent
    from coopconsume.monitoring.numbers import Number

#: Seconds: from calls of a function to requests that wait for their timeout.
_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_OF_QUERY = ("group", "query", "member")
_OF_PARTITION = (*_OF_QUERY, "topic", "partition")


class PrometheusListener(QueryListener):
    """Updates Prometheus metrics from the progress of queries; it can serve several queries.

    Serve them by ``prometheus_client.start_http_server(port)``. A batch job pushes them.

    Args:
        registry: The registry; by default the global one.
    """

    def __init__(self, registry: Any = None) -> None:
        import prometheus_client
        from prometheus_client import Counter, Gauge

        registry = registry or prometheus_client.REGISTRY
        self._lock = threading.Lock()
        self._totals: dict[str, dict[str, int]] = {}
        #: The labels of runs that have reported, without those of partitions.
        self._queries: dict[str, tuple[str, str, str]] = {}
        #: The gauges of partitions that a run reports: name and labels.
        self._series: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
        self._counters = {
            n.field: Counter(metric_name(n), n.doc, _OF_QUERY, registry=registry) for n in COUNTERS
        }
        self._gauges = {
            n.field: Gauge(metric_name(n), n.doc, _OF_PARTITION, registry=registry) for n in GAUGES
        }
        self._job_gauges = {
            n.field: Gauge(metric_name(n), n.doc, _OF_QUERY, registry=registry) for n in JOB_GAUGES
        }
        self._histograms = _Histograms()
        registry.register(self._histograms)
        self._phases = prometheus_client.Histogram(
            metric_name(PHASES),
            PHASES.doc,
            (*_OF_QUERY, "phase"),
            registry=registry,
            buckets=_BUCKETS,
        )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - PySpark's name
        """Update the metrics by the progress since the last event."""
        progress = event.progress
        query = (progress["groupId"], progress["name"] or "", progress["clientId"])
        run = progress["runId"]
        with self._lock:
            self._queries[run] = query
            before = self._totals.get(run, {})
            self._totals[run] = progress["totals"]
            for name, counter in self._counters.items():
                counter.labels(*query).inc(progress["totals"][name] - before.get(name, 0))
            for phase, millis in progress["durationMs"].items():
                if progress["numInputRows"]:
                    self._phases.labels(*query, phase).observe(millis / 1000)
            self._histograms.add(query, progress)
            for name, gauge in self._job_gauges.items():
                gauge.labels(*query).set(progress[name])
            by_labels = {
                (*query, p["topic"], str(p["partition"])): p for p in progress["partitions"]
            }
            now = {
                (number.field, labels): partition[number.field]
                for labels, partition in by_labels.items()
                for number in GAUGES
                if is_reported(number, partition)
            }
            self._remove(self._series.get(run, set()) - now.keys())
            self._series[run] = set(now)
            for (name, labels), value in now.items():
                self._gauges[name].labels(*labels).set(value)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Remove the gauges of the query and of its partitions."""
        with self._lock:
            self._totals.pop(event.runId, None)
            self._remove(self._series.pop(event.runId, set()))
            query = self._queries.pop(event.runId, None)
            if query is not None and query not in self._queries.values():
                for gauge in self._job_gauges.values():
                    gauge.remove(*query)

    def _remove(self, series: set[tuple[str, tuple[str, ...]]]) -> None:
        for name, labels in series:
            self._gauges[name].remove(*labels)


class _Histograms:
    """Collects histograms that are counted elsewhere: the client's own count one by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[Number, dict[tuple[str, ...], Histogram]] = {n: {} for n in HISTOGRAMS}

    def add(self, query: tuple[str, ...], progress: dict[str, Any]) -> None:
        """Adds what a query has counted since its last event."""
        with self._lock:
            for number, sums in self._sums.items():
                new = Histogram.of([progress[number.field]])
                sums.setdefault(query, Histogram()).merge(new)

    def collect(self) -> Iterator[Any]:
        """Yields the metrics; called by the client."""
        from prometheus_client.core import HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        with self._lock:
            for number, sums in self._sums.items():
                family = HistogramMetricFamily(metric_name(number), number.doc, labels=_OF_QUERY)
                for query, counted in sums.items():
                    bounds = map(floatToGoString, (*BOUNDS, math.inf))
                    buckets = zip(bounds, accumulate(counted.counts), strict=True)
                    family.add_metric(query, list(buckets), counted.seconds)
                yield family


def metric_name(number: Number) -> str:
    """Returns the name of a metric in Prometheus, without the suffix of counters."""
    name = number.metric.replace(".", "_")
    return f"{name}_seconds" if number.unit == "s" else name
