"""Claims that `assign` makes beside a group: kept alive by their owners, ended when those are gone.

Each reader decides by its own monotonic clock whether a process is gone: no row of its claim came
for the time of its session. So the clocks of hosts need not agree.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from commits import ClaimConflict, CommitStoreError, FencedMember

if TYPE_CHECKING:
    from collections.abc import Callable

    from assignors import Share
    from commits import Assignment, CommitStore, Epoch

log = logging.getLogger(__name__)

#: Seconds between two looks at claims that are in the way.
LOOK_EVERY: Final = 2.0


class ClaimWatch:
    """Distinguishes live claims of a group from those of dead processes, and ends the latter.

    Args:
        store: The commit store.
        group: The group.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: CommitStore, group: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._group = group
        self._clock = clock
        self._lock = threading.Lock()
        self._looked = clock()
        self._silent: dict[str, tuple[int, float]] = {}

    def look(self) -> list[Assignment]:
        """Returns the live claims, as the log says now.

        What a gone process may still be working on is in doubt: the next owner waits for it.
        """
        with self._lock:
            claims = self._store.claims(self._group)
            now = self._clock()
            # Time in which nobody looked, as the commit table was away, does not count as silence.
            passed, self._looked = min(now - self._looked, 2 * LOOK_EVERY), now
            before, self._silent = self._silent, {}
            live = []
            for claim in claims:
                beats, silent = before.get(claim.epoch.nonce, (-1, 0.0))
                silent = silent + passed if claim.beats == beats else 0.0
                if 0 < claim.session_ms < 1000 * silent:
                    self._end(claim)
                else:
                    self._silent[claim.epoch.nonce] = (claim.beats, silent)
                    live.append(claim)
            return live

    def claimed(self) -> list[Share]:
        """Returns the shares of the live claims."""
        return [share for claim in self.look() for held in claim.members.values() for share in held]

    def _end(self, claim: Assignment) -> None:
        for member, shares in claim.members.items():
            log.warning(
                "group %s: no sign of %s for %d ms: its claim on %d shares ends",
                self._group, member, claim.session_ms, len(shares),
            )  # fmt: skip
            self._store.release(self._group, claim.epoch, member, running=shares)

    def insist(self, claim: Callable[[], Epoch], pause: Callable[[float], object]) -> Epoch:
        """Makes a claim; where another claim is in the way, once that one's process is gone.

        Args:
            claim: Makes the claim.
            pause: Waits for some seconds.

        Raises:
            commits.ClaimConflict: The process of the other claim lives, or it is a group's member.
        """
        beats: dict[str, int] = {}
        while True:
            try:
                return claim()
            except ClaimConflict as error:
                nonce = error.holder_epoch.nonce
                held = {one.epoch.nonce: one for one in self.look()}.get(nonce)
                if held is not None:
                    if not held.session_ms or held.beats != beats.setdefault(nonce, held.beats):
                        raise
                    log.warning("waiting for a sign of life of another claim: %s", error)
                elif nonce not in beats:
                    raise
            pause(LOOK_EVERY / 2)


class ClaimKeeper:
    """Shows regularly that the process of a claim lives, until it is stopped.

    Args:
        store: The commit store.
        group: The group.
        epoch: Of the claim.
        member: Who holds it.
        every: Seconds between two signs of life.
    """

    def __init__(
        self, store: CommitStore, group: str, epoch: Epoch, member: str, every: float
    ) -> None:
        self._claim = (group, epoch, member)
        self._store = store
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coopconsume-claim", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it; harmless when repeated."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._store.renew(*self._claim)
            except FencedMember as error:
                log.warning("the claim has ended: %s", error)
                return
            except CommitStoreError as error:
                log.warning("the claim is renewed later: %s", error)
