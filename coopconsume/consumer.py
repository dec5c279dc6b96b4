"""`CooperativeConsumer`: what users open first."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, overload

from assignors import key_hash
from coopconsume.admin.html import html, in_time
from coopconsume.admin.offsets import PartitionStatus
from coopconsume.admin.overview import key_metadata, overview_of
from coopconsume.admin.overview.tables import assignment_table, group_html
from coopconsume.admin.views import status_frame
from coopconsume.classic import cores, quiet_group_warning, usable_session, why_ended
from coopconsume.closing import Closing
from coopconsume.errors import AlreadyClosed, InvalidOption, MissingOption, SessionUnusable
from coopconsume.group.membership import Membership
from coopconsume.kafka.partitioner import default_partition
from coopconsume.option_names import warn_without_effect
from coopconsume.option_values import seconds_of
from coopconsume.options import Options
from coopconsume.query import CooperativeForeach, CooperativeQuery
from coopconsume.record import MAX_WAIT
from coopconsume.runtime.checks import check_tables
from coopconsume.runtime.commit.state_log import HISTORY, StateLog
from coopconsume.runtime.dispatch.slot_leases import lease_seconds
from coopconsume.runtime.job_spec import HandlerSettings
from coopconsume.runtime.poll.poller import Poller
from coopconsume.runtime.read.expressions import check_filter, check_ordering_key
from coopconsume.runtime.read.session_settings import with_session_settings
from coopconsume.state.schema import StateSchema
from coopconsume.ui.page import LivePage
from coopconsume.worker.frame_runner import FrameHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Unpack

    from kafka import TopicPartition
    from pyspark.sql import Column, DataFrame, SparkSession

    from assignors import KeyRange
    from commits import CommitResult, OffsetRanges
    from coopconsume.admin.overview import GroupOverview, KeyMetadata
    from coopconsume.decoding.declaration import Declared
    from coopconsume.group.callbacks import RebalanceListener
    from coopconsume.handler_types import (
        ForeachSettings,
        FrameFunction,
        Handler,
        K,
        StateHandler,
        StateSettings,
        V,
    )
    from coopconsume.record import OnDead, RetryPolicy
    from coopconsume.runtime.job_spec import OutputMode
    from coopconsume.runtime.poll.positions import PollPosition
    from coopconsume.worker.frame_runner import Format
    from coopconsume.worker.report import Ordering

log = logging.getLogger(__name__)

_DRAW_TIMEOUT = 3.0
_MOST_IN_A_FRAME = 100_000
#: Seconds between two looks whether a consumer is used, at most.
_UNUSED_EVERY = 1.0
_UNUSED = "Left the group after maxPollInterval without a call; the next poll joins again"


class _Assignment(dict["TopicPartition", "list[KeyRange]"]):
    """Key ranges by partition, which notebooks draw."""

    def _repr_html_(self) -> str:
        return html([assignment_table(self)])


class CooperativeConsumer(Closing):
    """Consumes Kafka cooperatively: by key range, each record committed by itself.

    Either poll DataFrames and commit what was done of them, or give a handler to `foreach`.

    Args:
        options: Names and values as text, in Kafka's and Spark's words; see `coopconsume.options`.
        spark: The session, or a function that returns one, such as `local_session`: it is called
            when the options have been checked. By default the active session. The consumer never
            stops or changes it.

    Raises:
        OptionError: An option is unknown, missing or wrong.
        SessionUnusable: There is no active session, or its settings let Spark run handlers twice.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        spark: SparkSession | Callable[[], SparkSession] | None = None,
    ) -> None:
        self.options = Options.parse(options)
        warn_without_effect(self.options.without_effect)
        check_tables(self.options)
        self._given = dict(options)
        self._page: LivePage | None = None
        self.spark = usable_session(spark)
        quiet_group_warning(self.spark)
        check_ordering_key(self.spark, self.options.ordering_key)
        check_filter(self.spark, self.options.record_filter)
        self.options = with_session_settings(self.spark, self.options)
        self._poller = Poller(self.spark, self.options, self.slots)
        self._membership: Membership | None = None
        self._query: CooperativeQuery | None = None
        self._prepare: Callable[[Membership], None] | None = None
        self._closed = self._is_closing = False
        self._joining = threading.Lock()
        #: How to join again after maxPollInterval.
        self._join_again: Callable[[Membership], None] | None = None

    # -- what is consumed

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        listener: RebalanceListener | None = None,
    ) -> CooperativeConsumer:
        """Join the group ``kafka.group.id``, whose members share the topics by key range.

        Returns when the group has given this member its shares. A partition is split between
        members only where its topic is open to sharing (KIP-X's ``accept.range.fetch``).

        Args:
            topics: Names; without any, the options ``subscribe`` or ``subscribePattern`` count.
            listener: Its methods are called when key ranges come and go.

        Raises:
            AlreadyClosed: The consumer is closed, perhaps by another thread meanwhile.
            AuthenticationFailed: The cluster does not let this user in, or TLS fails; at once.
            BrokerUnreachable: No broker answers.
            GroupRefused: Others of the group use another commit table, filter, ordering key or
                library.
            InvalidOption: Topics are given here and as an option.
            MissingOption: No topics are given at all.
            NotAuthorized: A right on a topic or on the group is missing; it names the ACL.
            TopicNotFound: One does not exist.
        """
        wanted = [topics] if isinstance(topics, str) else None if topics is None else list(topics)
        by_option = self.options.subscribe or self.options.subscribe_pattern
        if wanted is not None and by_option:
            raise InvalidOption("subscribe", "given as option and as call", "give it once")
        if wanted is None and not by_option:
            raise MissingOption("subscribe")
        names, pattern = wanted or self.options.subscribe, self.options.subscribe_pattern
        self._subscribe(lambda membership: membership.subscribe(names, pattern, listener))
        return self

    def _subscribe(self, join: Callable[[Membership], None]) -> None:
        with self._poller.session.in_use():
            membership = self._join(join)
        threading.Thread(
            target=self._leave_when_unused,
            args=(membership, join),
            name="coopconsume-unused",
            daemon=True,
        ).start()

    def _leave_when_unused(
        self, membership: Membership, join: Callable[[Membership], None]
    ) -> None:
        """In a thread of its own: leaves the group after ``maxPollInterval`` without a call."""
        session, most = self._poller.session, self.options.max_poll_interval
        while self._membership is membership and not session.closed.is_set():
            if self._query is not None and self._query.isActive:
                with session.in_use():
                    pass
            left = most - session.unused()
            if left > 0:
                session.closed.wait(min(left, _UNUSED_EVERY))
                continue
            log.warning(
                "group %s: no call of poll, commit, retry or reject for maxPollInterval (%g s): "
                "the consumer leaves the group; what it polled and did not commit comes again; the "
                "next poll joins again. Give maxPollInterval more time if frames take longer",
                self.options.group_id,
                most,
            )
            self._end_subscription(membership, join)

    def assign(
        self,
        partitions: Mapping[TopicPartition, Iterable[KeyRange]],
        *,
        takeover: bool = False,
    ) -> CooperativeConsumer:
        """Take key ranges of partitions by hand (KIP-X's standalone mode).

        Args:
            partitions: For each partition its key ranges; an empty list means all of it.
            takeover: Fence a process that holds part of it, instead of being refused.

        Raises:
            commits.ClaimConflict: A process that lives holds part of it. The claim of one that is
                gone ends after its ``kafka.session.timeout.ms``, which is waited for.
            ConsumerRangeFetchNotAccepted: A part is given in spite of allowKeyShare=false.
            TopicNotFound: A topic does not exist; it is not waited for with ``onMissingTopic=wait``
                either.
            TopicRangeFetchNotAllowed: A part is given, and the topic is not open to sharing.
            ValueError: A partition does not exist, ranges overlap, or nothing is given.
        """
        if not partitions:
            raise ValueError("assign({}): give at least one partition")
        self._check_by_key_range("assign()", "subscribe()")
        if self.options.subscribe or self.options.subscribe_pattern:
            raise InvalidOption("subscribe", "given beside assign()", "give one of the two")
        wanted = {(t, int(p)): list(ranges) for (t, p), ranges in partitions.items()}
        self._join(lambda membership: membership.assign(wanted, takeover=takeover))
        return self

    def _join(self, join: Callable[[Membership], None]) -> Membership:
        with self._joining:
            if self._is_closing:
                raise AlreadyClosed("the consumer")
            if self._membership is not None:
                raise InvalidOption("subscribe", "called twice", "call unsubscribe() first")
            # A listener's first call, and `close` in another thread, find it before it has joined.
            membership = self._membership = Membership(
                self.options, self.slots(), self._poller.session, self.spark
            )
        try:
            check_tables(self.options, commit_table=membership.store.location)
            if self._prepare is not None:
                self._prepare(membership)
            membership.work_under_leases(lease_seconds(self.spark, self.options))
            join(membership)
        except BaseException:
            membership.leave()  # As a whole or not at all: nothing is left open.
            if self._membership is membership:
                self._membership = None
            raise
        self._join_again = None
        return membership

    def unsubscribe(self) -> None:
        """Gives all key ranges back and leaves the group; then other topics can be subscribed to.

        Polled records that are not committed go to the next owner, and can no longer be answered
        for. Calling it without a subscription has no effect. `poll` and `foreach` join again where
        an option names the topics. A rebalance listener's `on_revoked` is called before; it may
        still commit.

        Raises:
            AlreadyClosed: The consumer is closed.
            InvalidOption: A query is running.
        """
        self.check_no_query("unsubscribe")
        with self._joining:
            if self._is_closing:
                raise AlreadyClosed("the consumer")
            membership, self._join_again = self._membership, None
        if membership is not None:
            self._end_subscription(membership)

    def _end_subscription(
        self, membership: Membership, join_again: Callable[[Membership], None] | None = None
    ) -> None:
        """Leaves the group; the next `poll` joins again if it is said how."""
        membership.revoke()
        with self._joining:
            is_called = join_again is not None and self._poller.session.unused() == 0
            if self._membership is not membership or is_called:
                return  # A query that starts meanwhile works with it.
            self._membership, self._join_again = None, join_again
        try:
            membership.leave()
        finally:
            self._poller.session.forget()

    def membership(self, prepare: Callable[[Membership], None] | None = None) -> Membership:
        """Returns the member's place in the group; joins first where an option names the topics.

        Args:
            prepare: Sets what the member says when it joins; what it raises is raised.
        """
        if self._closed:
            raise AlreadyClosed("the consumer")
        if self._membership is None:
            self._prepare = prepare
            if self._join_again is not None:
                self._subscribe(self._join_again)
            else:
                self.subscribe()
        elif prepare is not None:
            prepare(self._membership)
        assert self._membership is not None
        return self._membership

    def assignment(self) -> dict[TopicPartition, list[KeyRange]]:
        """The key ranges owned, by partition; empty before subscribe or assign.

        In a notebook they are drawn, as are the consumer and its group.
        """
        from kafka import TopicPartition

        owned = {} if self._membership is None else self._membership.owned
        return _Assignment({TopicPartition(*tp): list(o.ranges) for tp, o in owned.items()})

    def slots(self, *, spare: int = 0) -> int:
        """Spark tasks side by side: the option, else the cores that Spark has.

        Args:
            spare: Cores to leave free if the option is not given; one slot is left in any case.

        Raises:
            MissingOption: Neither is known, as on Spark Connect.
        """
        found = self.options.slots
        if found is None and (most := cores(self.spark)):
            found = max(1, most - spare)
        if not found:
            raise MissingOption("slots")
        return found

    # -- polling

    def poll(self, timeout: float = 1.0) -> DataFrame:
        """The next records, as a DataFrame of a fixed window of offsets.

        Columns of Spark's Kafka source and ``key_hash``. What is committed is left out, and so are
        keys of others. What the filter drops is left out, too, and committed without an answer.
        Looking twice shows the same rows. The position moves on: records that are
        not committed come back after `retry`, a restart, a seek or a change of the assignment. Rows
        of a key lie in one Spark partition in the order of their offsets. Records that are to be
        tried again come in frames of their own, with what was left out of their keys meanwhile.

        Args:
            timeout: Seconds to wait for the first record, from 0 to 365 days; then the
                frame is empty. While brokers do not answer, the call waits up to 5 s for each
                answer if ``timeout`` is shorter.

        Raises:
            InvalidOption: ``timeout`` is out of its range.
            AlreadyClosed: The consumer is closed, perhaps by another thread meanwhile.
            PollWokenUp: `wakeup` was called.
            DataLoss: Records were deleted before they were done, or a log was cut, and
                ``failOnDataLoss`` is true.
            TopicNotFound, TopicReplaced: A topic was deleted, and perhaps made again.
            SessionUnusable: The Spark session was stopped, or its JVM has ended.
            BrokerUnreachable: The brokers have not answered for 15 s, and the timeout is over;
                poll again.
            commits.CommitLogUnavailable: The commit table does not answer, and the timeout is over;
                poll again.
        """
        self._check_by_key_range("poll()", "foreach(…, ordering='none')")
        if not self._closed and (ended := why_ended(self.spark)):
            raise SessionUnusable(
                f"the Spark session runs no jobs any more, {ended}: close this consumer and create "
                "one with a new session; what is not committed comes again"
            )
        return self._poller.poll(self._alone("poll"), timeout)

    def _check_by_key_range(self, call: str, instead: str) -> None:
        if self.options.uses_chunks:
            raise InvalidOption(
                "sharing", f"'cooperative' with {call}", f"use {instead}, or sharing='keyRanges'"
            )

    def wakeup(self) -> None:
        """Ends a `poll` that waits in another thread with `PollWokenUp`; else the next `poll`.

        A poll that has found records returns them; the next one raises. Nothing is lost.
        """
        self._poller.session.wake()

    @property
    def status(self) -> dict[str, Any]:
        """``message`` and ``waitingFor``, as of `CooperativeQuery.status`.

        ``waitingFor`` has a ``reason`` and a ``message``; it is None if the last `poll` has
        returned records. While a query runs, its status is returned.

        Raises:
            CoopConsumeError: The member has left the group because of this error.
        """
        if self._query is not None and self._query.isActive:
            return self._query.status
        membership = self._membership
        if self._closed or membership is None:
            message = "Not subscribed" if self._join_again is None else _UNUSED
            return {"message": "Closed" if self._closed else message, "waitingFor": None}
        found = self._poller.waiting_for(membership)
        return {
            "message": found.message if found else "Records were polled",
            "waitingFor": found.describe() if found else None,
        }

    def commit(
        self,
        done: DataFrame
        | Mapping[TopicPartition, OffsetRanges | Iterable[tuple[int, int]] | int]
        | None = None,
    ) -> dict[TopicPartition, CommitResult]:
        """Commits polled records one by one; in any order, repeated ones are harmless.

        Only records that a frame of this consumer contained, since its last assignment, can be
        committed: not those of other members, and not those that were left out because their key
        waits. If one offset may not be committed, nothing is.

        Args:
            done: Which records are done:

                - a frame with the columns topic, partition and offset: its rows;
                - a mapping from partitions to ranges (first, last) of offsets, both included:
                  exactly these; each must have been handed out;
                - a mapping from partitions to one offset, as in Kafka: all records below it that
                  were handed out and not given back. It is one past the last record that is done;
                  kafka-python's ``OffsetAndMetadata`` is taken, too;
                - nothing: all records that were handed out and not given back.

        Returns:
            The answer of the commit log for each partition that was named.

        Raises:
            NotPolled: An offset was not handed out by `poll`; nothing is committed.
            ValueError: The frame lacks a column, or an offset or a range is wrong.
            commits.FencedMember: The epoch or the membership is not in force; nothing counts.
            commits.MaxIndividualCommitsReached: Partitions have as many ranges as ``maxNumRanges``
                allows. What fills gaps or grows a range is committed, as are all other partitions
                (``results``); ``uncommitted`` has the rest. Commit that again once lower offsets
                are committed, by this member or others.
        """
        from kafka import TopicPartition

        results = self._poller.commit(self._alone("commit"), done)
        return {TopicPartition(*tp): result for tp, result in results.items()}

    def retry(
        self,
        frame: DataFrame,
        *,
        delay: float | str = 0.0,
        reason: str | Column = "",
        headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Have polled records come again, later; until then the later ones of their keys wait.

        The commit log keeps them with how often they were tried, so that this holds over restarts,
        and for jobs of the group, too. Of a key's records in a frame give back the failed one and
        all behind it, or their order is lost.

        Args:
            frame: The records; it needs the columns topic, partition and offset.
            delay: Seconds, or text such as ``"1 minute"``.
            reason: Why, for people: text, or a column of the frame.
            headers: Headers that the records have from now on besides their own, as those of
                `Retry`. Frames show them with ``includeHeaders``; handlers and dead letters always
                have them.

        Raises:
            InvalidOption: The delay is wrong.
            NotPolled: A record was not handed out by `poll`, or is done; nothing is written.
            TopicReplaced: The topic was deleted and created again; nothing is written.
            ValueError: The frame lacks a column, or the headers are wrong or too large; nothing is
                written.
            commits.FencedMember: The epoch or the membership is not in force; nothing counts.
        """
        self._poller.retry(self._alone("retry"), frame, delay, reason, headers)

    def reject(
        self, frame: DataFrame, *, reason: str | Column, on_dead: OnDead = "continue"
    ) -> None:
        """Give polled records up: they become dead letters, as the option ``deadLetter`` says.

        The letters are the records as they are in Kafka, read again, headers included. The call
        returns when they are written and the records are committed. It waits up to 60 s for the
        letters; calls of other threads go on meanwhile. If it fails, the records stay open: they
        can be rejected again, or committed. A topic may get the letters of a failed call
        nevertheless, so that a letter may be there twice; `committed_rows` shows each letter once.

        Args:
            frame: The records; it needs the columns topic, partition and offset.
            reason: Why: text, or a column of the frame.
            on_dead: ``continue``: they are committed. ``park``: their keys wait until
                ``coopconsume dead-letters`` replays or discards them.

        Raises:
            InvalidOption: ``on_dead`` is neither.
            MissingOption: ``deadLetter`` is not given.
            AlreadyClosed: The consumer was closed meanwhile; nothing is committed.
            NotAuthorized: This user may not write to the topic; nothing is committed.
            NotPolled: A record was not handed out by `poll`, or is done; nothing is written. Or
                another thread has answered for it, or it was given to another member, while the
                letters were written; nothing is committed.
            OutputNotWritten: The letters could not be written within 60 s; nothing is committed.
            TopicReplaced: The topic was deleted and created again; nothing is written.
            ValueError: The frame lacks a column.
            commits.FencedMember: The epoch or the membership is not in force; nothing counts.
        """
        self._poller.reject(self._alone("reject"), frame, reason, on_dead)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Poll from an offset on next; what is committed stays committed and is left out.

        Raises:
            ValueError: The partition is not ours, or the offset is negative.
        """
        self.membership()
        self._poller.seek((partition[0], partition[1]), offset)

    def pause(self, *partitions: TopicPartition) -> None:
        """Leaves partitions out of `poll` until `resume`; without any, all.

        A partition stays paused in a rebalance if it stays assigned, as with Kafka's consumer.
        """
        for partition in partitions or self.assignment():
            self._place(partition).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Take paused partitions up again; without any, all."""
        for partition in partitions or self.assignment():
            self._place(partition).paused = False

    def _place(self, partition: TopicPartition) -> PollPosition:
        self.membership()
        return self._poller.place((partition[0], partition[1]))

    # -- what is known

    def committed(self) -> DataFrame:
        """One row a partition: its stable offset and the ranges committed above it.

        Columns: topic, partition, stable_offset, committed_above (offsets), ranges.
        """
        columns = ("stable_offset", "committed_above", "ranges")
        return status_frame(self.spark, "partitions", self._statuses(), *columns)

    def gaps(self) -> DataFrame:
        """One row a gap: offsets not done although something above them is.

        Columns: topic, partition, first, last, offsets.
        """
        return status_frame(self.spark, "gaps", self._statuses(), "first", "last", "offsets")

    def lag(self) -> DataFrame:
        """One row a partition: how many offsets are not done yet, gaps counted.

        Columns: topic, partition, stable_offset, end_offset, committed_above, lag.
        """
        columns = ("stable_offset", "end_offset", "committed_above", "lag")
        return status_frame(self.spark, "partitions", self._statuses(ends=True), *columns)

    def describe_group(self) -> GroupOverview:
        """All that Kafka and the commit log know of the group: members, shares, lag, history.

        Raises:
            BrokerUnreachable: No broker answers.
        """
        membership = self.membership()
        return overview_of(self.options, membership.cluster, membership.store)

    def key_metadata(
        self, topic: str, key: bytes, *, partition: int | None = None
    ) -> KeyMetadata | None:
        """The member that works on a key and has its state, with its host, slot and key range.

        It is that of the group's epoch in force, as `describe_group` shows it, also if it is
        another application. None: nobody owns the key, as while the group rebalances.

        Args:
            topic: The topic.
            key: The key.
            partition: The partition of the key; None: that of Kafka's default partitioner.

        Raises:
            BrokerUnreachable: No broker answers.
            TopicNotFound: There is no such topic.
        """
        membership = self.membership()
        if partition is None:
            (found,) = membership.cluster.topics([topic])
            partition = default_partition(key, found.partitions)
        hashed = key_hash(key)
        assert hashed is not None
        group = overview_of(self.options, membership.cluster, membership.store, history=False)
        return key_metadata(group, topic, partition, hashed)

    def _statuses(self, *, ends: bool = False) -> list[PartitionStatus]:
        membership = self.membership()
        owned = membership.owned
        state = membership.store.state(self.options.group_id)
        ours = sorted(tp for tp in state if tp in owned)
        end_of = membership.cluster.ends(ours) if ends else {}
        return [PartitionStatus.of(tp, state[tp], end_offset=end_of.get(tp)) for tp in ours]

    # -- handlers

    @overload
    def foreach(
        self,
        handler: Handler[bytes | None, bytes | None],
        **settings: Unpack[ForeachSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach(
        self,
        handler: Handler[bytes | None, V],
        *,
        value: Declared[V],
        **settings: Unpack[ForeachSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach(
        self,
        handler: Handler[K, bytes | None],
        *,
        key: Declared[K],
        **settings: Unpack[ForeachSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach(
        self,
        handler: Handler[K, V],
        *,
        value: Declared[V],
        key: Declared[K],
        **settings: Unpack[ForeachSettings],
    ) -> CooperativeForeach: ...

    def foreach(
        self,
        handler: Handler[Any, Any],
        *,
        concurrency: int = 1,
        ordering: Ordering = "key",
        retry: RetryPolicy | None = None,
        dead_letter: str | None = None,
        on_dead: OnDead = "continue",
        output: str | Callable[[DataFrame, str], object] | None = None,
        output_schema: Any = None,
        output_mode: OutputMode = "append",
        value: Declared[Any] | None = None,
        key: Declared[Any] | None = None,
    ) -> CooperativeForeach:
        """Call a handler with every record, in the order of its key.

        Args:
            handler: A function of a `Record`, plain or ``async``, or its name as
                ``module:function``; or an object or a class with ``open(slot)``, ``__call__`` and
                ``close(error)``, which each worker opens once. It returns nothing, an output row
                (a dictionary) or several; it raises, or answers `Retry` or `Reject`, when a record
                is not done. Without ``output`` any other answer is ignored; with it, what is no row
                that fits ``output_schema`` fails its record.
            concurrency: Handlers at once in a slot, plain ones on threads, ``async`` ones on one
                event loop; in all ``slots`` times so many.
            ordering: What is handled strictly one after another: ``key``, ``partition`` or
                ``none``. With ``partition`` the member takes whole partitions alone.
            retry: By default a failed record is tried again for ever, 1 s to 60 s apart.
            dead_letter: Where records go that are given up, if not by the option ``deadLetter``:
                path of a Delta table, or ``kafka:`` and a topic.
            on_dead: ``continue`` with the key of a record that is given up, or ``park`` it: later
                records of the key wait, over restarts too, until ``coopconsume dead-letters``
                replays or discards the record.
            output: Where rows go that handlers return, before the commit of their records: path of
                a Delta table; ``kafka:`` and a topic, for rows with the columns ``value`` and
                perhaps ``key``, ``partition``, ``headers``; or a function of a DataFrame and the
                commit's id, as for ``foreachBatch``.
            output_schema: Their columns, as DDL, Spark or Arrow schema.
            output_mode: ``append``, to be read by `committed_rows`; ``merge``: slower, for a
                Delta table that has each record's rows once as it lies; ``transactional``, for a
                topic in which readers of ``read_committed`` see them once, when the stable offset
                has passed the record. It needs the option ``purgatory``.
            value: What ``record.value`` is, decoded in the slot: a pydantic model, a dataclass or a
                ``msgspec.Struct``, which are read from JSON; ``"json"`` or ``"text"``; a function
                of bytes, which gets null as None; a `SchemaRegistryDecoder`; a `DecoderFactory`; or
                the name of one as ``module:name``. Where a class is declared as ``Order``, null
                does not decode, and as ``Order | None`` it is None for the handler. What does not
                decode is a dead letter at once, unless the retry policy's ``undecodable`` says
                otherwise. None: bytes.
            key: What ``record.key`` is, declared as for ``value``. The order is that of the bytes.

        Raises:
            HandlerNotUsable: The handler cannot be found, called with one argument, or pickled.
            InvalidOption: An argument is out of its range, or lacks its counterpart.
            TableUnusable: A table has other columns.
        """
        settings = HandlerSettings(
            concurrency, ordering, retry, dead_letter, on_dead, output, output_schema, output_mode,
            value, key,
        )  # fmt: skip
        return CooperativeForeach(self, handler, settings)

    @overload
    def foreach_with_state(
        self,
        handler: StateHandler[bytes | None, bytes | None],
        *,
        state_schema: Any,
        state: str,
        **settings: Unpack[StateSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach_with_state(
        self,
        handler: StateHandler[bytes | None, V],
        *,
        state_schema: Any,
        state: str,
        value: Declared[V],
        **settings: Unpack[StateSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach_with_state(
        self,
        handler: StateHandler[K, bytes | None],
        *,
        state_schema: Any,
        state: str,
        key: Declared[K],
        **settings: Unpack[StateSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach_with_state(
        self,
        handler: StateHandler[K, V],
        *,
        state_schema: Any,
        state: str,
        value: Declared[V],
        key: Declared[K],
        **settings: Unpack[StateSettings],
    ) -> CooperativeForeach: ...

    def foreach_with_state(
        self,
        handler: StateHandler[Any, Any],
        *,
        state_schema: Any,
        state: str,
        ttl: float | str | None = None,
        history: int = HISTORY,
        concurrency: int = 1,
        retry: RetryPolicy | None = None,
        dead_letter: str | None = None,
        on_dead: OnDead = "continue",
        output: str | Callable[[DataFrame, str], object] | None = None,
        output_schema: Any = None,
        output_mode: OutputMode = "append",
        value: Declared[Any] | None = None,
        key: Declared[Any] | None = None,
    ) -> CooperativeForeach:
        """Calls a handler with every record and the state of its key, in the order of the key.

        A change of the state counts if and only if the commit of its record counts. After a crash
        the state of a key is that of its committed records, each applied once. A failed record and
        a dead letter change nothing. A record without a key fails.

        Args:
            handler: A function of a `Record` and a `State`, plain or ``async``, its name as
                ``module:function``, or an object or a class that is opened, as in `foreach`. It
                answers as in `foreach`.
            state_schema: The type of a value: DDL of a type (``"long"``) or of columns
                (``"count long, total double"``, whose values are dictionaries), ``"bytes"``, or a
                Spark or Arrow type.
            state: Path or URI of a folder for the Delta tables of the state; see
                docs/explanation/state.
            ttl: The time after which a value is gone that a handler sets: seconds, or text such as
                ``"1 day"``; `State.ttl` sets another one. None: it stays.
            history: The number of the last changes of a partition that are kept at least, or those
                of its last 1,000 commits, so that offsets can be reset with the state and earlier
                states can be read. 0: only the newest state, which takes the least space. If
                members differ, the owner of hash 0 of a partition decides.
            concurrency: As in `foreach`.
            retry: As in `foreach`.
            dead_letter: As in `foreach`.
            on_dead: As in `foreach`.
            output: As in `foreach`.
            output_schema: As in `foreach`.
            output_mode: As in `foreach`.
            value: As in `foreach`.
            key: As in `foreach`. The state is that of the key's bytes.

        Raises:
            HandlerNotUsable: The handler cannot be found, called with two arguments, or pickled.
            InvalidOption: An argument is out of its range, or lacks its counterpart.
            TableUnusable: There is a state of another schema at the path, or something else.
        """
        if not isinstance(state, str) or not state:
            raise InvalidOption("state", repr(state), "give the path of a folder")
        if isinstance(handler, FrameHandler):
            raise InvalidOption("handler", "a frame handler", "give a function of (record, state)")
        lifetime = None if ttl is None else seconds_of("ttl", ttl)
        if lifetime is not None and not 0 < lifetime <= MAX_WAIT:
            raise InvalidOption("ttl", repr(ttl), "give a time above 0, up to 365 days")
        if not isinstance(history, int) or isinstance(history, bool) or history < 0:
            raise InvalidOption("history", repr(history), "give a number of changes, from 0")
        settings = HandlerSettings(
            concurrency, "key", retry, dead_letter, on_dead, output, output_schema, output_mode,
            value, key,
        )  # fmt: skip
        log = StateLog(state, StateSchema.parse(state_schema), lifetime, history)
        return CooperativeForeach(self, handler, settings, log)

    def foreach_frame(
        self,
        handler: FrameFunction,
        *,
        max_records: int = 1_000,
        format: Format = "arrow",  # noqa: A002 - as in PySpark
        ordering: Ordering = "key",
        retry: RetryPolicy | None = None,
        dead_letter: str | None = None,
        on_dead: OnDead = "continue",
        output: str | Callable[[DataFrame, str], object] | None = None,
        output_schema: Any = None,
        output_mode: OutputMode = "append",
        value: Declared[Any] | None = None,
        key: Declared[Any] | None = None,
    ) -> CooperativeForeach:
        """Call a handler with many records at once, in their order, and settle each by itself.

        A frame holds records of one partition and slot, with the columns ``topic``, ``partition``,
        ``offset``, ``key``, ``value``, ``timestamp``, ``attempt`` and, with ``includeHeaders``,
        ``headers``. A slot handles one frame after another.

        Args:
            handler: A function of a frame, plain or ``async``, its name as ``module:function``,
                or an object or a class that is opened, as in `foreach`. It returns None if all
                are done; or a list of outcomes, one a row: None, an output row or several, `Retry`,
                `Reject` or another exception; or a column, in which, as in the list, null and true
                are done, false and texts are tried again. What it raises holds for every row. A row
                behind a failed one of its key waits, whatever was answered for it.
            max_records: In one frame, 1 to 100,000.
            format: ``arrow`` for a `pyarrow.RecordBatch`, ``pandas`` for a DataFrame.
            ordering: As in `foreach`.
            retry: As in `foreach`; its ``timeout`` holds for a frame.
            dead_letter: As in `foreach`.
            on_dead: As in `foreach`.
            output: As in `foreach`.
            output_schema: As in `foreach`.
            output_mode: As in `foreach`.
            value: As in `foreach`. A class has a column for each field instead of the column
                ``value``, as ``value.amount``. ``"text"`` is a column of text. In pandas frames,
                all else is a column of objects; Arrow frames have no such columns.
            key: As for ``value``.

        Raises:
            HandlerNotUsable: The handler cannot be found, called with one argument, or pickled.
            InvalidOption: An argument is out of its range, or lacks its counterpart.
            TableUnusable: A table has other columns.
        """
        if not isinstance(max_records, int) or not 1 <= max_records <= _MOST_IN_A_FRAME:
            hint = f"give 1 to {_MOST_IN_A_FRAME:,}"
            raise InvalidOption("max_records", repr(max_records), hint)
        if format not in ("arrow", "pandas"):
            raise InvalidOption("format", repr(format), "give arrow or pandas")
        settings = HandlerSettings(
            1, ordering, retry, dead_letter, on_dead, output, output_schema, output_mode,
            value, key,
        )  # fmt: skip
        return CooperativeForeach(self, FrameHandler(handler, max_records, format), settings)

    def in_use(self) -> AbstractContextManager[None]:
        """While a call is made that needs the group, `maxPollInterval` does not count."""
        return self._poller.session.in_use()

    def run_by(self, query: CooperativeQuery) -> None:
        """A query now works for this consumer; it has one at a time."""
        self.check_no_query("foreach")
        self._query = query

    def check_no_query(self, what: str) -> None:
        """Makes sure that no query is running.

        Raises:
            InvalidOption: One is.
        """
        if self._query is not None and self._query.isActive:
            raise InvalidOption(what, "a query is running", "stop it, or use another consumer")

    def live_page(self, dead_letter: str | None) -> LivePage:
        """Returns the live page of the group; the first call starts it.

        Args:
            dead_letter: Where its dead letters are; None for nowhere.

        Raises:
            AlreadyClosed: The consumer is closed.
            PageUnavailable: A package is missing, or the port is in use.
        """
        with self._joining:
            if self._is_closing:
                raise AlreadyClosed("the consumer")
            if self._page is None:
                options = {n: v for n, v in self._given.items() if n.lower() != "deadletter"}
                if dead_letter is not None:
                    options["deadLetter"] = dead_letter
                self._page = LivePage(
                    options, self.options.group_id, port=self.options.ui_port, spark=self.spark
                )
            return self._page

    def _alone(self, what: str) -> Membership:
        """The membership, for what cannot be done beside a query."""
        membership = self.membership()
        self.check_no_query(what)
        return membership

    def close(self, timeout: float | None = None) -> None:
        """Stops a running query, gives back what is owned and leaves the group.

        It may be called from any thread, and more than once. Calls of other threads that wait,
        such as `poll`, raise `AlreadyClosed`. Called by a listener of the query it returns at once,
        and the consumer is closed when the query has ended. A rebalance listener's `on_revoked` is
        called before; it may still commit.

        Args:
            timeout: Seconds that running handlers of the query have to end, as in
                `CooperativeQuery.stop`; None: as long as they take.
        """
        with self._joining:
            if self._is_closing:
                return
            self._is_closing = True
        if self._query is not None and self._query.is_in_its_thread:
            threading.Thread(target=self._leave, args=(timeout,), name="coopconsume-close").start()
        else:
            self._leave(timeout)

    def _shut(self) -> None:
        self._closed = True

    def _leave(self, timeout: float | None) -> None:
        with ExitStack() as last:
            if self._membership is not None:
                last.callback(self._membership.leave)
            last.callback(self._poller.close)
            if self._page is not None:
                last.callback(self._page.close)
            last.callback(self._shut)
            if self._membership is not None:
                last.callback(self._membership.revoke)
            if self._query is not None:
                last.callback(self._query.stop, timeout)

    def _repr_html_(self) -> str | None:
        membership = self._membership
        if self._closed or membership is None:
            return None  # The notebook takes the text.

        def draw() -> str:
            assignment = membership.assignment
            group = overview_of(self.options, membership.cluster, membership.store, history=False)
            return group_html(group, assignment.member if assignment else None)

        return in_time(_DRAW_TIMEOUT, draw)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"CooperativeConsumer(group={self.options.group_id!r}, {state})"
