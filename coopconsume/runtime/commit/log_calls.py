"""The calls of the commit log that a job makes in its committing thread, and its maintenance."""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

from commits import FencedMember, OffsetRanges
from coopconsume.runtime.decisions import apply_decisions, open_decisions
from coopconsume.runtime.events import (
    CommitAnswered,
    CommitFailed,
    CommitFenced,
    DecisionsApplied,
    LogRead,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from commits import AcquireRequest, CommitResult, Pending
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import Failed
    from coopconsume.runtime.commit.parcels import Written
    from coopconsume.runtime.decisions import Decision
    from coopconsume.runtime.events import JobEvent
    from coopconsume.runtime.job_spec import JobSpec

log = logging.getLogger(__name__)

_WARN_EVERY = 10.0


class LogCalls:
    """Calls the commit log, and posts an event for each answer.

    Args:
        assignment: What is owned, and the way to commit it.
        job_spec: Has the state that the commits decide on.
        commit_ids: Ids for the commits of decisions.
        post: Puts an event into the loop's queue.
    """

    def __init__(
        self,
        assignment: EpochAssignment,
        job_spec: JobSpec,
        commit_ids: Iterator[str],
        post: Callable[[JobEvent], None],
    ) -> None:
        self._assignment = assignment
        self._job_spec = job_spec
        self._ids = commit_ids
        self._post = post
        self._maintainer = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-maintenance")
        self._maintenance: Future[None] | None = None
        #: Processor times of maintenance since the last commit, a part of the next one's cost.
        self._maintained: SimpleQueue[float] = SimpleQueue()
        self._warned_at = -math.inf

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetRanges],
        holes: Mapping[TopicPartition, OffsetRanges],
        pending: Mapping[TopicPartition, list[Pending]],
        commit_id: str,
        written: Written | None,
        filtered: Mapping[TopicPartition, OffsetRanges],
        request: AcquireRequest | None,
    ) -> None:
        """Makes a commit, see `commit_outcomes`."""
        began = time.thread_time()
        try:
            answer = commit_outcomes(
                self._assignment, offsets, holes, pending, commit_id, written, filtered, request
            )
        except FencedMember as error:
            self._post(CommitFenced(error, pending))
        except BaseException as error:  # noqa: BLE001 - reported to the loop
            self._post(CommitFailed(error))
        else:
            if written is not None and self._job_spec.state is not None:
                self._job_spec.state.committed(self._assignment, written.commit_id)
            cost = time.thread_time() - began
            while not self._maintained.empty():
                cost += self._maintained.get()
            self._post(replace(answer, cost=cost))
            # It may take as long as many commits, which go on meanwhile.
            if self._maintenance is None or self._maintenance.done():
                self._maintenance = self._maintainer.submit(self._maintain)

    def close(self) -> None:
        """Waits for the maintenance that runs."""
        self._maintainer.shutdown(wait=True)

    def _maintain(self) -> None:
        began = time.thread_time()
        self._assignment.store.maintain()
        self._maintained.put(time.thread_time() - began)

    def look(self) -> None:
        """Reads whether the epoch is in force, what other members moved, and their chunks."""
        stable: Mapping[TopicPartition, int] = {}
        chunks = None
        try:
            with self._assignment.store.one_look():
                self._assignment.check(within=0)
                if self._assignment.options.uses_chunks:
                    chunks = self._assignment.look_at_chunks()
                stable = self._assignment.refresh()
        except FencedMember as error:
            self._post(CommitFenced(error, {}))
            return
        except Exception as error:  # noqa: BLE001 - the next look may do
            self._warn("the commit log could not be read for now: %s", error)
        self._post(LogRead(stable, chunks))

    def return_chunks(self) -> None:
        """Returns the acquired chunks, as no slot is about to work on them."""
        try:
            self._assignment.return_chunks()
        except Exception as error:  # noqa: BLE001 - the next turn tries again
            self._warn("chunks could not be returned for now: %s", error)
        self.look()

    def decide(self, parked: Sequence[tuple[TopicPartition, Failed]]) -> None:
        """Applies decisions on parked records, and reads those on failed records."""
        applied: list[Decision] = []
        on_failed: list[Decision] | None = None
        try:
            with self._assignment.store.one_look():
                applied = apply_decisions(self._assignment, parked, self._ids)
                on_failed = open_decisions(self._assignment)
        except FencedMember as error:
            self._post(CommitFenced(error, {}))
            return
        except Exception as error:  # noqa: BLE001 - the next look may do
            self._warn("decisions on records could not be applied yet: %s", error)
        self._post(DecisionsApplied(applied, on_failed))

    def _warn(self, words: str, error: Exception) -> None:
        """Warns of a call that is made again soon, so not of each."""
        if time.monotonic() - self._warned_at > _WARN_EVERY:
            self._warned_at = time.monotonic()
            log.warning(words, error)


def commit_outcomes(
    assignment: EpochAssignment,
    offsets: Mapping[TopicPartition, OffsetRanges],
    holes: Mapping[TopicPartition, OffsetRanges],
    pending: Mapping[TopicPartition, list[Pending]],
    commit_id: str,
    written: Written | None = None,
    filtered: Mapping[TopicPartition, OffsetRanges] | None = None,
    request: AcquireRequest | None = None,
) -> CommitAnswered:
    """Commits what is done and what failed.

    ``maxNumRanges`` bounds what is read, so all of it is committed, however many ranges it makes.

    Args:
        assignment: What is owned.
        offsets: What is done.
        holes: What is proven never to be delivered.
        pending: What failed.
        commit_id: The id of the commit; with a parcel, the id under which it was written.
        written: Outputs that were written; they count only with this commit.
        filtered: Those of ``offsets`` that the filter dropped.
        request: Chunks of a cooperative epoch to acquire in the same append.

    Raises:
        commits.FencedMember: The epoch or the membership is not in force.
        commits.CommitLogUnavailable: The log did not answer.
    """
    started = time.monotonic()
    done = dict(offsets)
    reported = {tp: list(records) for tp, records in pending.items()}
    if written is not None:
        for tp, some in written.parcel.offsets.items():
            done[tp] = done.get(tp, OffsetRanges()) | some
        for tp, records in written.parcel.pending.items():
            reported.setdefault(tp, []).extend(records)
    dropped = {tp: len(done[tp] & some) for tp, some in (filtered or {}).items() if tp in done}
    results: Mapping[TopicPartition, CommitResult] = {}
    if done or reported or holes or request is None:
        results = assignment.commit(
            done, pending=reported, holes=holes, filtered=dropped, commit_id=commit_id,
            request=request, maintain=False,
        )  # fmt: skip
    else:
        assignment.acquire(request, maintain=False)
    answered = {
        tp: (done.get(tp, OffsetRanges()), result.stable_offset) for tp, result in results.items()
    }
    failed = {
        tp: OffsetRanges.from_offsets([one.offset for one in records])
        for tp, records in reported.items()
    }
    not_held = {tp: result.not_held for tp, result in results.items() if result.not_held}
    took = (written.took if written else 0.0, time.monotonic() - started)
    acquired = None if request is None else assignment.acquired(request)
    return CommitAnswered(answered, holes, took, time.time(), failed, not_held, acquired)
