"""The part of the commit store that manages owners: epochs, claims, releases."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack

from commits.errors import ClaimConflict, EpochConflict, FencedMember
from commits.log import CommitLog
from commits.model import Epoch, as_share, as_shares, share_to_plain
from commits.rows import Event, Part
from commits.sharing import COOPERATIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from assignors.shares import Share
    from commits.engine import LogEngine
    from commits.fold import GroupState
    from commits.model import Assignment, EpochOptions, GrantOptions, TopicPartition
    from commits.partition_commits import Answer, CommitResult


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
            fence = self._refreshed(group).fenced(epoch, member)
            if fence:
                raise self._fenced(group, epoch, member, fence)

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
        member: str = "",
        nonce: str | None = None,
        **options: Unpack[EpochOptions],
    ) -> Epoch:
        """Open the next epoch of a group. From its row on only its members may commit.

        Args:
            group: The group.
            assignment: The shares of each member: `assignors.Share`, `(topic, partition)`, or
                `(topic, partition, first, last)`.
            previous: The epoch that the caller expects to be in force; None for none.
            generation: Kafka's generation; -1 without one.
            member: The member that opens it, for the history.
            nonce: A unique text of the caller. A repeated call with the same nonce, because the
                answer was lost, returns the same epoch.
            **options: See `commits.EpochOptions`.

        Raises:
            EpochConflict: If another epoch than `previous` is in force, or one of `continues` may
                not commit under it any more; nothing changed.
            ClaimConflict: If a claim holds a share; nothing changed.
            ValueError: If a share or the sharing is not valid, or the nonce was used for another
                epoch.
        """
        members = {name: as_shares(shares) for name, shares in assignment.items()}
        row = Event(
            "epoch",
            "",
            self._cluster,
            group,
            previous=previous,
            generation=generation,
            member=member,
            detail=_epoch_detail(members, **options),
        )

        def opened(state: GroupState) -> Epoch | None:
            grant = state.in_force
            if grant is not None and grant.epoch.nonce == nonce:
                is_same = members.items() <= dict(grant.members).items()
                if grant.generation != generation or not is_same:
                    raise ValueError(f"nonce {nonce!r} was used for another epoch of {group!r}")
                return grant.epoch
            # A claim that fences one of them takes a number, so none comes unseen.
            is_fenced = grant is not None and not grant.fenced.keys().isdisjoint(
                options.get("continues") or ()
            )
            if in_force(state) != previous or is_fenced:
                now, reason = in_force(state), "another epoch was opened"
                raise EpochConflict(group, member, previous, now, reason)
            return None

        return self._granted(row, nonce, opened)

    def claim(
        self,
        group: str,
        member: str,
        shares: Iterable[Any],
        *,
        session_ms: int = 0,
        nonce: str | None = None,
        **options: Unpack[GrantOptions],
    ) -> Epoch:
        """Claim shares without a rebalance of the group, under a separate epoch.

        Of two concurrent overlapping claims the first in the log wins.

        Args:
            group: The group.
            member: The claimant; unique to the process.
            shares: As for `open_epoch`.
            session_ms: The time without a row of the claim (renewals included) after which others
                may release it, because its process counts as dead; 0 for never.
            nonce: A unique text of the caller. A repeated call with the same nonce, because the
                answer was lost, returns the same claim while it is live.
            **options: See `commits.GrantOptions`.

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
        detail, parts = _claim_content(wanted, session_ms, **options)
        row = Event("claim", "", self._cluster, group, member=member, detail=detail, parts=parts)

        def claimed(state: GroupState) -> Epoch | None:
            own = state.claims.get(nonce) if nonce else None
            if own is not None and own.members.get(member) != wanted:
                raise ValueError(f"nonce {nonce!r} was used for another claim of {group!r}")
            return own.epoch if own is not None else None

        return self._granted(row, nonce, claimed)

    def renew(self, group: str, epoch: Epoch, member: str) -> None:
        """Write a row that shows that the process of a claim is alive.

        Raises:
            FencedMember: If the claim has ended.
        """
        with self._lock:
            answer = self._append(self._event("commit", group, epoch, member))
            if not answer.counted:
                raise self._fenced(group, epoch, member, answer.reason)

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
            return self._append(self._event("release", group, epoch, member, detail=detail)).counted

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
            detail = {"replaces": replaces}
            answer = self._append(self._event("takeover", group, epoch, member, detail=detail))
            state = self._log.group(self._cluster, group)
            # The row does not count if the row of a lost answer came just before it.
            if not answer.counted and not _has_taken_over(state, epoch, member, replaces):
                raise self._fenced(group, epoch, member, answer.reason)

    def _refreshed(self, group: str) -> GroupState:
        self._log.refresh()
        return self._log.group(self._cluster, group)

    def _granted(
        self, row: Event, nonce: str | None, known: Callable[[GroupState], Epoch | None]
    ) -> Epoch:
        """Write the row of an epoch or claim under the next number, which others may take first.

        Args:
            row: The row without its id and epoch.
            nonce: The nonce of the epoch; None for a new one.
            known: Called with the state of the group before each attempt. It returns the epoch if
                an earlier call has written it, and raises if it must not be written any more.
        """
        group, member = row.group, row.member
        with self._lock:
            for _ in range(_NUMBER_TRIES):
                state = self._refreshed(group)
                before = known(state)
                if before is not None:
                    return before
                epoch = Epoch(state.highest + 1, nonce or uuid.uuid4().hex)
                answer = self._append(replace(row, id=self._new_id(), epoch=epoch))
                if answer.counted:
                    return epoch
                if answer.holder is not None:
                    raise ClaimConflict(group, member, *answer.holder)
            now = in_force(self._log.group(self._cluster, group))
            expected = epoch if row.kind == "claim" else row.previous
            raise EpochConflict(group, member, expected, now, "others took all its numbers")

    def _fenced(
        self,
        group: str,
        epoch: Epoch | None,
        member: str,
        reason: str,
        results: Mapping[TopicPartition, CommitResult] | None = None,
    ) -> FencedMember:
        """Return the error of a call that does not count, as far as the log was read."""
        now = in_force(self._log.group(self._cluster, group))
        return FencedMember(group, member, epoch, now, reason=reason, results=results)

    def _append(self, event: Event) -> Answer:
        return self._log.append(event)

    def _event(
        self,
        kind: str,
        group: str,
        epoch: Epoch | None,
        member: str,
        *,
        event_id: str | None = None,
        detail: Mapping[str, Any] | None = None,
        parts: tuple[Part, ...] = (),
    ) -> Event:
        """Return an event of a member, by default with a new id."""
        return Event(
            kind,
            event_id or self._new_id(),
            self._cluster,
            group,
            epoch,
            member=member,
            detail=detail or {},
            parts=parts,
        )

    def _new_id(self) -> str:
        # A prefix of the writer and a number: sets of such ids stay small (see CommitIds).
        self._written += 1
        return f"{self._writer}-{self._written}"


