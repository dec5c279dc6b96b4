"""The membership of a consumer in its group: how it joins and leaves, and its assignment.

A subscriber's shares come and go with the group's rebalances; a worker (a job, or polling) takes
them and gives them back. With `assign` they are claimed by hand and stay.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from assignors.shares import by_partition, common, inside, without
from commits import CommitLogUnavailable
from coopconsume.classic import is_classic
from coopconsume.errors import (
    AlreadyClosed,
    BrokerUnreachable,
    InvalidOption,
    TopicReplaced,
)
from coopconsume.group import GroupMember
from coopconsume.group.claiming import claim_key_ranges
from coopconsume.group.dead_members import leave_for_dead, locked
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.owned import LEASE, STARTS_WITHIN, left_ms
from coopconsume.group.repeating import repeated
from coopconsume.group.settings import lease_of, life_of, session_ms
from coopconsume.kafka.connection import Connection
from coopconsume.state.note import check_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from assignors import KeyRange, Share
    from commits import Epoch
    from commits.model import TopicPartition
    from coopconsume.group.callbacks import RebalanceListener, Worker
    from coopconsume.group.claims import ClaimKeeper
    from coopconsume.group.owned import EpochGrant, Owned
    from coopconsume.options import Options
    from coopconsume.state.changelog import Changelog
    from coopconsume.worker.host_locks import DriverLock

log = logging.getLogger(__name__)

#: Seconds of joining after which a warning says so; then it is repeated.
_FIRST_WARNING = 3.0
_PATIENCE = 10.0
#: Seconds that all calls to Kafka of a member that leaves may take together.
_LEAVE_WITHIN = 1.0
#: Seconds between two looks whether a listener has returned.
_LISTENER_PAUSE = 0.05


class Membership:
    """Joins and leaves the group, and has the assignment that the group gives.

    Args:
        options: Of the consumer.
        slots: Tasks side by side that it offers its group.
        worker: Works on the assignment, until another worker is attached.
        spark: The session, for a commit table that is in a catalog.

    Raises:
        BrokerUnreachable: No broker answers.
        commits.CommitStoreError: The commit table cannot be used.
    """

    def __init__(
        self, options: Options, slots: int, worker: Worker, spark: SparkSession | None = None
    ) -> None:
        self.options = options
        at = Connection(
            options, create=True, spark=spark, max_ranges=options.max_num_ranges,
            max_ranges_to_commit=options.max_num_ranges_to_commit,
        )  # fmt: skip
        self.cluster, self.store = at.cluster, at.store
        self._slots = slots
        self._application = "" if spark is None else spark.conf.get("spark.app.name", "") or ""
        starts_within = 0.0 if spark is None or is_classic(spark) else STARTS_WITHIN
        longest = max(options.batch_time + LEASE + starts_within, lease_of(options))
        self._unleased_ms = int(1000 * (longest + options.handler_timeout))
        #: Of the slots; None: they have none. And whether they end without their driver.
        self._lease: float | None = None
        self._fails_stop = False
        self._idle_worker = self._worker = worker
        self._listener: RebalanceListener | None = None
        self._is_announced = self._is_revoked = False
        self._allow_key_share = options.allow_key_share
        #: The id of the state that its work keeps, see `keep_state`.
        self._state: str | None = None
        self._group: GroupMember | None = None
        self._claim: ClaimKeeper | None = None
        self._assignment: EpochAssignment | None = None
        self._latest: EpochAssignment | None = None
        self._refused: EpochAssignment | None = None
        #: For which a rebalance was asked for, as work would go on for longer than others wait.
        self._asked_for: EpochAssignment | None = None
        #: Whether the next rebalance is ours, and is to begin with a hand-over.
        self._hands_over = False
        #: Parts that were handed over while handlers of this process were at work on them, and
        #: until when these may go on, on the monotonic clock.
        self._left_running: list[tuple[Share, float]] = []
        self._error: BaseException | None = None
        self._joining_since = time.monotonic()
        self._changed = threading.Condition(threading.RLock())
        self._leaving = threading.Event()
        self._left = threading.Lock()
        #: What a crash of this process leaves to the next one on its host; None: nothing is known.
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
        leave_for_dead(self.options, self.store, self.cluster, self._leaving)
        self._listener, self._fails_stop = listener, True
        self._group = GroupMember(
            self.options, self.store, self.cluster, self._slots, self, self._life_ms,
            self._application, self.driver_lock,
        )  # fmt: skip
        self._group.allow_key_share(allowed=self._allow_key_share)
        self._group.keep_state(self._state)
        self._group.start(names, pattern)
        self._joining_since = time.monotonic()
        due = self._joining_since + _FIRST_WARNING
        with self._changed:
            while self._assignment is None:
                self._raise_error()
                self._check_open()
                self._changed.wait(0.2)
                if time.monotonic() > due:
                    log.warning("%s", self.joining)
                    due = time.monotonic() + _PATIENCE

    @property
    def joining(self) -> str:
        """Why there is no assignment now, for people."""
        return (
            f"waiting for group {self.options.group_id} for "
            f"{time.monotonic() - self._joining_since:.0f} s: it rebalances when all members have "
            f"joined, or the session of those that do not answer has ended (at most "
            f"{session_ms(self.options) / 1000:.0f} s with this member's kafka.session.timeout.ms)"
        )

    def need_whole_partitions(self, *, needed: bool) -> None:
        """Sets whether the member takes whole partitions alone, from its next join on.

        What a handler's ``ordering="partition"`` promises does not hold in a part of a partition,
        as another member works on the other part.

        Raises:
            InvalidOption: Parts of partitions are assigned by hand.
        """
        assignment = self._assignment
        if needed and self._group is None and assignment is not None:
            for tp, owned in assignment.owned.items():
                if not owned.is_whole:
                    raise InvalidOption(
                        "ordering", f"'partition' with a part of {tp[0]}-{tp[1]}",
                        "assign whole partitions, or give ordering='key'",
                    )  # fmt: skip
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
        self._lease = lease
        if self._group is not None:
            self._group.work_may_last(self._life_ms)

    @property
    def _life_ms(self) -> int:
        """How long work may go on after the death of this process."""
        if self._lease is None:
            return self._unleased_ms
        if self._fails_stop:
            return int(1000 * life_of(self.options, self._lease))
        return int(1000 * (self._lease + self.options.handler_timeout))

    def may_work_for(self, assignment: EpochAssignment, lease: float | None) -> bool:
        """Returns whether the next owners wait long enough for work.

        If not, it asks for a rebalance, or claims the same key ranges once more: that begins with
        a hand-over, after which the worker gets them back.

        Args:
            assignment: What the work is done under.
            lease: As for `work_under_leases`.
        """
        self.work_under_leases(lease)
        if assignment.life_ms >= self._life_ms:
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
            self.options, self.store, self.cluster, partitions, self._life_ms, takeover=takeover
        )
        self._begin(grant)
        self._check_open()

    def _claim_again(self, assignment: EpochAssignment) -> None:
        """In a thread of its own: gives a claim back and makes it again, with another life."""
        try:
            if self._claim is not None:
                self._claim.stop()
            self.hand_over()
            self.assign(assignment.key_ranges, takeover=False)
        except BaseException as error:  # noqa: BLE001 - the worker reports it to the user
            if not self._leaving.is_set():
                self.failed(error)

    def _check_open(self) -> None:
        if self._leaving.is_set():
            raise AlreadyClosed("the consumer")

    def leave(self) -> None:
        """Gives the assignment back and leaves the group; harmless when repeated.

        It may be called from any thread, a listener's call included. If another thread is leaving
        already, it returns when that one is done. Calls to Kafka have one limit for all: where no
        broker answers, the group removes the member when its session ends.
        """
        with self._changed:
            self._leaving.set()
            self._changed.notify_all()
        with self._left:
            self._leave()

    def revoke(self) -> None:
        """Calls `on_revoked` for the assignment, as the consumer closes; then no listener any more.

        It returns when the listener does. A listener that closes its consumer is not called again.
        """
        with self._changed:
            is_due = self._is_announced and not self._is_revoked
            self._is_revoked, assignment = True, self._assignment
        if is_due and assignment is not None:
            assignment.primary.limit_writes(_LEAVE_WITHIN)
            self._call_listener("on_revoked", assignment.key_ranges)

    def _leave(self) -> None:
        self.cluster.limit.set(_LEAVE_WITHIN)
        group, self._group = self._group, None
        if self._claim is not None:
            self._claim.stop()
        try:
            current = self._assignment
            if group is not None and current is not None and current.is_between_epochs:
                group.follow()  # Under an epoch that has passed nothing can be given back.
            assignment = self._end_assignment()
            if assignment is not None:
                if not assignment.primary.is_unanswered:
                    assignment.primary.write_quietly(force=True, within=_LEAVE_WITHIN)
                self._give_back(assignment, ())
        finally:
            try:
                if group is not None:
                    group.leave()
                    if self._latest is not None:
                        self._latest.primary.write_last()
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
        with self._changed:
            self._raise_error()
            return self._assignment

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
        with self._changed:
            self._changed.wait_for(
                lambda: self._assignment or self._error or self._leaving.is_set(), timeout
            )
            self._raise_error()
            return self._assignment

    def attach(self, worker: Worker) -> None:
        """Has another worker work on the assignment from now on."""
        with self._changed:
            self._worker = worker
            if self._assignment is not None:
                worker.begin(self._assignment)
            if self._error is not None:
                worker.fail(self._error)

    def detach(self) -> None:
        """Detaches the worker, which has ended."""
        with self._changed:
            self._worker = self._idle_worker
            self.need_whole_partitions(needed=False)
            if self._assignment is not None:
                self._worker.begin(self._assignment)

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
        if self._refuse() is not None and not handing_over:
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
        assignment = self._refuse()
        if assignment is not None:
            self._give_back(assignment, running)
            self._group.rejoin(why)
        return True

    def _refuse(self) -> EpochAssignment | None:
        """Drops all shares; the group's thread notifies the listener."""
        with self._changed:
            refused, self._assignment = self._assignment, None
            self._joining_since = time.monotonic()
            self._refused = refused or self._refused
        return refused

    def rebalance(self, why: str) -> None:
        """Asks the group for a rebalance; does nothing for shares that are claimed with `assign`.

        This member hands over its shares and starts again; the other members continue.
        """
        if self._group is not None:
            self._hands_over = True
            self._group.rebalance(why)

    # -- the group's owner

    @property
    def has_shares(self) -> bool:
        """Whether there is an assignment."""
        return self._assignment is not None

    def continue_work(self) -> bool:
        """Continues the work while the group rebalances; returns whether the worker does."""
        hands_over, self._hands_over = self._hands_over, False
        if hands_over or self._assignment is None:
            return False
        return self._worker.continue_work(self.options.drain_timeout)

    def follow(self, epoch: Epoch, member: str, waits: Iterable[tuple[Share, float]] = ()) -> None:
        """The assignment is ours under this epoch, too, which another rebalance ends already."""
        assignment = self._assignment
        if assignment is not None:
            assignment.follow(epoch, member, waits)

    def hand_over(self) -> None:
        """Stops the work, commits what is done and gives the shares back."""
        assignment = self._assignment
        if assignment is None:
            return
        running = self._stop_work(assignment, self.options.drain_timeout)
        if self._was_refused("the commit log refused what was to be handed over"):
            return
        self._notify("on_revoked", assignment.key_ranges)
        if self._end_assignment() is None:
            return
        assignment.primary.write_quietly(force=True)
        self._give_back(assignment, running)

    def assigned(self, grant: EpochGrant) -> None:
        """These shares are ours; those that are to move are released."""
        assignment, rest = self._assignment, None
        if not grant.continues:
            if assignment is not None:
                self.lost("the next epoch does not leave all of them with this member")
            rest = grant
        elif assignment is not None:
            rest = self._continue(assignment, grant)
        elif self._group is not None:
            self._group.rejoin("the work that it was to go on with was given up")
        if rest is not None:
            self._begin(rest)

    def _continue(self, assignment: EpochAssignment, grant: EpochGrant) -> EpochGrant | None:
        """Continues the work under the next epoch.

        Returns:
            What to begin with, as something moves and all was handed over; None: nothing moves.
        """
        gained = without(without(grant.shares, assignment.shares), grant.moving)
        assignment.continue_under(grant)
        moving = grant.moving
        if not moving or self._give_up(assignment, moving):
            moving = ()
            if self._extend(assignment, replace(grant, shares=gained, waits=())):
                return None
        running = self._stop_work(assignment, self.options.drain_timeout)
        refused = "the commit log refused what was to be handed over"
        if self._was_refused(refused):
            if self._group is not None:
                self._group.rejoin(refused)
            return None
        self._notify("on_revoked", assignment.key_ranges)
        if self._end_assignment() is None:
            return None
        assignment.primary.write_quietly(force=True)
        if moving:
            with self._warning():
                assignment.release(running, moving)
        shares = without(grant.shares, grant.moving)
        waits = inside(assignment.waits_left(), shares)
        return replace(grant, shares=shares, waits=tuple(waits), continues=False, moving=())

    def _give_up(self, assignment: EpochAssignment, shares: Sequence[Share]) -> bool:
        """Releases shares while the worker continues with the others, if it can."""
        ranges = by_partition(common(shares, assignment.shares))
        running = self._worker.give_up(shares, self.options.drain_timeout)
        if running is None:
            return False
        assignment.left_running(running, assignment.runs_on_for)
        # Shares that the log has refused meanwhile are lost, and `on_lost` reports that.
        if self._assignment is assignment:
            self._notify(
                "on_revoked", {tp: list(some) for tp, some in ranges.items()}, goes_on=True
            )
            with self._warning():
                assignment.release(running, shares)
        return True

    def _extend(self, assignment: EpochAssignment, gained: EpochGrant) -> bool:
        """Adds gained shares while the worker continues with the others, if it can."""
        if not gained.shares:
            return True
        ids = assignment.topic_ids
        is_other = any(ids.get(name, found) != found for name, found in gained.topic_ids.items())
        if self._assignment is not assignment or is_other:
            return False
        try:
            extended = self._worker.extend(lambda: self._load(gained))
        except Exception as error:  # noqa: BLE001 - it is met again where all is loaded
            log.warning("all key ranges start again: %s", error)
            return False
        if extended is not None:
            self._notify("on_assigned", extended.key_ranges)
        return extended is not None

    def _stop_work(self, assignment: EpochAssignment, timeout: float) -> Sequence[Share]:
        """Stops the worker; every later release names what still runs, which is in doubt."""
        running = self._worker.hand_over(timeout)
        if self.options.uses_chunks:
            # The log keeps chunks of these partitions with this member, which may get them again.
            until = time.monotonic() + assignment.runs_on_for
            self._left_running = [(share, until) for share in running]
        assignment.left_running(running, assignment.runs_on_for)
        return running

    def lost(self, why: str) -> None:
        """The shares are gone: others may have them already."""
        # What is done may still count: the log decides.
        assignment = self._assignment
        running = self._stop_work(assignment, 0.0) if assignment is not None else ()
        self._worker.drop()
        if self._was_refused(why):
            return
        assignment = self._end_assignment()
        if assignment is not None:
            self._notify_lost(assignment, why)
            self._give_back(assignment, running)

    def failed(self, error: BaseException) -> None:
        """Called when the member has left the group permanently."""
        with self._changed:
            self._error, self._assignment = error, None
            self._changed.notify_all()
            self._worker.fail(error)

    def _load(self, grant: EpochGrant) -> EpochAssignment:
        now = time.monotonic()
        own = tuple((one, until - now) for one, until in self._left_running if until > now)
        grant = replace(grant, waits=(*grant.waits, *own))
        group = self._group
        write: Callable[..., None] = (
            group.commit_primary if group is not None else self.cluster.commit_primary
        )
        place = group.place if group is not None else None
        heard = group.heard if group is not None else lambda _: -math.inf
        return repeated(
            lambda: EpochAssignment(
                self.options, self.cluster, self.store, grant, write, place, heard
            ),
            "load of the committed offsets", self.options.batch_life,
        )  # fmt: skip

    def _begin(self, grant: EpochGrant) -> None:
        try:
            assignment = self._load(grant)
            self._check_left_behind()
        except BaseException:
            # No record was started: the next owner of the shares does not have to wait.
            with self._warning():
                self.store.release(
                    self.options.group_id, grant.epoch, grant.member, running=left_ms(grant.waits)
                )
            raise
        with self._changed:
            is_open = not self._leaving.is_set()
            if is_open:
                self._assignment = self._latest = assignment
                self._worker.begin(assignment)
                self._changed.notify_all()
        if is_open:
            self._notify("on_assigned", assignment.key_ranges)
        else:
            self._give_back(assignment, ())

    def _check_left_behind(self) -> None:
        """Makes sure that the topics of the last epoch were not deleted before they were done.

        The new epoch does not have a deleted topic, so nothing else would notice it.

        Raises:
            DataLoss, TopicNotFound: As for `AssignedLogs.check_topics`.
        """
        if self._latest is None:
            return
        try:
            self._latest.logs.check_topics()
        except TopicReplaced:
            pass  # The new epoch has the new topic, and compares their ids.
        except (BrokerUnreachable, CommitLogUnavailable) as error:
            log.warning("whether a topic of the last epoch was deleted is not known: %s", error)

    def _give_back(self, assignment: EpochAssignment, running: Sequence[Share]) -> None:
        with self._warning():
            assignment.release(running)

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """Logs why shares could not be given back: their next owner waits for a batch life."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as said
            log.warning("the shares could not be given back in the commit log: %s", error)

    def _was_refused(self, why: str) -> bool:
        """Returns whether the log has refused our shares; notifies the listener."""
        with self._changed:
            refused, self._refused = self._refused, None
        if refused is not None:
            self._notify_lost(refused, why)
        return refused is not None

    def _notify_lost(self, assignment: EpochAssignment, why: str) -> None:
        log.warning("group %s: all shares are lost: %s", self.options.group_id, why)
        self._notify("on_lost", assignment.key_ranges)

    def _end_assignment(self) -> EpochAssignment | None:
        with self._changed:
            assignment, self._assignment = self._assignment, None
            self._joining_since = time.monotonic()
            return assignment

    def _notify(
        self,
        what: str,
        ranges: Mapping[TopicPartition, Sequence[KeyRange]],
        *,
        goes_on: bool = False,
    ) -> None:
        """Calls the listener, and waits until it returns or somebody leaves the group.

        A listener that closes its consumer waits for the group's threads; they do not wait for it.

        Args:
            what: The name of its method.
            ranges: The key ranges that it is about.
            goes_on: Whether the member has others that it goes on with.
        """
        with self._changed:
            if self._listener is None or self._leaving.is_set() or self._is_revoked:
                return
            self._is_announced = goes_on or what == "on_assigned"
        call = threading.Thread(
            target=self._call_listener, args=(what, ranges),
            name="coopconsume-listener", daemon=True,
        )  # fmt: skip
        call.start()
        while call.is_alive() and not self._leaving.is_set():
            call.join(_LISTENER_PAUSE)

    def _call_listener(
        self, what: str, ranges: Mapping[TopicPartition, Sequence[KeyRange]]
    ) -> None:
        try:
            getattr(self._listener, what)(ranges)
        except Exception:
            log.exception("the rebalance listener failed in %s", what)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
