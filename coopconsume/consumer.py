"""`CooperativeConsumer`: what users open first."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from assignors import key_hash
from coopconsume.admin.html import in_time
from coopconsume.admin.offsets import PartitionStatus
from coopconsume.admin.overview import key_metadata, overview_of
from coopconsume.admin.overview.tables import DrawnAssignment, group_html
from coopconsume.admin.views import status_frame
from coopconsume.classic import quiet_group_warning, usable_session, why_ended
from coopconsume.closing import Closing
from coopconsume.errors import InvalidOption, SessionUnusable
from coopconsume.foreach import HandlerMethods
from coopconsume.kafka.partitioner import default_partition
from coopconsume.option_names import warn_without_effect
from coopconsume.options import Options
from coopconsume.runtime.checks import check_tables
from coopconsume.runtime.poll.poller import Poller
from coopconsume.runtime.read.expressions import check_filter, check_ordering_key
from coopconsume.runtime.read.session_settings import with_session_settings
from coopconsume.subscription import Subscription, slots_of
from coopconsume.ui.page import PageOnDemand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kafka import TopicPartition
    from pyspark.sql import Column, DataFrame, SparkSession

    from assignors import KeyRange
    from commits import CommitResult, OffsetRanges
    from coopconsume.admin.overview import GroupOverview, KeyMetadata
    from coopconsume.group.callbacks import RebalanceListener
    from coopconsume.record import OnDead
    from coopconsume.runtime.poll.positions import PollPosition

_DRAW_TIMEOUT = 3.0
_UNUSED = "Left the group after maxPollInterval without a call; the next poll joins again"


class CooperativeConsumer(HandlerMethods, Closing):
    """Consumes Kafka cooperatively: by key range, each record committed by itself.

    Either poll DataFrames and commit what was done of them, or give a handler to `foreach`.

    Args:
        options: Names and values as text, in Kafka's and Spark's words; see `coopconsume.options`.
        spark: The session, or a function that returns one, such as `local_session`: it is called
            when the options have been checked. By default the active session. The consumer never
            stops or changes it.

    Attributes:
        options: The options, checked.
        spark: The session.

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
        self.spark = usable_session(spark)
        quiet_group_warning(self.spark)
        check_ordering_key(self.spark, self.options.ordering_key)
        check_filter(self.spark, self.options.record_filter)
        self.options = with_session_settings(self.spark, self.options)
        self._poller = Poller(self.spark, self.options, self.slots)
        self._subscription = Subscription(self.options, self.spark, self._poller.session)
        self._page = PageOnDemand(options, self.options, self.spark, self._subscription.closing)

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
        self._subscription.subscribe(topics, listener)
        return self

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
        self._subscription.assign(wanted, takeover=takeover)
        return self

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
        self._subscription.unsubscribe()

    def assignment(self) -> dict[TopicPartition, list[KeyRange]]:
        """The key ranges owned, by partition; empty before subscribe or assign.

        In a notebook they are drawn, as are the consumer and its group.
        """
        from kafka import TopicPartition

        membership = self._subscription.membership
        owned = {} if membership is None else membership.owned
        return DrawnAssignment({TopicPartition(*tp): list(o.ranges) for tp, o in owned.items()})

    def slots(self, *, spare: int = 0) -> int:
        """Spark tasks side by side: the option, else the cores that Spark has.

        Args:
            spare: Cores to leave free if the option is not given; one slot is left in any case.

        Raises:
            MissingOption: Neither is known, as on Spark Connect.
        """
        return slots_of(self.options, self.spark, spare=spare)

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
        if not self._subscription.is_closed and (ended := why_ended(self.spark)):
            raise SessionUnusable(
                f"the Spark session runs no jobs any more, {ended}: close this consumer and create "
                "one with a new session; what is not committed comes again"
            )
        return self._poller.poll(self._subscription.alone("poll"), timeout)

    def _check_by_key_range(self, call: str, instead: str) -> None:
        if self.options.uses_chunks:
            raise InvalidOption(
                "sharing", f"'cooperative' with {call}", f"use {instead}, or sharing='keyRanges'"
            )

    def wakeup(self) -> None:
        """Ends a `poll` that waits in another thread with `PollWokenUp`; else the next `poll`.

        A poll that has found records returns them; the next one raises. Nothing is lost.
        """
        self._poller.session.calls.wake()

    @property
    def status(self) -> dict[str, Any]:
        """``message`` and ``waitingFor``, as of `CooperativeQuery.status`.

        ``waitingFor`` has a ``reason`` and a ``message``; it is None if the last `poll` has
        returned records. While a query runs, its status is returned.

        Raises:
            CoopConsumeError: The member has left the group because of this error.
        """
        subscription = self._subscription
        if subscription.query is not None and subscription.query.is_active:
            return subscription.query.status
        membership = subscription.membership
        if subscription.is_closed or membership is None:
            message = _UNUSED if subscription.has_left_unused else "Not subscribed"
            return {"message": "Closed" if subscription.is_closed else message, "waitingFor": None}
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

        results = self._poller.commit(self._subscription.alone("commit"), done)
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
        self._poller.retry(self._subscription.alone("retry"), frame, delay, reason, headers)

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
        self._poller.reject(self._subscription.alone("reject"), frame, reason, on_dead)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Poll from an offset on next; what is committed stays committed and is left out.

        Raises:
            ValueError: The partition is not ours, or the offset is negative.
        """
        self._subscription.joined()
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
        self._subscription.joined()
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
        membership = self._subscription.joined()
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
        membership = self._subscription.joined()
        if partition is None:
            (found,) = membership.cluster.topics([topic])
            partition = default_partition(key, found.partitions)
        hashed = key_hash(key)
        assert hashed is not None
        group = overview_of(self.options, membership.cluster, membership.store, history=False)
        return key_metadata(group, topic, partition, hashed)

    def _statuses(self, *, ends: bool = False) -> list[PartitionStatus]:
        membership = self._subscription.joined()
        owned = membership.owned
        state = membership.store.state(self.options.group_id)
        ours = sorted(tp for tp in state if tp in owned)
        end_of = membership.cluster.ends(ours) if ends else {}
        return [PartitionStatus.of(tp, state[tp], end_offset=end_of.get(tp)) for tp in ours]

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
        if not self._subscription.begin_to_close():
            return
        query = self._subscription.query
        if query is not None and query.job.is_in_its_thread:
            threading.Thread(target=self._leave, args=(timeout,), name="coopconsume-close").start()
        else:
            self._leave(timeout)

    def _leave(self, timeout: float | None) -> None:
        subscription = self._subscription
        membership, query = subscription.membership, subscription.query
        with ExitStack() as last:
            if membership is not None:
                last.callback(membership.leave)
            last.callback(self._poller.close)
            last.callback(self._page.close)
            last.callback(subscription.close)
            if membership is not None:
                last.callback(membership.revoke)
            if query is not None:
                last.callback(query.stop, timeout)

    def _repr_html_(self) -> str | None:
        membership = self._subscription.membership
        if self._subscription.is_closed or membership is None:
            return None  # The notebook takes the text.

        def draw() -> str:
            assignment = membership.assignment
            group = overview_of(self.options, membership.cluster, membership.store)
            return group_html(group, assignment.member if assignment else None)

        return in_time(_DRAW_TIMEOUT, draw)

    def __repr__(self) -> str:
        state = "closed" if self._subscription.is_closed else "open"
        return f"CooperativeConsumer(group={self.options.group_id!r}, {state})"
