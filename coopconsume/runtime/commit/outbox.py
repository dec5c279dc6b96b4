"""Writes dead letters and output rows, beside the commits: a failing destination stops no commit.

Each attempt runs in a thread of its own, under a commit id of its own. What an attempt may have
left behind without an answer is never counted, as its id is never committed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from commits import CommitLogUnavailable, FencedMember, OffsetRanges, Pending
from commits.model import PARKED_MS
from coopconsume.errors import AuthenticationFailed, NotAuthorized, OutputRefused
from coopconsume.record import shown_key
from coopconsume.runtime.commit.deliveries import LONGEST_PAUSE, Deliveries
from coopconsume.runtime.commit.parcels import Parcel, Written
from coopconsume.runtime.events import ParcelFailed, ParcelWritten
from coopconsume.runtime.plan import Waiting
from coopconsume.sinks.base import Outputs, offsets_of_rows
from coopconsume.worker.handler_answers import error_text
from coopconsume.worker.report import unpack_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.runtime.events import JobEvent
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.runtime.plan import Partition
    from coopconsume.worker.report import Failure, SlotReport

log = logging.getLogger(__name__)


def due_ms(delay: float) -> int:
    """Returns the time some seconds from now as the log has it; infinity stands for parked."""
    return PARKED_MS if delay == math.inf else int((time.time() + delay) * 1000)


def pending_of(failure: Failure) -> Pending:
    """Returns a failed record as the log has it."""
    return Pending(
        failure.offset, failure.key_hash, failure.attempts, due_ms(failure.delay), failure.error,
        headers=failure.headers, key=shown_key(failure.key),
    )  # fmt: skip


def write(job_spec: JobSpec, assignment: EpochAssignment, parcel: Parcel, commit_id: str) -> None:
    """Writes a parcel to its destinations.

    Raises:
        OutputNotWritten: It is not written; part of it may be.
    """
    topic_ids = assignment.topic_ids
    if parcel.letters and job_spec.dead_letters is not None:
        job_spec.dead_letters.append(parcel.letters, topic_ids, commit_id)
    sink = job_spec.outputs
    if sink is not None and (parcel.rows or (sink.hears_all and any(parcel.offsets.values()))):
        sink.write(Outputs(parcel.rows, parcel.offsets, topic_ids, commit_id))
    if parcel.changes and job_spec.state is not None:
        # Last: changes that are written count as soon as slots ask for them.
        job_spec.state.append(assignment, Outputs(parcel.changes, {}, topic_ids, commit_id))


class Outbox:
    """The dead letters and output rows of an epoch that are not committed yet.

    Every method is the loop's to call; the threads report through ``post``.

    Args:
        assignment: What is owned.
        job_spec: Where dead letters and outputs go.
        partitions: What the loop knows of them.
        commit_ids: Ids for commits, unique in the group.
        post: Puts an event into the queue of the loop.
        failed: Called in the loop with an error that ends the job.

    Attributes:
        ready: Parcels that are written and not committed.
    """

    def __init__(
        self,
        assignment: EpochAssignment,
        job_spec: JobSpec,
        partitions: Mapping[TopicPartition, Partition],
        commit_ids: Iterator[str],
        post: Callable[[JobEvent], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.ready: deque[Written] = deque()
        self._is_stalled = False
        self._assignment = assignment
        self._job_spec = job_spec
        self._partitions = partitions
        self._ids = commit_ids
        self._post = post
        self._failed = failed
        self._errors: dict[str, Exception] = {}
        self._denied: dict[str, str] = {}
        patience, gives_up = assignment.options.batch_time, job_spec.available_now
        self._letters = Deliveries("dead letters", patience, gives_up=gives_up)
        self._in_order = job_spec.state is not None
        self._rows = Deliveries("outputs", patience, gives_up=gives_up, in_order=self._in_order)
        self._all = (self._letters, self._rows)
        self._by_name = {one.what: one for one in self._all}

    @property
    def has_any(self) -> bool:
        """Whether anything is not written or not committed."""
        return bool(self.ready) or any(one.has_any for one in self._all)

    @property
    def parcels(self) -> list[Parcel]:
        """All parcels that no commit has begun to make count."""
        written = [one.parcel for one in self.ready]
        return [*written, *(parcel for one in self._all for parcel in one.parcels)]

    @property
    def is_moving(self) -> bool:
        """Whether something will be ready to be committed, as far as is known."""
        now = time.monotonic()
        return bool(self.ready) or any(one.is_moving(now) for one in self._all)

    @property
    def is_young(self) -> bool:
        """Whether something is being written, and a commit should wait for it."""
        now = time.monotonic()
        return any(one.is_young(now) for one in self._all)

    # -- what comes in

    def take(self, report: SlotReport, partitions: Sequence[Partition]) -> set[tuple[int, int]]:
        """Takes what a slot reported: letters, rows, and the offsets that stand or fall with them.

        Args:
            report: The report.
            partitions: Of its batch, by part.

        Returns:
            Failures that are parked once their letter is written: part and offset.
        """
        letters, parked = self._letters_of(report, partitions)
        sink, is_stateful = self._job_spec.outputs, self._job_spec.state is not None
        # A record must not be committed before an earlier one of its key, whose state it has seen.
        parcel = letters if is_stateful else Parcel()
        names = tuple((p.topic, p.partition) for p in partitions)
        if not is_stateful:
            self._add(self._letters, letters)
        if report.outputs is not None and sink is not None:
            parcel.rows.append((names, report.outputs))
            parcel.offsets |= offsets_of_rows(names, report.outputs)
        hears_all = sink is not None and sink.hears_all
        if is_stateful or hears_all:
            for part, outcome in report.partitions.items():
                done = OffsetRanges.from_offsets(outcome.done_offsets.to_numpy())
                if hears_all and outcome.filtered:
                    # An attempt before a change of the filter may have left rows.
                    filtered = unpack_offsets(outcome.filtered).to_numpy()
                    done |= OffsetRanges.from_offsets(filtered)
                parcel.offsets[names[part]] = done - partitions[part].ledger.undelivered
        if is_stateful:
            parcel.slots.add(report.slot)
            parcel.changes += [] if report.changes is None else [(names, report.changes)]
        self._add(self._rows, parcel)
        return parked

    def is_written(self, slot: int) -> bool:
        """Whether all changes of the state that a slot has reported are written."""
        return not (self._in_order and self._rows.concerns(slot))

    def _letters_of(
        self, report: SlotReport, partitions: Sequence[Partition]
    ) -> tuple[Parcel, set[tuple[int, int]]]:
        parcel = Parcel(letters=list(report.dead) if self._job_spec.dead_letters else [])
        places: dict[TopicPartition, list[int]] = {}
        for letter in parcel.letters:
            places.setdefault((letter.topic, letter.partition), []).append(letter.offset)
        parked: set[tuple[int, int]] = set()
        names = tuple((p.topic, p.partition) for p in partitions)
        #: What a late handler gave up: its key has another owner, who decides.
        strange: set[tuple[str, int, int]] = set()
        for part, outcome in report.partitions.items() if places else ():
            tp = names[part]
            for failure in outcome.failed:
                if failure.delay == math.inf and failure.offset in places.get(tp, ()):
                    places[tp].remove(failure.offset)
                    parked.add((part, failure.offset))
                    if not partitions[part].has(failure.key_hash):
                        strange.add((*tp, failure.offset))
                        continue
                    parcel.pending.setdefault(tp, []).append(pending_of(failure))
        parcel.offsets = {tp: OffsetRanges.from_offsets(o) for tp, o in places.items() if o}
        parcel.letters = [
            one for one in parcel.letters if (one.topic, one.partition, one.offset) not in strange
        ]
        return parcel, parked

    def _add(self, deliveries: Deliveries, parcel: Parcel) -> None:
        if not parcel:
            return
        for tp, offsets in parcel.offsets.items():
            self._partitions[tp].ledger.defer(offsets)
        deliveries.add(parcel)

    # -- writing

    def start(self) -> None:
        """Begins to write what is due."""
        for deliveries in self._all:
            parcel = deliveries.begin(time.monotonic())
            if parcel is not None:
                threading.Thread(
                    target=self._write, args=(deliveries, parcel, next(self._ids)),
                    name=f"coopconsume-{deliveries.what}", daemon=True,
                ).start()  # fmt: skip

    def _write(self, deliveries: Deliveries, parcel: Parcel, commit_id: str) -> None:
        """In a thread of its own."""
        started = time.monotonic()
        try:
            write(self._job_spec, self._assignment, parcel, commit_id)
        except BaseException as error:  # noqa: BLE001 - handled in the loop
            self._post(ParcelFailed(deliveries.what, error))
        else:
            written = Written(parcel, commit_id, time.monotonic() - started)
            self._post(ParcelWritten(deliveries.what, written))

    def written(self, event: ParcelWritten) -> None:
        """Takes the end of a write: the parcel can be committed."""
        deliveries = self._by_name[event.what]
        deliveries.delivered()
        self._denied.pop(deliveries.what, None)
        self.ready.append(event.written)

    def not_written(self, event: ParcelFailed) -> None:
        """Takes the end of a write that has failed: it is tried again, or ends the job."""
        deliveries, error = self._by_name[event.what], event.error
        if isinstance(error, FencedMember) or not isinstance(error, Exception):
            self._failed(error)
            return
        text = error_text(error)
        is_denied = isinstance(error, AuthenticationFailed | NotAuthorized)
        if not is_denied:
            log.warning("%s", text)
        elif self._denied.get(deliveries.what) != text:
            self._denied[deliveries.what] = text
            log.error(
                "%s cannot be written: %s. Records that need it are held back; it is tried again "
                "every %g s", deliveries.what, text, LONGEST_PAUSE,
            )  # fmt: skip
        if not isinstance(error, CommitLogUnavailable):
            self._errors[deliveries.what] = error
        is_final = isinstance(error, OutputRefused)
        if is_final and self._in_order:
            # What comes after it builds on its state.
            self._failed(error)
            return
        deliveries.failed(text, time.monotonic(), is_final=is_final, is_denied=is_denied)
        if self._in_order and deliveries.refused:
            self._failed(error)

    # -- what is held back

    def show(self) -> dict[TopicPartition, list[Pending]]:
        """Holds back the lanes of records that cannot be written now.

        Returns:
            These records as the commit log is to have them: pending, with the error. Their next
            owner does them again, as letters and rows are lost with this process.
        """
        now = time.monotonic()
        is_stalled = any(one.is_in_trouble(now) or one.refused for one in self._all)
        found: dict[TopicPartition, list[Pending]] = {}
        if is_stalled != self._is_stalled:
            self._is_stalled = is_stalled
            for partition in self._partitions.values():
                partition.ledger.is_stalled = is_stalled
        for deliveries in self._all:
            for parcel in deliveries.to_show(now):
                self._hold_back(parcel, found)
        return found

    def _hold_back(self, parcel: Parcel, found: dict[TopicPartition, list[Pending]]) -> None:
        for tp, records in parcel.records().items():
            self._partitions[tp].hold_back(
                [Waiting.after(r, 0.0, is_undelivered=not parcel.is_refused) for r in records]
            )
            found.setdefault(tp, []).extend(
                # The last attempt gave the letter, and is made again by the next owner.
                pending_of(replace(r, attempts=max(0, r.attempts - 1), delay=0.0))
                for r in records
            )
        if parcel.is_refused:
            # Nobody writes them any more.
            parcel.letters, parcel.rows = [], []

    def raise_refused(self) -> None:
        """Raises why something is not written that no further attempt is made for.

        Raises:
            OutputNotWritten: The destination has refused it, or was given up.
        """
        for deliveries in self._all:
            if deliveries.refused:
                raise self._errors[deliveries.what]
