"""The half of the commit store that says who may commit what: epochs, claims, releases."""

from __future__ import annotations

import threading
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from commits.errors import ClaimConflict, EpochConflict, FencedMember
from commits.log import CommitLog
from commits.model import Epoch, as_shares
from commits.rows import Event, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits.engine import LogEngine
    from commits.group import Answer, GroupState
    from commits.model import Assignment, OwnedShare

__all__ = ["Ownership", "in_force"]

_NUMBER_TRIES = 20
"""How often the next epoch number is tried, as others may take it first."""


class Ownership:
    """Who may commit what, in each group of a commit table.

    Args:
        engine: The table.
        cluster: The id of the Kafka cluster.
    """

    def __init__(self, engine: LogEngine, cluster: str) -> None:
        self._lock = threading.RLock()
        self._engine = engine
        self._cluster = cluster
        self._writer = uuid.uuid4().hex
        self._written = 0
        self._log = CommitLog(engine, int(engine.properties["coopconsume.segment.versions"]))

    def current_epoch(self, group: str) -> Epoch | None:
        """The epoch of a group that is in force, as the log says now; None if there is none."""
        with self._lock:
            return in_force(self._refreshed(group))

    def assignment(self, group: str, epoch: Epoch | None = None) -> Assignment | None:
        """The whole row of an epoch or claim, as the log says now; None if there is none.

        Args:
            group: The group.
            epoch: The epoch or live claim; by default the epoch in force.
        """
        with self._lock:
            state = self._refreshed(group)
            tenure = state.tenure(epoch) if epoch else state.in_force
            return tenure.assignment() if tenure else None

    def check(self, group: str, epoch: Epoch, member: str) -> None:
        """Makes sure that a member may still commit under an epoch or claim, as the log says now.

        Raises:
            FencedMember: If it may not.
        """
        with self._lock:
            state = self._refreshed(group)
            fence = state.fenced(epoch, member)
            if fence:
                raise FencedMember(group, member, epoch, in_force(state), fence)

    def claims(self, group: str) -> list[Assignment]:
        """The live claims of a group, as the log says now."""
        with self._lock:
            return [claim.assignment() for claim in self._refreshed(group).claims.values()]

    def open_epoch(
        self,
        group: str,
        assignment: Mapping[str, Iterable[Any]],
        *,
        previous: Epoch | None,
        generation: int = -1,
        topic_ids: Mapping[str, str] | None = None,
        member: str = "",
        nonce: str | None = None,
        takeover: bool = False,
        life_ms: int = 0,
        partitions: Mapping[str, int] | None = None,
    ) -> Epoch:
        """Opens the next epoch of a group: from its row on only its members may commit.

        Args:
            group: The group.
            assignment: The shares of each member: `(topic, partition)`, `(topic, partition, first,
                last)`, or objects with `topic`, `partition` and `key_range`.
            previous: The epoch that is thought to be in force; None for none.
            generation: Kafka's generation; -1 if there is none.
            topic_ids: The id of each topic, where known. Where it is not the one the log knows,
                the topic was made anew, and its old commits are forgotten.
            member: Who opens it, for the history.
            nonce: A word of the caller's that no other epoch uses. Opening the same epoch with the
                same word again, because its answer was lost, gives the same epoch.
            takeover: Whether to fence claims that overlap instead of refusing.
            life_ms: How long a batch of any of the members may go on. What they do not hand over
                is in doubt for so long (see `Assignment.doubts`).
            partitions: How many partitions of each topic begin by the option for new groups; by
                default as many as the assignment has. It counts in the first epoch that names the
                topic; later partitions were added since.

        Raises:
            EpochConflict: If another epoch than `previous` is in force; nothing changed.
            ClaimConflict: If a share is claimed by hand; nothing changed.
            ValueError: If a share makes no sense, or the nonce was used for another epoch.
        """
        members = {name: as_shares(shares) for name, shares in assignment.items()}
        detail = {
            "members": members,
            "topic_ids": dict(topic_ids or {}),
            "takeover": takeover,
            "life_ms": life_ms,
            **({"partitions": dict(partitions)} if partitions else {}),
        }
        with self._lock:
            for _ in range(_NUMBER_TRIES):
                state = self._refreshed(group)
                opened = state.in_force
                if opened is not None and opened.epoch.nonce == nonce:
                    if (
                        opened.generation != generation
                        or not members.items() <= dict(opened.members).items()
                    ):
                        raise ValueError(f"nonce {nonce!r} was used for another epoch of {group!r}")
                    return opened.epoch
                if in_force(state) != previous:
                    break
                epoch = Epoch(state.highest + 1, nonce or uuid.uuid4().hex)
                answer = self._append(
                    Event(
                        "epoch", self._new_id(), self._cluster, group, epoch, previous,
                        generation, member, detail,
                    )
                )  # fmt: skip
                if answer.counted:
                    return epoch
                if answer.holder is not None:
                    raise ClaimConflict(group, member, *answer.holder)
            now = in_force(self._log.state.group(self._cluster, group))
            raise EpochConflict(group, member, previous, now, "another epoch was opened")

    def claim(
        self,
        group: str,
        member: str,
        shares: Iterable[Any],
        *,
        takeover: bool = False,
        topic_ids: Mapping[str, str] | None = None,
        life_ms: int = 0,
        session_ms: int = 0,
        nonce: str | None = None,
    ) -> Epoch:
        """Claims shares by hand, without a group's rebalance, under an epoch of its own.

        Of two overlapping claims at once the first in the log wins.

        Args:
            group: The group.
            member: Who claims, told apart from every other process.
            shares: As for `open_epoch`.
            takeover: Whether to fence whoever holds an overlapping share instead of refusing: a
                claim ends, a member of the epoch in force may not commit any more.
            topic_ids: As for `open_epoch`.
            life_ms: As for `open_epoch`.
            session_ms: After so long without a row of the claim, renewals included, others take
                its process for gone and may release it; 0: never.
            nonce: A word of the caller's that no other epoch or claim uses. Claiming the same again
                with the same word, because the answer was lost, gives the same claim while it
                lives.

        Raises:
            ClaimConflict: If a share overlaps one of a live claim, or of a member of the epoch in
                force that has not released it; nothing changed.
            CommitLogUnavailable: If it is not known whether it was written; repeat it with its
                nonce.
            ValueError: If a share makes no sense, there is none, two of them overlap, or the nonce
                was used for another claim.
        """
        wanted = as_shares(shares)
        _check_disjoint(wanted)
        ids = topic_ids or {}
        parts = tuple(
            Part(topic, partition, ids.get(topic, ""), first, last)
            for topic, partition, first, last in wanted
        )
        with self._lock:
            for _ in range(_NUMBER_TRIES):
                state = self._refreshed(group)
                own = state.claims.get(nonce) if nonce else None
                if own is not None:
                    if own.members.get(member) != wanted:
                        raise ValueError(f"nonce {nonce!r} was used for another claim of {group!r}")
                    return own.epoch
                epoch = Epoch(state.highest + 1, nonce or uuid.uuid4().hex)
                answer = self._append(
                    Event(
                        "claim", self._new_id(), self._cluster, group, epoch, member=member,
                        detail={
                            "takeover": takeover, "life_ms": life_ms, "session_ms": session_ms,
                        },
                        parts=parts,
                    )
                )  # fmt: skip
                if answer.counted:
                    return epoch
                if answer.holder is not None:
                    raise ClaimConflict(group, member, *answer.holder)
            now = in_force(self._log.state.group(self._cluster, group))
            raise EpochConflict(group, member, epoch, now, "others took all its numbers")

    def renew(self, group: str, epoch: Epoch, member: str) -> None:
        """Writes a row that shows that the process of a claim lives.

        Raises:
            FencedMember: If the claim has ended.
        """
        with self._lock:
            event = Event("commit", self._new_id(), self._cluster, group, epoch, member=member)
            answer = self._append(event)
            if not answer.counted:
                now = in_force(self._log.state.group(self._cluster, group))
                raise FencedMember(group, member, epoch, now, answer.reason)

    def release(
        self, group: str, epoch: Epoch, member: str, *, running: Iterable[Any] = ()
    ) -> bool:
        """Gives back a member's shares of an epoch or of a claim; harmless when repeated.

        Args:
            group: The group.
            epoch: The epoch or claim.
            member: The member.
            running: The parts of its shares on which it may still be at work, as for `open_epoch`:
                who gets them next waits until that is surely over.

        Returns:
            Whether they were still the member's.
        """
        detail = {"running": as_shares(running)}
        with self._lock:
            if self._refreshed(group).fenced(epoch, member):
                return False
            return self._append(
                Event(
                    "release", self._new_id(), self._cluster, group, epoch, member=member,
                    detail=detail,
                )
            ).counted  # fmt: skip

    def take_over(self, group: str, epoch: Epoch, member: str, *, replaces: str) -> None:
        """Gives a member's shares to another id; from now on the old id's commits do not count.

        For static membership, where Kafka hands the old assignment to a new process. A member that
        released its shares and is given the same ones again takes over from itself. Harmless when
        repeated, as after a lost answer: what has become the new id's is not taken once more.

        Args:
            group: The group.
            epoch: The epoch in force.
            member: The new id.
            replaces: The id that has them now; see `Assignment.heir`.

        Raises:
            FencedMember: If the epoch is not in force, or the old id was fenced.
            CommitLogUnavailable: If it is not known whether it was written; repeat it.
        """
        with self._lock:
            if _has_taken_over(self._refreshed(group), epoch, member, replaces):
                return
            answer = self._append(
                Event(
                    "takeover", self._new_id(), self._cluster, group, epoch, member=member,
                    detail={"replaces": replaces},
                )
            )  # fmt: skip
            state = self._log.state.group(self._cluster, group)
            # Not counted it may be as the row of a lost answer came just before it.
            if not answer.counted and not _has_taken_over(state, epoch, member, replaces):
                raise FencedMember(group, member, epoch, in_force(state), answer.reason)

    def _refreshed(self, group: str) -> GroupState:
        return self._log.refresh().group(self._cluster, group)

    def _append(self, event: Event) -> Answer:
        return self._log.append(event)

    def _new_id(self) -> str:
        # A number behind a prefix of the writer's: sets of such ids stay small (see CommitIds).
        self._written += 1
        return f"{self._writer}-{self._written}"


def in_force(state: GroupState) -> Epoch | None:
    """The epoch of a group that is in force; None if there is none."""
    return state.in_force.epoch if state.in_force else None


def _has_taken_over(state: GroupState, epoch: Epoch, member: str, replaces: str) -> bool:
    tenure = state.tenure(epoch)
    if tenure is None or tenure.fence_of(member):
        return False
    return member == replaces or tenure.heirs.get(replaces) == member


def _check_disjoint(shares: tuple[OwnedShare, ...]) -> None:
    if not shares:
        raise ValueError("a claim needs at least one share")
    for one, next_one in pairwise(shares):  # sorted: neighbours tell it all
        if one.overlaps(next_one):
            raise ValueError(f"shares {tuple(one)} and {tuple(next_one)} of a claim overlap")
