"""Asks Kafka and the commit log how a group stands, and moves it."""

from __future__ import annotations

import getpass
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commits import CommitStore, OffsetRanges
from coopconsume.admin.offsets.counting import count_records
from coopconsume.admin.offsets.moves import Kept, Move, marked, replaced, to_offset, unmoved
from coopconsume.admin.offsets.status import PartitionStatus, Times, times_of
from coopconsume.closing import Closing
from coopconsume.errors import GroupActive, GroupNotFound, InvalidOption
from coopconsume.kafka.cluster import Cluster, primary_mark
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from pyspark.sql import SparkSession

    from coopconsume.admin.offsets.status import TopicPartition


class OffsetAdmin(Closing):
    """The offsets of one group, without being a member of it.

    What moves offsets is planned first, as `Move`, and done by `execute`.

    Args:
        options: As for `CooperativeConsumer`; what says what to read need not be given.
        group: Id of the group.
        create: Whether the commit table is made if there is none, as for an import.
        spark: The session, for a commit table that is in a catalog.

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
        spark: SparkSession | None = None,
    ) -> None:
        self.options = Options.parse({**options, "kafka.group.id": group})
        self.group = group
        self._cluster = Cluster(self.options)
        try:
            self._store = CommitStore.open(
                self.options.commit_table, spark=spark, cluster=self._cluster.cluster_id,
                create=create,
            )  # fmt: skip
        except BaseException:
            self._cluster.close()
            raise

    def close(self) -> None:
        """Disconnect; harmless when repeated."""
        self._cluster.close()

    # -- how it stands

    def standings(
        self, topics: Mapping[str, Iterable[int]] | None = None, *, times: bool = True
    ) -> list[PartitionStatus]:
        """How the group stands in each partition, ascending.

        Args:
            topics: Partitions by topic, none for all of the topic's; by default those that the
                group has anything to do with.
            times: Whether to find out since when, by reading the whole log.

        Raises:
            GroupNotFound: Neither Kafka nor the commit log knows the group, and no topics are
                given.
        """
        state, primary = self._store.state(self.group), self._cluster.primary()
        known = sorted({*state, *primary})
        if not known and not topics:
            from coopconsume.admin.overview.collect import hint_for  # which tells of standings, too

            raise GroupNotFound(
                self.group, self._store.target, self.options.kafka["bootstrap.servers"],
                hint_for(self.group, self._store),
            )  # fmt: skip
        wanted = known if topics is None else self._chosen(topics, known)
        pending, ids = self._store.pending(self.group), self._store.topic_ids(self.group)
        since = times_of(self._store.history(self.group)) if times else {}
        there = self._cluster.existing(wanted)
        starts, ends = self._cluster.log_starts(there), self._cluster.ends(there)
        found = []
        for tp in wanted:
            commits, held = state.get(tp), primary.get(tp)
            found.append(
                PartitionStatus(
                    *tp, ids.get(tp, ""),
                    commits.stable_offset if commits else None,
                    commits.ranges if commits else OffsetRanges(),
                    pending.get(tp, {}), starts.get(tp), ends.get(tp),
                    held.offset if held else None, held is not None and held.ours,
                    since.get(tp, Times()),
                )
            )  # fmt: skip
        return found

    def _chosen(
        self, topics: Mapping[str, Iterable[int]], known: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        counts = {t.name: t.partitions for t in self._cluster.topics(topics, missing_ok=True)}
        chosen = set()
        for topic, partitions in topics.items():
            every = {*range(counts.get(topic, 0)), *(p for t, p in known if t == topic)}
            wanted = set(partitions) or every
            if not wanted or not wanted <= every:
                missing = f"partition {min(wanted - every)}" if wanted - every else "partitions"
                raise InvalidOption("topic", topic, f"it has no {missing}; see 'topics describe'")
            chosen |= {(topic, p) for p in wanted}
        return sorted(chosen)

    # -- how it would be moved

    def to_offsets(
        self, standings: Iterable[PartitionStatus], where: str | int | datetime
    ) -> list[Move]:
        """Set the stable offset; nothing is done or pending above it.

        Args:
            standings: The partitions.
            where: ``earliest``, ``latest``, ``primary`` (Kafka's offset of the group), an offset,
                or the time from which on records are done again.

        Raises:
            InvalidOption: Kafka has no offset of the group for a partition, or there is none such.
        """
        chosen = list(standings)
        self._check_exist(chosen)
        offsets = self._offsets(chosen, where)
        return [to_offset(one, offsets[one.topic, one.partition]) for one in chosen]

    def _offsets(
        self, standings: list[PartitionStatus], where: str | int | datetime
    ) -> dict[TopicPartition, int]:
        places = {(one.topic, one.partition): one for one in standings}
        if isinstance(where, int):
            return dict.fromkeys(places, where)
        if not isinstance(where, str):
            return self._cluster.offsets_at(places, int(where.timestamp() * 1000))
        wanted = {
            "earliest": "log_start", "latest": "end_offset", "primary": "primary_offset"
        }[where]  # fmt: skip
        found = {}
        for tp, one in places.items():
            offset = getattr(one, wanted)
            if offset is None:
                raise InvalidOption(
                    "to-primary", one.name, "Kafka has no offset of the group for it; leave it out"
                )
            found[tp] = offset
        return found

    def to_log(self, standings: Iterable[PartitionStatus]) -> list[Move]:
        """Set Kafka's offset to the stable offset of the commit log, which stays as it is."""
        return self._planned(unmoved, standings)

    def mark(
        self, standings: Iterable[PartitionStatus], *, undone: OffsetRanges, done: OffsetRanges
    ) -> list[Move]:
        """Make some offsets undone again and others done; all else stays as it is."""
        chosen = list(standings)
        self._check_exist(chosen)
        return self._planned(lambda one: marked(one, undone, done), chosen)

    def restore(self, kept: Iterable[Kept]) -> list[Move]:
        """Set partitions to what a document keeps, in place of all that the log says of them."""
        wanted = {(one.topic, one.partition): one for one in kept}
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        current = self._cluster.topic_ids(topics)
        moves = []
        for one in self.standings(topics, times=False) if topics else []:
            given = wanted[one.topic, one.partition]
            is_other = given.topic_id and current.get(one.topic) not in (None, given.topic_id)
            note = "the document is of a topic with another id" if is_other else ""
            moves.append(replace(replaced(one, given), note=note))
        self._check_exist(move.before for move in moves)
        return moves

    def _planned(self, plan: Any, standings: Iterable[PartitionStatus]) -> list[Move]:
        try:
            return [plan(one) for one in standings]
        except ValueError as error:
            raise InvalidOption("offsets", self.group, str(error)) from None

    def _check_exist(self, standings: Iterable[PartitionStatus]) -> None:
        for one in standings:
            if one.end_offset is None or one.log_start is None:
                raise InvalidOption("topic", one.name, "Kafka has no such partition; leave it out")

    def kept(self, standings: Iterable[PartitionStatus]) -> list[Kept]:
        """What a document would keep of partitions that the commit log knows."""
        return [
            Kept(
                one.topic, one.partition, one.topic_id, one.stable_offset, one.done,
                tuple(one.pending.values()),
            )
            for one in standings
            if one.stable_offset is not None
        ]  # fmt: skip

    @property
    def cluster_id(self) -> str:
        """The id of the Kafka cluster."""
        return self._cluster.cluster_id

    # -- what that comes to

    def count_records(self, move: Move) -> tuple[int, int]:
        """How many records a move has done again, and how many it skips, by reading them.

        Raises:
            BrokerUnreachable: They do not come.
        """
        tp = (move.before.topic, move.before.partition)
        again, skipped = (
            count_records(self.options, tp, offsets) for offsets in (move.again, move.skipped)
        )
        return again, skipped

    def check_idle(self, *, end_claims: bool = False) -> None:
        """Make sure that nobody is at work in the group.

        Args:
            end_claims: Whether live claims by hand do not count.

        Raises:
            GroupActive: Somebody is.
        """
        kafka = self._cluster.describe_groups([self.group])[self.group]
        if kafka.members:
            who = ", ".join(member.id for member in kafka.members)
            raise GroupActive(self.group, f"members {who}", "stop them first")
        claims = self._store.claims(self.group)
        if claims and not end_claims:
            who = ", ".join(name for claim in claims for name in claim.members)
            raise GroupActive(
                self.group, f"key ranges claimed by hand by {who}",
                "close them first, or give --end-claims if their processes are gone",
            )  # fmt: skip

    def execute(self, moves: Iterable[Move], *, end_claims: bool = False) -> None:
        """Write the moves: to the commit log in one row each, then to Kafka's offsets.

        Whoever should join at this moment is fenced by that row, and joins again after it.

        Args:
            moves: What was planned.
            end_claims: As for `check_idle`.

        Raises:
            GroupActive: Somebody is at work in the group; nothing was changed.
            kafka.errors.KafkaError: Kafka did not take the offsets; the commit log has them.
        """
        planned = {(move.before.topic, move.before.partition): move for move in moves}
        self.check_idle(end_claims=end_claims)
        ids = self._cluster.topic_ids({topic for topic, _ in planned})
        changed = {tp: move for tp, move in planned.items() if move.changes_log}
        if changed:
            self._store.reset(
                self.group,
                {tp: move.stable_offset for tp, move in changed.items()},
                member=_operator(),
                done={tp: move.done for tp, move in changed.items()},
                pending={tp: move.pending for tp, move in changed.items()},
                topic_ids=ids,
            )
        self._cluster.commit_primary(
            {
                tp: (move.stable_offset, primary_mark(ids.get(tp[0], ""), None))
                for tp, move in planned.items()
            }
        )


def _operator() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # no name for the user id, as in some containers
        return f"operator@{socket.gethostname()}"
