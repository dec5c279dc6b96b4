"""The calls of the commit log that a job makes, the thread that makes them, and maintenance."""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

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

    from commits import CommitResult
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import Failed
    from coopconsume.runtime.commit.next_commit import CommitRequest
    from coopconsume.runtime.commit.parcels import Written
    from coopconsume.runtime.decisions import Decision
    from coopconsume.runtime.events import JobEvent
    from coopconsume.runtime.job_spec import JobSpec

log = logging.getLogger(__name__)

_WARN_EVERY = 10.0


class LogThread:
    """Calls the commit log in a thread of its own, one call at a time.

    Each call is answered by one event. The loop begins a call only while none is under way, and
    ends it with the event. A fenced or failed commit is a call that has ended, too.

    Attributes:
        is_busy: Whether a call is under way.
        commit: The commit that is under way; None: another call is, or none.
        count: How many commits were answered.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self.commit: CommitRequest | None = None
        self.count = 0
        #: The last call, if `wait` has not waited for it.
        self._call: Future[None] | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="coopconsume-commit")

    @property
    def written(self) -> Written | None:
        """The outputs that the commit under way is to make count."""
        return None if self.commit is None else self.commit.written

    def begin(self, call: Callable[..., None], *args: Any) -> None:
        """Begins a call, which posts an event as it ends."""
        self.is_busy = True
        self._call = self._executor.submit(call, *args)

    def begin_commit(self, call: Callable[[CommitRequest], None], commit: CommitRequest) -> None:
        """Begins a commit."""
        self.commit = commit
        self.begin(call, commit)

    def ended(self) -> CommitRequest | None:
        """Takes the event of the call; returns the commit if the call was one."""
        commit, self.commit, self.is_busy = self.commit, None, False
        return commit

    def answered(self) -> CommitRequest:
        """Takes the answer to the commit; returns the commit."""
        commit = self.ended()
        assert commit is not None, "no commit is under way"
        self.count += 1
        return commit

    def wait(self, seconds: float) -> None:
        """Waits for the end of the last call, once for each call and not longer than this."""
        call, self._call = self._call, None
        if call is not None:
            wait([call], seconds)

    def close(self) -> None:
        """Waits for the call that is under way; no other begins."""
        self._executor.shutdown(wait=True)


class LogCalls:
    """The calls of the commit log; each posts an event. Only the thread of the log runs them.

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

    def commit(self, commit: CommitRequest) -> None:
        """Makes a commit, see `commit_outcomes`."""
        began = time.thread_time()
        try:
            answer = commit_outcomes(self._assignment, commit)
        except FencedMember as error:
            self._post(CommitFenced(error, commit.pending))
        except BaseException as error:  # noqa: BLE001 - reported to the loop
            self._post(CommitFailed(error))
        else:
            if commit.written is not None and self._job_spec.state is not None:
                self._job_spec.state.committed(self._assignment, commit.id)
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
                self._assignment.proof.check(within=0)
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


def commit_outcomes(assignment: EpochAssignment, commit: CommitRequest) -> CommitAnswered:
    """Commits what is done and what failed.

    ``maxNumRanges`` bounds what is read, so all of it is committed, however many ranges it makes.

    Args:
        assignment: What is owned.
        commit: The commit.

    Raises:
        commits.FencedMember: The epoch or the membership is not in force.
        commits.CommitLogUnavailable: The log did not answer.
    """
    started = time.monotonic()
    written, holes, request = commit.written, commit.holes, commit.chunks
    done = dict(commit.offsets)
    reported = {tp: list(records) for tp, records in commit.pending.items()}
    if written is not None:
        for tp, some in written.parcel.offsets.items():
            done[tp] = done.get(tp, OffsetRanges()) | some
        for tp, records in written.parcel.pending.items():
            reported.setdefault(tp, []).extend(records)
    dropped = {tp: len(done[tp] & some) for tp, some in commit.filtered.items() if tp in done}
    results: Mapping[TopicPartition, CommitResult] = {}
    if done or reported or holes or request is None:
        results = assignment.commit(
            done, pending=reported, holes=holes, filtered=dropped, commit_id=commit.id,
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
    acquired = None if request is None else assignment.chunks.acquired(request)
    return CommitAnswered(
        answered,
        holes,
        took=took,
        answered_at=time.time(),
        failed=failed,
        not_held=not_held,
        acquired=acquired,
    )
