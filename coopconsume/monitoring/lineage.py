"""Events of OpenLineage: what a query reads and writes, and how it ends; the extra ``lineage``."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from commits.secrets import hidden, message_of
from coopconsume.errors import InvalidOption
from coopconsume.monitoring.datasets import topic_dataset
from coopconsume.monitoring.listener import QueryListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coopconsume.monitoring.datasets import Dataset
    from coopconsume.monitoring.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger(__name__)

_PRODUCER: Final = "https://github.com/coopconsume/coopconsume"
#: Seconds between two events of a running query, unless its inputs change.
_INTERVAL: Final = 60.0
#: Seconds for which the end of a query waits until its events are sent.
_PATIENCE: Final = 5.0


def open_client() -> Any | None:
    """Returns OpenLineage's client as the environment configures it; None: it is turned off.

    Raises:
        InvalidOption: The configuration cannot be used.
    """
    from openlineage.client import OpenLineageClient

    try:
        client = OpenLineageClient()
    except Exception as error:
        why = f"OpenLineage's client cannot be set up ({message_of(error)})"
        remedy = f"{why}: correct OPENLINEAGE_URL, or the file that configures it"
        raise InvalidOption("emitLineage", "true", remedy) from error
    return None if client.transport.kind == "noop" else client


@dataclass(frozen=True)
class Output:
    """What a query writes.

    Attributes:
        dataset: The topic or table.
        rows: Returns the number of rows that the run has written to it; None: they are not counted.
    """

    dataset: Dataset
    rows: Callable[[], int] | None = None


@dataclass(frozen=True)
class Lineage:
    """What a query reads and writes, as far as it is known at its start.

    Attributes:
        servers: The ``bootstrap.servers``.
        topics: The topics that are read.
        outputs: Where rows and dead letters go.
        is_finite: Whether the query ends by itself.
        spark_version: The version of Spark.
    """

    servers: str
    topics: Sequence[str]
    outputs: Sequence[Output]
    is_finite: bool
    spark_version: str


class LineageListener(QueryListener):
    """Sends the events of a run of a query: START, RUNNING, and COMPLETE, FAIL or ABORT.

    Each event has all inputs and outputs so far. RUNNING comes when inputs are added, and once in
    an interval if records were committed. Counts are those since the start of the run.

    Args:
        client: OpenLineage's client.
        lineage: What the query reads and writes.
        interval: Seconds between two events while the query runs.
        patience: Seconds for which the end of the query waits until its events are sent.
    """

    def __init__(
        self,
        client: Any,
        lineage: Lineage,
        *,
        interval: float = _INTERVAL,
        patience: float = _PATIENCE,
    ) -> None:
        self._sender = _EventSender(client, patience)
        self._lineage = lineage
        self._interval = interval
        self._topics = set(lineage.topics)
        self._run_id = self._job = ""
        #: Records committed so far, and in the last event.
        self._done = self._sent_done = 0
        self._sent_at = 0.0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - PySpark's name
        """Sends START."""
        self._run_id = event.runId
        self._job = f"{event.groupId}.{event.name}" if event.name else event.groupId
        self._sender.start(self._job)
        self._send("START")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Sends RUNNING if it is due."""
        progress = event.progress
        self._done = progress["totals"]["done"]
        topics = self._topics | {partition["topic"] for partition in progress["partitions"]}
        has_new, self._topics = topics != self._topics, topics
        is_due = time.monotonic() - self._sent_at >= self._interval
        if has_new or (is_due and self._done != self._sent_done):
            self._send("RUNNING")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Sends the end of the run, and waits for a while until it is sent."""
        if event.isAborted:
            self._send("ABORT")
        elif event.exception is not None:
            self._send("FAIL", hidden(event.exception))
        else:
            self._send("COMPLETE")
        self._sender.close()

    def _send(self, state: str, error: str | None = None) -> None:
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import (
            error_message_run,
            job_type_job,
            processing_engine_run,
        )

        self._sent_at, self._sent_done = time.monotonic(), self._done
        kind = job_type_job.JobTypeJobFacet(
            "BATCH" if self._lineage.is_finite else "STREAMING", "COOPCONSUME", producer=_PRODUCER
        )
        facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                self._lineage.spark_version, "spark", producer=_PRODUCER
            )
        }
        if error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                error, "PYTHON", producer=_PRODUCER
            )
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
        self._sender.send(
            RunEvent(
                eventType=RunState[state],
                eventTime=dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
                run=Run(self._run_id, facets),
                job=Job(namespace, self._job, {"jobType": kind}),
                inputs=self._inputs(),
                outputs=[_output(output) for output in self._lineage.outputs],
                producer=_PRODUCER,
            )
        )

    def _inputs(self) -> list[Any]:
        from openlineage.client.event_v2 import InputDataset
        from openlineage.client.facet_v2 import input_statistics_input_dataset

        facets: dict[str, Any] = {}
        if len(self._topics) == 1:  # Progress has no counts by topic.
            facets["inputStatistics"] = (
                input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                    rowCount=self._done, producer=_PRODUCER
                )
            )
        datasets = [topic_dataset(self._lineage.servers, topic) for topic in sorted(self._topics)]
        return [InputDataset(one.namespace, one.name, inputFacets=facets) for one in datasets]


def _output(output: Output) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset, schema_dataset

    dataset = output.dataset
    facets: dict[str, Any] = {}
    if dataset.columns:
        columns = [schema_dataset.SchemaDatasetFacetFields(*column) for column in dataset.columns]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(columns, producer=_PRODUCER)
    statistics: dict[str, Any] = {}
    if output.rows is not None:
        statistics["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=output.rows(), producer=_PRODUCER
            )
        )
    return OutputDataset(dataset.namespace, dataset.name, facets=facets, outputFacets=statistics)


class _EventSender:
    """Sends the events of one run in a thread of its own.

    START is kept until it is sent. Of the others only the newest waits, as it has all that those
    before it have. So a destination that is slow or away costs no memory and no time.

    Args:
        client: OpenLineage's client.
        patience: Seconds for which `close` waits.
    """

    def __init__(self, client: Any, patience: float) -> None:
        self._client = client
        self._patience = patience
        self._changed = threading.Condition()
        self._start: Any | None = None
        self._newest: Any | None = None
        self._is_new = self._is_closing = self._has_warned = False
        self._job = ""
        self._thread = threading.Thread(target=self._main, name="coopconsume-lineage", daemon=True)

    def start(self, job: str) -> None:
        """Begins.

        Args:
            job: Its name, for the log.
        """
        self._job = job
        self._thread.start()

    def send(self, event: Any) -> None:
        """Has an event sent; returns at once."""
        with self._changed:
            if event.eventType.name == "START":
                self._start = event
            else:
                self._newest = event
            self._is_new = True
            self._changed.notify()

    def close(self) -> None:
        """Waits until all events are sent, for a while at most."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(self._patience)
        if self._thread.is_alive():
            self._warn(f"its end was not sent within {self._patience:g} s")

    def _main(self) -> None:
        with _quiet_retries():
            while events := self._take():
                for event in events:
                    if not self._is_sent(event):
                        break
            try:
                self._client.close(self._patience)
            except Exception as error:  # noqa: BLE001 - transports are of many kinds
                self._warn(message_of(error))

    def _take(self) -> list[Any]:
        """Waits for an event; returns it behind a START that is not sent; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_new or self._is_closing)
            if not self._is_new:
                return []
            newest, self._newest, self._is_new = self._newest, None, False
            return [event for event in (self._start, newest) if event is not None]

    def _is_sent(self, event: Any) -> bool:
        """Sends an event; returns whether that has succeeded."""
        try:
            self._client.emit(event)
        except Exception as error:  # noqa: BLE001 - transports are of many kinds
            self._warn(message_of(error))
            return False
        if event is self._start:
            self._start = None
        return True

    def _warn(self, why: str) -> None:
        with self._changed:
            has_warned, self._has_warned = self._has_warned, True
        if not has_warned:
            log.warning("job %s: lineage events are missing, the job continues: %s", self._job, why)


@contextmanager
def _quiet_retries() -> Iterator[None]:
    """Leaves out the line that the client's HTTP library logs for each retry of this thread."""
    mine = threading.get_ident()
    connections = logging.getLogger("urllib3.connectionpool")

    def is_shown(record: logging.LogRecord) -> bool:
        return record.thread != mine or record.levelno != logging.WARNING

    connections.addFilter(is_shown)
    try:
        yield
    finally:
        connections.removeFilter(is_shown)
