"""What the rebalances of a group, and claims, do with the assignment of a consumer."""

from __future__ import annotations

import logging
import math
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from assignors.shares import by_partition, common, inside, without
from commits import CommitLogUnavailable
from coopconsume.errors import BrokerUnreachable, TopicReplaced
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.owned import left_ms
from coopconsume.group.repeating import repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from assignors import Share
    from commits import CommitStore, Epoch
    from coopconsume.group.current_assignment import CurrentAssignment
    from coopconsume.group.listener_calls import ListenerCalls
    from coopconsume.group.member import GroupMember
    from coopconsume.group.owned import EpochGrant
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options

log = logging.getLogger(__name__)


class RebalanceHandler:
    """Begins, continues, hands over and gives up the assignment, as the group's member asks.

    It is the `AssignmentOwner` of the member, whose calls come one after another; with claimed
    shares those of `begin` and `hand_over` do.

    Args:
        options: Of the consumer.
        store: The commit store.
        cluster: The Kafka cluster.
        current: The assignment, which the calls change, and its worker.
        listener: Is notified of what comes and goes.
        group: Returns the group's member; None: shares are claimed, or the member is leaving.
    """

    def __init__(
        self,
        options: Options,
        store: CommitStore,
        cluster: Cluster,
        current: CurrentAssignment,
        listener: ListenerCalls,
        group: Callable[[], GroupMember | None],
    ) -> None:
        self._options = options
        self._store = store
        self._cluster = cluster
        self._current = current
        self._listener = listener
        self._group = group
        #: Whether the next rebalance is ours, and is to begin with a hand-over.
        self._hands_over = False
        #: Parts that were handed over while handlers of this process were at work on them, and
        #: until when these may go on, on the monotonic clock.
        self._left_running: list[tuple[Share, float]] = []

    @property
    def has_shares(self) -> bool:
        """Whether there is an assignment."""
        return self._current.held is not None

    def hand_over_next(self) -> None:
        """Has the next rebalance begin with a hand-over, though the work could continue."""
        self._hands_over = True

    def continue_work(self) -> bool:
        """Continues the work while the group rebalances; returns whether the worker does."""
        hands_over, self._hands_over = self._hands_over, False
        if hands_over or self._current.held is None:
            return False
        return self._current.worker.continue_work(self._options.drain_timeout)

    def follow(self, epoch: Epoch, member: str, waits: Iterable[tuple[Share, float]] = ()) -> None:
        """The assignment is ours under this epoch, too, which another rebalance ends already."""
        assignment = self._current.held
        if assignment is not None:
            assignment.follow(epoch, member, waits)

    def hand_over(self) -> None:
        """Stops the work, commits what is done and gives the shares back."""
        assignment = self._current.held
        if assignment is None:
            return
        running = self._stop_work(assignment, self._options.drain_timeout)
        if self._was_refused("the commit log refused what was to be handed over"):
            return
        self._listener.notify("on_revoked", assignment.key_ranges)
        if self._current.end() is None:
            return
        assignment.primary.write_quietly(force=True)
        give_back(assignment, running)

    def assigned(self, grant: EpochGrant) -> None:
        """These shares are ours; those that are to move are released."""
        assignment, rest = self._current.held, None
        if not grant.continues:
            if assignment is not None:
                self.lost("the next epoch does not leave all of them with this member")
            rest = grant
        elif assignment is not None:
            rest = self._continue(assignment, grant)
        elif (group := self._group()) is not None:
            group.rejoin("the work that it was to go on with was given up")
        if rest is not None:
            self.begin(rest)

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
        running = self._stop_work(assignment, self._options.drain_timeout)
        refused = "the commit log refused what was to be handed over"
        if self._was_refused(refused):
            if (group := self._group()) is not None:
                group.rejoin(refused)
            return None
        self._listener.notify("on_revoked", assignment.key_ranges)
        if self._current.end() is None:
            return None
        assignment.primary.write_quietly(force=True)
        if moving:
            with _warning():
                assignment.release(running, moving)
        shares = without(grant.shares, grant.moving)
        waits = inside(assignment.in_doubt.left(), shares)
        return replace(grant, shares=shares, waits=tuple(waits), continues=False, moving=())

    def _give_up(self, assignment: EpochAssignment, shares: Sequence[Share]) -> bool:
        """Releases shares while the worker continues with the others, if it can."""
        ranges = by_partition(common(shares, assignment.shares))
        running = self._current.worker.give_up(shares, self._options.drain_timeout)
        if running is None:
            return False
        assignment.in_doubt.mark(running, assignment.runs_on_for)
        # Shares that the log has refused meanwhile are lost, and `on_lost` reports that.
        if self._current.held is assignment:
            self._listener.notify(
                "on_revoked", {tp: list(some) for tp, some in ranges.items()}, goes_on=True
            )
            with _warning():
                assignment.release(running, shares)
        return True

    def _extend(self, assignment: EpochAssignment, gained: EpochGrant) -> bool:
        """Adds gained shares while the worker continues with the others, if it can."""
        if not gained.shares:
            return True
        ids = assignment.topic_ids
        is_other = any(ids.get(name, found) != found for name, found in gained.topic_ids.items())
        if self._current.held is not assignment or is_other:
            return False
        try:
            extended = self._current.worker.extend(lambda: self._load(gained))
        except Exception as error:  # noqa: BLE001 - it is met again where all is loaded
            log.warning("all key ranges start again: %s", error)
            return False
        if extended is not None:
            self._listener.notify("on_assigned", extended.key_ranges)
        return extended is not None

    def _stop_work(self, assignment: EpochAssignment, timeout: float) -> Sequence[Share]:
        """Stops the worker; every later release names what still runs, which is in doubt."""
        running = self._current.worker.hand_over(timeout)
        if self._options.uses_chunks:
            # The log keeps chunks of these partitions with this member, which may get them again.
            until = time.monotonic() + assignment.runs_on_for
            self._left_running = [(share, until) for share in running]
        assignment.in_doubt.mark(running, assignment.runs_on_for)
        return running

    def lost(self, why: str) -> None:
        """The shares are gone: others may have them already."""
        # What is done may still count: the log decides.
        assignment = self._current.held
        running = self._stop_work(assignment, 0.0) if assignment is not None else ()
        self._current.worker.drop()
        if self._was_refused(why):
            return
        assignment = self._current.end()
        if assignment is not None:
            self._notify_lost(assignment, why)
            give_back(assignment, running)

    def failed(self, error: BaseException) -> None:
        """Called when the member has left the group permanently."""
        self._current.fail(error)

    def _load(self, grant: EpochGrant) -> EpochAssignment:
        now = time.monotonic()
        own = tuple((one, until - now) for one, until in self._left_running if until > now)
        grant = replace(grant, waits=(*grant.waits, *own))
        group = self._group()
        write: Callable[..., None] = (
            group.commit_primary if group is not None else self._cluster.commit_primary
        )
        place = group.place if group is not None else None
        heard = group.heartbeats.heard if group is not None else lambda _: -math.inf
        return repeated(
            lambda: EpochAssignment(
                self._options,
                self._cluster,
                store=self._store,
                grant=grant,
                write_primary=write,
                place=place,
                heard=heard,
            ),
            "load of the committed offsets",
            self._options.batch_life,
        )

    def begin(self, grant: EpochGrant) -> None:
        """Begins with shares that are ours: of an epoch, or of a claim.

        Raises:
            DataLoss, ExternalReset, GroupRefused: As for `EpochAssignment`; the shares are given
                back.
        """
        try:
            assignment = self._load(grant)
            self._check_left_behind()
        except BaseException:
            # No record was started: the next owner of the shares does not have to wait.
            with _warning():
                self._store.release(
                    self._options.group_id, grant.epoch, grant.member, running=left_ms(grant.waits)
                )
            raise
        if self._current.begin(assignment):
            self._listener.notify("on_assigned", assignment.key_ranges)
        else:
            give_back(assignment, ())

    def _check_left_behind(self) -> None:
        """Makes sure that the topics of the last epoch were not deleted before they were done.

        The new epoch does not have a deleted topic, so nothing else would notice it.

        Raises:
            DataLoss, TopicNotFound: As for `AssignedLogs.check_topics`.
        """
        if self._current.latest is None:
            return
        try:
            self._current.latest.logs.check_topics()
        except TopicReplaced:
            pass  # The new epoch has the new topic, and compares their ids.
        except (BrokerUnreachable, CommitLogUnavailable) as error:
            log.warning("whether a topic of the last epoch was deleted is not known: %s", error)

    def _was_refused(self, why: str) -> bool:
        """Returns whether the log has refused our shares; notifies the listener."""
        refused = self._current.take_refused()
        if refused is not None:
            self._notify_lost(refused, why)
        return refused is not None

    def _notify_lost(self, assignment: EpochAssignment, why: str) -> None:
        log.warning("group %s: all shares are lost: %s", self._options.group_id, why)
        self._listener.notify("on_lost", assignment.key_ranges)


def give_back(assignment: EpochAssignment, running: Sequence[Share]) -> None:
    """Releases an assignment; what the log refuses, or does not answer, is logged.

    Args:
        assignment: The assignment.
        running: Parts of it on which we may still be at work.
    """
    with _warning():
        assignment.release(running)


@contextmanager
def _warning() -> Iterator[None]:
    """Logs why shares could not be given back: their next owner waits for a batch life."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as said
        log.warning("the shares could not be given back in the commit log: %s", error)
