"""The handle of a running job, in the shape of PySpark's ``StreamingQuery``, and its builder."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coopconsume.admin.html import html
from coopconsume.admin.overview.tables import progress_table
from coopconsume.admin.tables import Headline, Table
from coopconsume.command_place import command_place
from coopconsume.errors import InvalidOption
from coopconsume.group.settings import client_id
from coopconsume.interrupts import interruptible
from coopconsume.monitoring.line_display import LineDisplay, to_stderr
from coopconsume.monitoring.lineage import Lineage, LineageListener, open_client
from coopconsume.monitoring.listener import Progress, QueryListener
from coopconsume.monitoring.waiting_lines import WaitingLines
from coopconsume.option_values import seconds_of
from coopconsume.runtime.checks import check_handler, check_settings, check_tables
from coopconsume.runtime.job_spec import JobSpec
from coopconsume.runtime.loop import Job
from coopconsume.runtime.realtime.checks import check_settings as check_settings_of_real_time
from coopconsume.runtime.status.progress import Meter
from coopconsume.sinks import open_dead_letters, open_output
from coopconsume.sinks.base import required_topics
from coopconsume.sinks.datasets import outputs_of
from coopconsume.sinks.transactional import TransactionalTopic
from coopconsume.subscription import QueryRun, slots_of
from coopconsume.worker.report import QueryIds

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.group.membership import Membership
    from coopconsume.monitoring.listener import QueryProgressEvent
    from coopconsume.runtime.commit.state_log import StateLog
    from coopconsume.runtime.job_spec import HandlerSettings
    from coopconsume.subscription import Subscription
    from coopconsume.ui.page import LivePage, PageOnDemand
    from coopconsume.worker.handler_lines import HandlerLine

#: Seconds of a real-time run.
_SHORTEST_RUN = 1
_LONGEST_RUN = 86_400


class CooperativeQuery:
    """A job that handles records until it is stopped, fails, or has drained what was there.

    Made by ``consumer.foreach(…).start()``.
    """

    def __init__(
        self,
        run: QueryRun,
        identity: dict[str, Any],
        state: StateLog | None,
        page: Callable[[], LivePage],
    ) -> None:
        self._run = run
        self._job, self._meter = run.job, run.meter
        self._page = page
        self._state_log = state
        self._identity = identity

    @property
    def id(self) -> str:
        """The same over restarts of the job: made of cluster, group and name."""
        return str(self._identity["id"])

    @property
    def runId(self) -> str:  # noqa: N802 - PySpark's name
        """Of this run alone."""
        return str(self._identity["runId"])

    @property
    def name(self) -> str | None:
        """As given by ``queryName``."""
        name = self._identity["name"]
        return None if name is None else str(name)

    @property
    def isActive(self) -> bool:  # noqa: N802 - PySpark's name
        """Whether the job is still running."""
        return self._run.is_active

    @property
    def ui_url(self) -> str:
        """The address of the live page, with the token that opens it.

        The first use starts the page in this process, at localhost and the port ``uiPort``. It ends
        when the consumer is closed. Dead letters are shown and cannot be decided on there.

        Raises:
            AlreadyClosed: The consumer is closed.
            PageUnavailable: A package is missing, or the port is in use.
        """
        return self._page().url

    @property
    def status(self) -> dict[str, Any]:
        """``message``, ``waitingFor``, ``isDataAvailable`` and ``isTriggerActive``.

        ``waitingFor`` has a ``reason`` and a ``message`` while nothing is committed, else it is
        None.
        """
        return self._run.status

    @property
    def lastProgress(self) -> Progress | None:  # noqa: N802 - PySpark's name
        """The newest progress event; None before the first commit."""
        recent = self._meter.recent
        return recent[-1] if recent else None

    @property
    def recentProgress(self) -> list[Progress]:  # noqa: N802 - PySpark's name
        """The last hundred progress events, oldest first."""
        return self._meter.recent

    def exception(self) -> BaseException | None:
        """What ended the job; None if it runs or ended well."""
        return self._job.error if self._job.ended.is_set() else None

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait for the job to end.

        Args:
            timeout: Seconds to wait at most; None waits for ever.

        Returns:
            With a timeout, whether it has ended; otherwise None.

        Raises:
            BaseException: What ended the job, if it failed.
            InvalidOption: A listener of the query is calling: the query would wait for itself.
            KeyboardInterrupt: Ctrl-C or SIGTERM, in the main thread, unless the program has set
                handlers of its own. The query goes on; the end of the consumer's ``with`` stops it.
        """
        self._refuse_own_thread("awaitTermination")
        deadline = None if timeout is None else time.monotonic() + timeout
        with interruptible():
            # Short waits, so that a signal's handler gets its turn in the main thread.
            while not self._job.ended.wait(0.2):
                if deadline is not None and time.monotonic() >= deadline:
                    return False
        if self._job.error is not None:
            raise self._job.error
        return None if timeout is None else True

    def processAllAvailable(self) -> None:  # noqa: N802 - PySpark's name
        """Wait until all that is in the topics now is done and committed.

        Brokers that do not answer are waited for. Where a topic is deleted or a log is cut
        meanwhile, and the query continues, its records that are gone are not waited for.

        Raises:
            BaseException: What ended the job, if it failed meanwhile.
            InvalidOption: A listener of the query is calling: the query would wait for itself.
            KeyboardInterrupt: As for `awaitTermination`.
        """
        self._refuse_own_thread("processAllAvailable")
        with interruptible():
            self._job.wait_for_available()
        if self._job.error is not None:
            raise self._job.error

    def state(self, topic: str, key: bytes) -> Any:
        """Returns the state of a key as its committed records left it; None if it has none.

        Args:
            topic: The topic.
            key: The key, as in Kafka.

        Raises:
            InvalidOption: The query has no state: it was not made by `foreach_with_state`.
            StateNotReadable: The state cannot be read.
        """
        if self._state_log is None:
            raise InvalidOption("state", "a query without", "use foreach_with_state")
        return self._state_log.value(topic, key)

    def _refuse_own_thread(self, what: str) -> None:
        if self._job.is_in_its_thread:
            raise InvalidOption(
                what, "called by a listener of the query", "call it in another thread"
            )

    def stop(self, timeout: float | None = None, *, drain: bool = False) -> None:
        """Stops the query: starts no handler, lets running ones end, commits what is done.

        It takes as long as the longest running handler and a moment. Without a channel to the
        slots, as on Spark Connect, it takes until the running batches end. Harmless when repeated;
        the shortest timeout counts. Called by a listener of the query it returns at once, and the
        query ends by itself.

        Args:
            timeout: Seconds that running handlers have to end. The records of those that do not
                are not committed and come again. None: as long as they take.
            drain: Whether to handle the records first that running batches have read.
        """
        self._run.stop(timeout, drain=drain)

    def pause(self) -> None:
        """Lets running handlers end and starts no other; the query keeps its key ranges.

        Returns at once. Without a channel to the slots, running batches go on to their end.
        """
        self._job.pause()

    def resume(self) -> None:
        """Starts handlers again after `pause`; harmless on a query that is not paused."""
        self._job.resume()

    def abort(self) -> None:
        """Leave at once; what is in flight is not committed and will be done again."""
        if self.isActive:
            self._job.abort()

    def __repr__(self) -> str:
        return f"CooperativeQuery(id={self.id}, name={self.name!r}, {self._state})"

    @property
    def _state(self) -> str:
        return "active" if self.isActive else "failed" if self._job.error else "stopped"

    def _repr_html_(self) -> str:
        title = f"query {self.name or self.id}: {self._state}, {self._meter.message}"
        progress = self.lastProgress
        if progress is None:
            return html([title, progress_table(())])
        verdict = progress["verdict"]
        first = Headline(verdict["sentence"], verdict["level"])
        return html([first, title, progress_table(progress["partitions"])])


