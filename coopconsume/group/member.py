"""A member of a Kafka consumer group: the thread and the connection beside `GroupCore`.

A thread of its own polls a `KafkaConsumer` whose partitions are all paused: it is there for the
group, not for data. So membership goes on while a batch runs for minutes. What the member is given
and has to give back goes to an `AssignmentOwner`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.errors import (
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    KafkaError,
)
from kafka.structs import OffsetAndMetadata

from assignors import AssignmentConflict
from commits import ClaimConflict, CommitLogUnavailable, EpochConflict, FencedMember
from coopconsume.errors import CoopConsumeError, GroupRefused, TopicNotFound
from coopconsume.group.agreement import log_changes, terms_of
from coopconsume.group.claims import ClaimWatch
from coopconsume.group.core import GroupCore, MemberReplaced, Rejoin, TakeOver, waits_of
from coopconsume.group.heartbeats import AcceptedHeartbeats
from coopconsume.group.leader import GroupLeader
from coopconsume.group.owned import left_ms
from coopconsume.group.plugin import plugins
from coopconsume.group.settings import consumer_config, session_ms
from coopconsume.group.unassigned import UnassignedWatch
from coopconsume.group.unbegun import UnbegunShares
from coopconsume.kafka.kafka_python_compat import (
    close_member,
    connected,
    coordinate,
    keep_answers,
    pause,
    request_rejoin,
    subscribe,
    watch_heartbeats,
)
from coopconsume.kafka.pattern import TopicPattern
from coopconsume.kafka.settings import hurry_metadata
from coopconsume.worker.process_timer import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from assignors import KeyRangeAssignor
    from commits import Assignment as EpochRow
    from commits import CommitStore, Epoch
    from coopconsume.group.dealing import Joined
    from coopconsume.group.owner import AssignmentOwner
    from coopconsume.group.plugin import Answer
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options
    from coopconsume.worker.host_locks import DriverLock

log = logging.getLogger(__name__)
# It would say so ten times a second, and the consumer says it once.
logging.getLogger("kafka.cluster").addFilter(
    lambda line: not str(line.msg).startswith("Topic %s not found in cluster metadata")
)
# Ours is no listener that blocks the heartbeat, as kafka-python would warn.
logging.getLogger("kafka.coordinator.consumer").addFilter(
    lambda line: not str(line.msg).startswith("Rebalance listener %s.%s for group %s took")
)

_POLL_MS = 100
_RETRY_WAIT = 0.3
_MOST_CONFLICTS = 5
_STALE_AFTER = 5.0
#: Seconds for which a member waits for the answer to its offsets, or to its leaving.
_ANSWER_LIMIT = 5.0
#: Seconds that a member has to leave, also after the limit of calls to Kafka.
_LEAST_WAIT = 0.2
#: Seconds for which a member that leaves waits for the epoch in force.
_FOLLOW_LIMIT = 5.0
_METADATA_AGE_MS = 300_000
#: Why a member asks for a rebalance after each one in which something of it is to move.
_MOVING = "some of the shares are to move"


class GroupMember:
    """Membership in a group, from `start` to `leave`.

    Args:
        options: Of the consumer.
        store: The commit store.
        cluster: For the topics.
        slots: Tasks side by side that the member offers.
        owner: Takes and gives back shares.
        life_ms: How long the member's work may go on after its death.
        application: The name of the application, for the default ``client.id``.
        driver_lock: Gets the member's ids.

    Attributes:
        heartbeats: Those that the coordinator has accepted.

    Raises:
        InvalidOption: ``kafka.max.poll.interval.ms`` leaves no time to hand over.
    """

    def __init__(
        self, options: Options, store: CommitStore, cluster: Cluster, slots: int,
        owner: AssignmentOwner, life_ms: int, application: str = "",
        driver_lock: DriverLock | None = None,
    ) -> None:  # fmt: skip
        self._options = options
        self._store = store
        self._cluster = cluster
        self._owner = owner
        self._driver_lock = driver_lock
        self._group = options.group_id
        self._core = GroupCore(
            self._group, terms_of(options, store, cluster), slots, options.allow_key_share, life_ms
        )
        self._instance = options.kafka.get("group.instance.id")
        self._logged: set[tuple[str, str]] = set()
        self._config = consumer_config(options, application)
        self._topics: tuple[str, ...] = ()
        self._pattern: TopicPattern | None = None
        self._consumer: Any = None
        self._handed: tuple[str, bytes] | None = None
        self._joins_under: Epoch | None = None
        self._waits_since: float | None = None
        self._claims = ClaimWatch(store, self._group)
        self._conflicts = 0
        parts = self._group, self._core, store, cluster, self._claims
        self._leader = GroupLeader(*parts, within=self._config["session_timeout_ms"] / 3000)
        look_every = self._config.get("metadata_max_age_ms", _METADATA_AGE_MS) / 1000
        self._unassigned = UnassignedWatch(*parts, every=look_every)
        self._unbegun = UnbegunShares(self._group, self._core, store, self._claims)
        self.heartbeats = AcceptedHeartbeats(self._core)
        self._leaving = threading.Event()
        self._has_left = True
        self._again: str | None = None
        self._wanted: str | None = None
        # Kafka's I/O thread must not wait for Spark or for the log.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-hand-over")
        self._thread = threading.Thread(target=self._run, name="coopconsume-group", daemon=True)

    def start(self, topics: Iterable[str] | None, pattern: str | None) -> None:
        """Begins to join; the owner gets the result."""
        self._pattern = TopicPattern(pattern) if pattern else None
        self._core.by_pattern = self._pattern is not None
        self._topics = () if pattern else tuple(topics or ())
        self._thread.start()

    def rejoin(self, why: str) -> None:
        """Leaves and joins again as a new member, as the log has refused this one."""
        self._again = why

    def rebalance(self, why: str) -> None:
        """Asks the group for a rebalance, for which this member hands over its shares."""
        self._wanted = why

    def allow_key_share(self, *, allowed: bool) -> None:
        """Sets whether the next join accepts parts of partitions."""
        self._core.allow_key_share = allowed

    def keep_state(self, table: str | None) -> None:
        """Sets the id of the state that the next join says; empty: none, None: not known."""
        self._core.terms.pop("state", None)
        self._core.terms |= {} if table is None else {"state": table}

    def work_may_last(self, life_ms: int) -> None:
        """Sets what the next join says of how long the member's work may go on after its death."""
        self._core.life_ms = life_ms

    def follow(self) -> None:
        """Goes on under the epoch in force, if the group has opened it for a rebalance.

        So what the member gives back before it leaves is given back under that.
        """
        if self._consumer is not None:
            try:
                self._worker.submit(self._follow).result(_FOLLOW_LIMIT)
            except Exception as error:  # noqa: BLE001 - then the next owners wait for a batch life
                log.warning("group %s: the epoch in force is not known: %s", self._group, error)

    def leave(self) -> None:
        """Leaves the group at once (a static member stays in it until its session ends).

        Where no broker answers within the limit of the calls to Kafka, the group removes the member
        at the end of its session.
        """
        self._leaving.set()
        if self._thread.ident is not None:
            left = self._cluster.limit.left
            self._thread.join(None if left == math.inf else max(_LEAST_WAIT, left))
        has_ended = not self._thread.is_alive()
        if not (has_ended and self._has_left):
            log.warning(
                "group %s: Kafka did not confirm that this member has left; the group removes it "
                "when its session ends, after %.0f s",
                self._group,
                session_ms(self._options) / 1000,
            )
        self._worker.shutdown(wait=has_ended)

    def commit_primary(
        self, offsets: Mapping[tuple[str, int], tuple[int, str]], patience: float = _ANSWER_LIMIT
    ) -> None:
        """Writes offsets and their metadata to ``__consumer_offsets`` with the group's generation.

        Args:
            offsets: The offset and the metadata of each partition.
            patience: The seconds for which the answer is waited for.

        Raises:
            kafka.errors.KafkaError: The coordinator refused them, or none answers.
        """
        consumer = self._consumer
        if consumer is not None and offsets:
            values = {
                TopicPartition(*tp): OffsetAndMetadata(offset, mark, -1)
                for tp, (offset, mark) in offsets.items()
            }
            timeout_ms = max(1, int(1000 * patience))
            self._cluster.answer(lambda: consumer.commit(values, timeout_ms=timeout_ms))

    def place(self) -> Any:
        """Our place in the group, as kafka-python's producer takes it (KIP-447)."""
        consumer = self._consumer
        return self._group if consumer is None else consumer.group_metadata()

    # -- the thread

    def _run(self) -> None:
        try:
            self._connect()
            while not self._leaving.is_set():
                try:
                    self._turn()
                except Exception as error:  # noqa: BLE001 - sorted out there
                    self._cope(error)
        except BaseException as error:  # noqa: BLE001 - the owner reports it to the user
            self._owner.failed(error)
        finally:
            if self._consumer is not None:
                # In the thread that opens epochs: one that is being opened now comes before it.
                place = self._consumer.group_metadata()
                try:
                    self._worker.submit(self._unbegun.release_all, place.member_id)
                except RuntimeError as error:  # `leave` did not wait for this thread.
                    log.debug("not given back in the commit log: %s", error)
            self._disconnect()

    def _turn(self) -> None:
        if self._consumer is None:  # No broker was there when it was to join again.
            self._connect()
        if self._again is not None:
            self._join_again(self._again)
        if self._wanted is not None:
            level = logging.INFO if self._wanted == _MOVING else logging.WARNING
            log.log(level, "group %s: asking for a rebalance: %s", self._group, self._wanted)
            self._wanted = None
            self._core.ask_again()
            request_rejoin(self._consumer)
        if coordinate(self._consumer, _POLL_MS) and self._handed is None:
            self._leaving.wait(_POLL_MS / 1000)
        if self._handed is not None:
            self._take_assignment(*self._handed)
        if self._unassigned.is_due:
            self._look_for_unassigned()
        if self._waits_since and time.monotonic() - self._waits_since > _STALE_AFTER:
            self._join_again("the assignment is out of date")

    def _connect(self) -> None:
        self._again = self._wanted = self._handed = self._waits_since = None
        consumer = connected(
            KafkaConsumer,
            **self._config,
            partition_assignment_strategy=plugins(self._options.assignor, self),
        )
        keep_answers(consumer)
        watch_heartbeats(consumer, clock, self.heartbeats.accepted)
        self._consumer = consumer
        subscribe(consumer, self._topics, self._pattern, _Listener(self, consumer))
        hurry_metadata(consumer)
        for topic in self._topics:
            # A leader that learns of partitions only after it has joined would rebalance at once.
            consumer.partitions_for_topic(topic)
        # Later a topic may be gone for long, and must not be asked for all the time.
        hurry_metadata(consumer, consumer.config["retry_backoff_ms"])

    def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            limit = max(_LEAST_WAIT, min(_ANSWER_LIMIT, self._cluster.limit.left))
            try:
                self._has_left = close_member(consumer, int(1000 * limit))
            except Exception:
                self._has_left = False
                log.debug("closing the group's connection", exc_info=True)

    def _join_again(self, why: str) -> None:
        log.warning("group %s: joining again: %s", self._group, why)
        self._again = self._handed = self._waits_since = None
        self.out(why)
        if self._instance is None:
            self._disconnect()
            self._connect()
        else:
            # Under its old id, so that Kafka refuses it if another process has its place; a new
            # connection would take that place back.
            request_rejoin(self._consumer)

    def _take_assignment(self, me: str, data: bytes) -> None:
        """Checks what we were handed, and begins with it."""
        if not self._owner.has_shares:
            self._core.is_continuing = False
        with self._store.one_look():
            row, claimed = self._store.assignment(self._group), self._claims.claimed()
        decision = self._core.take(me, data, row, claimed)
        if isinstance(decision, TakeOver):
            log.info("group %s: taking over from %s", self._group, decision.replaces)
            self._store.take_over(self._group, decision.epoch, me, replaces=decision.replaces)
        elif isinstance(decision, MemberReplaced):
            raise self._replaced(decision.by)
        elif isinstance(decision, Rejoin):
            # Most often the next rebalance is under way already.
            log.info("group %s: waiting for another assignment: %s", self._group, decision.reason)
            self._handed, self._waits_since = None, time.monotonic()
        else:
            self._owner.assigned(decision)
            self._core.taken(decision)
            if decision.moving:
                # Who begins again begins with all of it, and releases it at the next rebalance.
                if decision.continues:
                    self._core.released(decision.moving)
                self._wanted = _MOVING
            self._handed = self._waits_since = None
            self._conflicts = 0
            self._look_for_unassigned()

    def _look_for_unassigned(self) -> None:
        """Asks for a rebalance if partitions of our topics are assigned to nobody."""
        why = self._unassigned.look(self._consumer.subscription() or ())
        if why is not None:
            self._wanted = why

    def _cope(self, error: Exception) -> None:
        """Continues after an error that passes; raises any other one."""
        cause = error
        if type(error) is KafkaError and isinstance(error.__cause__, Exception):
            cause = error.__cause__  # kafka-python wraps what its listener raises.
        match cause:
            case EpochConflict() | ClaimConflict() | CommitLogUnavailable() | TimeoutError():
                log.info("group %s: trying again: %s", self._group, cause)
            case AssignmentConflict() if self._conflicts < _MOST_CONFLICTS:
                self._conflicts += 1
                self._join_again(str(cause))
            case FencedMember() if cause.epoch is not None:
                self._join_again(str(cause))
            case TopicNotFound() if self._options.outlives_topics:
                self._join_again(str(cause))  # The leader did not know yet that it is deleted.
            case FencedInstanceIdError():
                raise self._replaced("Kafka") from error
            case InconsistentGroupProtocolError():
                raise GroupRefused(
                    self._group,
                    "other consumers than this library's are in it: stop them and start ours, "
                    "which goes on from the group's offsets, or give another kafka.group.id",
                ) from error
            case KafkaError() | CoopConsumeError() if cause.retriable:
                log.warning("group %s: %s; trying again", self._group, cause)
            case _:
                raise cause
        time.sleep(_RETRY_WAIT)

    def _replaced(self, by: str) -> FencedMember:
        why = f"another process joined with kafka.group.instance.id {self._instance!r} ({by})"
        return FencedMember(self._group, str(self._instance), None, None, why)

    # -- what kafka-python asks, in its I/O thread (see `coopconsume.group.plugin`)

    def subscription(self, *, with_owned: bool, is_first: bool = True) -> bytes:
        """Returns what to join with; for the first assignor, notes the epoch in force now."""
        if is_first:
            self._note_id()
            is_continuing = self._core.is_continuing
            row = self._follow() if is_continuing else self._store.assignment(self._group)
            if row is not None:
                whose = f"epoch {row.epoch.number}"
                log_changes(self._group, whose, row, self._core.terms, self._logged)
            self._joins_under = row.epoch if row else None
        return self._core.subscription(self._joins_under, with_owned=with_owned)

    def _follow(self) -> EpochRow | None:
        """Goes on under an epoch that ended before its assignment came; returns the one in force.

        What it gives us besides is given back, as we do not begin with it.
        """
        row = self._store.assignment(self._group)
        me = self._consumer.group_metadata().member_id
        unbegun = self._core.follow(me, row)
        if row is not None and unbegun is not None:
            waits = waits_of(unbegun, row)
            self._owner.follow(row.epoch, me, waits)
            if unbegun:
                self._worker.submit(self._unbegun.release, row, me, unbegun, left_ms(waits))
        return row

    def lead(self, assignor: KeyRangeAssignor, joined: Sequence[Joined]) -> dict[str, Answer]:
        """Deals the shares and opens the epoch, within a third of the session."""
        # It may be stalled for longer than that, and this member join again meanwhile.
        asked = (self._consumer.group_metadata(), self._core.noted)

        leader = self._leader
        return self._worker.submit(leader.lead, assignor, joined, *asked).result(leader.within)

    def _note_id(self) -> None:
        """Notes the id that the member has now, for the process that comes after a crash."""
        if self._driver_lock is not None:
            self._driver_lock.note(self._consumer.group_metadata().member_id, self._instance)

    def handed(self, data: bytes, generation: int) -> None:
        """Takes what the leader handed us; it is checked once this call is over."""
        self._note_id()
        me = self._consumer.group_metadata().member_id
        log.debug("group %s: assigned in generation %d", self._group, generation)
        self._handed = me, data

    # -- callbacks of kafka-python

    def revoke(self) -> Future[None]:
        """Hands over what we have as a rebalance begins, unless the owner can continue with it."""
        handed, self._handed, self._waits_since = self._handed, None, None
        return self._worker.submit(self._hand_over, handed)

    def _hand_over(self, handed: tuple[str, bytes] | None) -> None:
        if self._core.is_continuing:
            self._follow()
        is_continuing = self._core.may_continue and self._owner.continue_work()
        self._core.is_continuing = is_continuing
        if is_continuing:
            return
        self._owner.hand_over()
        if handed is not None:
            self._unbegun.release_handed(*handed)

    def lose(self) -> Future[None]:
        """Takes the removal of the member by the coordinator."""
        self._handed = self._waits_since = None
        return self._worker.submit(self.out, "the session with the group's coordinator ended")

    def out(self, why: str) -> None:
        """Notes that what was ours is not any more."""
        self._core.lost()
        self._owner.lost(why)
        # Should the log have refused it meanwhile: we are to join again as it is.
        self._again = None


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Keeps the heartbeat going while shares are handed over."""

    def __init__(self, member: GroupMember, consumer: Any) -> None:
        self._member = member
        self._consumer = consumer

    async def on_partitions_revoked(self, _revoked: Any) -> None:
        await self._done(self._member.revoke)

    async def on_partitions_lost(self, _lost: Any) -> None:
        await self._done(self._member.lose)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        for partition in assigned:
            # No data comes this way; with a position nobody asks for one.
            self._consumer.seek(partition, 0)
            self._consumer.pause(partition)

    async def _done(self, begin: Callable[[], Future[None]]) -> None:
        # A leader that joins again because of new partitions forgets that it does (kafka-python
        # 3.0.12) when its poll ends before the join, and never takes up its heartbeat.
        request_rejoin(self._consumer)
        future = begin()
        while not future.done():
            await pause(self._consumer, 0.02)
        future.result()
