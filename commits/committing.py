"""The calls of the commit store that change committed offsets."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from commits.errors import (
    IndividualCommitNotAllowed,
    IndividualCommitTooOld,
    MaxIndividualCommitsReached,
)
from commits.growth import LogGrowth
from commits.partition_commits import Answer, CommitResult, PartitionCommits
from commits.rows import Part, divided
from commits.settings import (
    ACCEPT_INDIVIDUAL_COMMIT,
    SYNC_COMMITS,
    TableSettings,
)
from commits.validation import (
    checked_place,
    chunk_id,
    exact_offset,
    parts_of,
    raise_once,
    request_events,
    unwritten,
    with_topic_ids,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from commits.acquisitions import Acquisition
    from commits.fold import GroupState
    from commits.model import AcquireRequest, CommitOptions, Epoch, Pending, TopicPartition
    from commits.offset_and_epoch import OffsetAndEpoch
    from commits.offsets import OffsetRanges, Pairs
    from commits.rows import Event

    Results = dict[TopicPartition, CommitResult]

#: Seconds in which a call that waits for the lock gets it: who lets it go could take it again.
_LET_OTHERS: Final = 0.001


class Committing(TableSettings):
    """Commits, changes of log ends, and resets: the calls with a result for each partition."""

    def commit(
        self,
        group: str,
        epoch: Epoch,
        member: str,
        offsets: Mapping[TopicPartition, Pairs | OffsetRanges],
        *,
        pending: Mapping[TopicPartition, Iterable[Pending]] | None = None,
        holes: Mapping[TopicPartition, Pairs | OffsetRanges] | None = None,
        filtered: Mapping[TopicPartition, int] | None = None,
        reached: Mapping[TopicPartition, OffsetAndEpoch] | None = None,
        commit_id: str | None = None,
        **how: Unpack[CommitOptions],
    ) -> Results:
        """Commit offsets of several partitions in one append.

        Args:
            group: The group.
            epoch: The epoch or claim under which the work was planned.
            member: The member that did the work.
            offsets: The offsets that are done: pairs `(first, last)`, both included, or sets of
                offsets.
            pending: Records that were read and are not done. They replace earlier pending records
                of the same offset; a commit of the offset removes them.
            holes: Offsets that are proven never to be delivered. They count as committed and are
                never an error.
            filtered: How many of the offsets are of records that a filter dropped, for the history.
            reached: How far the logs of partitions had reached when the records were read, at most
                to the end of these offsets, and in which leader epoch.
            commit_id: An id that is unique in the group. A commit that is repeated with its id,
                because its answer was lost, counts once and gets its first answer. Ids that end
                in `-<number>` need the least space.
            **how: See `commits.CommitOptions`.

        Returns:
            The result of each partition.

        Raises:
            FencedMember: If the epoch or the member is not in force: nothing counts.
            CommitRefused: If partitions were refused: another topic id, or no share of it.
            MaxIndividualCommitsReached: If partitions would have too many ranges.
            IndividualCommitTooOld: If partitions are entirely below the stable offset.
            IndividualCommitNotAllowed: If the store does not allow commits.
            CommitLogUnavailable: If it is not known whether it was written; repeat it with its id.
            ValueError: If an offset is not valid; nothing was written.

        At most one of the first four errors is raised, after the append, in this order of
        precedence. It has the results of all partitions in `results`; partitions that are not
        refused are committed.
        """
        if commit_id is not None and not commit_id:
            raise ValueError("a commit id must not be empty")
        parts = parts_of(offsets, pending or {}, holes or {})
        detail = _commit_detail(filtered or {}, reached or {})
        with self._lock:
            event = self._event(
                "commit", group, epoch, member, event_id=commit_id, detail=detail, parts=parts
            )
            return self._commit(event, **how)

    def maintain(self) -> None:
        """Write the snapshot and the checkpoint of the table that are due, and remove old files.

        They keep later commits and openings fast. Errors are logged and a later call tries again,
        because nothing that was committed depends on them.
        """
        # Without the lock, as it writes by a handle of its own: commits go on meanwhile.
        self._engine.maintain()
        self._in_portions(lambda: self._log.compact_if_due(*self._late_snapshot_limits()))
        # Without the lock: leases of slots depend on reads of the log meanwhile.
        self._log.remove_old()

    def _in_portions(self, step: Callable[[], bool]) -> None:
        """Repeat a step until it says that nothing is left, and let other calls pass between."""
        while True:
            with self._lock:
                if not step():
                    return
            time.sleep(_LET_OTHERS)

    def growth(self) -> LogGrowth:
        """Return how far the log has grown since the last snapshot. Reads the log."""
        with self._lock:
            self._log.refresh()
            grown = self._log.since
            due = [
                now / limit
                for now, limit in zip(grown, self._snapshot_limits(), strict=True)
                if limit
            ]
            return LogGrowth(*grown, max(due, default=0.0))

    # -- chunks of a cooperative epoch

    def acquire(
        self,
        group: str,
        epoch: Epoch,
        member: str,
        request: AcquireRequest,
        *,
        maintain: bool = True,
    ) -> dict[TopicPartition, OffsetRanges]:
        """Acquire, renew and expire chunks of a cooperative epoch (KIP-X's cooperative fetch).

        The place of the request in the log decides which offsets it gets: those that nobody holds
        and that are not committed. A chunk is held until its offsets are committed or pending, or
        until it expires. No clock decides that: a member that has seen a chunk for the whole time
        limit, without a renewal, expires it by a request.

        Args:
            group: The group.
            epoch: The cooperative epoch in force.
            member: A member of the epoch.
            request: The request.
            maintain: Whether to call `maintain` before the answer. With False, call it later.

        Returns:
            The offsets of each partition that the request got and that the member still holds.

        Raises:
            FencedMember: If the epoch or the member is not in force: nothing changed.
            CommitRefused: If partitions were refused: they have no start yet, the member has no
                share of them, their topic has another id, or the epoch is not cooperative.
            CommitLogUnavailable: If it is not known whether it was written; repeat it with its id.
            ValueError: If the request is not valid; nothing was written.
        """
        with self._lock:
            base = self._event("commit", group, epoch, member, event_id=request.id)
            state = self._state_for(base)
            events = [with_topic_ids(e, state, None) for e in request_events(base, request)]
            fence = state.fenced(epoch, member)
            answers = [Answer(counted=False, reason=fence)]
            if events and not fence:
                answers = self._append_commit(events)
                if maintain:
                    self.maintain()
            for event, answer in zip(events, answers, strict=False):
                if not answer.counted:
                    raise self._fenced(group, epoch, member, answer.reason, answer.results)
                raise_once(event, answer.results, [], report_too_old=True)
            return self.acquired(group, request.id)

    def acquired(self, group: str, request_id: str) -> dict[TopicPartition, OffsetRanges]:
        """Return the offsets that a request got and that are held, as far as the log was read.

        Args:
            group: The group.
            request_id: The id of the request, or `Acquisition.id`.
        """
        with self._lock:
            return self._log.group(self._cluster, group).acquired(chunk_id(request_id))

    def acquisitions(self, group: str) -> dict[TopicPartition, list[Acquisition]]:
        """Return a copy of the acquired chunks of each partition. Reads the log."""
        with self._lock:
            return {
                at: [replace(chunk) for chunk in state.acquisitions.chunks.values()]
                for at, state in self._refreshed(group).partitions.items()
                if state.acquisitions.chunks
            }

    def not_held(self, group: str) -> dict[str, dict[TopicPartition, OffsetRanges]]:
        """Return the offsets that do not count in commits that counted, by commit id.

        Another member had acquired or committed them. Outputs of these records with the id of this
        commit do not count either. Usually empty.
        """
        with self._lock:
            found = self._refreshed(group).not_held
            return {commit_id: dict(places) for commit_id, places in found.items()}

    # -- log ends and resets

    def start(
        self, group: str, epoch: Epoch, member: str, offsets: Mapping[TopicPartition, int]
    ) -> Results:
        """Set the start offsets of partitions that are not in the log; the first call counts.

        Args:
            group: The group.
            epoch: The epoch or claim of the member.
            member: A member of the epoch or claim; it may start partitions of other members.
            offsets: The first offset to process.

        Returns:
            The result of each partition: `duplicate` if it is in the log already.

        Raises:
            FencedMember, CommitRefused: As for `commit`.
            ValueError: If an offset is not valid; nothing was written.
        """
        return self._move("start", group, epoch, member, offsets)

    def log_start(
        self, group: str, epoch: Epoch, member: str, offsets: Mapping[TopicPartition, int]
    ) -> Results:
        """Raise lower stable offsets to the new start offsets of the partitions' logs.

        Arguments, results and errors are those of `start`.
        """
        return self._move("log_start", group, epoch, member, offsets)

    def note_primary(
        self,
        group: str,
        epoch: Epoch,
        member: str,
        offsets: Mapping[TopicPartition, int | None],
        *,
        follow: bool = False,
    ) -> Results:
        """Record the group's offsets in Kafka, once for each partition and epoch.

        An offset that another tool wrote stays in Kafka until the group writes its own. The log
        records it before the first commit on top of it, so that it does not count as an external
        reset later.

        Args:
            group: The group.
            epoch: The epoch or claim of the member.
            member: An owner of the partitions.
            offsets: Kafka's offset of each partition that another tool wrote; None if a member of
                the group has written it.
            follow: Whether to move the stable offset to Kafka's and discard all commits above it.

        Returns:
            The result of each partition: `duplicate` if this epoch has recorded one already.

        Raises:
            FencedMember: As for `commit`.
            CommitRefused: As for `commit`, and if another epoch or claim holds part of a
                partition whose stable offset would move.
        """
        return self._move(
            "primary", group, epoch, member, offsets, detail={"follow": True} if follow else {}
        )

    def truncate(
        self, group: str, epoch: Epoch, member: str, ends: Mapping[TopicPartition, int]
    ) -> Results:
        """Discard commits from an offset on, because the partitions' logs now end before it.

        Arguments, results and errors are those of `start`.
        """
        return self._move("truncation", group, epoch, member, ends)

    def reset(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        epoch: Epoch | None = None,
        member: str = "",
        done: Mapping[TopicPartition, Pairs | OffsetRanges] | None = None,
        pending: Mapping[TopicPartition, Iterable[Pending]] | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> Results:
        """Set stable offsets and discard the commits above them, except for the given ones.

        A reset without an epoch is that of an operator. It ends the epoch in force and all claims
        of the group, so that no active member commits on top of it. An owner that follows an
        external reset passes its epoch and keeps it.

        Args:
            group: The group.
            offsets: The new stable offsets.
            epoch: The epoch or claim of the member.
            member: An owner of the partitions, or the name of the operator for the history.
            done: Offsets that are done above the new stable offset; an adjacent range moves it.
            pending: Failed records to retry, with their attempts and errors.
            topic_ids: The ids of the topics, for partitions that are not in the log yet.

        Results and errors are those of `start`.
        """
        parts = parts_of(done or {}, pending or {}, {})
        known = {part.topic_partition: part for part in parts}
        if not known.keys() <= offsets.keys():
            raise ValueError(f"{min(known.keys() - offsets.keys())} has no stable offset")
        return self._move(
            "reset",
            group,
            epoch=epoch,
            member=member,
            offsets=offsets,
            known=known,
            topic_ids=topic_ids,
        )

    # -- implementation

    def _commit(
        self,
        event: Event,
        *,
        topic_ids: Mapping[str, str] | None = None,
        too_old: Literal["raise", "report"] = "raise",
        limited: bool = True,
        request: AcquireRequest | None = None,
        maintain: bool = True,
    ) -> Results:
        state = self._state_for(event)
        over = self._over_limit(state, event) if limited else {}
        if over or self._refuses(state, event):
            # The state may be stale: commits of others may have reduced the number of ranges.
            state = self._refreshed(event.group)
            over = self._over_limit(state, event) if limited else {}
        event = with_topic_ids(event, state, topic_ids)
        requests = [
            with_topic_ids(one, state, None)
            for one in (request_events(event, request) if request else ())
            if not state.knows(one)
        ]
        if state.knows(event):
            answer = state.fold(event)
            if requests and answer.counted:
                self._log.append_together(requests)
        else:
            fence = state.fenced(event.epoch, event.member)
            if fence:
                answer = Answer(counted=False, reason=fence)
            elif not self._setting(ACCEPT_INDIVIDUAL_COMMIT, default=True):
                raise IndividualCommitNotAllowed(event.group)
            else:
                written = tuple(
                    piece
                    for part in event.parts
                    if not part.is_empty and part.topic_partition not in over
                    for piece in divided(part, self._max_ranges_to_commit)
                )
                answer = Answer(counted=True)
                if written:
                    commit = replace(event, parts=written, detail=_without(event, over))
                    answer = self._append_commit([commit, *requests])[0]
                elif requests:
                    self._append_commit(requests)
                if maintain and (written or requests):
                    self.maintain()
        state = self._log.group(self._cluster, event.group)
        results = {
            at: answer.results.get(at) or unwritten(state, part, answer.reason, over.get(at))
            for at, part in ((part.topic_partition, part) for part in event.parts)
        }
        if not answer.counted:
            raise self._fenced(event.group, event.epoch, event.member, answer.reason, results)
        raise_once(event, results, list(over.values()), report_too_old=too_old == "report")
        return results

    def _append_commit(self, events: Sequence[Event]) -> list[Answer]:
        is_synced = bool(self._setting(SYNC_COMMITS, default=True))
        return self._log.append_together(events, maintain=False, is_synced=is_synced)

    def _refuses(self, state: GroupState, event: Event) -> bool:
        if state.knows(event) or state.fenced(event.epoch, event.member):
            return False
        return not self._setting(ACCEPT_INDIVIDUAL_COMMIT, default=True) or all(
            part.is_empty for part in event.parts
        )

    def _move(
        self,
        kind: str,
        group: str,
        epoch: Epoch | None,
        member: str,
        offsets: Mapping[TopicPartition, int | None],
        known: Mapping[TopicPartition, Part] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Results:
        parts = tuple(
            replace(
                (known or {}).get(at) or Part(*checked_place(at)),
                first=None if offset is None else exact_offset(at, offset),
            )
            for at, offset in offsets.items()
        )
        if not parts:
            return {}
        with self._lock:
            event = self._event(kind, group, epoch, member, detail=detail, parts=parts)
            answer = self._append(with_topic_ids(event, self._state_for(event), topic_ids))
            results = dict(answer.results)
            if not answer.counted:
                raise self._fenced(group, epoch, member, answer.reason, results)
        raise_once(event, results, [], report_too_old=True)
        return results

    def _state_for(self, event: Event) -> GroupState:
        """Return the group's state, refreshed if the event's epoch is not in force in it."""
        state = self._log.group(self._cluster, event.group)
        return self._refreshed(event.group) if state.fenced(event.epoch, event.member) else state

    def _over_limit(
        self, state: GroupState, event: Event
    ) -> dict[TopicPartition, MaxIndividualCommitsReached]:
        over: dict[TopicPartition, MaxIndividualCommitsReached] = {}
        if state.knows(event) or state.fenced(event.epoch, event.member):
            return over
        limits = {topic: self._limit(topic) for topic in {part.topic for part in event.parts}}
        for part in event.parts:
            known = state.partitions.get(part.topic_partition)
            limit = limits[part.topic]
            ranges = known.commits.ranges.range_count if known else 0
            if ranges + part.offsets.range_count <= limit:
                continue
            commits = known.commits if known else PartitionCommits(max_ranges=None)
            trial = commits.copy(max_ranges=limit)
            try:
                trial.amend(part.holes)
                trial.commit(part.offsets)
            except MaxIndividualCommitsReached as error:
                over[part.topic_partition] = error
            except IndividualCommitTooOld:
                continue
        return over


def _commit_detail(
    filtered: Mapping[TopicPartition, int], reached: Mapping[TopicPartition, OffsetAndEpoch]
) -> dict[str, Any]:
    details = {
        "filtered": [[*at, count] for at, count in filtered.items() if count],
        "reached": [[*at, *end] for at, end in reached.items()],
    }
    return {name: values for name, values in details.items() if values}


def _without(event: Event, over: Iterable[TopicPartition]) -> dict[str, Any]:
    """Return the detail of a commit without the partitions that are not written."""
    left_out = set(over)
    details = {
        name: [one for one in values if (one[0], one[1]) not in left_out]
        for name, values in event.detail.items()
    }
    return {name: values for name, values in details.items() if values}
