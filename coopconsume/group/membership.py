"""The membership of a consumer in its group: how it joins and leaves, and its assignment.

A subscriber's shares come and go with the group's rebalances; a worker (a job, or polling) takes
them and gives them back. With `assign` they are claimed by hand and stay.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from coopconsume.errors import InvalidOption
from coopconsume.group import GroupMember
from coopconsume.group.claiming import claim_key_ranges
from coopconsume.group.current_assignment import CurrentAssignment
from coopconsume.group.dead_members import leave_for_dead, locked
from coopconsume.group.listener_calls import ListenerCalls
from coopconsume.group.rebalance_handler import RebalanceHandler, give_back
from coopconsume.group.settings import session_ms
from coopconsume.group.work_life import WorkLife
from coopconsume.kafka.connection import Connection
from coopconsume.state.note import check_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from assignors import KeyRange, Share
    from commits.model import TopicPartition
    from coopconsume.group.callbacks import RebalanceListener, Worker
    from coopconsume.group.claims import ClaimKeeper
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import Owned
    from coopconsume.options import Options
    from coopconsume.state.changelog import Changelog
    from coopconsume.worker.host_locks import DriverLock

#: Seconds that all calls to Kafka of a member that leaves may take together.
_LEAVE_WITHIN = 1.0


class Membership:
    """Joins and leaves the group, and has the assignment that the group gives.

    Args:
        options: Of the consumer.
        slots: Tasks side by side that it offers its group.
        worker: Works on the assignment, until another worker is attached.
        spark: The session, for a commit table that is in a catalog.

    Attributes:
        options: The same.
        cluster: The Kafka cluster.
        store: The commit store.
        owner: Does what the group's member asks for, most often as a rebalance begins or ends.
        driver_lock: What a crash of this process leaves to the next one on its host; None: nothing
            is known.

    Raises:
        BrokerUnreachable: No broker answers.
        commits.CommitStoreError: The commit table cannot be used.
    """

    def __init__(
        self, options: Options, slots: int, worker: Worker, spark: SparkSession | None = None
    ) -> None:
        self.options = options
        at = Connection(
            options,
            create=True,
            spark=spark,
            max_ranges=options.max_num_ranges,
            max_ranges_to_commit=options.max_num_ranges_to_commit,
        )
        self.cluster, self.store = at.cluster, at.store
        self._slots = slots
        self._application = "" if spark is None else spark.conf.get("spark.app.name", "") or ""
        self._allow_key_share = options.allow_key_share
        #: The id of the state that its work keeps, see `keep_state`.
        self._state: str | None = None
        self._group: GroupMember | None = None
        self._claim: ClaimKeeper | None = None
        #: For which a rebalance was asked for, as work would go on for longer than others wait.
        self._asked_for: EpochAssignment | None = None
        self._left = threading.Lock()
        self._life = WorkLife(options, spark)
        self._current = CurrentAssignment(worker)
        self._listener = ListenerCalls(self._current.lock, self._current.leaving)
        self.owner = RebalanceHandler(
            options,
            self.store,
            cluster=self.cluster,
            current=self._current,
            listener=self._listener,
            group=lambda: self._group,
        )
        self.driver_lock: DriverLock | None = None

    # -- joining and leaving

    def subscribe(
        self,
        topics: Iterable[str] | None,
        pattern: str | None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Joins the group, and waits until it has given us our shares.

        Raises:
            TopicNotFound: A topic does not exist.
            GroupRefused: Others in the group work with another store, or are no members of ours.
            ExternalReset, DataLoss: As their options say.
            AlreadyClosed: Another thread closed the consumer meanwhile.
        """
        names = self.cluster.subscribed(topics, pattern)
        self.driver_lock = locked(self.options, self.store, self.cluster)
        leave_for_dead(self.options, self.store, self.cluster, self._current.leaving)
        self._listener.attach(listener)
        self._life.end_with_driver()
        self._group = GroupMember(
            self.options,
            self.store,
            cluster=self.cluster,
            slots=self._slots,
            owner=self.owner,
            life_ms=self._life.ms,
            application=self._application,
            driver_lock=self.driver_lock,
        )
        self._group.allow_key_share(allowed=self._allow_key_share)
        self._group.keep_state(self._state)
        self._group.start(names, pattern)
        self._current.wait_for_first(lambda: self.joining)

    @property
    def joining(self) -> str:
        """Why there is no assignment now, for people."""
        waited = time.monotonic() - self._current.awaited_since
        return (
            f"waiting for group {self.options.group_id} for {waited:.0f} s: it rebalances when all "
            f"members have joined, or the session of those that do not answer has ended (at most "
            f"{session_ms(self.options) / 1000:.0f} s with this member's kafka.session.timeout.ms)"
        )

    def need_whole_partitions(self, *, needed: bool) -> None:
        """Sets whether the member takes whole partitions alone, from its next join on.

        What a handler's ``ordering="partition"`` promises does not hold in a part of a partition,
        as another member works on the other part.

        Raises:
            InvalidOption: Parts of partitions are assigned by hand.
        """
        assignment = self._current.held
        if needed and self._group is None and assignment is not None:
            for tp, owned in assignment.owned.items():
                if not owned.is_whole:
                    raise InvalidOption(
                        "ordering",
                        f"'partition' with a part of {tp[0]}-{tp[1]}",
                        "assign whole partitions, or give ordering='key'",
                    )
        self._allow_key_share = self.options.allow_key_share and not needed
        if self._group is not None:
            self._group.allow_key_share(allowed=self._allow_key_share)

    def keep_state(self, changelog: Changelog | None) -> None:
        """Sets the state that a job is about to keep; the next join says it.

        Raises:
            GroupRefused, ResetNotFinished, StateNotReadable, TableUnusable: As for `check_state`.
        """
        check_state(self.store, self.options.group_id, self.cluster.cluster_id, changelog)
        # Without an id its table is created when the job begins.
        self._state = "" if changelog is None else changelog.id or None
        if self._group is not None:
            self._group.keep_state(self._state)

    def work_under_leases(self, lease: float | None) -> None:
        """Sets how long the next join says that work may go on after the death of this process.

        Args:
            lease: Seconds after the last renewal in which slots start records; what they have
                started then has ``leaseGrace``, or with a claim ``handlerTimeout``. None: slots
                have no leases, and a batch may go on for its whole life.
        """
        self._life.work_under_leases(lease)
        if self._group is not None:
            self._group.work_may_last(self._life.ms)

    def may_work_for(self, assignment: EpochAssignment, lease: float | None) -> bool:
        """Returns whether the next owners wait long enough for work.

        If not, it asks for a rebalance, or claims the same key ranges once more: that begins with
        a hand-over, after which the worker gets them back.

        Args:
            assignment: What the work is done under.
            lease: As for `work_under_leases`.
        """
        self.work_under_leases(lease)
        if assignment.life_ms >= self._life.ms:
            return True
        if self._asked_for is assignment:
            return False
        self._asked_for = assignment
        if self._claim is not None:
            # The worker hands over meanwhile, so it must not wait here.
            threading.Thread(
                target=self._claim_again, args=(assignment,), name="coopconsume-claim", daemon=True
            ).start()
            return False
        self.rebalance(
            "slots work without leases from now on, and the group must know that they may go on "
            "for longer after the death of this process"
        )
        return False

    def assign(
        self, partitions: Mapping[TopicPartition, Iterable[KeyRange]], *, takeover: bool
    ) -> None:
        """Claims key ranges by hand; an empty list of ranges means the whole partition.

        The errors are those of `claim_key_ranges`.
        """
        grant, self._claim = claim_key_ranges(
            self.options, self.store, self.cluster, partitions, self._life.ms, takeover=takeover
        )
        self.owner.begin(grant)
        self._current.check_open()

    def _claim_again(self, assignment: EpochAssignment) -> None:
        """In a thread of its own: gives a claim back and makes it again, with another life."""
        try:
            if self._claim is not None:
                self._claim.stop()
            self.owner.hand_over()
            self.assign(assignment.key_ranges, takeover=False)
        except BaseException as error:  # noqa: BLE001 - the worker reports it to the user
            if not self._current.leaving.is_set():
                self._current.fail(error)

    def leave(self) -> None:
        """Gives the assignment back and leaves the group; harmless when repeated.

        It may be called from any thread, a listener's call included. If another thread is leaving
        already, it returns when that one is done. Calls to Kafka have one limit for all: where no
        broker answers, the group removes the member when its session ends.
        """
        self._current.leave()
        with self._left:
            self._leave()

    def revoke(self) -> None:
        """Calls `on_revoked` for the assignment, as the consumer closes; then no listener any more.

        It returns when the listener does. A listener that closes its consumer is not called again.
        """
        with self._current.lock:
            is_due, assignment = self._listener.close(), self._current.held
        if is_due and assignment is not None:
            assignment.primary.limit_writes(_LEAVE_WITHIN)
            self._listener.call("on_revoked", assignment.key_ranges)

    def _leave(self) -> None:
        self.cluster.limit.set(_LEAVE_WITHIN)
        group, self._group = self._group, None
        if self._claim is not None:
            self._claim.stop()
        try:
            current = self._current.held
            if group is not None and current is not None and current.is_between_epochs:
                group.follow()  # Under an epoch that has passed nothing can be given back.
            assignment = self._current.end()
            if assignment is not None:
                if not assignment.primary.is_unanswered:
                    assignment.primary.write_quietly(force=True, within=_LEAVE_WITHIN)
                give_back(assignment, ())
        finally:
            try:
                if group is not None:
                    group.leave()
                    if self._current.latest is not None:
                        self._current.latest.primary.write_last()
            finally:
                if self.driver_lock is not None:
                    self.driver_lock.withdraw()
                self.cluster.close()

    # -- the assignment

    @property
    def assignment(self) -> EpochAssignment | None:
        """The current assignment; None between a group's epochs.

        Raises:
            CoopConsumeError: The member has left the group permanently.
        """
        return self._current.get()

    @property
    def owned(self) -> Mapping[TopicPartition, Owned]:
        """Returns the partitions that we own a part of; empty between a group's epochs."""
        assignment = self.assignment
        return assignment.owned if assignment is not None else {}

    def wait_for_assignment(self, timeout: float | None = None) -> EpochAssignment | None:
        """Returns the current assignment; between epochs it waits for the next one.

        Args:
            timeout: Seconds; then None is returned, as after `leave`.

        Raises:
            CoopConsumeError: The member has left the group permanently.
        """
        return self._current.wait(timeout)

    def attach(self, worker: Worker) -> None:
        """Has another worker work on the assignment from now on."""
        self._current.attach(worker)

    def detach(self) -> None:
        """Detaches the worker, which has ended."""
        with self._current.lock:
            self.need_whole_partitions(needed=False)
            self._current.detach()

    def fenced(self, why: str, *, handing_over: bool = False) -> bool:
        """Takes the refusal of our work by the log.

        Args:
            why: In words.
            handing_over: Whether the member is about to join again anyway.

        Returns:
            Whether the member joins again; if not, it is the end.
        """
        if self._group is None:
            return False
        if self._current.refuse() is not None and not handing_over:
            # Without anything to hold it is about to join again already.
            self._group.rejoin(why)
        return True

    def rejoin(self, why: str, running: Sequence[Share]) -> bool:
        """Gives all shares back and joins again: topics have changed since the assignment.

        Args:
            why: The reason, for people.
            running: Parts that handlers may still work on; owners of others need not wait.

        Returns:
            Whether the member joins again; if not, the consumer ends.
        """
        if self._group is None:
            return False
        assignment = self._current.refuse()
        if assignment is not None:
            give_back(assignment, running)
            self._group.rejoin(why)
        return True

    def rebalance(self, why: str) -> None:
        """Asks the group for a rebalance; does nothing for shares that are claimed with `assign`.

        This member hands over its shares and starts again; the other members continue.
        """
        if self._group is not None:
            self.owner.hand_over_next()
            self._group.rebalance(why)
