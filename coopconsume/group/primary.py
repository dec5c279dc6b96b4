"""The group's offsets in Kafka, ``__consumer_offsets``: a mirror of the commit log."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Protocol

from commits import CommitStoreError
from coopconsume.errors import OutputsNotPublished
from coopconsume.kafka.primary import primary_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractContextManager

    from commits import CommitStore
    from commits.model import TopicPartition
    from coopconsume.group.owned import EpochGrant, Owned

log = logging.getLogger(__name__)

#: Seconds between writes of an unchanged primary offset, so that the broker does not expire it.
PRIMARY_REFRESH = 60.0
#: Seconds for which the answer to a write is waited for.
WRITE_WITHIN = 5.0


class WritePrimary(Protocol):
    """Writes offsets with their metadata to ``__consumer_offsets``."""

    def __call__(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], patience: float = ...
    ) -> None:
        """Writes them within some seconds; any error means that they may not be there."""


class Publishes(Protocol):
    """Moves primary offsets in transactions, together with the outputs of what lies below them."""

    topic: str

    @property
    def unpublished(self) -> Mapping[TopicPartition, tuple[int, str]]:
        """Partitions in trouble: the offset from which on outputs wait, and why."""

    def publish(self, tp: TopicPartition, stable: int) -> bool:
        """Publishes up to a stable offset; returns whether all of it is published."""

    def given_up(self, patience: float) -> Exception | None:
        """Returns why a job that is to end cannot publish everything; None: it may yet."""

    def stop(self) -> None:
        """Publishes nothing more."""


class PrimaryOffsets:
    """Writes the stable offsets of what we own to Kafka, if hash 0 of the partition is ours.

    Args:
        group: The group's id.
        store: The commit store.
        grant: Says who we are and what is ours now.
        owned: What of each partition is ours.
        lock: Is held while that changes.
        stable: Looks up the stable offsets.
        write: Writes primary offsets as a member.
        write_alone: Writes them where the group may have no member.
    """

    def __init__(
        self,
        group: str,
        store: CommitStore,
        grant: Callable[[], EpochGrant],
        owned: Mapping[TopicPartition, Owned],
        lock: AbstractContextManager[object],
        stable: Callable[[], Mapping[TopicPartition, int]],
        write: WritePrimary,
        write_alone: WritePrimary,
    ) -> None:
        self._group = group
        self._store = store
        self._grant = grant
        self._owned = owned
        self._lock = lock
        self._stable = stable
        self._write = write
        self._write_alone = write_alone
        self._publishing: Publishes | None = None
        self._within = WRITE_WITHIN
        self._unanswered_at = -math.inf
        # Partitions whose primary offset moves in transactions alone, and the topic of those.
        self._bound: dict[TopicPartition, str] = {}
        self._written: dict[TopicPartition, tuple[int, float]] = {}
        # Partitions where the log still knows an offset of others in Kafka.
        self._to_replace: set[TopicPartition] = set()

    def found(self, bound: Mapping[TopicPartition, str]) -> None:
        """Partitions whose primary offset was moved in transactions, and the topic of those."""
        self._bound = dict(bound)

    def extend(self, gained: PrimaryOffsets, partitions: Collection[TopicPartition]) -> None:
        """Adds partitions as another assignment has found them.

        Raises:
            OutputsNotPublished: Outputs for another topic wait.
        """
        self._written = {tp: at for tp, at in self._written.items() if tp not in partitions}
        self._to_replace |= gained._to_replace
        bound = {tp: topic for tp, topic in gained._bound.items() if tp in partitions}
        if self._publishing is not None:
            _check_bound(bound, self._publishing)
            bound = dict.fromkeys(partitions, self._publishing.topic)
        self._bound |= bound

    def to_replace(self, partitions: Iterable[TopicPartition]) -> None:
        """Notes partitions that the log marks as replaced once Kafka's offset is ours."""
        self._to_replace = set(partitions)

    def publish_by(self, publishing: Publishes | None) -> None:
        """From now on, transactions write the primary offsets together with outputs.

        Args:
            publishing: Writes these transactions; None: nothing does, and the offsets of outputs
                that wait stay where they are.

        Raises:
            OutputsNotPublished: Outputs for another topic wait.
        """
        self._publishing = None
        if publishing is None:
            return
        _check_bound(self._bound, publishing)
        self._publishing = publishing
        self._bound = dict.fromkeys(self._owned, publishing.topic)

    @property
    def publishes(self) -> bool:
        """Whether primary offsets move in transactions, together with outputs."""
        return self._publishing is not None

    @property
    def has_unpublished(self) -> bool:
        """Whether outputs below a stable offset of ours are still to be published."""
        return self._publishing is not None and bool(self._behind())

    @property
    def is_publishing(self) -> bool:
        """Whether outputs are about to be published, as far as is known."""
        return self._publishing is not None and not self._behind() <= self.troubled.keys()

    def _behind(self) -> set[TopicPartition]:
        """Partitions whose stable offset, if we move it, is not written or published yet."""
        with self._lock:
            return {
                tp
                for tp, owned in list(self._owned.items())
                if owned.owns_first
                and not owned.is_deleted
                and self._written.get(tp, (-1, 0.0))[0] != owned.stable
            }

    @property
    def troubled(self) -> Mapping[TopicPartition, tuple[int, str]]:
        """Partitions whose outputs cannot be published for now.

        Each has the offset from which on they wait, and why they do.
        """
        return {} if self._publishing is None else self._publishing.unpublished

    def given_up(self, patience: float) -> Exception | None:
        """Returns why a job that is to end cannot publish everything; None: it may yet.

        Args:
            patience: Seconds for which an error must last.
        """
        return None if self._publishing is None else self._publishing.given_up(patience)

    def stop_publishing(self) -> None:
        """Publishes nothing more: the next owner does."""
        if self._publishing is not None:
            self._publishing.stop()

    def write(self, *, force: bool = False, within: float = WRITE_WITHIN) -> None:
        """Writes stable offsets that changed, or that were not written for long, to Kafka.

        Where outputs are published in transactions, they move in these. Partitions in trouble are
        left out until their next attempt is due.

        Args:
            force: Whether to write offsets that have not changed, too.
            within: Seconds for which the answer is waited for, without transactions.

        Raises:
            kafka.errors.KafkaError: Kafka did not take them.
            commits.FencedMember: The epoch or the membership is not in force.
        """
        now = time.monotonic()
        due = {}
        for tp, offset in self._stable().items():
            owned = self._owned.get(tp)
            if owned is None or not owned.owns_first or owned.is_deleted:
                continue
            written, at = self._written.get(tp, (-1, 0.0))
            if (force and not self.publishes) or written != offset or now - at > PRIMARY_REFRESH:
                due[tp] = offset
        if self._publishing is not None:
            for tp, offset in due.items():
                if self._publishing.publish(tp, offset):
                    self._written[tp] = (offset, now)
                    self._note_replaced([tp])
            return
        for tp in sorted(due.keys() & self._bound.keys()):
            del due[tp]
            if tp not in self._written:
                self._written[tp] = (-1, now)
                log.warning(
                    "Kafka's offset of %s-%d stays: it moves with outputs to topic %s. Run the job "
                    "that writes them, or give that up by 'coopconsume offsets reset --to-log'",
                    *tp,
                    self._bound[tp],
                )
        if due:
            marked = {tp: self._marked(tp, offset) for tp, offset in due.items()}
            self.note_unanswered()
            self._write(marked, min(within, self._within))
            self._unanswered_at = -math.inf
            self._written |= {tp: (offset, now) for tp, offset in due.items()}
            self._note_replaced(due)

    def _note_replaced(self, written: Iterable[TopicPartition]) -> None:
        """Notes in the log that Kafka's offsets are ours now, also for the next owner."""
        replaced = self._to_replace.intersection(written)
        if not replaced:
            return
        try:
            self._store.note_primary(
                self._group, self._grant().epoch, self._grant().member, dict.fromkeys(replaced)
            )
            self._to_replace -= replaced
        except CommitStoreError as error:
            log.debug("that Kafka's offsets are ours is not in the log yet: %s", error)

    def write_quietly(self, *, force: bool = False, within: float = WRITE_WITHIN) -> None:
        """Writes the primary offsets, or warns: the log has them, Kafka's copy may lag."""
        try:
            self.write(force=force, within=within)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next time may do
            if self.is_unanswered:
                self.note_unanswered()
            log.warning("the primary offsets could not be written for now: %s", error)

    def note_unanswered(self) -> None:
        """Notes that Kafka has not answered to a call."""
        self._unanswered_at = time.monotonic()

    @property
    def is_unanswered(self) -> bool:
        """Whether Kafka has not answered a moment ago, or a write goes on."""
        return time.monotonic() - self._unanswered_at < 2 * WRITE_WITHIN

    def limit_writes(self, within: float) -> None:
        """Waits no longer for an answer to a write from now on, as the member is to leave."""
        self._within = min(self._within, within)

    def write_last(self) -> None:
        """Writes what could not be written as a member, once the group may be without members."""
        behind = self._behind() - self._bound.keys()
        if not behind:
            return
        try:
            state = self._store.state(self._group)
            self._write_alone(
                {tp: self._marked(tp, state[tp].stable_offset) for tp in behind if tp in state}
            )
        except Exception:
            log.debug("the primary offsets are left to the next owner", exc_info=True)

    def _marked(self, tp: TopicPartition, offset: int) -> tuple[int, str]:
        """Returns an offset with its metadata."""
        topic_id = self._grant().topic_ids.get(tp[0], "")
        return offset, primary_mark(topic_id, self._grant().epoch)


def _check_bound(bound: Mapping[TopicPartition, str], publishing: Publishes) -> None:
    for tp, topic in bound.items():
        if topic != publishing.topic:
            raise OutputsNotPublished(
                f"topic {publishing.topic!r}",
                f"outputs of {tp[0]}-{tp[1]} go to {topic!r}: let that job come to its end, "
                "then set Kafka's offset by 'coopconsume offsets reset --to-log'",
            )
