"""`Subscription`: how a consumer joins its group, stays in it and leaves it."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coopconsume.classic import cores
from coopconsume.errors import AlreadyClosed, InvalidOption, MissingOption
from coopconsume.group.membership import Membership
from coopconsume.runtime.checks import check_tables
from coopconsume.runtime.dispatch.slot_leases import lease_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from assignors import KeyRange
    from coopconsume.group.callbacks import RebalanceListener
    from coopconsume.options import Options
    from coopconsume.runtime.loop import Job
    from coopconsume.runtime.poll.session import PollSession
    from coopconsume.runtime.status.progress import Meter

    Join = Callable[[Membership], None]

log = logging.getLogger(__name__)

#: Seconds between two looks whether a consumer is used, at most.
_UNUSED_EVERY = 1.0


def slots_of(options: Options, spark: SparkSession, *, spare: int = 0) -> int:
    """Returns the Spark tasks side by side: the option, else the cores that Spark has.

    Args:
        options: Of the consumer.
        spark: The session.
        spare: Cores to leave free if the option is not given; one slot is left in any case.

    Raises:
        MissingOption: Neither is known, as on Spark Connect.
    """
    found = options.slots
    if found is None and (most := cores(spark)):
        found = max(1, most - spare)
    if not found:
        raise MissingOption("slots")
    return found


@dataclass(frozen=True)
class QueryRun:
    """A run of a query, from its start on.

    Attributes:
        job: Handles the records.
        meter: Measures it.
    """

    job: Job
    meter: Meter

    @property
    def is_active(self) -> bool:
        """Whether the job is still running."""
        return not self.job.ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """What it does and waits for, as `CooperativeQuery.status` has it."""
        waiting = self.meter.waiting
        return {
            "message": self.meter.message,
            "waitingFor": waiting.describe() if waiting else None,
            "isDataAvailable": any(not p.is_drained for p in self.job.partitions),
            "isTriggerActive": self.is_active and bool(self.job.batches_running),
        }

    def stop(self, timeout: float | None, *, drain: bool = False) -> None:
        """Stops it, as `CooperativeQuery.stop` does."""
        if self.is_active:
            self.job.stop(timeout, drain=drain)


class Subscription:
    """Joins the group when a consumer needs it, and leaves it; for one query at a time.

    Args:
        options: Of the consumer.
        spark: The session.
        session: Works on the assignment while no query runs, and knows when the user last called.

    Attributes:
        membership: The member's place in the group; None: it has not joined, or has left.
        query: The last query that was started.
        is_closed: Whether the consumer is closed.
        closing: Set once the consumer begins to close.
    """

    def __init__(self, options: Options, spark: SparkSession, session: PollSession) -> None:
        self.options = options
        self.spark = spark
        self._session = session
        self.membership: Membership | None = None
        self.query: QueryRun | None = None
        self.is_closed = False
        self.closing = threading.Event()
        self._prepare: Join | None = None
        self._joining = threading.Lock()
        #: How to join again after maxPollInterval.
        self._join_again: Join | None = None

    # -- joining

    def subscribe(
        self, topics: Iterable[str] | str | None = None, listener: RebalanceListener | None = None
    ) -> None:
        """Joins the group, as `CooperativeConsumer.subscribe` does."""
        wanted = [topics] if isinstance(topics, str) else None if topics is None else list(topics)
        by_option = self.options.subscribe or self.options.subscribe_pattern
        if wanted is not None and by_option:
            raise InvalidOption("subscribe", "given as option and as call", "give it once")
        if wanted is None and not by_option:
            raise MissingOption("subscribe")
        names, pattern = wanted or self.options.subscribe, self.options.subscribe_pattern
        self._subscribe(lambda membership: membership.subscribe(names, pattern, listener))

    def assign(
        self, partitions: Mapping[tuple[str, int], Iterable[KeyRange]], *, takeover: bool
    ) -> None:
        """Claims key ranges by hand, as `CooperativeConsumer.assign` does."""
        self._join(lambda membership: membership.assign(partitions, takeover=takeover))

    def joined(self, prepare: Join | None = None) -> Membership:
        """Returns the member's place in the group; joins first where an option names the topics.

        Args:
            prepare: Sets what the member says when it joins; what it raises is raised.
        """
        if self.is_closed:
            raise AlreadyClosed("the consumer")
        if self.membership is None:
            self._prepare = prepare
            if self._join_again is not None:
                self._subscribe(self._join_again)
            else:
                self.subscribe()
        elif prepare is not None:
            prepare(self.membership)
        assert self.membership is not None
        return self.membership

    def _subscribe(self, join: Join) -> None:
        with self._session.calls.in_use():
            membership = self._join(join)
        threading.Thread(
            target=self._leave_when_unused,
            args=(membership, join),
            name="coopconsume-unused",
            daemon=True,
        ).start()

    def _join(self, join: Join) -> Membership:
        with self._joining:
            self._check_open()
            if self.membership is not None:
                raise InvalidOption("subscribe", "called twice", "call unsubscribe() first")
            # A listener's first call, and `close` in another thread, find it before it has joined.
            membership = self.membership = Membership(
                self.options, slots_of(self.options, self.spark), self._session, self.spark
            )
        try:
            check_tables(self.options, commit_table=membership.store.location)
            if self._prepare is not None:
                self._prepare(membership)
            membership.work_under_leases(lease_seconds(self.spark, self.options))
            join(membership)
        except BaseException:
            membership.leave()  # As a whole or not at all: nothing is left open.
            if self.membership is membership:
                self.membership = None
            raise
        self._join_again = None
        return membership

    def _check_open(self) -> None:
        if self.closing.is_set():
            raise AlreadyClosed("the consumer")

    # -- leaving

    @property
    def has_left_unused(self) -> bool:
        """Whether the member has left after ``maxPollInterval`` without a call."""
        return self._join_again is not None

    def in_use(self) -> AbstractContextManager[None]:
        """While a call is made that needs the group, `maxPollInterval` does not count."""
        return self._session.calls.in_use()

    def _leave_when_unused(self, membership: Membership, join: Join) -> None:
        """In a thread of its own: leaves the group after ``maxPollInterval`` without a call."""
        session, most = self._session, self.options.max_poll_interval
        while self.membership is membership and not session.calls.closed.is_set():
            if self.query is not None and self.query.is_active:
                with session.calls.in_use():
                    pass
            left = most - session.calls.unused()
            if left > 0:
                session.calls.closed.wait(min(left, _UNUSED_EVERY))
                continue
            log.warning(
                "group %s: no call of poll, commit, retry or reject for maxPollInterval (%g s): "
                "the consumer leaves the group; what it polled and did not commit comes again; the "
                "next poll joins again. Give maxPollInterval more time if frames take longer",
                self.options.group_id,
                most,
            )
            self._end(membership, join)

    def unsubscribe(self) -> None:
        """Leaves the group, as `CooperativeConsumer.unsubscribe` does."""
        self.check_no_query("unsubscribe")
        with self._joining:
            self._check_open()
            membership, self._join_again = self.membership, None
        if membership is not None:
            self._end(membership)

    def _end(self, membership: Membership, join_again: Join | None = None) -> None:
        """Leaves the group; the next `poll` joins again if it is said how."""
        membership.revoke()
        with self._joining:
            is_called = join_again is not None and self._session.calls.unused() == 0
            if self.membership is not membership or is_called:
                return  # A query that starts meanwhile works with it.
            self.membership, self._join_again = None, join_again
        try:
            membership.leave()
        finally:
            self._session.forget()

    def begin_to_close(self) -> bool:
        """Lets nobody join any more; returns false if that was so already."""
        with self._joining:
            is_first = not self.closing.is_set()
            self.closing.set()
        return is_first

    def close(self) -> None:
        """Refuses calls from now on: the member is about to leave the group."""
        self.is_closed = True

    # -- queries

    def run(self, query: QueryRun) -> None:
        """A query now works for the consumer; it has one at a time."""
        self.check_no_query("foreach")
        self.query = query

    def check_no_query(self, what: str) -> None:
        """Makes sure that no query is running.

        Raises:
            InvalidOption: One is.
        """
        if self.query is not None and self.query.is_active:
            raise InvalidOption(what, "a query is running", "stop it, or use another consumer")

    def alone(self, what: str) -> Membership:
        """Returns the member's place in the group, for what cannot be done beside a query."""
        membership = self.joined()
        self.check_no_query(what)
        return membership
