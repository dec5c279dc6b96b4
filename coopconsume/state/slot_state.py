"""The state of a slot's keys while it works on a batch. Task-side code."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

from commits.ids import CommitIds
from commits.secrets import hidden
from coopconsume.errors import StateNeedsKey, StateNotReadable
from coopconsume.record import exhausted, ordering_key_of
from coopconsume.state.changelog import Changelog
from coopconsume.state.rows import Origin, counted, newest
from coopconsume.state.store import LocalStore
from coopconsume.state.value import UNREAD, SeenValues, State
from coopconsume.values.callables import is_async

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from commits.model import TopicPartition
    from coopconsume.record import Record
    from coopconsume.state.rows import Range
    from coopconsume.state.schema import StateSchema

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
        #: By partition, the newest values: of keys seen in this batch, and of commits that are not
        #: decided.
        self._seen: dict[TopicPartition, SeenValues] = defaultdict(SeenValues)
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
        seen = self._seen[place]
        if spec.version < 0:
            seen.unseen = None
            return
        if spec.decided >= 0:
            store.bring_up_to_date(ranges, spec.decided, spec.counted.__contains__)
            keys, seconds = store.restored
            self.restored = self.restored[0] + keys, self.restored[1] + seconds
        if store.is_empty:
            seen.unseen = None
        if spec.version == spec.decided:
            return
        there, known = (changelog.files(origin, at) for at in (spec.version, spec.decided))
        is_kept = known <= there
        if not (is_kept or changelog.is_complete(origin, spec.decided, spec.version)):
            raise StateNotReadable(
                hidden(spec.path), "changes of this batch are in a snapshot by now; it starts again"
            )
        # Where files were rewritten, an older change would hide what the store has.
        unseen = there - known if is_kept else None
        rows = changelog.changes(origin, spec.version, ranges, unseen=unseen)
        rows = newest([counted(rows, spec.counted.__contains__)])
        keys, until = (rows.column(name).to_pylist() for name in ("key", "expires_at"))
        values = changelog.schema.values(rows.column("value"))
        for key, value, expires in zip(keys, values, until, strict=True):
            seen.see(key, value, expires)

    def wrapped(self, handler: Any) -> Callable[[Record], Any]:
        """Returns a function of a record that calls a handler with the record and its state."""
        if is_async(handler):

            async def call_async(record: Record) -> Any:
                state = self.of(record)
                return _with_change(state, await handler(record, state))

            return call_async

        state_of = self.of

        def call(record: Record) -> Any:
            state = state_of(record)
            answer = handler(record, state)
            if answer is None:  # This is done for each record, and most handlers return nothing.
                return state if state.is_changed else None
            return _with_change(state, answer)

        return call

    def of(self, record: Record) -> State:
        """Returns the state of a record's key.

        Raises:
            StateNeedsKey: The record has no key.
        """
        key = record.key
        if self._spec.has_ordering_keys:
            key = ordering_key_of(record.headers)
        if key is None:
            raise StateNeedsKey(record.topic, record.partition, record.offset)
        place = record[:2]
        seen = self._seen[place]
        value = seen.values.get(key, seen.unseen)
        if value is UNREAD:
            value, expires = self._read(place, key)
            seen.see(key, value, expires)
        if seen.expiry:
            expires = seen.expiry.get(key)
            if expires is not None and expires <= dt.datetime.now(dt.UTC):
                value = None
        return State(value, self._spec.lifetime, key, seen)

    def prefetch(self, place: TopicPartition, keys: pa.Array) -> None:
        """Reads the values of many keys of a partition at once.

        A value that cannot be read now is read for its record.
        """
        if self._spec.has_ordering_keys:
            return
        seen = self._seen[place]
        if seen.unseen is None:
            return
        values = seen.values
        missing = [key for key in keys.drop_null().unique().to_pylist() if key not in values]
        with contextlib.suppress(sqlite3.DatabaseError):
            found = self._stores[place].find_all(missing)
            values.update(zip(missing, repeat(None)))
            for key, (value, until) in found.items():
                seen.see(key, value, _time(until))

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
        return value, _time(until)

    def close(self) -> None:
        """Closes the local stores; harmless when repeated."""
        for store in self._stores.values():
            store.close()


def _with_change(state: State, answer: Any) -> Any:
    """Returns a handler's answer: the state, with the answer, if the handler has changed it."""
    if type(answer) is State:
        raise TypeError(
            "the handler returned its state: call state.set() and return rows, or nothing"
        )
    answer = exhausted(answer)
    if not state.is_changed:
        return answer
    state.answer = answer
    return state


def _time(milliseconds: int | None) -> dt.datetime | None:
    """Returns a time that is given in milliseconds since 1970."""
    return None if milliseconds is None else dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
