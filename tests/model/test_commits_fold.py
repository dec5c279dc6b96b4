"""The fold against a naive model: epochs, claims, takeovers, commits, zombies and repeats."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from unittest import mock

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import array

from assignors import KeyRange
from commits import Epoch, OffsetRanges, Pending
from commits import fold as fold_module
from commits import grants as grants_module
from commits.acquisitions import Acquisitions
from commits.fold import LogState
from commits.partition_commits import Answer
from commits.rows import Event, Part, decode, divided, encode
from commits.snapshot import newest_snapshot, snapshot_events
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commits import Doubt

#: How many logs are folded; `make chaos-store` folds many more.
_LOGS = int(os.environ.get("LOGS", examples(150)))

MEMBERS = ["a", "b", "c"]
PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
HALVES = [(0, 2**62), (2**62 + 1, 2**63 - 1)]

PLACE = st.sampled_from(PARTITIONS)
SHARE = st.tuples(PLACE, st.sampled_from(HALVES)).map(lambda drawn: (*drawn[0], *drawn[1]))
SHARES = st.lists(SHARE, min_size=2, max_size=6, unique=True)
OFFSETS = st.sets(st.integers(0, 12), max_size=5)
PICK = st.sampled_from(range(1000))  # of the members and ids there are
MEMBER = st.sampled_from(MEMBERS)
FLAG = st.booleans()

WORK = st.tuples(
    st.just("commit"), PICK, MEMBER, st.dictionaries(PLACE, OFFSETS, min_size=1), OFFSETS, FLAG
)
WANTED = st.tuples(st.integers(1, 4), st.integers(-1, 12), OFFSETS)
ACQUIRE = st.tuples(
    st.just("acquire"), PICK, MEMBER, st.dictionaries(PLACE, WANTED, min_size=1, max_size=2)
)
EPOCH = st.tuples(
    st.just("epoch"), st.dictionaries(MEMBER, SHARES, min_size=1, max_size=3), PICK, FLAG, FLAG,
    FLAG,
)  # fmt: skip
STEP = st.one_of(
    EPOCH,
    ACQUIRE, ACQUIRE.map(tuple), ACQUIRE.map(tuple),
    st.tuples(st.sampled_from(["renew", "expire", "expire"]), PICK, MEMBER, PICK, FLAG),
    st.tuples(st.just("claim"), MEMBER, SHARES, FLAG, FLAG),
    st.tuples(st.just("takeover"), PICK, MEMBER, MEMBER),
    st.tuples(st.just("release"), PICK, MEMBER, SHARES, st.none() | SHARES),
    WORK, WORK.map(tuple), WORK.map(tuple), WORK.map(tuple), WORK.map(tuple),
    st.tuples(
        st.sampled_from(["start", "log_start", "truncation"]), PICK, MEMBER, PLACE,
        st.integers(0, 12),
    ),
    st.tuples(st.just("reset"), PLACE, st.integers(0, 12)),
    st.tuples(st.just("repeat"), PICK),
)  # fmt: skip


@dataclass
class Kept:
    """How much of what is over is remembered: answers, those of partitions, ids of a member."""

    answers: int
    results: int
    unchanged: int


KEPT = st.builds(Kept, st.sampled_from([1, 4, 256]), st.sampled_from([0, 2, 1000]),
                 st.sampled_from([1, 16]))  # fmt: skip


@dataclass
class Owner:
    """An epoch or a claim of the model."""

    epoch: Epoch
    shares: dict[str, set[tuple[str, int, int, int]]]
    gone: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    unchanged: dict[str, list[str]] = field(default_factory=dict)
    doubts: set[tuple[str, int, int, int]] = field(default_factory=set)
    handed: dict[str, set[tuple[str, int, int, int]]] = field(default_factory=dict)
    is_claim: bool = False
    cooperative: bool = False


@dataclass
class Chunk:
    """Offsets that a request of a member has acquired."""

    member: str
    offsets: set[int]
    renewals: int = 0


@dataclass
class Naive:
    """The rules of the log, said as simply as possible: sets of offsets, loops over everything."""

    done: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    pending: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    in_force: Owner | None = None
    claims: list[Owner] = field(default_factory=list)
    highest: int = 0
    kept: Kept = field(default_factory=lambda: Kept(256, 1000, 16))
    answered: list[str] = field(default_factory=list)
    counted: set[str] = field(default_factory=set)
    refused: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    loose: set[tuple[str, int, int, int]] = field(default_factory=set)
    reached: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    chunks: dict[tuple[str, int], dict[str, Chunk]] = field(default_factory=dict)
    marker: dict[tuple[str, int], int] = field(default_factory=dict)
    not_held: dict[str, dict[tuple[str, int], set[int]]] = field(default_factory=dict)

    def settle(self, owner: Owner, member: str, shares: set[tuple[str, int, int, int]]) -> None:
        """A member goes: on these shares it may still be at work."""
        if member not in owner.settled:
            owner.settled.add(member)
            self.loose |= set() if owner.cooperative else shares

    def end_chunks(self, places: set[tuple[str, int]]) -> None:
        """Nobody acquires there any more: members may still be at work on what they have."""
        for at in places:
            if self.chunks.get(at):
                self.loose |= {(*at, *half) for half in HALVES}
            self.chunks[at], self.marker[at] = {}, 0

    def keep(self, at: tuple[str, int], gone: set[int]) -> None:
        """Takes offsets from all chunks of a partition."""
        for name, chunk in [*self.chunks.get(at, {}).items()]:
            chunk.offsets -= gone
            if not chunk.offsets:
                del self.chunks[at][name]

    def end(self, owner: Owner) -> None:
        if owner.cooperative:
            self.loose |= owner.doubts
            return
        for member, shares in owner.shares.items():
            self.settle(owner, member, shares - owner.handed.get(member, set()))

    def take(self, owner: Owner, shares: set[tuple[str, int, int, int]]) -> None:
        owner.doubts |= self.loose & shares
        self.loose -= shares

    def owner(self, epoch: Epoch | None, member: str, *, gone_too: bool = False) -> Owner | None:
        for owner in [*([self.in_force] if self.in_force else []), *self.claims]:
            is_there = gone_too or (member in owner.shares and member not in owner.gone)
            if owner.epoch == epoch and is_there:
                return owner
        return None

    def in_the_way(
        self, shares: set[tuple[str, int, int, int]], owners: list[Owner]
    ) -> list[tuple[Owner, str]]:
        return [
            (owner, member)
            for owner in owners
            for member, held in owner.shares.items()
            if member not in owner.gone and held & shares  # halves overlap only if they are equal
        ]

    def stable(self, at: tuple[str, int]) -> int:
        offset = 0
        while offset in self.done.get(at, set()):
            offset += 1
        return offset

    def knows(self, event: Event) -> bool:
        """Whether the id of an event is remembered."""
        owner = self.owner(event.epoch, event.member, gone_too=True)
        unchanged = owner.unchanged.get(event.member, []) if owner else []
        has_chunk = event.kind == "acquire" and any(
            owner and event.id in found for found in self.chunks.values()
        )
        return event.id in {*self.answered, *self.counted, *unchanged} or has_chunk

    def apply(self, event: Event) -> bool:
        """Whether an event that is not known counts at its place."""
        before = {at: set(done) for at, done in self.done.items()}
        counted = self.folded(event)
        self.answered = [*self.answered, event.id][-self.kept.answers :]
        is_commit = counted and event.kind == "commit"
        if is_commit and event.id not in self.counted:
            owner = self.owner(event.epoch, event.member)
            assert owner is not None
            ids = owner.unchanged.setdefault(event.member, [])
            ids.append(event.id)
            del ids[: -self.kept.unchanged]
            holes = [p.topic_partition for p in event.parts if p.holes]
            for at, done in self.done.items():
                assert at in holes or done == before.get(at, set())
        return counted

    def folded(self, event: Event) -> bool:
        """Applies an event; whether it counts."""
        if event.kind in {"epoch", "claim"}:
            assert event.epoch is not None
            is_next, self.highest = (
                event.epoch.number > self.highest,
                max(self.highest, event.epoch.number),
            )
            previous = self.in_force.epoch if self.in_force else None
            if not is_next or (event.kind == "epoch" and event.previous != previous):
                return False
            if event.kind == "epoch":
                shares = {
                    member: {tuple(share) for share in held}
                    for member, held in event.detail["members"].items()
                }
                others = list(self.claims)
            else:
                held = {(p.topic, p.partition, p.first, p.last) for p in event.parts}
                shares = {event.member: held}  # type: ignore[dict-item]
                others = [*self.claims, *([self.in_force] if self.in_force else [])]
            obstacles = self.in_the_way(set().union(*shares.values()), others)  # type: ignore[arg-type]
            if obstacles and not event.detail["takeover"]:
                return False
            for owner, member in obstacles:
                owner.gone.add(member)
                kept = owner.shares[member] - owner.handed.get(member, set())
                self.settle(owner, member, kept)
            new = Owner(event.epoch, shares, is_claim=event.kind == "claim")  # type: ignore[arg-type]
            self.claims = [claim for claim in self.claims if not set(claim.shares) <= claim.gone]
            if new.is_claim:
                self.claims.append(new)
            else:
                if self.in_force:
                    self.end(self.in_force)
                self.in_force = new
                new.cooperative = event.detail["sharing"] == "cooperative"
            if not new.cooperative:
                held = set().union(*new.shares.values())
                self.end_chunks({s[:2] for s in held} if new.is_claim else {*PARTITIONS})
            self.take(new, set().union(*new.shares.values()))
        elif event.kind == "reset":
            for owner in [*([self.in_force] if self.in_force else []), *self.claims]:
                self.end(owner)
            self.in_force, self.claims = None, []
            (part,) = event.parts
            self.done[part.topic_partition] = set(range(part.first or 0))
            self.pending[part.topic_partition] = set()
            self.end_chunks({part.topic_partition})
            self.reached[part.topic_partition] = []
        elif event.kind == "takeover":
            old, new_id = event.detail["replaces"], event.member
            owner = self.owner(event.epoch, old)
            if owner is None and self.in_force and self.in_force.epoch == event.epoch:
                # Who has released may be replaced, unless somebody claimed it.
                was_released = old in self.in_force.released
                if was_released and not self.in_the_way(self.in_force.shares[old], self.claims):
                    owner = self.in_force
            if owner is None or (new_id in owner.shares and new_id != old):
                return False
            mine = owner.shares[old]
            self.settle(owner, old, mine)
            owner.gone.add(old)
            owner.released.discard(old)
            owner.shares[new_id] = mine
            owner.gone.discard(new_id)
            owner.settled.discard(new_id)
            owner.handed.pop(new_id, None)
            self.take(owner, mine)
        else:
            owner = self.owner(event.epoch, event.member)
            if owner is None:
                return False
            running = {tuple(share) for share in event.detail.get("running", ())}
            if event.kind == "release" and owner.cooperative:
                at_work, places = {share[:2] for share in running}, {*PARTITIONS}
                if "shares" in event.detail:
                    places = {tuple(share[:2]) for share in event.detail["shares"]}
                else:
                    owner.doubts &= running
                for at in places - at_work:
                    mine = [c for c in self.chunks.get(at, {}).values() if c.member == event.member]
                    self.keep(at, set().union(*(chunk.offsets for chunk in mine)))
                running = set()
            if event.kind == "release" and "shares" in event.detail:
                given = {tuple(share) for share in event.detail["shares"]}
                owner.handed.setdefault(event.member, set()).update(given)
                self.loose |= running
            elif event.kind == "release":
                owner.gone.add(event.member)
                owner.released.add(event.member)
                self.settle(owner, event.member, running)
                self.claims = [c for c in self.claims if not set(c.shares) <= c.gone]
            # Where partitions start, the leader writes for all members.
            of_all = event.kind in {"start", "expire"}
            held = owner.shares.values() if of_all else [owner.shares[event.member]]
            own = {share[:2] for share in set().union(*held)}
            for part in event.parts:
                if part.topic_partition in own:
                    self.change(event, part, owner)
            left = {part.topic_partition for part in event.parts} - own
            if left and event.id in self.counted:
                self.refused[event.id] = left
        return True

    def change(self, event: Event, part: Part, owner: Owner) -> None:
        at, first = part.topic_partition, part.first or 0
        is_new = at not in self.done
        if event.kind in {"acquire", "renew", "expire"}:
            self.of_chunks(event, part, owner)
            return
        done, pending = self.done.setdefault(at, set()), self.pending.setdefault(at, set())
        if event.kind == "commit":
            offered = set(part.offsets.offsets().tolist())
            chunks = self.chunks.get(at, {}).values()
            others = {o for c in chunks if c.member != event.member for o in c.offsets}
            offsets = offered - others
            if (not offsets and not offered) or offsets - done:
                self.counted.add(event.id)
            failed = {one.offset for one in part.pending} - others
            if owner.cooperative and offered & (others | done):
                self.not_held.setdefault(event.id, {})[at] = offered & (others | done)
            done |= offsets | set(part.holes.offsets().tolist())
            pending |= failed
            self.keep(at, failed if owner.cooperative else set())
            reached = self.reached.setdefault(at, [])
            reached += [(o, e) for *place, o, e in event.detail["reached"] if tuple(place) == at]
        elif event.kind == "log_start" or (event.kind == "start" and is_new):
            done |= set(range(first))
        elif event.kind == "truncation":
            self.done[at] = {offset for offset in done if offset < first}
            self.pending[at] = {offset for offset in pending if offset < first}
            self.reached[at] = []
            self.keep(at, {o for c in self.chunks.get(at, {}).values() for o in c.offsets
                           if o >= first})  # fmt: skip
            self.marker[at] = min(self.marker.get(at, 0), first)
        self.pending[at] -= self.done[at]
        self.keep(at, self.done[at])

    def of_chunks(self, event: Event, part: Part, owner: Owner) -> None:
        """Acquires, renews and expires chunks of a partition that has begun."""
        at = part.topic_partition
        if event.kind == "acquire" and (at not in self.done or not owner.cooperative):
            return
        if event.kind != "acquire":
            self.done.setdefault(at, set())
            self.pending.setdefault(at, set())
            for *place, name, renewals in event.detail["chunks"]:
                chunk = self.chunks.get(at, {}).get(name)
                if tuple(place) != at or chunk is None:
                    continue
                if event.kind == "renew" and chunk.member == event.member:
                    chunk.renewals += 1
                elif event.kind == "expire" and chunk.renewals == renewals:
                    del self.chunks[at][name]
            return
        (count,) = (
            n for p, n in zip(event.parts, event.detail["counts"], strict=True) if p is part
        )
        held = {o for chunk in self.chunks.get(at, {}).values() for o in chunk.offsets}
        free = [o for o in range(20) if o not in self.done[at] | held]
        waiting, start = self.pending[at], max(self.marker.get(at, 0), self.stable(at))
        due = [o for o in free if o in waiting and o in part.offsets]
        returned = [o for o in free if o < start and o not in waiting]
        new = [o for o in free if start <= o <= (part.last or 0) and o not in waiting]
        got = [*due, *returned, *new][:count]
        if got:
            self.chunks.setdefault(at, {})[event.id] = Chunk(event.member, set(got))
        self.marker[at] = max([self.marker.get(at, 0), *(o + 1 for o in got if o in new)])


def event_of(  # noqa: PLR0911 - one for each kind of step
    step: tuple[object, ...], number: int, seen: list[Event], naive: Naive
) -> Event:
    """The event of a step; picks among what there was, so that zombies and repeats are common."""
    kind, *rest = step
    event_id = f"w-{number}"
    epochs = [event.epoch for event in seen if event.kind in {"epoch", "claim"}]
    owners = [*([naive.in_force] if naive.in_force else []), *naive.claims]
    live = [(o.epoch, m) for o in owners for m in sorted(o.shares) if m not in o.gone]

    def pick(at: object, member: object) -> tuple[Epoch, str]:
        """Four times of five an owner that may commit, else anybody under any epoch."""
        assert isinstance(at, int)
        assert isinstance(member, str)
        if live and at % 5 < 4:
            return live[at // 5 % len(live)]
        return (epochs[at // 5 % len(epochs)] if epochs else None) or Epoch(99, "x"), member

    if kind == "repeat":
        return seen[rest[0] % len(seen)] if seen else Event("release", event_id, epoch=Epoch(9, ""))  # type: ignore[operator]
    if kind == "epoch":
        members, at, takeover, is_stale, uses_chunks = rest
        previous = naive.in_force.epoch if naive.in_force else None
        if is_stale and epochs:
            previous = epochs[at % len(epochs)]  # type: ignore[operator]
        detail = {
            "members": {m: [list(s) for s in held] for m, held in members.items()},  # type: ignore[attr-defined]
            "topic_ids": {}, "takeover": takeover,
            "sharing": "cooperative" if uses_chunks else "",
        }  # fmt: skip
        epoch = Epoch(naive.highest + (0 if is_stale else 1), f"n{number}")
        return Event("epoch", event_id, epoch=epoch, previous=previous, detail=detail)
    if kind == "claim":
        member, shares, takeover, is_stale = rest
        epoch = Epoch(naive.highest + (0 if is_stale else 1), f"n{number}")
        parts = tuple(Part(t, p, first=first, last=last) for t, p, first, last in shares)  # type: ignore[attr-defined]
        return Event("claim", event_id, epoch=epoch, member=member, parts=parts,  # type: ignore[arg-type]
                     detail={"takeover": takeover})  # fmt: skip
    if kind == "takeover":
        at, old, new = rest
        released = sorted(naive.in_force.released) if naive.in_force else []
        if released and at % 2:  # type: ignore[operator]
            epoch, old = naive.in_force.epoch, released[at // 2 % len(released)]  # type: ignore[union-attr, operator]
            new = old if at % 3 == 0 else new  # type: ignore[operator]
        else:
            epoch, old = pick(at, old)
        return Event("takeover", event_id, epoch=epoch, member=new, detail={"replaces": old})  # type: ignore[arg-type]
    if kind == "reset":
        return Event("reset", event_id, parts=(Part(*rest[0], first=rest[1]),))  # type: ignore[misc, arg-type]
    at, member, *about = rest
    epoch, member = pick(at, member)
    if kind == "release":
        detail = {"running": [list(share) for share in about[0]]}  # type: ignore[attr-defined]
        if about[1] is not None:
            detail["shares"] = [list(share) for share in about[1]]  # type: ignore[attr-defined]
        return Event(kind, event_id, epoch=epoch, member=member, detail=detail)
    parts, detail = (), {}
    if kind == "acquire":
        parts = tuple(
            Part(*place, last=last, offsets=OffsetRanges.from_offsets(due))
            for place, (_, last, due) in about[0].items()  # type: ignore[attr-defined]
        )
        counts = [count for count, _, _ in about[0].values()]  # type: ignore[attr-defined]
        return Event(kind, event_id, epoch=epoch, member=member, parts=parts,  # type: ignore[arg-type]
                     detail={"counts": counts})  # fmt: skip
    if kind in {"renew", "expire"}:
        found = [(*at, name, c.renewals) for at, held in naive.chunks.items()
                 for name, c in held.items()]  # fmt: skip
        *place, name, renewals = found[about[0] % len(found)] if found else ("t", 0, "x", 0)  # type: ignore[operator]
        return Event(kind, event_id, epoch=epoch, member=member, parts=(Part(*place),),  # type: ignore[arg-type]
                     detail={"chunks": [[*place, name, renewals + about[1]]]})  # type: ignore[operator] # fmt: skip
    if kind == "commit":
        done, others, are_holes = about
        ends = [[*place, max(offsets) + 1] for place, offsets in done.items() if offsets]  # type: ignore[attr-defined]
        detail = {"reached": [[*end, number % 4] for end in ends]}
        parts = tuple(
            Part(
                *place,
                offsets=OffsetRanges.from_offsets(offsets),
                holes=OffsetRanges.from_offsets(others if are_holes else []),  # type: ignore[arg-type]
                pending=() if are_holes else tuple(map(failed_record, others)),  # type: ignore[attr-defined]
            )
            for place, offsets in done.items()  # type: ignore[attr-defined]
        )
    elif about:
        parts = (Part(*about[0], first=about[1]),)  # type: ignore[misc, arg-type]
    return Event(kind, event_id, epoch=epoch, member=member, parts=parts, detail=detail)  # type: ignore[arg-type]


def failed_record(offset: int) -> Pending:
    """A pending record; every third one has added headers."""
    headers = (("h", b"%d" % offset), ("none", None)) if offset % 3 == 0 else ()
    return Pending(offset, headers=headers)


def through_the_table(events: list[Event], most: int = 1000) -> list[Event]:
    """The events as they come back from rows of the table, commits of at most so many ranges."""
    tables = []
    for version, event in enumerate(events):
        parts = event.parts
        if event.kind == "commit":
            parts = tuple(piece for part in parts for piece in divided(part, most))
        rows = encode([replace(event, parts=parts)], 0)
        tables.append(rows.append_column("_commit_version", array([version] * len(rows))))
    return [event for rows in tables for _, event in decode(rows, "")]


# Shrinking a failing log takes minutes and shows little more than the log itself.
@settings(max_examples=_LOGS, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(STEP, min_size=15, max_size=50), st.sets(st.integers(0, 50), max_size=2), KEPT)
def test_the_fold_agrees_with_a_naive_model(
    steps: list[tuple[object, ...]], cuts: set[int], kept: Kept
) -> None:
    """Which events count, what is committed and pending, and who owns what, step by step.

    The stable offset falls by nothing but a reset or a truncation; what is not in force changes
    nothing; a repeated event gets its first answer as long as that is kept, and changes nothing as
    long as its id is known; snapshots of any prefixes and the rest come to the same state as the
    whole log, and so do the rows of the table.
    """
    with (
        mock.patch.object(fold_module, "KEPT_ANSWERS", kept.answers),
        mock.patch.object(fold_module, "KEPT_RESULTS", kept.results),
        mock.patch.object(grants_module, "KEPT_UNCHANGED", kept.unchanged),
    ):
        fold_and_compare(steps, cuts, kept)


def halves(doubts: Iterable[Doubt]) -> set[tuple[str, int, int, int]]:
    """The halves of partitions that are in doubt."""
    return {
        (*doubt.share[:2], *half)
        for doubt in doubts
        for half in HALVES
        if doubt.share.key_range.intersect(KeyRange(*half)) == half
    }


def compare_chunks(acquisitions: Acquisitions, naive: Naive, at: tuple[str, int]) -> None:
    """Who holds what; nobody holds what is done or what another one holds."""
    found = {
        name: Chunk(chunk.member, set(chunk.offsets.offsets().tolist()), chunk.renewals)
        for name, chunk in acquisitions.chunks.items()
    }
    assert found == naive.chunks.get(at, {})
    assert acquisitions.marker == naive.marker.get(at, 0)
    held = [offset for chunk in found.values() for offset in chunk.offsets]
    assert len(held) == len({*held} - naive.done.get(at, set()))
    for member in MEMBERS:
        mine = {o for chunk in found.values() if chunk.member == member for o in chunk.offsets}
        assert set(acquisitions.held_by(member).offsets().tolist()) == mine


def fold_and_compare(steps: list[tuple[object, ...]], cuts: set[int], kept: Kept) -> None:
    """Folds events beside the model; see above."""
    naive, log = Naive(kept=kept), LogState()
    events: list[Event] = []
    answers: dict[str, Answer] = {}
    readers: list[LogState] = []  # that began with a snapshot
    for number, step in enumerate(steps):
        if number in cuts:
            source = readers[-1] if readers else log  # also a snapshot of a snapshot
            reader = newest_snapshot(through_the_table(snapshot_events(source, "s")))
            assert reader is not None
            assert reader == log
            readers.append(reader)
        group = log.group("", "")
        before = {at: state.commits.stable_offset for at, state in group.partitions.items()}
        event = event_of(step, number, events, naive)
        is_known = naive.knows(event)
        assert log.knows(event) == is_known
        expected = not is_known and naive.apply(event)
        ((_, answer),) = log.fold([event])
        for reader in readers:
            ((_, same),) = reader.fold([event])
            assert same == answer
        group = log.group("", "")
        first = answers.get(event.id)
        if not is_known:
            assert answer.counted == expected, answer
            answers[event.id] = answer
        elif answer != first:
            # The first answer is not kept: a repeat gets the answer of any duplicate.
            assert first is not None
            assert kept.results < 1000 or event.id not in naive.answered
            assert answer.counted == (first.counted or event.id not in naive.answered)
            for at, result in answer.results.items():
                was_refused = first.results[at].status == "refused"
                assert result.status == ("refused" if was_refused else "duplicate")
        assert len(group.answers) <= kept.answers
        assert sum(len(one.results) for one in group.answers.values()) <= kept.results
        events.append(event)
        for at, state in group.partitions.items():
            assert state.commits.stable_offset == naive.stable(at), at
            done = set(range(state.commits.stable_offset)) | set(
                state.commits.ranges.offsets().tolist()
            )
            assert done == naive.done.get(at, set())
            assert set(state.pending) == naive.pending.get(at, set())
            assert state.reached == max(naive.reached.get(at) or [None])
            compare_chunks(state.acquisitions, naive, at)
            if event.kind not in {"reset", "truncation"}:
                assert state.commits.stable_offset >= before.get(at, 0)
        assert set(group.counted) == naive.counted
        refused = {one: set(at) for one, at in group.refused.items() if one in group.counted}
        assert refused == naive.refused
        not_held = {
            one: {at: set(lost.offsets().tolist()) for at, lost in places.items()}
            for one, places in group.not_held.items()
        }
        assert not_held == {
            one: places for one, places in naive.not_held.items() if one in naive.counted
        }
        assert {*group.refused} <= naive.counted | {*naive.answered}
        in_force = group.in_force.epoch if group.in_force else None
        assert in_force == (naive.in_force.epoch if naive.in_force else None)
        assert set(group.claims) == {claim.epoch.nonce for claim in naive.claims}
        assert halves(group.loose) == naive.loose
        for owner in [*([naive.in_force] if naive.in_force else []), *naive.claims]:
            grant = group.grant(owner.epoch)
            assert grant is not None
            assert halves(grant.doubts) == owner.doubts
    assert all(reader == log for reader in readers)
    read = LogState()
    list(read.fold(through_the_table(events, most=2)))
    assert read == log


@settings(max_examples=100, deadline=None)
@given(OFFSETS, OFFSETS, OFFSETS, st.integers(1, 4))
def test_a_divided_commit_is_the_same_commit(
    done: set[int], holes: set[int], failed: set[int], most: int
) -> None:
    """No row has more ranges than allowed, none is needless, and together they say the same."""
    part = Part(
        *PARTITIONS[0],
        offsets=OffsetRanges.from_offsets(done),
        holes=OffsetRanges.from_offsets(holes),
        pending=tuple(map(failed_record, sorted(failed))),
    )
    pieces = divided(part, most)
    counts = [max(one.offsets.range_count, one.holes.range_count) for one in pieces]
    assert all(count <= most for count in counts)
    whole = max(part.offsets.range_count, part.holes.range_count)
    assert len(pieces) == max(1, -(-whole // most))
    event = Event("commit", "x", parts=(part,))
    (same,), (found,) = through_the_table([event]), through_the_table([event], most)
    assert found == same
