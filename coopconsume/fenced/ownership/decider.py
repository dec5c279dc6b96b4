"""Writes the decisions of a registry to its store, concurrently with other registries."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from coopconsume.fenced.ownership import rules
from coopconsume.fenced.ownership.lease import Observer
from coopconsume.fenced.ownership.model import Entry, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from coopconsume.fenced.ownership.model import Key, Session
    from coopconsume.fenced.ownership.store import OwnershipStore


class Decider:
    """Reads rows, decides and writes the decision; repeats this after a concurrent change.

    Attributes:
        lock: Held while the store is used by one thread.
    """

    def __init__(self, store: OwnershipStore, session: Session) -> None:
        self.lock = threading.RLock()
        self._store = store
        self._session = session
        self._observer = Observer()

    def change(self, wanted: Mapping[Key, Callable[[Row], rules.Step]]) -> Sequence[rules.Step]:
        """Decides and writes all rows or none; repeats this after a concurrent change.

        Returns:
            The decision for each row. If a claim names a stale generation, nothing was written.
        """
        tried: Sequence[rules.Step] = ()
        with self.lock:
            while True:
                rows = self.current(wanted)
                if tried and [step.row for step in tried] == rows:
                    return tried  # it was written after all
                steps = [decide(row) for decide, row in zip(wanted.values(), rows, strict=True)]
                pairs = list(zip(steps, rows, strict=True))
                if any(isinstance(step.outcome, rules.Stale) for step in steps):
                    return steps
                changed = [step for step, row in pairs if step.row is not row]
                if not changed:
                    return steps
                if self._store.swap([step.row for step in changed], _entries(changed)):
                    return steps
                tried = steps

    def current(self, keys: Iterable[Key]) -> Sequence[Row]:
        """Returns rows after dead holders were removed; the caller holds the lock."""
        while True:
            found = self._store.rows()
            rows = [found.get(key, Row(*key)) for key in keys]
            looked = self._observer.look(rows, time.monotonic())
            dead = [at for at in looked if at[1] != self._session]
            if not dead:
                return rows
            by_key = {row.key: row for row in rows}
            steps: dict[Key, rules.Step] = {}
            for key, session, heartbeat in dead:
                before = steps.get(key, rules.Step(by_key[key]))
                after = rules.expire(before.row, session, heartbeat)
                row = replace(after.row, revision=by_key[key].revision + 1)
                steps[key] = rules.Step(row, None, (*before.happened, *after.happened))
            self._store.swap([step.row for step in steps.values()], _entries(steps.values()))


def _entries(steps: Iterable[rules.Step]) -> list[Entry]:
    now = time.time_ns() // 1_000_000
    return [
        Entry(
            step.row.group, step.row.resource, step.row.revision, event, session.owner, session.id,
            step.row.generation, step.row.fence_epoch, now,
        )
        for step in steps
        for event, session in step.happened
    ]  # fmt: skip
