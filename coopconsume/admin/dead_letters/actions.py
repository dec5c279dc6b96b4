"""`DeadLetters`: lists the dead letters of a group and applies decisions on them."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commits.places import local_folder
from commits.secrets import hidden_in
from coopconsume.admin.dead_letters.choice import Choice, Steps, steps, with_status
from coopconsume.admin.dead_letters.stored import Letter, open_letters
from coopconsume.admin.offsets.reading import unknown_group
from coopconsume.admin.working import is_worked_on
from coopconsume.command_place import command_place
from coopconsume.errors import MissingOption
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.connection import Connection
from coopconsume.kafka.coordinator import DEAD
from coopconsume.kafka.producer import Message, Producer
from coopconsume.options import Options
from coopconsume.record import without_ordering_key
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.runtime.decisions import Decision, decide, decided
from coopconsume.sinks.base import topic_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from coopconsume.record import Headers
    from coopconsume.runtime.decisions import Action

#: A header of a replayed record: the topic, partition and offset of the dead letter.
REPLAY_OF = "coopconsume.replay_of"


class DeadLetters:
    """Lists, replays and discards the dead letters of a group, whether a job runs or not.

    The member that owns the key of a parked record retries or drops the record: at once if a job
    runs, else when the next job starts. If later records of its key were processed, a replay
    writes the record again, to the end of its partition.

    Args:
        options: As for `CooperativeConsumer`, with ``deadLetter``.
        spark: The session, needed for a commit table in a catalog.

    Raises:
        MissingOption: ``deadLetter`` or another required option is missing.
        OptionError, BrokerUnreachable, commits.CommitStoreError: As for a consumer.
    """

    def __init__(self, options: Mapping[str, Any], *, spark: SparkSession | None = None) -> None:
        self._options = Options.parse(options)
        if self._options.dead_letter is None:
            raise MissingOption("deadLetter")
        with Connection(self._options, spark=spark) as at:
            self._store = at.store
        self._letters = open_letters(self._options.dead_letter, self._options)

    def letters(self, choice: Choice | None = None, *, whole: bool = True) -> list[Letter]:
        """Returns the dead letters whose commits count, sorted by partition and offset.

        Args:
            choice: Which letters; by default all without a decision.
            whole: Whether to read values, headers and traces.

        Raises:
            GroupNotFound: There are no letters, and neither Kafka nor the commit table knows the
                group.
        """
        group = self._options.group_id
        counted = self._store.counted_commits(group)
        refused = self._store.refused_parts(group)
        not_held = self._store.not_held(group)
        stored = [
            one
            for one in self._letters.read(lambda commit: commit in counted, whole=whole)
            if (one.topic, one.partition) not in refused.get(one.commit, ())
            and one.offset not in not_held.get(one.commit, {}).get((one.topic, one.partition), ())
        ]
        if not stored:
            self._check_group()
        parked = {
            (*tp, offset)
            for tp, records in self._store.pending(group).items()
            for offset, record in records.items()
            if record.is_parked
        }
        decisions = decided(self._store, group, (topic for topic, _, _ in parked))
        chosen = choice or Choice()
        return [one for one in with_status(stored, parked, decisions) if chosen.takes(one)]

    def _check_group(self) -> None:
        group = self._options.group_id
        if group in self._store.groups():
            return
        with closing(Cluster(self._options)) as cluster:
            is_known = cluster.describe_groups([group])[group].state != DEAD
        if not is_known:
            raise unknown_group(self._options, self._store)

    @property
    def group(self) -> str:
        """The group id."""
        return self._options.group_id

    @property
    def place(self) -> str:
        """The options of commands on its letters, without secrets."""
        place = str(self._options.dead_letter)
        folder = None if topic_of(place) is not None else local_folder(place)
        shown = hidden_in(place) if folder is None else str(Path(folder).absolute())
        letters = shlex.join(["--dead-letter", shown])
        return f"{command_place(self._options, self._store.target)} {letters}"

    def is_worked_on(self) -> bool | None:
        """Returns whether the group has members or claims, which apply decisions at once.

        None if that is not known: its coordinator does not answer, or this user has no right to
        describe the group.

        Raises:
            commits.CommitStoreError: The commit table cannot be read.
        """
        return is_worked_on(self._options, self._store)

    def plan(self, choice: Choice) -> Steps:
        """Returns the steps of a decision on some letters (dry run)."""
        return steps(self.letters(choice))

    def carry_out(self, action: Action, plan: Steps, by: DecidedBy | None = None) -> None:
        """Replays or discards letters, in the order of partition and offset.

        It can be repeated after an error. Only a record whose replay was being written may be
        written twice.

        Args:
            action: What becomes of them.
            plan: The letters.
            by: Who decides, and why; by default the user of this process.

        Raises:
            NotAuthorized, OutputNotWritten: A record or a decision could not be written.
            commits.CommitStoreError: The commit log cannot be written.
        """
        by = by or DecidedBy.now()
        if action == "replay" and plan.passed:
            with closing(Producer(self._options, "replayed records")) as producer:
                producer.write(
                    Message(
                        one.topic,
                        one.key,
                        one.value,
                        _replayed(one.headers, _place(one.topic, one.partition, one.offset)),
                        one.partition,
                    )
                    for one in plan.passed
                )
        # The mark comes first: while the commit log lists the record as parked, the log counts.
        self._letters.mark(plan.letters, action, by)
        decide(
            self._store,
            self._options.group_id,
            [
                Decision(
                    one.topic,
                    one.partition,
                    offset=one.offset,
                    action=action,
                    topic_id=one.topic_id,
                    by=by,
                )
                for one in plan.parked
            ],
        )


def _replayed(headers: Headers, place: bytes) -> Headers:
    """Returns the headers of a record that is replayed; its next read computes the ordering key."""
    return (*without_ordering_key(headers), (REPLAY_OF, place))


def _place(topic: str, partition: int, offset: int) -> bytes:
    return f"{topic}-{partition}@{offset}".encode()
