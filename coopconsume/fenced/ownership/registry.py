"""The registry of owners: claims in a store, kept alive by heartbeats.

A holder is dead if its counter did not change for its lease. No clocks are compared: an observer
measures on its own monotonic clock how long it has seen the same counter. A holder that is only
slow is then fenced.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from coopconsume.closing import Closing
from coopconsume.errors.fenced import OwnershipUnavailable, StaleGeneration
from coopconsume.fenced.ownership import rules
from coopconsume.fenced.ownership.model import Grant, Holder, OwnershipEvent, Row, Session
from coopconsume.kafka.call_limit import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from coopconsume.fenced.ownership.model import AccessMode, Key, OwnershipStore

log = logging.getLogger(__name__)

_BEATS_A_LEASE = 4
#: Resources in one heartbeat: its size is bounded, and a concurrent change of one of them makes no
#: more than these be sent again.
_BEATS_AT_ONCE = 100


class Observer:
    """Remembers since when the counter of each holder has not changed."""

    def __init__(self) -> None:
        self._seen: dict[Key, dict[Session, tuple[int, float]]] = {}

    def dead(self, row: Row, now: float) -> list[Session]:
        """Returns the dead holders of a row."""
        before, seen = self._seen.get(row.key, {}), {}
        for held in row.holders:
            heartbeat, since = before.get(held.session, (held.heartbeat, now))
            if heartbeat != held.heartbeat:
                since = now
            seen[held.session] = held.heartbeat, since
        self._seen[row.key] = seen
        leases = ((held.session, held.lease_ms) for held in row.holders)
        return [one for one, ms in leases if ms and 1000 * (now - seen[one][1]) >= ms]


def check_lease(lease: float) -> None:
    """Checks a lease before connections are opened for it."""
    if not lease >= 0:
        raise ValueError(f"lease must be 0 or more seconds, not {lease}")


class OwnershipRegistry(Closing):
    """Owners of resources, by group: the Kafka wiki's `own`, and PIP-68's access modes.

    One registry is one claimant. While it is open, a thread sends heartbeats for all resources that
    it holds or waits for. A fenced owner is not notified: its next append fails, and `holds`
    returns False.

    The registry arbitrates; what fences a log are the epochs in the log itself. May be used by
    several threads. All calls but `keeps` and `close` raise OwnershipUnavailable where the store
    cannot be reached: it is then not known what was changed.

    Args:
        store: Where the rows are, such as `KafkaStore(options)` or `DeltaStore(path)`; closed with
            the registry.
        owner: A name for people; by default the host and the process.
        lease: Seconds without a heartbeat after which others consider this claimant dead; 0: never,
            and no heartbeats are sent.
        session: Id of the session to continue: it still holds the resources that nobody has taken
            since. One process at a time may use it, under the same name. By default a new session.

    Attributes:
        store: The store.
        session: The name and the id under which this registry claims.

    Raises:
        ValueError: If the lease is negative.
    """

    def __init__(
        self,
        store: OwnershipStore,
        *,
        owner: str | None = None,
        lease: float = 10.0,
        session: str | None = None,
    ) -> None:
        check_lease(lease)
        name = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}" if owner is None else owner
        self.session: Final = Session(name, session or uuid.uuid4().hex)
        self.store: Final = store
        self._lease = lease
        self._observer = Observer()
        self._lock = threading.RLock()  # held while the store is used
        #: Replaced as a whole and never changed in place, so that `keeps` waits for no request.
        self._mine: frozenset[Key] = frozenset()
        self._closed = threading.Event()
        self._is_shut = False  # no connections any more
        self._heart: threading.Thread | None = None
        self._beat_every = lease / _BEATS_A_LEASE
        self._beaten = time.monotonic()

    def own(self, group: str, resources: Mapping[str, int]) -> dict[str, Grant]:
        """Claims resources by generation, all or none (the wiki's ``own_request``).

        A free resource is granted under the claimed generation. If the owner's generation is
        higher, the claim is refused. If it is equal, the owner is fenced and the next generation
        granted. If it is lower, the owner is fenced and the claimed generation granted. Generation
        0 always claims, and is granted generation 1. A claim of a resource that this registry owns,
        under its generation, changes nothing. The fence epoch grows with each change of the owner,
        also if the generation restarts.

        Args:
            group: The group.
            resources: The generation that is claimed of each resource.

        Returns:
            The grant of each.

        Raises:
            StaleGeneration: One or more are owned under a higher generation; nothing was changed.
            ValueError: A generation is negative, or there is no resource.
            OwnershipUnavailable: It is not known what was granted.
        """
        if not resources:
            raise ValueError("resources must name one at least")
        claim = self._claim(None)
        wanted = {
            (group, resource): partial(rules.own, claim=claim, generation=generation)
            for resource, generation in resources.items()
        }
        outcomes = {step.row.resource: step.outcome for step in self._change(wanted)}
        stale = {
            name: (of.claimed, of.current)
            for name, of in outcomes.items()
            if isinstance(of, rules.Stale)
        }
        if stale:
            first = next(iter(stale))
            raise StaleGeneration(group, first, *stale[first], stale)
        self._keep(wanted)
        return {name: of for name, of in outcomes.items() if isinstance(of, Grant)}

    def acquire(
        self,
        group: str,
        resource: str,
        mode: AccessMode,
        *,
        epoch: int | None = None,
        topic_id: str = "",
    ) -> rules.Outcome:
        """Claims a resource in an access mode; never waits.

        A claimant that reconnects names its earlier fence epoch, and of a log the topic's id.

        Returns:
            A grant; `Queued`, then call `poll`; or why not: `Busy`, `Fenced`, `Replaced`.
        """
        claim = self._claim(mode, epoch)
        (step,) = self._change({(group, resource): lambda row: rules.acquire(row, claim, topic_id)})
        outcome = step.outcome
        assert outcome is not None
        if isinstance(outcome, Grant | rules.Queued):
            self._keep([(group, resource)])
        return outcome

    def poll(self, group: str, resource: str) -> rules.Outcome:
        """Returns the state of a waiting claim, and removes dead holders.

        Returns:
            A grant, once the claimant is the owner; `Queued`; or `Fenced`, if it was removed.
        """
        (step,) = self._change({(group, resource): lambda row: rules.look(row, self.session)})
        if isinstance(step.outcome, rules.Fenced):
            self._forget([step.row.key])
        assert step.outcome is not None
        return step.outcome

    def wait(self, seconds: float) -> None:
        """Returns when something may have changed in the store, or after some seconds."""
        with self._used() as store:
            # A caller that waits in a loop would block the heartbeat thread.
            self._beat_if_due()
            store.wait(min(seconds, self._beat_every or seconds))

    def keeps(self, group: str, resource: str) -> bool:
        """Whether this registry has or waits for a resource, without a request to the store."""
        return (group, resource) in self._mine

    def holds(self, group: str, resource: str, fence_epoch: int | None = None) -> bool:
        """Whether this registry has a resource, alone or not, under an epoch, by the store."""
        row = self.show(group, resource)
        is_there = row.holder(self.session) in row.having
        return is_there and fence_epoch in (None, row.fence_epoch)

    def release(self, group: str, resources: Iterable[str]) -> None:
        """Releases resources, or stops waiting for them; the next waiting claimant gets them.

        Harmless when repeated, and after `close`. If it fails, the lease will expire.
        """
        if not self._closed.is_set():
            self._leave([(group, resource) for resource in resources])

    def evict(self, group: str, resource: str) -> Row:
        """Takes a resource from its owner, as an operator; the next waiting claimant gets it."""
        (step,) = self._change({(group, resource): rules.evict})
        return step.row

    def show(self, group: str, resource: str) -> Row:
        """Returns a resource; one that was never claimed has revision 0."""
        with self._used() as store:
            return store.rows().get((group, resource), Row(group, resource))

    def list(self, group: str | None = None) -> Sequence[Row]:
        """Returns all resources, or those of a group, in order."""
        with self._used() as store:
            rows = store.rows()
            return [rows[key] for key in sorted(rows) if group in (None, key[0])]

    def history(self, group: str, resource: str) -> Sequence[OwnershipEvent]:
        """Returns the events of a resource, oldest first; a `KafkaStore` keeps the last 100."""
        with self._used() as store:
            return store.history((group, resource))

    def close(self) -> None:
        """Releases all resources of this registry and closes the store; harmless when repeated."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._heart is not None:
            self._heart.join()
        try:
            if self._mine:
                self._leave(self._mine)
        except OwnershipUnavailable as error:  # the lease will expire
            log.warning("owned resources were not released: %s", error)
        finally:
            with self._lock:
                self._is_shut = True
                self.store.close()

    def _claim(self, mode: AccessMode | None, epoch: int | None = None) -> Holder:
        return Holder(self.session, mode, lease_ms=int(1000 * self._lease), epoch=epoch)

    def _leave(self, keys: Collection[Key]) -> None:
        self._forget(keys)
        self._change(dict.fromkeys(keys, lambda row: rules.leave(row, self.session)))

    def _change(self, wanted: Mapping[Key, Callable[[Row], rules.Step]]) -> Sequence[rules.Step]:
        """Decides and writes all rows or none; repeats this after a concurrent change.

        If a claim names a stale generation, nothing is written.
        """
        tried: Sequence[rules.Step] = ()
        with self._used() as store:
            while True:
                found = store.rows()
                rows = [found.get(key, Row(*key)) for key in wanted]
                if tried and [step.row for step in tried] == rows:
                    return tried  # it was written after all
                steps = list(map(self._step, wanted.values(), rows))
                if any(isinstance(step.outcome, rules.Stale) for step in steps):
                    return steps
                pairs = zip(steps, rows, strict=True)
                changed = [step for step, row in pairs if step.row is not row]
                if not changed or store.swap([s.row for s in changed], _entries(changed)):
                    return steps
                tried = steps

    def _step(self, decide: Callable[[Row], rules.Step], row: Row) -> rules.Step:
        """Removes the dead holders of a row, then decides."""
        rest = rules.Step(row)
        for session in self._observer.dead(row, monotonic()):
            if session != self.session:
                expired = rules.expire(rest.row, session)
                rest = replace(expired, happened=rest.happened + expired.happened)
        step = decide(rest.row)
        if step.row is row:
            return step
        after = replace(step.row, revision=row.revision + 1)
        return rules.Step(after, step.outcome, rest.happened + step.happened)

    @contextmanager
    def _used(self) -> Iterator[OwnershipStore]:
        """Holds the lock; raises if another thread has closed this registry."""
        with self._lock:
            if self._is_shut:
                raise OwnershipUnavailable(self.store.place, "asking", "this registry is closed")
            yield self.store

    def _keep(self, keys: Iterable[Key]) -> None:
        with self._lock:
            self._mine |= frozenset(keys)
            if self._lease and self._heart is None and not self._closed.is_set():
                name = "coopconsume-owner"
                self._heart = threading.Thread(target=self._beat, name=name, daemon=True)
                self._heart.start()

    def _forget(self, keys: Iterable[Key]) -> None:
        with self._lock:
            self._mine -= frozenset(keys)

    def _beat(self) -> None:
        while not self._closed.wait(self._beat_every):
            with self._lock:
                self._beat_if_due()

    def _beat_if_due(self) -> None:
        now = time.monotonic()
        if not self._beat_every or not self._mine or now - self._beaten < self._beat_every / 2:
            return
        self._beaten = now
        mine = sorted(self._mine)
        for first in range(0, len(mine), _BEATS_AT_ONCE):
            keys = mine[first : first + _BEATS_AT_ONCE]
            try:
                steps = self._change(dict.fromkeys(keys, lambda row: rules.beat(row, self.session)))
            except OwnershipUnavailable as error:  # the next beat may get through
                log.warning("no heartbeat was sent: %s", error)
                return
            self._forget(s.row.key for s in steps if isinstance(s.outcome, rules.Fenced))


def _entries(steps: Iterable[rules.Step]) -> list[OwnershipEvent]:
    now = time.time_ns() // 1_000_000
    return [
        OwnershipEvent(
            step.row.group,
            step.row.resource,
            revision=step.row.revision,
            event=event,
            owner=session.owner,
            session=session.id,
            generation=step.row.generation,
            fence_epoch=step.row.fence_epoch,
            at_ms=now,
        )
        for step in steps
        for event, session in step.happened
    ]
