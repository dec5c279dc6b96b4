"""What a member of a group asks of the part that works on its shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assignors import Share
    from commits import Epoch
    from coopconsume.group.owned import EpochGrant


class AssignmentOwner(Protocol):
    """Who works on what the member is given; all calls come one after another."""

    @property
    def has_shares(self) -> bool:
        """Whether the owner has shares."""

    def continue_work(self) -> bool:
        """Continues the work while the group rebalances; returns whether the owner does."""

    def follow(self, epoch: Epoch, member: str, waits: Iterable[tuple[Share, float]] = ()) -> None:
        """The shares are ours under this epoch, too, which another rebalance ends already.

        Args:
            epoch: The epoch.
            member: Our id in it.
            waits: Parts of what it gives us besides, which is given back, on which an earlier
                owner may still be at work, and for how many seconds.
        """

    def hand_over(self) -> None:
        """Stops the work, commits what is done and gives the shares back, within drainTimeout."""

    def assigned(self, grant: EpochGrant) -> None:
        """These shares are ours; those that are to move are to be released before it returns."""

    def lost(self, why: str) -> None:
        """The shares are gone: others may have them already."""

    def failed(self, error: BaseException) -> None:
        """Called when the member has left the group permanently."""
