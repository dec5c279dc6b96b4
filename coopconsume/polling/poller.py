"""What polling does with what a consumer holds: hand it out, and settle what is said of it."""

from __future__ import annotations

import itertools
import logging
import math
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from commits import CommitLogUnavailable, FencedMember, MaxIndividualCommitsReached
from coopconsume.errors import InvalidOption, MissingOption, NotPolled, TopicNotFound
from coopconsume.group.repeating import repeated
from coopconsume.polling.answers import (
    check_polled,
    delay_of,
    hashes_of,
    hold,
    letters_of,
    originals,
    reject,
    take_decisions,
    told_of,
)
from coopconsume.polling.places import POLL_WINDOW, Handout, next_rows, window_frame
from coopconsume.reading.audit import Audit
from coopconsume.sinks import open_dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from commits import CommitResult, OffsetRanges
    from coopconsume.group.holding import Holding
    from coopconsume.group.membership import Membership
    from coopconsume.group.owned import TopicPartition
    from coopconsume.options import Options
    from coopconsume.polling.places import Place
    from coopconsume.query import OnDead
    from coopconsume.sinks import DeadLetterSink

log = logging.getLogger(__name__)

_POLL_EVERY = 0.1
_DECIDE_EVERY = 2.0


class Poller:
    """Hands out what is held, and commits, holds back or gives up what users say of it.

    What each call does and raises is told by `CooperativeConsumer`, which calls it.

    Args:
        spark: The session.
        options: Of the consumer.
        slots: Tells how many Spark tasks run side by side.

    Attributes:
        handout: What was handed out.
    """

    def __init__(self, spark: SparkSession, options: Options, slots: Callable[[], int]) -> None:
        self.handout = Handout()
        self._spark = spark
        self._options = options
        self._slots = slots
        self._dead_letters: DeadLetterSink | None = None
        self._run_id = uuid.uuid4().hex[:12]
        self._commit_ids = (f"{self._run_id}-{number}" for number in itertools.count())
        self._decisions_at = -math.inf
        self._audit = Audit(spark, options)

    # -- handing out

    def poll(self, membership: Membership, timeout: float) -> DataFrame:
        """The next records, as a DataFrame of a fixed window of offsets."""
        deadline = time.monotonic() + timeout
        window = min(POLL_WINDOW, self._options.max_offsets_per_trigger or POLL_WINDOW)
        self.handout.polled()
        last = None
        while True:
            with self.handout.lock:
                holding = self.handout.holding
                if holding is not None and holding.owned:
                    free = [
                        tp for tp, owned in holding.owned.items()
                        if holding.waits(tp, owned.ranges) <= 0 and not owned.is_deleted
                    ]  # fmt: skip
                    if self._is_time_to_decide():
                        self._decisions_at = time.monotonic()
                        try:
                            self._decide(holding)
                        except FencedMember as error:
                            membership.fenced(str(error))
                            continue
                    left = max(0.0, deadline - time.monotonic()) if holding is not last else None
                    ends = self._ends(membership, holding, free, left)
                    if ends is None:
                        continue
                    last = holding
                    if holding.logs.is_cut(ends):
                        holding.logs.check_topics()
                        loss = holding.logs.follow_cut()
                        if self._options.fail_on_data_loss:
                            raise loss
                        self.handout.begin(holding)
                        continue
                    places, owned = self.handout.places, holding.owned
                    found, choose = next_rows(places, owned, ends, window, time.monotonic())
                    if found:
                        return window_frame(
                            self._spark, self._options, owned, found, self._slots(), choose
                        )
            if time.monotonic() >= deadline:
                return window_frame(self._spark, self._options, membership.owned, {}, self._slots())
            time.sleep(min(_POLL_EVERY, max(0.0, deadline - time.monotonic())))

    def _ends(
        self, membership: Membership, holding: Holding, free: list[TopicPartition],
        check_starts_within: float | None,
    ) -> dict[TopicPartition, int] | None:  # fmt: skip
        """Returns where logs end; None if a topic was deleted without which polling goes on."""
        try:
            if check_starts_within is not None:
                repeated(holding.logs.check_starts, "look at the logs' starts", check_starts_within)
            return holding.cluster.ends(free)
        except TopicNotFound:
            deleted = holding.logs.check_topics()
            if not deleted:
                raise
            membership.rebalance(f"deleted: {', '.join(deleted)}")
            return None

    def _is_time_to_decide(self) -> bool:
        """Whether to look at what was decided; without parked records one look will do."""
        if self._decisions_at == -math.inf:
            return True
        parked = any(place.held.parked for place in self.handout.places.values())
        return parked and time.monotonic() - self._decisions_at > _DECIDE_EVERY

    def _decide(self, holding: Holding) -> None:
        """Takes what was decided on parked records; at the next poll if the log does not answer."""
        try:
            take_decisions(self.handout, holding, self._commit_ids)
        except CommitLogUnavailable as error:
            log.warning("decisions on parked records are read later: %s", error)

    def place(self, tp: TopicPartition) -> Place:
        """Where polling stands in a partition.

        Raises:
            ValueError: It is not ours.
        """
        place = self.handout.places.get(tp)
        if place is None:
            raise ValueError(f"partition {tp[0]}-{tp[1]} is not assigned to us")
        return place

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Poll from an offset on next."""
        place = self.place(tp)
        if offset < 0:
            raise ValueError(f"seek to offset {offset}: give 0 or more")
        with self.handout.lock:
            place.seek(offset)
            self._audit.forget(tp)

    # -- what is said of it

    def commit(
        self, membership: Membership, done: Mapping[TopicPartition, OffsetRanges]
    ) -> dict[TopicPartition, CommitResult]:
        """Commit polled records one by one."""
        offsets = {tp: ranges for tp, ranges in done.items() if ranges}
        holding = membership.holding
        with self.handout.lock:
            for tp, ranges in offsets.items():
                place = self.handout.places.get(tp) if holding else None
                strange = place.strange(holding.owned[tp], ranges) if place and holding else ranges
                if strange:
                    first, last = next(iter(strange))
                    raise NotPolled(*tp, first, last)
        if holding is None:
            return {}
        try:
            results = holding.commit(offsets)
            for tp, ranges in offsets.items():
                self.handout.settle(tp, ranges)
            self._commit_holes(holding)
        except MaxIndividualCommitsReached as error:
            for tp, result in (error.results or {}).items():
                if result.status != "refused":
                    self.handout.settle(tp, offsets[tp])
            raise
        except FencedMember as error:
            membership.fenced(str(error))
            raise
        holding.primary.write_quietly()
        return results

    def retry(
        self, membership: Membership, frame: DataFrame, delay: float | str, reason: str | Column
    ) -> None:
        """Have polled records come again, later."""
        seconds = delay_of(delay)
        told = told_of(frame, reason)
        hashes = hashes_of(frame, told)
        holding = membership.holding
        with self.handout.lock, self._fencing(membership):
            check_polled(self.handout, holding, told)
            if holding is not None and told:
                hold(self.handout, holding, told, hashes, seconds, next(self._commit_ids))

    def reject(
        self, membership: Membership, frame: DataFrame, reason: str | Column, on_dead: OnDead
    ) -> None:
        """Give polled records up: they become dead letters."""
        if on_dead not in ("continue", "park"):
            raise InvalidOption("on_dead", repr(on_dead), "give continue or park")
        if self._options.dead_letter is None:
            raise MissingOption("deadLetter")
        told = told_of(frame, reason)
        hashes = hashes_of(frame, told) if on_dead == "park" else None
        if self._dead_letters is None:
            self._dead_letters = open_dead_letters(self._options.dead_letter, self._options)
        holding = membership.holding
        with self.handout.lock, self._fencing(membership):
            check_polled(self.handout, holding, told)
            if holding is None or not told:
                return
            rows = originals(self._spark, self._options, told, self._slots())
            letters = letters_of(rows, self.handout, told)
            reject(
                self.handout, holding, self._dead_letters, letters, hashes, next(self._commit_ids)
            )
        holding.primary.write_quietly()

    def close(self) -> None:
        """Let go of where dead letters go."""
        if self._dead_letters is not None:
            self._dead_letters.close()

    @contextmanager
    def _fencing(self, membership: Membership) -> Iterator[None]:
        try:
            yield
        except FencedMember as error:
            membership.fenced(str(error))
            raise

    def _commit_holes(self, holding: Holding) -> None:
        holes = {}
        for tp, place in list(self.handout.places.items()):
            owned = holding.owned[tp]
            span = self._audit.due(owned, owned.stable, place.position)
            absent = self._audit.look(span) if span else None
            if absent:
                holes[tp] = absent
        if holes:
            holding.commit({}, holes=holes)
            for tp, absent in holes.items():
                self.handout.settle(tp, absent)
