"""Gives back shares with which a member never began: their next owner need not wait for it."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coopconsume.group.owned import EpochGrant, left_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assignors import Share
    from commits import Assignment as EpochRow
    from commits import CommitStore
    from coopconsume.group.claims import ClaimWatch
    from coopconsume.group.core import GroupCore

log = logging.getLogger(__name__)


class UnbegunShares:
    """Releases what an epoch gives a member that does not begin with it.

    What the log refuses, or does not answer, is logged: then the next owners wait for a batch life.

    Args:
        group: The group id.
        core: Knows with what the member has begun.
        store: The commit store.
        claims: Of the group.
    """

    def __init__(self, group: str, core: GroupCore, store: CommitStore, claims: ClaimWatch) -> None:
        self._group = group
        self._core = core
        self._store = store
        self._claims = claims

    def release(
        self, row: EpochRow, me: str, unbegun: Sequence[Share], left: Mapping[Share, int]
    ) -> None:
        """Gives back what an epoch gives the member besides what it goes on with.

        Args:
            row: The epoch.
            me: The member's id in it.
            unbegun: What is given back.
            left: Parts of it on which earlier owners may still be at work, and for how long.
        """
        with self._giving_back():
            self._store.release(self._group, row.epoch, me, running=left, shares=unbegun)

    def release_handed(self, me: str, data: bytes) -> None:
        """Gives back what the leader handed the member, as another rebalance comes first."""
        with self._giving_back():
            claimed = self._claims.claimed()
            grant = self._core.take(me, data, self._store.assignment(self._group), claimed)
            if isinstance(grant, EpochGrant):
                running = left_ms(grant.waits)
                self._store.release(self._group, grant.epoch, grant.member, running=running)

    def release_all(self, me: str) -> None:
        """Gives back what an epoch gave the member that was opened while it was leaving."""
        with self._giving_back():
            found = self._core.unbegun(me, self._store.assignment(self._group))
            if found is not None:
                epoch, waits = found
                self._store.release(self._group, epoch, me, running=left_ms(waits))

    @contextmanager
    def _giving_back(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as said
            log.warning("group %s: not given back in the commit log: %s", self._group, error)
