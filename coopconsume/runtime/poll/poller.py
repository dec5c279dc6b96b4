"""Implements ``poll``, ``commit``, ``retry`` and ``reject`` of a consumer."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from commits import CommitLogUnavailable, FencedMember, OffsetRanges
from coopconsume.errors import (
    BrokerUnreachable,
    DataLoss,
    InvalidOption,
    MissingOption,
    TopicNotFound,
    TopicReplaced,
)
from coopconsume.group.repeating import repeated
from coopconsume.kafka.call_limit import CallLimit
from coopconsume.record import checked_headers
from coopconsume.runtime.decided_by import DECIDE_EVERY
from coopconsume.runtime.poll.answers import (
    commit_named,
    give_up,
    hold_back,
    letters_of,
    over_limit,
    pending_records,
    reasons_of,
    take_decisions,
    wait_seconds,
)
from coopconsume.runtime.poll.attempt import PollAttempt
from coopconsume.runtime.poll.frames import FrameReader, offsets_of
from coopconsume.runtime.poll.holes import PollHoles
from coopconsume.runtime.poll.letter_writer import LetterWriter
from coopconsume.runtime.poll.positions import POLL_WINDOW
from coopconsume.runtime.poll.session import PollSession
from coopconsume.runtime.status.waiting import poll_waits_for
from coopconsume.sinks import open_dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from commits import CommitResult
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.membership import Membership
    from coopconsume.options import Options
    from coopconsume.record import OnDead
    from coopconsume.runtime.poll.answers import Reasons
    from coopconsume.runtime.poll.positions import PollPosition
    from coopconsume.runtime.poll.session import PollWindow
    from coopconsume.runtime.status.waiting import WaitingFor
    from coopconsume.worker.report import DeadLetter

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_EVERY = 0.1
#: Seconds for which `poll` waits for each answer of a broker, at least.
_ANSWER = 5.0
#: Seconds for which a commit waits for the ids of topics.
_IDS_ANSWER = 1.0
#: Seconds after which a `poll` without an answer raises; a leader's election takes less.
_AWAY = 15.0
#: Seconds for which `close` waits for what a `poll` reads.
_LAST_ANSWER = 0.5


class Poller:
    """Hands out records, and commits, holds back or gives up those that users answer for.

    `CooperativeConsumer` documents each call and what it raises. Calls of several threads are done
    one after another, but `reject` does not keep the others waiting while it writes dead letters.

    Args:
        spark: The session.
        options: Of the consumer.
        slots: Returns how many Spark tasks run side by side.

    Attributes:
        session: What was handed out.
    """

    def __init__(self, spark: SparkSession, options: Options, slots: Callable[[], int]) -> None:
        self.session = PollSession(self._present)
        self._spark = spark
        self._options = options
        self._slots = slots
        self._letters: LetterWriter | None = None
        self._run_id = uuid.uuid4().hex[:12]
        self._commit_ids = (f"{self._run_id}-{number}" for number in itertools.count())
        self._decisions_at = -math.inf
        #: Whether decisions on failed records were open at the last look.
        self._has_decisions = False
        self._holes = PollHoles(spark, options, self.session)
        self._calls = threading.RLock()
        #: Whether `poll` has the lock: it reads, and has nothing that a close would cut off.
        self._is_reading = False
        self._kafka_limit = CallLimit()
        self._found_records = False
        #: The last assignment whose state was compared.
        self._begun: EpochAssignment | None = None
        #: When the first `poll` began that had no answer; infinite after one that had.
        self._away_since = math.inf

    @contextmanager
    def _call(self, membership: Membership) -> Iterator[None]:
        """One call of the user's at a time; none once the consumer is closed."""
        limited = membership.cluster.limited_by(self._kafka_limit)
        with self.session.calls.in_use(), self._calls, limited:
            self.session.calls.check_closed()
            try:
                yield
            except FencedMember as error:
                membership.fenced(str(error))
                raise

    @property
    def _frames(self) -> FrameReader:
        return FrameReader(self._spark, self._options, self._slots())

    # -- handing out

    def poll(self, membership: Membership, timeout: float) -> DataFrame:
        """Returns the next records, as a DataFrame of a fixed window of offsets."""
        started = time.monotonic()
        deadline = started + wait_seconds("timeout", timeout)
        checked: EpochAssignment | None = None
        attempt = PollAttempt()
        if membership.driver_lock is not None:
            membership.driver_lock.withdraw()  # Who works on frames, and where, is not known.
        with self.session.polling():
            while True:
                self.session.calls.check_woken()
                patience = max(deadline - time.monotonic(), _ANSWER)
                with self._reading(membership), membership.cluster.patient_for(patience):
                    assignment = membership.assignment
                    if (
                        assignment is not None
                        and assignment is self.session.assignment
                        and assignment.owned
                    ):
                        with self._rejoining(membership, assignment), attempt:
                            if assignment is not self._begun:
                                assignment.begin_with_state(None)
                                self._begun = assignment
                            if assignment is not checked:
                                is_checked = self._check_starts(membership, assignment, deadline)
                                checked = assignment if is_checked else None
                            frame = self._next_frame(membership, assignment, deadline)
                            if frame is not None:
                                self.session.calls.check_closed()
                                self._found_records = True
                                self._away_since = math.inf
                                return frame
                self._found_records = False
                left = deadline - time.monotonic()
                if left <= 0:
                    self.session.calls.check_closed()
                    self._check_answers(attempt.error, started)
                    return self._frames.empty()
                self.session.calls.wait(min(_POLL_EVERY, left))

    def _check_answers(
        self, error: BrokerUnreachable | CommitLogUnavailable | None, started: float
    ) -> None:
        """Raises the error of a poll's last attempt, unless brokers are away for a short time."""
        if error is None:
            self._away_since = math.inf
            return
        self._away_since = min(self._away_since, started)
        is_short = time.monotonic() - self._away_since < _AWAY
        if not (is_short and isinstance(error, BrokerUnreachable)):
            raise error

    @contextmanager
    def _reading(self, membership: Membership) -> Iterator[None]:
        """A turn of `poll`, which `close` does not wait for if it takes long."""
        with self._calls, membership.cluster.limited_by(self._kafka_limit):
            self.session.calls.check_closed()
            self._is_reading = True
            try:
                yield
            except FencedMember:
                self.session.calls.check_closed()
                raise
            finally:
                self._is_reading = False

    def waiting_for(self, membership: Membership) -> WaitingFor | None:
        """Returns what polling waits for; None if the last poll has found records."""
        now, assignment = time.monotonic(), membership.assignment
        in_doubt = {}
        if assignment is not None:
            in_doubt = {
                f"{tp[0]}-{tp[1]}": assignment.in_doubt.seconds(tp, owned.ranges)
                for tp, owned in assignment.owned.items()
            }
        facts = self.session.facts(
            assignment, in_doubt, membership.joining, self._options.group_id, now
        )
        if self._found_records and assignment is not None and not facts.hand_over:
            return None
        return poll_waits_for(facts)

    @contextmanager
    def _rejoining(self, membership: Membership, assignment: EpochAssignment) -> Iterator[None]:
        """Joins again after an error with which polling continues; raises any other."""
        try:
            yield
        except FencedMember as error:
            if not membership.fenced(str(error)):
                raise
        except (TopicNotFound, TopicReplaced, DataLoss) as error:
            # The next assignment is without the topic, or with the new one.
            if not assignment.logs.can_recover_from(error) or not membership.rejoin(str(error), ()):
                raise
            self.session.drop()

    def _next_frame(
        self, membership: Membership, assignment: EpochAssignment, deadline: float
    ) -> DataFrame | None:
        """Returns the next records; None if no records are available."""
        if self._is_time_to_decide():
            self._decisions_at = time.monotonic()
            self._decide(assignment)
        free = [
            tp
            for tp, owned in assignment.owned.items()
            if assignment.in_doubt.seconds(tp, owned.ranges) <= 0 and not owned.is_deleted
        ]
        found = self._unless_deleted(
            membership, assignment, lambda: assignment.cluster.log_ends(free)
        )
        if found is None:
            return None
        # Perhaps it is the log of a topic that was created again.
        if assignment.logs.has_changed(found) and self._leaves_deleted(membership, assignment):
            return None
        if assignment.logs.is_cut(found):
            # What else was cut is seen in the next look.
            if not self._leaves_deleted(membership, assignment):
                self._follow_cut(assignment)
            return None
        ends = {tp: end.offset for tp, end in found.items()}
        size = min(POLL_WINDOW, self._options.max_offsets_per_trigger or POLL_WINDOW)
        self._holes.look(assignment)
        self._commit_filtered(assignment)
        while window := self.session.take(assignment, ends, size, time.monotonic()):
            frame = self._hand_out(assignment, window)
            self._commit_filtered(assignment)
            if frame is not None or time.monotonic() >= deadline:
                return frame
            self.session.calls.check_woken()
            self.session.calls.check_closed()
        return None

    def _commit_filtered(self, assignment: EpochAssignment) -> None:
        """Commits what the filter dropped, where no commit of the user's will have it."""
        filtered = self.session.filtered(assignment, alone=True)
        if not filtered:
            return
        try:
            commit_named(self.session, assignment, {}, filtered)
            assignment.primary.write_quietly()
        except CommitLogUnavailable as error:
            log.warning("records that the filter dropped are committed later: %s", error)

    def _follow_cut(self, assignment: EpochAssignment) -> None:
        """Goes on from where a log was cut."""
        loss = assignment.logs.follow_cut()
        if loss is None:
            return
        if self._options.fail_on_data_loss:
            raise loss
        self.session.restart(assignment)

    def _check_starts(
        self, membership: Membership, assignment: EpochAssignment, deadline: float
    ) -> bool:
        """Looks for deleted topics and records; returns whether polling goes on at once."""
        left = max(0.0, deadline - time.monotonic())
        what, over = "look at the logs' starts", self.session.calls.closed
        if repeated(lambda: self._leaves_deleted(membership, assignment), what, left, over):
            return False
        passed = self._unless_deleted(
            membership, assignment, lambda: repeated(assignment.logs.check_starts, what, left, over)
        )
        return passed is not None

    @staticmethod
    def _unless_deleted(
        membership: Membership, assignment: EpochAssignment, look: Callable[[], T]
    ) -> T | None:
        """Looks at the logs; returns None if a topic was deleted without which polling goes on."""
        try:
            return look()
        except TopicNotFound:
            if not Poller._leaves_deleted(membership, assignment):
                raise
            return None

    @staticmethod
    def _leaves_deleted(membership: Membership, assignment: EpochAssignment) -> bool:
        """Goes on without topics that were deleted; returns whether there are any."""
        deleted = assignment.logs.check_topics()
        if deleted:
            membership.rebalance(f"deleted: {', '.join(deleted)}")
        return bool(deleted)

    def _hand_out(self, assignment: EpochAssignment, window: PollWindow) -> DataFrame | None:
        """Returns the rows of a window; None without rows of ours, or if the shares changed.

        Where others have keys of a partition, keys wait, or there is a filter, the window's offsets
        do not show which records are in the frame: they are read.
        """
        try:
            frames = self._frames
            frames.look_for_timestamp_overflows(assignment.cluster, window.offsets)
            partly = {
                tp: offsets
                for tp, offsets in window.offsets.items()
                if self._options.record_filter
                or tp in window.chosen
                or not assignment.owned[tp].is_whole
            }
            read = frames.dealt(assignment.owned, partly, window.chosen)
            rows = {tp: found.present for tp, found in read.items()}
            filtered = {tp: found.filtered for tp, found in read.items()}
            shown = {tp: at for tp, at in window.offsets.items() if rows.get(tp, at)}
            added = self.session.with_added(assignment, shown)
            frame = frames.rows(assignment.owned, shown, window.chosen, added) if shown else None
        except BaseException:
            self.session.put_back(assignment, window)
            raise
        return frame if self.session.hand_out(assignment, window, rows, filtered) else None

    def _present(
        self, assignment: EpochAssignment, offsets: Mapping[TopicPartition, OffsetRanges]
    ) -> dict[TopicPartition, OffsetRanges]:
        return self._frames.present(assignment.owned, offsets)

    def _is_time_to_decide(self) -> bool:
        """Whether to look for decisions; without failed records one look is enough."""
        if self._decisions_at == -math.inf:
            return True
        places = list(self.session.places.values())
        is_needed = self._has_decisions or any(len(place.retries) for place in places)
        return is_needed and time.monotonic() - self._decisions_at > DECIDE_EVERY

    def _decide(self, assignment: EpochAssignment) -> None:
        """Takes what was decided on records; at the next poll if the log does not answer."""
        try:
            self._has_decisions = take_decisions(self.session, assignment, self._commit_ids)
        except CommitLogUnavailable as error:
            log.warning("decisions on records are read later: %s", error)

    def place(self, tp: TopicPartition) -> PollPosition:
        """Returns where polling stands in a partition.

        Raises:
            ValueError: It is not ours.
        """
        place = self.session.places.get(tp)
        if place is None:
            raise ValueError(f"partition {tp[0]}-{tp[1]} is not assigned to us")
        return place

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Polls from an offset on next."""
        if offset < 0:
            raise ValueError(f"seek to offset {offset}: give 0 or more")
        with self._calls, self.session.lock:
            self.place(tp).seek(offset)
            self._holes.forget(tp)

    # -- answers

    def commit(
        self, membership: Membership, done: DataFrame | Mapping[TopicPartition, object] | None
    ) -> dict[TopicPartition, CommitResult]:
        """Commits polled records one by one."""
        with self._call(membership):
            named = None if done is None else offsets_of(done)
            assignment = membership.assignment
            offsets = self.session.named(assignment, named)
            named_at = set(offsets)
            if assignment is None:
                return {}
            self._check_ids(membership, assignment)
            filtered = self.session.filtered(assignment, alone=False)
            results, left = commit_named(self.session, assignment, offsets, filtered)
            if self._holes.commit(assignment) and left:
                more, left = commit_named(self.session, assignment, left, {})
                results |= more
            assignment.primary.write_quietly()
            if left:
                raise over_limit(assignment, results, left)
            return {tp: result for tp, result in results.items() if tp in named_at}

    @staticmethod
    def _check_ids(membership: Membership, assignment: EpochAssignment) -> None:
        """Makes sure that what was polled is of the topics that are there, as far as it is known.

        Raises:
            TopicReplaced: A topic was deleted and created again.
        """
        try:
            with membership.cluster.patient_for(_IDS_ANSWER):
                assignment.logs.check_ids()
        except BrokerUnreachable as error:
            # The commit log does not count it for another topic.
            log.debug("the ids of topics are not known for now: %s", error)

    def retry(
        self,
        membership: Membership,
        frame: DataFrame,
        delay: float | str,
        reason: str | Column,
        headers: Any = (),
    ) -> None:
        """Has polled records come again, later."""
        seconds, more = wait_seconds("delay", delay), checked_headers(headers)
        with self._call(membership):
            reasons = reasons_of(frame, reason, "retry")
            assignment = membership.assignment
            offsets = self.session.check_open(assignment, reasons)
            if assignment is not None and reasons:
                dealt = self._frames.dealt(assignment.owned, offsets, {}, keys=True)
                assignment.logs.check_topics()  # What was read are the records that were polled.
                records = pending_records(
                    self.session, assignment, reasons=reasons, dealt=dealt, more=more, delay=seconds
                )
                hold_back(self.session, assignment, records, seconds, next(self._commit_ids))

    def reject(
        self, membership: Membership, frame: DataFrame, reason: str | Column, on_dead: OnDead
    ) -> None:
        """Gives polled records up: they become dead letters."""
        if on_dead not in ("continue", "park"):
            raise InvalidOption("on_dead", repr(on_dead), "give continue or park")
        if self._options.dead_letter is None:
            raise MissingOption("deadLetter")
        park = on_dead == "park"
        with self._call(membership):
            reasons = reasons_of(frame, reason, "reject")
            writer = self._letter_writer(self._options.dead_letter)
            assignment = membership.assignment
            self.session.check_open(assignment, reasons)
            if assignment is None or not reasons:
                return
            letters = self._letters_of(assignment, reasons)
            assignment.logs.check_topics()  # What was read are the records that were polled.
            commit_id = next(self._commit_ids)
        # Calls of other threads go on: the place of dead letters may not answer.
        with self.session.calls.in_use():
            writer.write(letters, assignment.topic_ids, commit_id)
        with self._call(membership):
            give_up(self.session, assignment, letters, park=park, commit_id=commit_id)
            assignment.primary.write_quietly()

    def _letter_writer(self, place: str) -> LetterWriter:
        if self._letters is None:
            sink = open_dead_letters(place, self._options)
            self._letters = LetterWriter(sink, place, self.session.calls.check_closed)
        return self._letters

    def _letters_of(self, assignment: EpochAssignment, reasons: Reasons) -> list[DeadLetter]:
        return letters_of(
            self._frames.originals(reasons),
            reasons,
            lambda tp: self.session.retries(assignment, tp),
            has_ordering_keys=self._options.ordering_key is not None,
        )

    def close(self) -> None:
        """Ends calls that wait, waits for those that commit, and closes the dead letters' sink."""
        self.session.calls.close()
        self._kafka_limit.set(_LAST_ANSWER)
        until = time.monotonic() + _LAST_ANSWER
        while not (has_lock := self._calls.acquire(timeout=_LAST_ANSWER / 10)):
            if self._is_reading and time.monotonic() > until:
                break  # Spark may read for minutes, while no broker answers.
        try:
            if self._letters is not None:
                self._letters.close()
        finally:
            if has_lock:
                self._calls.release()
