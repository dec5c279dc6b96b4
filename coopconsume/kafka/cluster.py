"""Access to a Kafka cluster from the driver: topics, log ends, the group's primary offsets."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from coopconsume.errors import BrokerUnreachable, MissingOption, TopicNotFound
from coopconsume.kafka import coordinator
from coopconsume.kafka.calls import PATIENCE, KafkaCalls
from coopconsume.kafka.identity import LOG_IDENTITIES
from coopconsume.kafka.leaders import epoch_ends
from coopconsume.kafka.pattern import INTERNAL, TopicPattern
from coopconsume.kafka.primary import Primary
from coopconsume.kafka.security import access
from coopconsume.kafka.transactions import fence_producers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from commits.model import TopicPartition
    from coopconsume.kafka.call_limit import Deadline
    from coopconsume.kafka.coordinator import KafkaGroup

log = logging.getLogger(__name__)

_EARLIEST, _LATEST = -2, -1
#: Seconds for which a call is repeated while a transaction is open.
_TRANSACTION = 75.0
_NO_PARTITION = 2**31 - 1
_NO_RIGHT_TO_TOPIC = 29
#: Topics among which a similar name is looked for: of 20,000, that takes two seconds.
_MOST_COMPARED = 2_000


@dataclass(frozen=True)
class Topic:
    """A topic: its name, its id (KIP-516, as text) and its number of partitions."""

    name: str
    id: str
    partitions: int


@dataclass(frozen=True)
class LogEnd:
    """Where a log ends, and the leader epoch in which its leader reported that; None: not known."""

    offset: int
    leader_epoch: int | None


class Cluster(KafkaCalls):
    """What a driver asks a Kafka cluster for, and what it writes of its group.

    Args and errors are those of `KafkaCalls`.
    """

    def topics(
        self,
        names: Iterable[str] | None = None,
        pattern: str | None = None,
        *,
        missing_ok: bool = False,
    ) -> list[Topic]:
        """Return topics by name, or those that match a pattern (internal topics never match).

        Checks that the user may read the topics and the group, if the options name one.

        Args:
            names: Names of topics.
            pattern: The pattern, if no names are given.
            missing_ok: Whether to skip missing topics and the check of permissions.

        Raises:
            NotAuthorized: A permission is missing.
            TopicNotFound: A topic does not exist, or no topic matches.
        """
        if names is None:
            if pattern is None:
                raise MissingOption("subscribe")
            names = list(filter(TopicPattern(pattern).match, self.topic_names()))
            if not names:
                raise TopicNotFound(pattern, self.servers)
        wanted = list(names)
        if not wanted:
            return []
        found = {t["name"]: t for t in self.call(lambda: self._admin.describe_topics(wanted))}
        topics = []
        for name in wanted:
            topic = found.get(name)
            if topic is not None and topic["error_code"] and not missing_ok:
                self._check_right(topic["error_code"], [name])
            if topic is None or topic["error_code"] or not topic["partitions"]:
                if missing_ok:
                    continue
                raise self.not_found(name)
            topics.append(Topic(name, str(topic.get("topic_id", "")), len(topic["partitions"])))
        self._saw(topics)
        if not missing_ok and "group.id" in self._options.kafka:
            self._check_rights(wanted)
        return topics

    def subscribed(self, names: Iterable[str] | None, pattern: str | None) -> list[str]:
        """Return the topics to subscribe to; with ``onMissingTopic=wait`` some may not exist yet.

        Raises:
            NotAuthorized, TopicNotFound: As for `topics`.
        """
        if self._options.on_missing_topic == "fail":
            return [topic.name for topic in self.topics(names, pattern)]
        if names is None:
            wanted = list(filter(TopicPattern(pattern or "").match, self.topic_names()))
        else:
            wanted = list(names)
        found, hidden = self.visible_topics(wanted)
        existing = {*hidden, *(topic.name for topic in found)}
        self.topics([name for name in wanted if name in existing])
        missing = [name for name in wanted if name not in existing]
        if missing or not wanted:
            awaited = ", ".join(missing) or pattern
            log.warning("waiting for topics that do not exist yet: %s", awaited)
        return wanted

    def visible_topics(self, names: Iterable[str]) -> tuple[list[Topic], list[str]]:
        """Return the topics that exist, and the names that this user may not describe."""
        wanted = list(names)
        if not wanted:
            return [], []
        described = self.call(lambda: self._admin.describe_topics(wanted))
        hidden = [t["name"] for t in described if t["error_code"] == _NO_RIGHT_TO_TOPIC]
        found = [
            Topic(t["name"], str(t.get("topic_id", "")), len(t["partitions"]))
            for t in described
            if not t["error_code"] and t["partitions"]
        ]
        self._saw(found)
        return found, hidden

    def _saw(self, topics: Iterable[Topic]) -> None:
        LOG_IDENTITIES.saw_topics(self.cluster_id, {topic.name: topic.id for topic in topics})

    def check_topics(self, names: Iterable[str]) -> None:
        """Check that topics exist; of those that this user may not describe it is not known.

        Raises:
            TopicNotFound: A topic does not exist.
        """
        wanted = list(names)
        found, hidden = self.visible_topics(wanted)
        for name in sorted({*wanted} - {*hidden, *(topic.name for topic in found)}):
            raise self.not_found(name)

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return the ids of the topics that exist."""
        return {t.name: t.id for t in self.topics(sorted(set(names)), missing_ok=True)}

    def not_found(self, name: str) -> TopicNotFound:
        """Return the error of a topic that does not exist, with the most similar one that does."""
        closest: list[str] = []
        with suppress(Exception):  # It would hide what is to be said.
            # Brokers do not learn of a topic at once: another one may know it already.
            others = [one for one in self.topic_names() if one != name]
            if len(others) <= _MOST_COMPARED:
                closest = get_close_matches(name, others, n=1)
        return TopicNotFound(name, self.servers, *closest)

    def topic_names(self) -> list[str]:
        """Return the names of all topics that this user may describe, without internal ones."""
        listed = self.call(self._admin.list_topics)
        return sorted(name for name in listed if not name.startswith(INTERNAL))

    def _check_rights(self, topics: Iterable[str]) -> None:
        """Check that the user may read topics and commit offsets for the group.

        It sends a commit for a partition that does not exist. Brokers check permissions first, and
        nothing is committed.
        """
        from kafka import TopicPartition as ClientPartition
        from kafka.structs import OffsetAndMetadata

        nowhere = {ClientPartition(t, _NO_PARTITION): OffsetAndMetadata(0, "", -1) for t in topics}
        group = self._options.group_id
        answers = self.call(lambda: self._admin.alter_group_offsets(group, nowhere))
        for tp, error in answers.items():
            self._check_right(getattr(error, "errno", 0), [tp.topic])

    def _check_right(self, code: int, topics: Iterable[str]) -> None:
        from kafka.errors import for_code

        refused = access.refused(for_code(code)(), self._options.kafka, topics)
        if refused is not None:
            raise refused

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each log; with ``read_committed`` it is the last stable offset."""
        return {tp: end.offset for tp, end in self.log_ends(partitions).items()}

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return the end of each log as `ends` does, with the leader epoch."""
        found = self._look_up(dict.fromkeys(partitions, _LATEST))
        ends = {tp: LogEnd(int(at.offset), at.leader_epoch) for tp, at in found.items()}
        LOG_IDENTITIES.saw_epochs(
            self.cluster_id,
            {tp: at.leader_epoch for tp, at in ends.items() if at.leader_epoch is not None},
        )
        return ends

    def epoch_ends(self, epochs: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        """Return where leader epochs end in the logs, as far as it is known; see `leaders`."""
        found: dict[TopicPartition, int] = self.call(
            lambda: epoch_ends(self._admin, epochs), sorted({topic for topic, _ in epochs})
        )
        return found

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each log."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time, or the end of the log without one."""
        wanted = list(partitions)
        return self.ends(wanted) | self.first_at(wanted, timestamp_ms)

    def first_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time, of the partitions that have one."""
        found = self._offsets(dict.fromkeys(partitions, timestamp_ms))
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    def _offsets(self, specs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: int(at.offset) for tp, at in self._look_up(specs).items()}

    def _look_up(self, specs: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        """Return the offsets that Kafka finds, by partition, with their leader epochs."""
        from kafka import IsolationLevel
        from kafka import TopicPartition as ClientPartition

        if not specs:
            return {}
        level = IsolationLevel[self._options.kafka["isolation.level"].upper()]
        wanted = {ClientPartition(t, p): spec for (t, p), spec in specs.items()}
        topics = sorted({topic for topic, _ in specs})
        found = self.call(lambda: self._admin.list_partition_offsets(wanted, level), topics)
        return {(tp.topic, tp.partition): at for tp, at in found.items()}

    def starting(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the start offsets of partitions without a commit, by ``startingOffsets``."""
        rule = self._options.starting_offsets
        specs: dict[TopicPartition, int] = {}
        fixed: dict[TopicPartition, int] = {}
        for topic, partition in partitions:
            if isinstance(rule, str):
                specs[topic, partition] = _EARLIEST if rule == "earliest" else _LATEST
                continue
            offset = rule.get(topic, {}).get(partition, _EARLIEST)
            (specs if offset < 0 else fixed)[topic, partition] = offset
        return self._offsets(specs) | fixed

    def record_bytes(self, partitions: Iterable[TopicPartition]) -> float | None:
        """Return the mean size of a record on disk in bytes, the largest mean of all partitions.

        Returns:
            None if the cluster does not report it, for example without the permission to describe
            the cluster, or if a topic has just been deleted.
        """
        from kafka.errors import KafkaError

        wanted = list(partitions)
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        try:
            answers = self.answer(lambda: self._admin.describe_log_dirs(topics))
            starts, ends = self.log_starts(wanted), self.ends(wanted)
        except (BrokerUnreachable, KafkaError, TopicNotFound):
            return None
        sizes = {
            (topic["name"], found["partition_index"]): found["partition_size"]
            for answer in answers
            for folder in answer["log_dirs"]
            for topic in folder["topics"]
            for found in topic["partitions"]
        }
        return max(
            (size / (ends[tp] - starts[tp]) for tp, size in sizes.items() if ends[tp] > starts[tp]),
            default=None,
        )

    def retention(self, topics: Iterable[str]) -> dict[str, float]:
        """Return how long records are kept, in seconds, of the topics with retention by time.

        Topics whose settings this user may not describe are left out.
        """
        from kafka.admin import ConfigResource, ConfigResourceType

        names = ["cleanup.policy", "retention.ms"]
        wanted = [ConfigResource(ConfigResourceType.TOPIC, name, names) for name in sorted(topics)]
        if not wanted:
            return {}
        answer = self.call(lambda: self._admin.describe_configs(wanted, config_filter="all"))
        found = {}
        # Without the right to describe its settings, a topic has none in the answer.
        for topic, settings in next(iter(answer.values()), {}).items():
            policy, kept = (settings.get(name, {}).get("value") for name in names)
            if "delete" in str(policy) and int(kept or -1) >= 0:
                found[topic] = int(kept) / 1000
        return found

    def describe_groups(self, groups: Iterable[str]) -> dict[str, KafkaGroup]:
        """Return groups as their coordinators describe them; unknown groups are ``Dead``.

        Raises:
            NotAuthorized: A permission is missing.
        """
        if not (wanted := list(groups)):
            return {}
        found: dict[str, KafkaGroup] = self.call(lambda: coordinator.describe(self._admin, wanted))
        return found

    def remove_members(self, members: Mapping[str, str | None]) -> None:
        """Has the group's coordinator forget members, as if they had left.

        Args:
            members: The ids, each with its ``group.instance.id``; unknown ones are skipped.

        Raises:
            BrokerUnreachable, NotAuthorized: The coordinator does not answer, or refuses.
        """
        from kafka.admin import MemberToRemove

        gone = [MemberToRemove(*member) for member in members.items()]
        self.call(lambda: self._admin.remove_group_members(self._options.group_id, gone))

    def primary(self, stable: Collection[TopicPartition] = ()) -> dict[TopicPartition, Primary]:
        """Return the group's offsets in ``__consumer_offsets``.

        Args:
            stable: Partitions whose offset is read once no open transaction can change it. Kafka
                ends a transaction whose producer is gone after ``transaction.timeout.ms``.

        Raises:
            BrokerUnreachable: No coordinator answers, or a transaction stays open for 75 seconds.
        """
        primary = self.primaries([self._options.group_id])[self._options.group_id]
        return primary | (self._stable_primary(stable, _TRANSACTION) if stable else {})

    def primaries(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, Primary]]:
        """Return the offsets of groups in ``__consumer_offsets``, by one request a coordinator."""
        wanted = list(groups)
        found = self.call(lambda: self._admin.list_group_offsets(wanted)) if wanted else {}
        return {
            group: {
                (tp.topic, tp.partition): Primary.read(int(held.offset), held.metadata)
                for tp, held in found[group].items()
                if held.offset >= 0
            }
            for group in wanted
        }

    def stable_primary(self, tp: TopicPartition) -> Primary | None:
        """Return the group's offset of a partition once no open transaction can change it."""
        return self._stable_primary([tp]).get(tp)

    def _stable_primary(
        self, partitions: Collection[TopicPartition], patience: float = PATIENCE
    ) -> dict[TopicPartition, Primary]:
        found = self.call(
            lambda: coordinator.stable_offsets(self._admin, self._options.group_id, partitions),
            {topic for topic, _ in partitions}, patience,
        )  # fmt: skip
        return {tp: Primary.read(*held) for tp, held in found.items()}

    def fence_producers(self, transactional_id: str, timeout_ms: int, deadline: Deadline) -> None:
        """Fence the producers of a transactional id; see `transactions.fence_producers`."""
        self.answer(
            lambda: fence_producers(
                self._admin, transactional_id, timeout_ms, lambda: deadline.left
            )
        )

    def commit_primary(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], patience: float = PATIENCE
    ) -> None:
        """Write offsets and metadata of a group without members to ``__consumer_offsets``.

        Args:
            offsets: The offset and the metadata of each partition.
            patience: The seconds for which a failed call is repeated.

        Raises:
            BrokerUnreachable, NotAuthorized: The coordinator does not answer, or refuses.
            kafka.errors.KafkaError: The coordinator refused a partition.
        """
        from kafka import TopicPartition as ClientPartition
        from kafka.structs import OffsetAndMetadata

        values = {
            ClientPartition(*tp): OffsetAndMetadata(offset, mark, -1)
            for tp, (offset, mark) in offsets.items()
        }

        def write() -> None:
            answers = self._admin.alter_group_offsets(self._options.group_id, values)
            for tp, error in answers.items():
                if getattr(error, "errno", 0):
                    raise error(f"primary offset of {tp.topic}-{tp.partition}")

        self.call(write, sorted({topic for topic, _ in offsets}), patience)
