"""`Exporter`: serves the metrics of groups to Prometheus, whether jobs run or not."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from coopconsume.admin.client import Admin
from coopconsume.admin.overview.metrics import LABELS, measurements
from coopconsume.admin.overview.watch import ANSWERED, Readability, Sources, Watches
from coopconsume.closing import Closing
from coopconsume.errors import ExporterUnavailable
from coopconsume.kafka.connection import Connection
from coopconsume.monitoring.numbers import INTERVAL
from coopconsume.monitoring.prometheus import metric_name
from coopconsume.options import Options
from coopconsume.values.listening import host_of_url, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pyspark.sql import SparkSession

#: Seconds for which the end waits for a look at the table that has begun.
_LAST_LOOK: Final = 5.0


class GroupCollector:
    """Collects the metrics of watched groups for a registry of Prometheus' client.

    It serves what is known, and asks nobody: a scrape never waits for Kafka or the commit table.

    Args:
        watches: The watched groups.
        more: Returns what others know of the sources.
    """

    def __init__(self, watches: Watches, more: Callable[[], Sources] = Sources) -> None:
        self._watches = watches
        self._more = more

    def collect(self) -> Iterator[Any]:
        """Yields the metrics; called by the client."""
        from prometheus_client.core import GaugeMetricFamily

        views = {group: watch.known for group, watch in self._watches.watched().items()}
        sources = [self._more(), *(view.sources for view in views.values())]
        families = {
            number: GaugeMetricFamily(metric_name(number), number.doc, labels=labels)
            for number, labels in LABELS.items()
        }
        for number, labels, value in measurements(views, sources):
            families[number].add_metric([labels[name] for name in LABELS[number]], value)
        families[INTERVAL].add_metric([], self._watches.interval)
        yield from families.values()


class GroupDiscovery(Closing):
    """Has all groups of a commit table watched, in a thread that looks for new ones.

    Args:
        connect: Opens the connection.
        watches: The watches of the groups.
        interval: Seconds between two looks.
    """

    def __init__(
        self, connect: Callable[[], Connection], watches: Watches, interval: float
    ) -> None:
        self._connect = connect
        self._watches = watches
        self._interval = interval
        self._closed = threading.Event()
        self._readability = Readability("the list of groups")
        #: What is known of the sources.
        self.sources = Sources()
        self._thread = threading.Thread(
            target=self._run, name="coopconsume-exporter-groups", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and waits some seconds for a look that has begun."""
        self._closed.set()
        self._thread.join(_LAST_LOOK)

    def _run(self) -> None:
        connection: Connection | None = None
        try:
            while not self._closed.is_set():
                try:
                    connection = connection or self._connect()
                    self._watches.follow(connection.store.groups())
                    self.sources = ANSWERED
                    self._readability.succeeded()
                except BaseException as error:  # noqa: BLE001 - the next look tries again
                    self._readability.failed(error)
                    self.sources = self.sources.after(error)
                    if connection is not None:
                        with suppress(Exception):
                            connection.close()
                        connection = None
                self._closed.wait(self._interval)
        finally:
            if connection is not None:
                connection.close()


class Exporter(Closing):
    """Serves the metrics of groups at ``/metrics`` until it is closed, in threads of its own.

    Args:
        options: As for `Admin`.
        groups: The groups; by default all that the commit table knows, also those that come later.
        host: The address to listen at.
        port: The port; 0 for any free one.
        interval: Seconds between two readings of a group, from 0.1.
        spark: The session, needed for a commit table in a catalog.

    Raises:
        OptionError: An option is unknown, missing or wrong.
        ExporterUnavailable: A package is missing, or the port cannot be used.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        groups: Collection[str] = (),
        *,
        host: str,
        port: int,
        interval: float,
        spark: SparkSession | None = None,
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ModuleNotFoundError:
            raise ExporterUnavailable(
                "prometheus_client is not installed: pip install 'coopconsume[prometheus]'"
            ) from None
        # A mistake in an option is refused here, and not at each reading.
        parsed = Options.parse(options, group=False)
        for group in groups:
            Options.parse({**options, "kafka.group.id": group})
        registry = CollectorRegistry()
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ExporterUnavailable(why_not(host, port, error)) from None
        #: The address of the metrics.
        self.url = f"http://{host_of_url(host)}:{self._server.server_port}/metrics"
        self._watches = Watches(Admin(options, spark=spark).reader, interval, groups)
        self._discovery = None
        if not groups:
            self._discovery = GroupDiscovery(
                lambda: Connection(parsed, spark=spark), self._watches, interval
            )
        registry.register(GroupCollector(self._watches, self._known_by_discovery))

    def _known_by_discovery(self) -> Sources:
        return Sources() if self._discovery is None else self._discovery.sources

    @property
    def is_open(self) -> bool:
        """Whether the metrics are served."""
        return bool(self._thread.is_alive())

    def close(self) -> None:
        """Ends the exporter. Calling it again has no effect."""
        self._server.shutdown()
        self._server.server_close()
        if self._discovery is not None:
            self._discovery.close()
        self._watches.close()
