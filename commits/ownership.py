"""The part of the commit store that manages owners: epochs, claims, releases."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from commits.errors import ClaimConflict, EpochConflict, FencedMember
from commits.log import CommitLog
from commits.model import Epoch, as_share, as_shares, share_to_plain
from commits.rows import Event, Part
from commits.sharing import COOPERATIVE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assignors.shares import Share
    from commits.engine import LogEngine
    from commits.fold import Answer, GroupState
    from commits.model import Assignment


_NUMBER_TRIES = 20
"""The number of attempts to get the next epoch number, as others may take it first."""


class Ownership:
    """The owners of shares in each group of a commit table.

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
        """Return the epoch in force of a group; None without one. Reads the log."""
        with self._lock:
            return in_force(self._refreshed(group))

    def assignment(self, group: str, epoch: Epoch | None = None) -> Assignment | None:
        """Return the assignment of an epoch or claim; None without one. Reads the log.

        Args:
            group: The group.
            epoch: The epoch or live claim; by default the epoch in force.
        """
        with self._lock:
            state = self._refreshed(group)
            grant = state.grant(epoch) if epoch else state.in_force
            return grant.assignment() if grant else None

    def check(self, group: str, epoch: Epoch, member: str) -> None:
        """Check that a member may still commit under an epoch or claim. Reads the log.

        Raises:
            FencedMember: If it may no longer commit.
        """
        with self._lock:
            state = self._refreshed(group)
            fence = state.fenced(epoch, member)
            if fence:
                raise FencedMember(group, member, epoch, in_force(state), fence)

    def claims(self, group: str) -> list[Assignment]:
        """Return the live claims of a group. Reads the log."""
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
        record_filter: str = "",
        continues: Mapping[str, int] | None = None,
        sharing: str = "",
        lives: Mapping[str, int] | None = None,
    ) -> Epoch:
        """Open the next epoch of a group. From its row on only its members may commit.

        Args:
            group: The group.
            assignment: The shares of each member: `assignors.Share`, `(topic, partition)`, or
                `(topic, partition, first, last)`.
            previous: The epoch that the caller expects to be in force; None for none.
            generation: Kafka's generation; -1 without one.
            topic_ids: The ids of topics, as far as they are known. A new id means that the topic
                was created again; its old commits are discarded.
            member: The member that opens it, for the history.
            nonce: A unique text of the caller. A repeated call with the same nonce, because the
                answer was lost, returns the same epoch.
            takeover: Whether to fence overlapping claims instead of raising an error.
            life_ms: The longest time that a batch of any member may run. Shares that members do not
                hand over are in doubt for this time, or that of the member in ``lives`` (see
                `Assignment.doubts`).
            partitions: How many partitions of each topic start by the option for new groups; by
                default as many as the assignment has. It applies in the first epoch with the
                topic; partitions with higher numbers were added later.
            record_filter: Which records the members process, as text for the history and for the
                next epoch; empty for all.
            continues: Members whose work never paused, with the number of the epoch that they work
                under.
            sharing: `cooperative` if the members acquire chunks of whole partitions (see
                `CommitStore.acquire`); each of them should have all partitions. Empty if each
                member has key ranges of its own.
            lives: The longest time that a batch of each member may run; by default `life_ms`.

        Raises:
            EpochConflict: If another epoch than `previous` is in force, or one of `continues` may
                not commit under it any more; nothing changed.
            ClaimConflict: If a claim holds a share; nothing changed.
            ValueError: If a share or the sharing is not valid, or the nonce was used for another
                epoch.
        """
        if sharing not in {"", COOPERATIVE}:
            raise ValueError(f"sharing must be {COOPERATIVE!r} or empty, not {sharing!r}")
        members = {name: as_shares(shares) for name, shares in assignment.items()}
        others = {name: one for name, one in (lives or {}).items() if one != life_ms}
        detail = {
            "members": {m: list(map(share_to_plain, some)) for m, some in members.items()},
            "topic_ids": dict(topic_ids or {}),
            "takeover": takeover,
            "life_ms": life_ms,
            **({"partitions": dict(partitions)} if partitions else {}),
            **({"filter": record_filter} if record_filter else {}),
            **({"continues": dict(continues)} if continues else {}),
            **({"sharing": sharing} if sharing else {}),
            **({"lives": others} if others else {}),
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
                # A claim that fences one of them takes a number, so none comes unseen.
                is_fenced = opened is not None and not opened.fenced.keys().isdisjoint(
                    continues or ()
                )
                if in_force(state) != previous or is_fenced:
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
            now = in_force(self._log.group(self._cluster, group))
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
        record_filter: str = "",
    ) -> Epoch:
        """Claim shares without a rebalance of the group, under a separate epoch.

        Of two concurrent overlapping claims the first in the log wins.

        Args:
            group: The group.
            member: The claimant; unique to the process.
            shares: As for `open_epoch`.
            takeover: Whether to fence holders of overlapping shares instead of raising an error:
                claims end, members of the epoch in force may no longer commit.
            topic_ids: As for `open_epoch`.
            life_ms: As for `open_epoch`.
            session_ms: The time without a row of the claim (renewals included) after which others
                may release it, because its process counts as dead; 0 for never.
            nonce: A unique text of the caller. A repeated call with the same nonce, because the
                answer was lost, returns the same claim while it is live.
            record_filter: As for `open_epoch`.

        Raises:
            ClaimConflict: If a share overlaps one of a live claim, or of a member of the epoch in
                force that has not released it; nothing changed.
            CommitLogUnavailable: If it is not known whether it was written; repeat it with its
                nonce.
            ValueError: If a share is not valid, `shares` is empty, two shares overlap, or the
                nonce was used for another claim.
        """
        wanted = as_shares(shares)
        _check_disjoint(wanted)
        ids = topic_ids or {}
        parts = tuple(
            Part(topic, partition, ids.get(topic, ""), *key_range)
            for topic, partition, key_range in wanted
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
                            **({"filter": record_filter} if record_filter else {}),
                        },
                        parts=parts,
                    )
                )  # fmt: skip
                if answer.counted:
                    return epoch
                if answer.holder is not None:
                    raise ClaimConflict(group, member, *answer.holder)
            now = in_force(self._log.group(self._cluster, group))
            raise EpochConflict(group, member, epoch, now, "others took all its numbers")

    def renew(self, group: str, epoch: Epoch, member: str) -> None:
        """Write a row that shows that the process of a claim is alive.

        Raises:
            FencedMember: If the claim has ended.
        """
        with self._lock:
            event = Event("commit", self._new_id(), self._cluster, group, epoch, member=member)
            answer = self._append(event)
            if not answer.counted:
                now = in_force(self._log.group(self._cluster, group))
                raise FencedMember(group, member, epoch, now, answer.reason)

    def release(
        self,
        group: str,
        epoch: Epoch,
        member: str,
        *,
        running: Iterable[Any] | Mapping[Any, int] = (),
        shares: Iterable[Any] | None = None,
    ) -> bool:
        """Release a member's shares of an epoch or claim. Repeated calls have no effect.

        Args:
            group: The group.
            epoch: The epoch or claim.
            member: The member.
            running: The parts of its shares on which it, or an earlier owner, may still work, as
                for `open_epoch`. The next owner waits until this work is over. A mapping has the
                milliseconds that this takes at most for each part; otherwise it is the longest time
                for which these members may work.
            shares: The shares to release; the member keeps the others and may commit. None: all of
                them, and the member may not commit under the epoch any more.

        Returns:
            Whether the member still had them.
        """
        parts = as_shares(running)
        detail: dict[str, Any] = {"running": list(map(share_to_plain, parts))}
        if isinstance(running, Mapping):
            left = {as_share(part): ms for part, ms in running.items()}
            detail["left_ms"] = [left[part] for part in parts]
        if shares is not None:
            detail["shares"] = list(map(share_to_plain, as_shares(shares)))
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
        """Give a member's shares to another id. Commits of the old id no longer count.

        This is for static membership, where Kafka gives the old assignment to a new process. A
        member that released its shares and gets the same ones again takes over from itself.
        Repeated calls, for example after a lost answer, have no effect.

        Args:
            group: The group.
            epoch: The epoch in force.
            member: The new id.
            replaces: The id that has the shares now; see `Assignment.heir`.

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
            state = self._log.group(self._cluster, group)
            # The row does not count if the row of a lost answer came just before it.
            if not answer.counted and not _has_taken_over(state, epoch, member, replaces):
                raise FencedMember(group, member, epoch, in_force(state), answer.reason)

    def _refreshed(self, group: str) -> GroupState:
        self._log.refresh()
        return self._log.group(self._cluster, group)

    def _append(self, event: Event) -> Answer:
        return self._log.append(event)

    def _new_id(self) -> str:
        # A prefix of the writer and a number: sets of such ids stay small (see CommitIds).
        self._written += 1
        return f"{self._writer}-{self._written}"


def in_force(state: GroupState) -> Epoch | None:
    """Return the epoch in force of a group; None without one."""
    return state.in_force.epoch if state.in_force else None


def _has_taken_over(state: GroupState, epoch: Epoch, member: str, replaces: str) -> bool:
    grant = state.grant(epoch)
    if grant is None or grant.fence_of(member):
        return False
    return member == replaces or grant.heirs.get(replaces) == member


def _check_disjoint(shares: tuple[Share, ...]) -> None:
    if not shares:
        raise ValueError("a claim needs at least one share")
    for one, next_one in pairwise(shares):  # sorted: it is enough to compare neighbours
        if one[:2] == next_one[:2] and one.key_range.overlaps(next_one.key_range):
            both = f"{share_to_plain(one)} and {share_to_plain(next_one)}"
            raise ValueError(f"shares {both} of a claim overlap")
