"""What polling has handed out of the shares that a consumer holds, and who may be at work on it."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.errors import NotPolled
from coopconsume.runtime.poll.positions import Chosen, PollPosition, next_rows
from coopconsume.runtime.poll.retry_buffer import RetryBuffer
from coopconsume.runtime.poll.user_calls import UserCalls
from coopconsume.runtime.status.waiting import PollFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from assignors import Share
    from commits import Pending
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.record import Headers

    Offsets = Mapping[TopicPartition, OffsetRanges]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PollWindow:
    """Offsets to hand out, and which of their rows.

    Attributes:
        offsets: By partition; none is empty.
        chosen: The wanted rows of partitions where not all are wanted.
    """

    offsets: dict[TopicPartition, OffsetRanges]
    chosen: dict[TopicPartition, Chosen]


class PollSession:
    """What was handed out; the membership's worker while no query runs.

    A user who polls again is done with the earlier frames, as with Kafka's own consumer.

    Nothing waits for Kafka, Spark or the commit log while it holds the lock, and nothing calls the
    membership: that calls `begin` under a lock of its own.

    Args:
        present: Reads which offsets of some partitions have a record; without it, all are taken to
            have one.

    Attributes:
        lock: Guards everything here.
        places: Where polling stands, by partition.
        calls: The calls that the user makes.
    """

    def __init__(
        self, present: Callable[[EpochAssignment, Offsets], Offsets] | None = None
    ) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.places: dict[TopicPartition, PollPosition] = {}
        self._present = present
        self._assignment: EpochAssignment | None = None
        self._is_handing_over = False
        self.calls = UserCalls(self.lock)
        self._is_polling = False
        self._polls = 0
        self._paused: frozenset[TopicPartition] = frozenset()

    # -- handing out

    @property
    def assignment(self) -> EpochAssignment | None:
        """What to poll from; None while shares change hands."""
        with self.lock:
            return None if self._is_handing_over else self._assignment

    @contextmanager
    def polling(self) -> Iterator[None]:
        """While the user polls, nobody works on what was handed out before."""
        with self.lock:
            self._polls += 1
            self._is_polling = True
            self.lock.notify_all()
        try:
            with self.calls.in_use():
                yield
        finally:
            with self.lock:
                self._is_polling = False

    def take(
        self, assignment: EpochAssignment, ends: Mapping[TopicPartition, int], size: int, now: float
    ) -> PollWindow | None:
        """Takes the next offsets to hand out; None if there are no more, or the shares changed.

        Args:
            assignment: What to poll from.
            ends: The partitions' ends; a partition without one is left out.
            size: Offsets to span at most.
            now: The time, on the monotonic clock.
        """
        with self.lock:
            if self.assignment is not assignment:
                return None
            offsets, chosen = next_rows(self.places, assignment.owned, ends, size, now)
            return PollWindow(offsets, chosen) if offsets else None

    def hand_out(
        self, assignment: EpochAssignment, window: PollWindow, rows: Offsets, filtered: Offsets
    ) -> bool:
        """Notes what the frame of a window contains; false if the shares changed meanwhile.

        Args:
            assignment: What was polled from.
            window: The window.
            rows: The offsets of the frame's rows, where not all rows of a partition are in it.
            filtered: The offsets of records that the filter drops.
        """
        with self.lock:
            if self.assignment is not assignment:
                return False
            for tp, offsets in window.offsets.items():
                self.places[tp].hand_out(
                    rows.get(tp, offsets), are_read=tp in rows, filtered=filtered.get(tp)
                )
            self._is_polling = False
            return True

    def put_back(self, assignment: EpochAssignment, window: PollWindow) -> None:
        """Undoes `take`: there is no frame of the window."""
        with self.lock:
            for tp, place in self.places_of(assignment).items():
                if tp in window.offsets:
                    place.put_back()

    def facts(
        self,
        assignment: EpochAssignment | None,
        in_doubt: Mapping[str, float],
        joining: str,
        group: str,
        now: float,
    ) -> PollFacts:
        """Returns what polling waits for.

        Args:
            assignment: The key ranges of the consumer.
            in_doubt: For how long earlier owners are waited for, by partition.
            joining: Why the consumer has no key ranges; empty if it has.
            group: Id of the group.
            now: The time, on the monotonic clock.
        """
        with self.lock:
            places = self.places_of(assignment)
            is_out = any(place.polled for place in self.places.values())
            due = [at for one in places.values() if (at := one.retries.next_due()) is not None]
            return PollFacts(
                group,
                joining if assignment is None else "",
                hand_over=self._is_handing_over and is_out and not self._is_polling,
                partitions=len(places),
                paused=sum(place.paused for place in places.values()),
                full=tuple(
                    f"{topic}-{part}" for (topic, part), one in places.items() if one.is_full
                ),
                at_limit=tuple(
                    f"{owned.topic}-{owned.partition}"
                    for tp, owned in (assignment.owned if assignment else {}).items()
                    if tp in places and places[tp].is_at_limit(owned)
                ),
                in_doubt=in_doubt,
                next_due=min(due) - now if due else None,
                pending=sum(len(place.retries) for place in places.values()),
                parked=sum(len(place.retries.parked) for place in places.values()),
                unanswered="" if assignment is None else assignment.store.unanswered,
            )

    def filtered(
        self, assignment: EpochAssignment, *, alone: bool
    ) -> dict[TopicPartition, OffsetRanges]:
        """Returns the records that the filter has dropped and that are not committed yet.

        Args:
            assignment: The key ranges of the consumer.
            alone: Only of partitions without polled records that wait for an answer: the user
                commits nothing there.
        """
        with self.lock:
            return {
                tp: place.filtered
                for tp, place in self.places_of(assignment).items()
                if place.filtered and not (alone and place.polled)
            }

    # -- answers

    def places_of(self, assignment: EpochAssignment | None) -> dict[TopicPartition, PollPosition]:
        """Returns the positions if they are those of an assignment; else none."""
        return self.places if assignment is not None and self._assignment is assignment else {}

    def named(
        self,
        assignment: EpochAssignment | None,
        done: Mapping[TopicPartition, OffsetRanges | int] | None,
    ) -> dict[TopicPartition, OffsetRanges]:
        """Returns the offsets that a commit names; partitions without any are left out.

        Args:
            assignment: The key ranges of the consumer.
            done: By partition offsets, or the offset below which all is done that was handed out;
                None: all is done that was handed out.

        Raises:
            NotPolled: A partition is not ours, or offsets were not handed out.
        """
        with self.lock:
            places = self.places_of(assignment)
            if done is None:
                return {tp: place.polled for tp, place in places.items() if place.polled}
            found = {}
            for tp, named in done.items():
                if isinstance(named, OffsetRanges):
                    offsets = named
                    place = places.get(tp)
                    strange = (
                        place.strange(assignment.owned[tp], named)
                        if place is not None and assignment is not None
                        else named
                    )
                    _refuse(tp, strange)
                else:
                    if tp not in places:
                        raise NotPolled(*tp, max(0, named - 1), max(0, named - 1))
                    offsets = places[tp].polled.clip(0, named - 1)
                if offsets:
                    found[tp] = offsets
            return found

    def check_open(
        self, assignment: EpochAssignment | None, named: Mapping[TopicPartition, Iterable[int]]
    ) -> dict[TopicPartition, OffsetRanges]:
        """Makes sure that records were handed out and not answered for; returns their offsets.

        Raises:
            NotPolled: One was not.
        """
        with self.lock:
            places = self.places_of(assignment)
            found = {tp: OffsetRanges.from_offsets(list(offsets)) for tp, offsets in named.items()}
            for tp, offsets in found.items():
                _refuse(tp, offsets - places[tp].polled if tp in places else offsets)
            return found

    def committed(self, assignment: EpochAssignment, offsets: Offsets) -> None:
        """Notes that offsets are committed."""
        with self.lock:
            for tp, place in self.places_of(assignment).items():
                if tp in offsets:
                    place.committed(offsets[tp])
            self.lock.notify_all()

    def retries(self, assignment: EpochAssignment, tp: TopicPartition) -> RetryBuffer:
        """Returns the records of a partition that wait for a retry; none if it is not ours."""
        place = self.places_of(assignment).get(tp)
        return RetryBuffer() if place is None else place.retries

    def with_added(
        self, assignment: EpochAssignment, offsets: Offsets
    ) -> dict[TopicPartition, dict[Headers, OffsetRanges]]:
        """Returns those of some offsets whose records have added headers, by the headers."""
        with self.lock:
            return {
                tp: found
                for tp, place in self.places_of(assignment).items()
                if tp in offsets and (found := place.retries.with_added(offsets[tp]))
            }

    def hold_back(
        self,
        assignment: EpochAssignment,
        pending: Mapping[TopicPartition, Sequence[Pending]],
        due: float,
    ) -> None:
        """Notes that records come again at ``due``; their keys wait for them."""
        with self.lock:
            for tp, place in self.places_of(assignment).items():
                records = pending.get(tp, ())
                for one in records:
                    place.retries.hold_back(
                        one.offset,
                        one.key_hash or 0,
                        due,
                        one.error,
                        headers=one.headers,
                        key=one.key,
                    )
                place.answer(OffsetRanges.from_offsets([one.offset for one in records]))
            self.lock.notify_all()

    # -- the membership's worker

    def begin(self, assignment: EpochAssignment) -> None:
        """Hands out from this from now on."""
        with self.lock:
            self._is_handing_over = False
            self._start(assignment)

    def restart(self, assignment: EpochAssignment) -> None:
        """Starts again with the same shares: their logs were cut."""
        with self.lock:
            if self._assignment is assignment:
                self._start(assignment)

    def _start(self, assignment: EpochAssignment) -> None:
        self._note_paused()
        self._assignment = assignment
        self.places = {tp: PollPosition.at_start(owned) for tp, owned in assignment.owned.items()}
        for tp in self._paused & self.places.keys():
            self.places[tp].paused = True
        self._paused = frozenset()
        self.lock.notify_all()

    def _note_paused(self) -> None:
        """Keeps in mind which partitions are paused: those that stay ours remain so."""
        self._paused |= {tp for tp, place in self.places.items() if place.paused}

    def continue_work(self, _timeout: float) -> bool:
        """What is handed out is answered for before the group rebalances."""
        return False

    def give_up(self, _shares: Sequence[Share], _timeout: float) -> None:
        """All that is handed out is answered for."""
        return

    def extend(self, _load: Callable[[], EpochAssignment]) -> None:
        """Returns nothing: all shares start again."""
        return

    def hand_over(self, timeout: float) -> list[Share]:
        """Hands out nothing more, and waits until all polled records are answered.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            The shares of partitions with records that wait for an answer.
        """
        with self.lock:
            self._is_handing_over = True
            assignment, polls = self._assignment, self._polls
            if assignment is None:
                return []
            if timeout > 0:
                self._look_for_absent(assignment)
            is_back = self.lock.wait_for(
                lambda: (
                    self._polls != polls
                    or self._is_polling
                    or self.calls.closed.is_set()
                    or not any(place.polled for place in self.places.values())
                ),
                timeout,
            )
            if is_back:
                return []
            out = {tp for tp, place in self.places.items() if place.polled}
            return [s for s in assignment.shares if (s.topic, s.partition) in out]

    def drop(self) -> None:
        """Forgets what was handed out: it belongs to others."""
        with self.lock:
            self._note_paused()
            self._assignment = None
            self.places = {}
            self.lock.notify_all()

    def forget(self) -> None:
        """Forgets what was handed out, and which partitions are paused: the group was left."""
        with self.lock:
            self.drop()
            self._paused = frozenset()

    def fail(self, _error: BaseException) -> None:
        """Forgets what was handed out; the user gets the error from the next call."""
        self.drop()

    # -- holes

    def _look_for_absent(self, assignment: EpochAssignment) -> None:
        """Finds out beside the hand-over at which open offsets there is no record.

        Nobody can answer for them. The lock is held.
        """
        unread = {tp: place.unread for tp, place in self.places.items() if place.unread}
        if unread and self._present is not None:
            threading.Thread(
                target=self._forget_absent,
                args=(assignment, unread),
                daemon=True,
                name="coopconsume-holes",
            ).start()

    def _forget_absent(self, assignment: EpochAssignment, unread: Offsets) -> None:
        assert self._present is not None
        try:
            present = self._present(assignment, unread)
        except Exception as error:  # noqa: BLE001 - then they stay open, and new owners wait
            log.warning("holes among polled records could not be looked for: %s", error)
            return
        with self.lock:
            for tp, place in self.places_of(assignment).items():
                if tp in unread:
                    place.answer(unread[tp] - present.get(tp, OffsetRanges()))
            self.lock.notify_all()


def _refuse(tp: TopicPartition, strange: OffsetRanges) -> None:
    if strange:
        first, last = next(iter(strange))
        raise NotPolled(*tp, first, last)
