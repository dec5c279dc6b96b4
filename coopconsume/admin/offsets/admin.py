"""`OffsetAdmin`: reads the status of a group from Kafka and the commit log, and moves offsets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coopconsume.admin.offsets.counting import count_records
from coopconsume.admin.offsets.moves import Kept, Move, marked, replaced, to_offset, unmoved
from coopconsume.admin.offsets.reading import (
    check_exist,
    chosen_partitions,
    read_statuses,
    unknown_group,
)
from coopconsume.errors import GroupActive, InvalidOption, ResetNotFinished, StateNotChosen
from coopconsume.group.owned import to_keep
from coopconsume.kafka.blocker_records import read_blockers
from coopconsume.kafka.connection import Connection
from coopconsume.kafka.identity import is_other_topic
from coopconsume.kafka.primary import primary_mark
from coopconsume.options import Options
from coopconsume.runtime.decided_by import operator_name
from coopconsume.state.note import StateNote
from coopconsume.state.resetting import StateReset

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from pyspark.sql import SparkSession

    from commits import Acquisition, OffsetRanges
    from commits.model import TopicPartition
    from coopconsume.admin.offsets.status import PartitionStatus
    from coopconsume.state.resetting import StateAction


class OffsetAdmin(Connection):
    """Shows and moves the offsets of one group without joining it.

    A change is planned as `Move` objects and applied by `execute`.

    Args:
        options: As for `CooperativeConsumer`; no subscription is needed.
        group: The group id.
        create: Whether to create a missing commit table, as for an import.
        needs: Partitions that the cluster has to have; else nothing is created.
        spark: The session, needed for a commit table in a catalog.

    Raises:
        commits.CommitTableNotFound: There is no commit table.
        OptionError, BrokerUnreachable, NotAuthorized, commits.CommitStoreError: As for a consumer.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        group: str,
        *,
        create: bool = False,
        needs: Collection[TopicPartition] = (),
        spark: SparkSession | None = None,
    ) -> None:
        parsed = Options.parse({**options, "kafka.group.id": group})
        check = partial(check_exist, wanted=needs)
        super().__init__(parsed, create=create, spark=spark, check=check)
        self.group = group

    # -- status

    def statuses(
        self,
        topics: Mapping[str, Iterable[int]] | None = None,
        *,
        times: bool = True,
        keys: bool = False,
        may_be_new: bool = False,
    ) -> list[PartitionStatus]:
        """Returns the status of the group in each partition, ascending.

        Args:
            topics: Partitions by topic; an empty list means all partitions of the topic. By
                default the partitions that the commit log or Kafka has offsets for.
            times: Whether to read the whole log for the age of gaps and blockers.
            keys: Whether to read the records of the blockers for their keys.
            may_be_new: Whether the group may be one that nothing knows, if topics are given.

        Raises:
            GroupNotFound: Neither Kafka nor the commit log knows the group.
        """

        def choose(known: Collection[TopicPartition]) -> Collection[TopicPartition]:
            is_known = known or (topics and (may_be_new or self.group in self.store.groups()))
            if not is_known:
                raise unknown_group(self.options, self.store)
            return known if topics is None else chosen_partitions(self.cluster, topics, known)

        return read_statuses(
            self.options,
            self.cluster,
            store=self.store,
            choose=choose,
            history=self.store.history(self.group) if times else (),
            records=partial(read_blockers, self.options) if keys else None,
        )

    def acquisitions(self) -> dict[TopicPartition, list[Acquisition]]:
        """Returns the chunks that members of a cooperative epoch hold, by partition."""
        return self.store.acquisitions(self.group)

    # -- plans

    def to_offsets(
        self, statuses: Iterable[PartitionStatus], where: str | int | datetime
    ) -> list[Move]:
        """Plans a new stable offset; no offset above it stays committed or pending.

        Args:
            statuses: The partitions.
            where: ``earliest``, ``latest``, ``primary`` (the group's offset in Kafka), an offset,
                or the time of the first record to process again.

        Raises:
            InvalidOption: Kafka has no offset of the group for a partition, or the partition does
                not exist.
        """
        chosen = list(statuses)
        self._check_exist(chosen)
        offsets = self._offsets(chosen, where)
        return [to_offset(one, offsets[one.topic, one.partition]) for one in chosen]

    def _offsets(
        self, statuses: list[PartitionStatus], where: str | int | datetime
    ) -> dict[TopicPartition, int]:
        places = {(one.topic, one.partition): one for one in statuses}
        if isinstance(where, int):
            return dict.fromkeys(places, where)
        if not isinstance(where, str):
            return self.cluster.offsets_at(places, int(where.timestamp() * 1000))
        wanted = {"earliest": "log_start", "latest": "end_offset", "primary": "primary_offset"}[
            where
        ]
        found = {}
        for tp, one in places.items():
            offset = getattr(one, wanted)
            if offset is None:
                raise InvalidOption(
                    "to-primary", one.name, "Kafka has no offset of the group for it; leave it out"
                )
            found[tp] = offset
        return found

    def to_log(self, statuses: Iterable[PartitionStatus]) -> list[Move]:
        """Plans to set Kafka's offset to the stable offset; the commit log does not change."""
        return self._planned(unmoved, statuses)

    def mark(
        self, statuses: Iterable[PartitionStatus], *, undone: OffsetRanges, done: OffsetRanges
    ) -> list[Move]:
        """Plans to mark some offsets uncommitted and others committed; the rest stays."""
        chosen = list(statuses)
        self._check_exist(chosen)
        return self._planned(lambda one: marked(one, undone, done), chosen)

    def restore(self, kept: Iterable[Kept]) -> list[Move]:
        """Plans to replace the committed state of partitions by that of an exported document."""
        wanted = {(one.topic, one.partition): one for one in kept}
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        current = self.cluster.topic_ids(topics)
        moves = []
        for one in self.statuses(topics, times=False, may_be_new=True) if topics else []:
            given = wanted[one.topic, one.partition]
            is_other = is_other_topic(given.topic_id, current.get(one.topic, ""))
            move = replaced(one, given)
            notes = ["the document belongs to a topic with another id"] if is_other else []
            notes += [move.note] if move.note else []
            moves.append(replace(move, note="; ".join(notes)))
        self._check_exist(move.before for move in moves)
        return moves

    def _planned(self, plan: Any, statuses: Iterable[PartitionStatus]) -> list[Move]:
        try:
            return [plan(one) for one in statuses]
        except ValueError as error:
            raise InvalidOption("offsets", self.group, str(error)) from None

    def _check_exist(self, statuses: Iterable[PartitionStatus]) -> None:
        for one in statuses:
            if one.end_offset is None or one.log_start is None:
                raise InvalidOption("topic", one.name, "Kafka has no such partition; leave it out")

    def kept(self, statuses: Iterable[PartitionStatus]) -> list[Kept]:
        """Returns the state to export of the partitions that have an entry in the commit log."""
        return [
            Kept(
                one.topic,
                one.partition,
                topic_id=one.topic_id,
                stable_offset=one.stable_offset,
                done=one.done,
                pending=tuple(one.pending.values()),
            )
            for one in statuses
            if one.stable_offset is not None
        ]

    @property
    def cluster_id(self) -> str:
        """The id of the Kafka cluster."""
        return self.cluster.cluster_id

    # -- execution

    def count_records(self, move: Move) -> tuple[int, int]:
        """Returns how many records a move reprocesses and how many it skips, by reading them.

        Raises:
            BrokerUnreachable: The broker stopped sending records.
        """
        tp = (move.before.topic, move.before.partition)
        again, skipped = (
            count_records(self.options, tp, offsets) for offsets in (move.again, move.skipped)
        )
        return again, skipped

    def check_idle(self, *, end_claims: bool = False) -> None:
        """Checks that the group has no members and no live standalone claims.

        Args:
            end_claims: Whether to ignore live standalone claims.

        Raises:
            GroupActive: The group has a member or a live claim.
        """
        kafka = self.cluster.describe_groups([self.group])[self.group]
        if kafka.members:
            who = ", ".join(member.id for member in kafka.members)
            raise GroupActive(self.group, f"members {who}", "stop them first")
        claims = self.store.claims(self.group)
        if claims and not end_claims:
            who = ", ".join(name for claim in claims for name in claim.members)
            raise GroupActive(
                self.group,
                f"standalone claims of {who}",
                "close them first, or give --end-claims if their processes have died",
            )

    def state_reset(
        self, moves: Iterable[Move], action: StateAction | None, path: str | None = None
    ) -> StateReset | None:
        """Plans what becomes of the state of the group when its offsets are moved.

        Args:
            moves: The planned moves.
            action: ``restore``: the state of the records below the new stable offset. ``clear``:
                no state in these partitions. ``keep``: no change, and None is returned.
            path: The path of the state; by default that of the group's last job with state.

        Returns:
            The plan for `execute`; None: the group has no state, or it does not change.

        Raises:
            InvalidOption: The state cannot be restored to single offsets.
            StateNotChosen: The group has state, and no action is given.
            StateNotReadable: The state cannot be read, or the changelog does not have the changes
                below a new offset any more.
            TableUnusable: There is no state at the path, or it belongs to another group.
        """
        planned = list(moves)
        noted = StateNote.of(self.store, self.group).path
        if action is None and noted is not None and any(move.changes_log for move in planned):
            raise StateNotChosen(self.group, noted)
        if action is None or action == "keep":
            return None
        below = {}
        for move in planned:
            if action == "restore" and move.done and move.again:
                raise InvalidOption(
                    "restore-state",
                    move.before.name,
                    "changes of single offsets cannot be taken back; reset to an offset, or give "
                    "--clear-state",
                )
            kept = move.stable_offset if not move.done else (move.done.last or 0) + 1
            below[move.before.topic, move.before.partition] = 0 if action == "clear" else kept
        return StateReset(path, self.store, self.cluster_id, self.group, below)

    def switch_state(self, *, execute: bool) -> StateNote:
        """Lets the next job or poll of the group begin with any state, or without one.

        Args:
            execute: Whether to do it; otherwise it is only checked.

        Returns:
            The note of its state before.

        Raises:
            GroupActive: The group has a member or a live claim.
            ResetNotFinished: A reset of its offsets and state was interrupted.
        """
        self.check_idle()
        note = StateNote.of(self.store, self.group)
        if note.resetting:
            raise ResetNotFinished(self.group, *note.resetting[0])
        if execute:
            StateNote(any_next=True).write(self.store, self.group)
        return note

    def execute(
        self,
        moves: Iterable[Move],
        *,
        end_claims: bool = False,
        state: StateReset | None = None,
    ) -> None:
        """Writes the moves to the commit log, one row for each, then to Kafka's offsets.

        The row fences a member that joins at the same moment; it joins again after it.

        Args:
            moves: The planned moves.
            end_claims: As for `check_idle`.
            state: What becomes of the group's state, by `state_reset`. If it is interrupted, no
                job with this state begins until it is repeated.

        Raises:
            GroupActive: The group has a member or a live claim; nothing was changed.
            OutputNotWritten, StateNotReadable: The state could not be changed; repeat it.
            kafka.errors.KafkaError: Kafka refused the offsets; the commit log has them.
        """
        planned = {(move.before.topic, move.before.partition): move for move in moves}
        self.check_idle(end_claims=end_claims)
        ids = self.cluster.topic_ids({topic for topic, _ in planned})
        # With state, the row is always written: it fences members that may write to the state.
        changed = {tp: m for tp, m in planned.items() if m.changes_log or state is not None}

        def change_offsets() -> None:
            if changed:
                self.store.reset(
                    self.group,
                    {tp: move.stable_offset for tp, move in changed.items()},
                    member=operator_name(),
                    done={tp: move.done for tp, move in changed.items()},
                    pending=to_keep(self.options, {tp: m.pending for tp, m in changed.items()}),
                    topic_ids=ids,
                )

        if state is None:
            change_offsets()
        else:
            state.execute(change_offsets)
        self.cluster.commit_primary(
            {
                tp: (move.stable_offset, primary_mark(ids.get(tp[0], ""), None))
                for tp, move in planned.items()
            }
        )