def in_force(state: GroupState) -> Epoch | None:
    """Return the epoch in force of a group; None without one."""
    return state.in_force.epoch if state.in_force else None


def _epoch_detail(
    members: Mapping[str, tuple[Share, ...]],
    *,
    topic_ids: Mapping[str, str] | None = None,
    takeover: bool = False,
    life_ms: int = 0,
    record_filter: str = "",
    lives: Mapping[str, int] | None = None,
    partitions: Mapping[str, int] | None = None,
    continues: Mapping[str, int] | None = None,
    sharing: str = "",
) -> dict[str, Any]:
    """Return the detail of the row of an epoch, which `GrantState.of` reads."""
    if sharing not in {"", COOPERATIVE}:
        raise ValueError(f"sharing must be {COOPERATIVE!r} or empty, not {sharing!r}")
    others = {name: one for name, one in (lives or {}).items() if one != life_ms}
    return {
        "members": {name: list(map(share_to_plain, some)) for name, some in members.items()},
        "topic_ids": dict(topic_ids or {}),
        "takeover": takeover,
        "life_ms": life_ms,
        **({"partitions": dict(partitions)} if partitions else {}),
        **({"filter": record_filter} if record_filter else {}),
        **({"continues": dict(continues)} if continues else {}),
        **({"sharing": sharing} if sharing else {}),
        **({"lives": others} if others else {}),
    }


def _claim_content(
    shares: tuple[Share, ...],
    session_ms: int,
    *,
    topic_ids: Mapping[str, str] | None = None,
    takeover: bool = False,
    life_ms: int = 0,
    record_filter: str = "",
) -> tuple[dict[str, Any], tuple[Part, ...]]:
    """Return the detail and the parts of the row of a claim, which `GrantState.of` reads."""
    detail = {
        "takeover": takeover,
        "life_ms": life_ms,
        "session_ms": session_ms,
        **({"filter": record_filter} if record_filter else {}),
    }
    ids = topic_ids or {}
    parts = tuple(
        Part(topic, partition, ids.get(topic, ""), *key_range)
        for topic, partition, key_range in shares
    )
    return detail, parts


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
