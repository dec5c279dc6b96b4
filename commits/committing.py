"""The part of the commit store that changes what is committed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

from commits.errors import (
    FencedMember,
    IndividualCommitNotAllowed,
    IndividualCommitTooOld,
    MaxIndividualCommitsReached,
)
from commits.group import Answer
from commits.ownership import in_force
from commits.partition import CommitResult, PartitionCommits
from commits.requests import (
    checked_place,
    exact_offset,
    parts_of,
    raise_once,
    unwritten,
    with_topic_ids,
)
from commits.rows import Event, Part, divided
from commits.settings import (
    ACCEPT_INDIVIDUAL_COMMIT,
    SNAPSHOT_BYTES,
    SNAPSHOT_COMMITS,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits.group import GroupState
    from commits.model import Epoch, Pending, TopicPartition
    from commits.offsets import OffsetRanges, Pairs

    Results = dict[TopicPartition, CommitResult]

__all__ = ["Committing"]


class Committing(Settings):
    """Commits, the ends of the logs, and an operator's word: all that is answered by partition."""

    def commit(
        self,
        group: str,
        epoch: Epoch,
        member: str,
        offsets: Mapping[TopicPartition, Pairs | OffsetRanges],
        *,
        pending: Mapping[TopicPartition, Iterable[Pending]] | None = None,
        holes: Mapping[TopicPartition, Pairs | OffsetRanges] | None = None,
        commit_id: str | None = None,
        topic_ids: Mapping[str, str] | None = None,
        too_old: Literal["raise", "report"] = "raise",
        limited: bool = True,
    ) -> Results:
        """Commits offsets of several partitions, all in one append.

        Args:
            group: The group.
            epoch: The epoch or claim under which the work was planned.
            member: Who did it.
            offsets: What is done: pairs `(first, last)`, both included, or sets of offsets.
            pending: Records that were read and are not done. They replace what was known of the
                same offset; a commit of the offset ends them.
            holes: Offsets that are proven never to be delivered: as if committed, never an error.
            commit_id: Tells the commit from every other one of the group. A commit that is
                repeated with its id, because its answer was lost, counts once and gets its first
                answer. Ids that end in `-<number>` take the least room.
            topic_ids: The ids of the topics the records were read from, where they differ from
                those of the epoch: such partitions are refused.
            too_old: Whether partitions of which all lies below the stable offset raise, or are
                only told by their status.
            limited: Whether the limit on ranges is looked at. False is for who has looked, and has
                written elsewhere since what stands or falls with this commit.

        Returns:
            The answer of each partition.

        Raises:
            FencedMember: If the epoch or the member is not in force: nothing counted.
            CommitRefused: If partitions were refused: another topic id, or no share of it.
            MaxIndividualCommitsReached: If partitions would have too many ranges.
            IndividualCommitTooOld: If partitions lie wholly below the stable offset.
            IndividualCommitNotAllowed: If commits are switched off in this store.
            CommitLogUnavailable: If it is not known whether it was written; repeat it with its id.
            ValueError: If an offset makes no sense; nothing was written.

        The first four are raised once, after all, in this order of preference, and carry the
        answers of all partitions in `results`: what other partitions committed stands.
        """
        if commit_id is not None and not commit_id:
            raise ValueError("a commit id must not be empty")
        parts = parts_of(offsets, pending or {}, holes or {})
        with self._lock:
            return self._commit(
                Event(
                    "commit", commit_id or self._new_id(), self._cluster, group, epoch,
                    member=member, parts=parts,
                ),
                topic_ids,
                report_too_old=too_old == "report", limited=limited,
            )  # fmt: skip

    # -- the ends of the logs, and an operator's word

    def start(
        self, group: str, epoch: Epoch, member: str, offsets: Mapping[TopicPartition, int]
    ) -> Results:
        """Says where partitions begin that the log does not know yet; of several the first counts.

        Args:
            group: The group.
            epoch: The epoch or claim of the member.
            member: A member of the epoch or claim; it may start partitions of other members.
            offsets: The first offset to be done.

        Returns:
            The answer of each partition: `duplicate` where the log knew it already.

        Raises:
            FencedMember, CommitRefused: As for `commit`.
            ValueError: If an offset makes no sense; nothing was written.
        """
        return self._move("start", group, epoch, member, offsets)

    def log_start(
        self, group: str, epoch: Epoch, member: str, offsets: Mapping[TopicPartition, int]
    ) -> Results:
        """Says that partitions' logs now begin at an offset: lower stable offsets follow.

        Arguments, answers and errors are those of `start`.
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
        """Takes the group's offsets in Kafka into account, once for each partition and epoch.

        Until the group has written its own offset to Kafka, an offset that others wrote stays
        there. The log notes it before the first commit on top of it, so that nobody takes it for a
        change from outside.

        Args:
            group: The group.
            epoch: The epoch or claim of the member.
            member: An owner of the partitions.
            offsets: Kafka's offset of each partition, which others wrote; None where a member of
                the group has written it.
            follow: Whether the stable offset moves to Kafka's, and all above it is forgotten.

        Returns:
            The answer of each partition: `duplicate` where this epoch has noted one already.

        Raises:
            FencedMember: As for `commit`.
            CommitRefused: As for `commit`, and where another epoch or claim holds part of a
                partition whose stable offset is to move.
        """
        return self._move(
            "primary", group, epoch, member, offsets, detail={"follow": True} if follow else {}
        )

    def truncate(
        self, group: str, epoch: Epoch, member: str, ends: Mapping[TopicPartition, int]
    ) -> Results:
        """Says that partitions' logs now end before an offset: what lay beyond is forgotten.

        Arguments, answers and errors are those of `start`.
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
        """Sets stable offsets and forgets everything above them but what is given.

        Without an epoch it is an operator's word: it ends the epoch in force and all claims of the
        group, so that nobody who is still at work commits on top of it. An owner that was told to
        move gives its epoch, and goes on under it.

        Args:
            group: The group.
            offsets: The new stable offsets.
            epoch: The epoch or claim of the member.
            member: An owner of the partitions, or who the operator is, for the history.
            done: What is done above the new stable offset; a range that touches it moves it.
            pending: Records that failed and are to be tried again, with what is known of them.
            topic_ids: The ids of the topics, where the log does not know the partitions yet.

        Answers and errors are those of `start`.
        """
        parts = parts_of(done or {}, pending or {}, {})
        known = {part.topic_partition: part for part in parts}
        if not known.keys() <= offsets.keys():
            raise ValueError(f"{min(known.keys() - offsets.keys())} has no stable offset")
        return self._move("reset", group, epoch, member, offsets, known, topic_ids)

    # -- how

    def _commit(
        self,
        event: Event,
        topic_ids: Mapping[str, str] | None,
        *,
        report_too_old: bool,
        limited: bool = True,
    ) -> Results:
        state = self._state_for(event)
        over = self._over_limit(state, event) if limited else {}
        if over or self._refuses(state, event):
            # Not by what was so a while ago: others may have made room.
            state = self._refreshed(event.group)
            over = self._over_limit(state, event) if limited else {}
        event = with_topic_ids(event, state, topic_ids)
        if state.knows(event):
            answer = state.fold(event)
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
                    answer = self._append(replace(event, parts=written))
                    self._snapshot_if_due()
        state = self._log.state.group(self._cluster, event.group)
        results = {
            at: answer.results.get(at) or unwritten(state, part, answer.reason, over.get(at))
            for at, part in ((part.topic_partition, part) for part in event.parts)
        }
        if not answer.counted:
            raise FencedMember(
                event.group, event.member, event.epoch, in_force(state), answer.reason, results
            )
        raise_once(event, results, list(over.values()), report_too_old=report_too_old)
        return results

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
            replace((known or {}).get(at) or Part(*checked_place(at)),
                    first=None if offset is None else exact_offset(at, offset))
            for at, offset in offsets.items()
        )  # fmt: skip
        if not parts:
            return {}
        with self._lock:
            event = Event(kind, self._new_id(), self._cluster, group, epoch, member=member,
                          detail=detail or {}, parts=parts)  # fmt: skip
            answer = self._append(with_topic_ids(event, self._state_for(event), topic_ids))
            now = in_force(self._log.state.group(self._cluster, group))
        results = dict(answer.results)
        if not answer.counted:
            raise FencedMember(group, member, epoch, now, answer.reason, results)
        raise_once(event, results, [], report_too_old=True)
        return results

    def _state_for(self, event: Event) -> GroupState:
        """The group's state, brought up to date where it does not know the event's epoch."""
        state = self._log.state.group(self._cluster, event.group)
        return self._refreshed(event.group) if state.fenced(event.epoch, event.member) else state

    def _snapshot_if_due(self) -> None:
        commits = int(self._setting(SNAPSHOT_COMMITS, self._snapshot_commits))
        size = int(self._setting(SNAPSHOT_BYTES, self._snapshot_bytes))
        # Not all writers at once: the first snapshot that lands serves everybody.
        late = crc32(self._writer.encode()) % (commits // 16 + 1)
        self._log.compact_if_due(commits + late if commits else 0, size)

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
