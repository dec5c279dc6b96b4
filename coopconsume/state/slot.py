"""The state of a slot's keys while it works on a batch. Task-side code."""

from __future__ import annotations

import datetime as dt
import logging
import sqlite3
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from commits.ids import CommitIds
from commits.secrets import hidden
from coopconsume.errors import StateNeedsKey, StateNotReadable
from coopconsume.record import exhausted, ordering_key_of
from coopconsume.state.changelog import Changelog
from coopconsume.state.rows import Origin, counted, newest
from coopconsume.state.store import LocalStore
from coopconsume.state.value import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commits.model import TopicPartition
    from coopconsume.record import Record
    from coopconsume.state.rows import Range
    from coopconsume.state.schema import StateSchema
    from coopconsume.state.value import Change

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StateSpec:
    """What the slots of a batch need to know of the state.

    Attributes:
        path: The folder or URI of the state.
        folder: The folder of local stores; empty: the default.
        schema: The schema of the values.
        topic_ids: Kafka's ids of the topics.
        decided: In this version of the changelog it is decided of all rows of the slots' key ranges
            whether they count.
        version: The version that has all changes of the records before this batch.
        counted: Ids of the commits that count, and of those of this process that will count.
        lifetime: Seconds after which a value is gone that a handler sets; None: it stays.
        ranges: Of each slot, its key ranges by topic and partition.
        has_ordering_keys: As in `coopconsume.worker.report.BatchSpec`.
    """

    path: str
    folder: str
    schema: StateSchema
    topic_ids: Mapping[str, str]
    decided: int
    version: int
    counted: CommitIds = field(default_factory=CommitIds)
    lifetime: float | None = None
    ranges: Mapping[int, Mapping[TopicPartition, tuple[Range, ...]]] = field(default_factory=dict)
    has_ordering_keys: bool = False


class SlotState:
    """The state of the keys of one slot in one batch.

    It shows each record the state that the record of its key before it has left.

    Args:
        spec: What the slots of the batch need to know.
        slot: The number of the slot.

    Raises:
        StateNotReadable: The state cannot be read.
    """

    def __init__(self, spec: StateSpec, slot: int) -> None:
        self._spec = spec
        self._stores: dict[TopicPartition, LocalStore] = {}
        #: Of keys seen in this batch, and of commits that are not decided: the newest value, and
        #: when it is gone.
        self._values: dict[tuple[str, int, bytes | None], tuple[Any, dt.datetime | None]] = {}
        self.restored = (0, 0.0)
        changelog = self._changelog = Changelog(spec.path, spec.schema)
        try:
            for place, ranges in spec.ranges.get(slot, {}).items():
                self._bring_up_to_date(changelog, place, ranges)
        except BaseException:
            self.close()
            raise

    def _bring_up_to_date(
        self, changelog: Changelog, place: TopicPartition, ranges: tuple[Range, ...]
    ) -> None:
        spec = self._spec
        origin = Origin(spec.topic_ids[place[0]], place[1])
        store = self._stores[place] = LocalStore(changelog, origin, spec.folder)
        if spec.version < 0:
            return
        if spec.decided >= 0:
            store.bring_up_to_date(ranges, spec.decided, spec.counted.__contains__)
            keys, seconds = store.restored
            self.restored = self.restored[0] + keys, self.restored[1] + seconds
        if spec.version == spec.decided:
            return
        there, seen = (changelog.files(origin, at) for at in (spec.version, spec.decided))
        is_kept = seen <= there
        if not (is_kept or changelog.is_complete(origin, spec.decided, spec.version)):
            raise StateNotReadable(
                hidden(spec.path), "changes of this batch are in a snapshot by now; it starts again"
            )
        # Where files were rewritten, an older change would hide what the store has.
        unseen = there - seen if is_kept else None
        rows = changelog.changes(origin, spec.version, ranges, unseen=unseen)
        rows = newest([counted(rows, spec.counted.__contains__)])
        keys, until = (rows.column(name).to_pylist() for name in ("key", "expires_at"))
        values = changelog.schema.values(rows.column("value"))
        for key, value, expires in zip(keys, values, until, strict=True):
            self._values[*place, key] = value, expires

    def wrapped(self, handler: Any) -> Callable[[Record], Any]:
        """Returns a function of a record that calls a handler with the record and its state."""
        if iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004

            async def call_async(record: Record) -> Any:
                keyed = self._keyed(record)
                state = self.of(keyed)
                answer = exhausted(await handler(record, state))
                return state.change(answer, keyed)

            return call_async

        def call(record: Record) -> Any:
            keyed = self._keyed(record)
            state = self.of(keyed)
            return state.change(exhausted(handler(record, state)), keyed)

        return call

    def _keyed(self, record: Record) -> Record:
        """Returns a record with the key that its state belongs to."""
        if not self._spec.has_ordering_keys:
            return record
        return record._replace(key=ordering_key_of(record.headers))

    def of(self, record: Record) -> State:
        """Returns the state of a record's key.

        Raises:
            StateNeedsKey: The record has no key.
        """
        if record.key is None:
            raise StateNeedsKey(record.topic, record.partition, record.offset)
        at = record.topic, record.partition, record.key
        found = self._values.get(at)
        if found is None:
            found = self._values[at] = self._read(at[:2], record.key)
        value, expires = found
        is_gone = expires is not None and expires <= dt.datetime.now(dt.UTC)
        return State(None if is_gone else value, self._spec.lifetime)

    def _read(self, place: TopicPartition, key: bytes) -> tuple[Any, dt.datetime | None]:
        """Returns the value of a key from the local store, and when it is gone; None: it stays.

        If the store is damaged, it is the value as committed now.
        """
        try:
            value, until = self._stores[place].find(key)
        except sqlite3.DatabaseError as error:
            log.warning("a local store cannot be read: %s", error)
            origin = Origin(self._spec.topic_ids[place[0]], place[1])
            return self._changelog.value(origin, key, self._spec.counted.__contains__), None
        return value, None if until is None else dt.datetime.fromtimestamp(until / 1000, dt.UTC)

    def note(self, change: Change, value: Any) -> None:
        """A record has succeeded: the next one of its key sees the value that it has left."""
        at = change.topic, change.partition, change.key
        self._values[at] = value, change.expires

    def close(self) -> None:
        """Closes the local stores; harmless when repeated."""
        for store in self._stores.values():
            store.close()