class CooperativeForeach:
    """Builds a job from a handler; ``start()`` runs it. Made by ``consumer.foreach(…)``."""

    def __init__(
        self,
        subscription: Subscription,
        page: PageOnDemand,
        handler: Any,
        settings: HandlerSettings,
        state: StateLog | None = None,
    ) -> None:
        options = subscription.options
        check_settings(options, handler, settings)
        check_handler(handler, with_state=state is not None)
        if state is not None:
            check_tables(options, settings, state.path)
        place = settings.place_of_letters(options)
        dead_letters = None if place is None else open_dead_letters(place, options)
        outputs = None
        if settings.output is not None:
            outputs = open_output(
                settings.output, settings.output_mode, settings.output_schema, options,
                subscription.spark, partition_by=settings.output_partition_by,
            )  # fmt: skip
        if options.uses_chunks and isinstance(outputs, TransactionalTopic):
            raise InvalidOption(
                "sharing",
                "'cooperative' with transactional outputs",
                "give sharing='keyRanges', or outputs to a table or a topic without transactions",
            )
        self._subscription = subscription
        self._page = page
        self._settings = settings
        self._dead_letter_place = place
        self._required_topics = required_topics(place, settings.output, options)
        self._job_spec = JobSpec(
            handler, settings.concurrency, settings.ordering, settings.policy,
            dead_letters, settings.on_dead == "park", outputs, state=state,
            decoding=settings.decoding, park_undecodable=settings.policy.undecodable == "park",
        )  # fmt: skip
        self._name: str | None = None
        self._listeners: list[QueryListener] = []
        self._show_line: Callable[[HandlerLine], object] = to_stderr

    def _repr_html_(self) -> str:
        spec = self._job_spec
        settings = [
            ("handler", getattr(spec.handler, "__qualname__", spec.handler)),
            ("concurrency", str(spec.concurrency)),
            ("ordering", spec.ordering),
            ("retry", spec.policy),
            ("query name", self._name),
        ]
        return html(["job that start() runs", Table(("setting", "value"), settings)])

    def queryName(self, name: str) -> CooperativeForeach:  # noqa: N802 - PySpark's name
        """Name the query; part of its `CooperativeQuery.id`."""
        self._name = name
        return self

    def trigger(
        self,
        *,
        availableNow: bool | None = None,  # noqa: N803
        processingTime: str | None = None,  # noqa: N803
        realTime: str | None = None,  # noqa: N803
    ) -> CooperativeForeach:
        """When batches start: as soon as slots are free, unless said otherwise.

        Args:
            availableNow: Handle what is there at the start, retries included, then stop.
            processingTime: At least so long between the starts of batches, as ``"10 seconds"``.
            realTime: Slots read Kafka themselves for so long, as ``"5 minutes"``, then again:
                records reach handlers in milliseconds. Batches catch up before that, and handle
                what such slots cannot; see docs/how-to/real-time.

        Raises:
            InvalidOption: Not exactly one of them is given, or the time is wrong.
        """
        times = {"processingTime": processingTime, "realTime": realTime}
        given = {name: text for name, text in times.items() if text is not None}
        if bool(availableNow) + len(given) != 1:
            found = "several or none"
            raise InvalidOption("trigger", found, "give availableNow, processingTime or realTime")
        seconds = {name: seconds_of(name, text) for name, text in given.items()}
        real_time = seconds.get("realTime")
        if real_time is not None and not _SHORTEST_RUN <= real_time <= _LONGEST_RUN:
            raise InvalidOption(
                "realTime", repr(realTime), f"give {_SHORTEST_RUN} s to {_LONGEST_RUN} s"
            )
        self._job_spec = replace(
            self._job_spec,
            interval=seconds.get("processingTime", 0.0),
            real_time=real_time,
            available_now=bool(availableNow),
        )
        return self

    def onProgress(self, listener: Callable[[Progress], None]) -> CooperativeForeach:  # noqa: N802
        """Call a function with each progress event, in the loop's thread; keep it short."""
        return self.addListener(_Progressing(listener))

    def addListener(self, listener: QueryListener) -> CooperativeForeach:  # noqa: N802 - PySpark's
        """Add a listener of the query; several may be added."""
        self._listeners.append(listener)
        return self

    def onHandlerLine(self, show: Callable[[HandlerLine], object]) -> CooperativeForeach:  # noqa: N802
        """Call a function with each line that ``showHandlerLines`` shows, without standard error.

        It gets a `HandlerLine`, in a thread of its own: the query does not wait for it.
        """
        self._show_line = show
        return self

    def start(self) -> CooperativeQuery:
        """Run the job in the background.

        Raises:
            AlreadyClosed: The consumer was closed.
            CoopConsumeError: The group cannot be joined.
            GroupRefused: The group has another state than the job, or none.
            InvalidOption: ``ordering="partition"`` with parts of partitions assigned by hand; a
                setting that a job in real time cannot follow; or a configuration of OpenLineage
                that cannot be used.
            RealTimeUnavailable: A job in real time lacks a package or a way to its slots.
            TopicNotFound: A topic for dead letters or outputs does not exist, and is not created
                by ``deadLetterPartitions`` either.
        """
        with self._subscription.in_use():
            return self._start()

    def _start(self) -> CooperativeQuery:
        subscription, job_spec, spark = self._subscription, self._job_spec, self._subscription.spark
        subscription.check_no_query("foreach")

        def prepare(member: Membership) -> None:
            path = None if job_spec.state is None else job_spec.state.path
            check_tables(member.options, self._settings, path, commit_table=member.store.location)
            if job_spec.ordering == "partition":
                member.need_whole_partitions(needed=True)
            member.keep_state(None if job_spec.state is None else job_spec.state.changelog)

        membership = subscription.joined(prepare)
        spare = 0 if job_spec.real_time is None else 1
        slots = slots_of(subscription.options, spark, spare=spare)
        group = membership.options.group_id
        membership.cluster.check_topics(self._required_topics)
        stable_id = uuid.uuid5(
            uuid.NAMESPACE_URL, f"coopconsume:{membership.cluster.cluster_id}:{group}:{self._name}"
        )
        identity = {
            "id": str(stable_id), "runId": str(uuid.uuid4()), "name": self._name, "groupId": group,
            "clientId": client_id(
                membership.options, spark.conf.get("spark.app.name", "") or ""
            ),
        }  # fmt: skip
        if job_spec.real_time is not None:
            check_settings_of_real_time(spark, membership.options, job_spec, slots)
        shown = [WaitingLines(group)] if membership.options.show_waiting else []
        lineage = self._lineage(membership) if membership.options.emit_lineage else []
        most = membership.options.show_handler_lines
        lines = LineDisplay(most, self._show_line) if most else None
        place = command_place(membership.options, membership.store.target)
        meter = Meter(identity, slots, [*shown, *self._listeners, *lineage], lines, place)
        ids = [str(identity[name]) for name in ("id", "runId", "clientId")]
        query_ids = QueryIds(group, ids[0], ids[1], slots, client_id=ids[2])
        job = Job(spark, membership, replace(job_spec, query=query_ids), slots, meter)
        if job_spec.real_time is not None:
            job.check_workers()
        run = QueryRun(job, meter)
        query = CooperativeQuery(
            run, identity, job_spec.state, lambda: self._page.get(self._dead_letter_place)
        )
        subscription.run(run)
        meter.started()
        job.start()
        return query

    def _lineage(self, membership: Membership) -> list[QueryListener]:
        """Returns the listener that sends events of OpenLineage; nothing if that is turned off."""
        client = open_client()
        if client is None:
            return []
        options, job_spec = membership.options, self._job_spec
        servers = options.kafka["bootstrap.servers"]
        lineage = Lineage(
            servers,
            topics=[*(options.subscribe or ()), *(topic for topic, _ in membership.owned)],
            outputs=[*outputs_of(servers, (job_spec.outputs, job_spec.dead_letters))],
            is_finite=job_spec.available_now,
            spark_version=self._subscription.spark.version,
        )
        return [LineageListener(client, lineage)]


class _Progressing(QueryListener):
    """Calls a function with each progress event."""

    def __init__(self, function: Callable[[Progress], None]) -> None:
        self._function = function

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - PySpark's name
        """Call it."""
        self._function(event.progress)
