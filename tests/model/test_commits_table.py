"""The commit store on real Delta tables against a naive model: what may come in any order.

Several stores commit, open epochs, write snapshots, crash in the middle of an append or of a
snapshot, and lose answers; others optimise, restore and clean the table in between. Shares are
claimed by hand and given back, and processes take over from each other.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from commits import (
    ClaimConflict,
    CommitLogUnavailable,
    CommitStore,
    Epoch,
    EpochConflict,
    FencedMember,
    Pending,
)
from tests.chaos.store import play
from tests.lost_answers import lose

WRITERS = 3
AT = ("t", 0)

HALVES = [("t", 0, 0, 2**62), ("t", 0, 2**62 + 1, 2**63 - 1)]

WHO = st.integers(0, WRITERS - 1)
OFFSETS = st.sets(st.integers(0, 30), min_size=1, max_size=4)
LOSS = st.sampled_from(["none", "none", "none", "answer", "row"])
STEP = st.one_of(
    st.tuples(st.just("commit"), WHO, OFFSETS, LOSS),
    st.tuples(st.just("commit"), WHO, OFFSETS, LOSS),
    st.tuples(st.just("commit"), WHO, OFFSETS, LOSS),
    st.tuples(st.just("epoch"), WHO),
    st.tuples(st.just("claim"), WHO, st.integers(0, 1), st.booleans(), LOSS),
    st.tuples(st.just("claim"), WHO, st.integers(0, 1), st.booleans(), LOSS),
    st.tuples(st.just("release"), WHO, st.integers(0, 1)),
    st.tuples(st.just("take over"), WHO, st.booleans(), LOSS),
    st.tuples(st.just("take over"), WHO, st.booleans(), LOSS),
    st.tuples(st.just("idle"), WHO, OFFSETS),
    st.tuples(st.just("compact"), WHO, st.sampled_from(["", "", "before", "after", "checkpoint"])),
    st.tuples(st.just("restart"), WHO),
    st.tuples(st.just("others"), st.sampled_from(["optimize", "restore", "vacuum", "clean"])),
)


@dataclass
class Model:
    """What ought to be: sets of offsets, and the epoch in force."""

    done: dict[str, set[int]] = field(default_factory=lambda: {"g": set(), "idle": set()})
    in_force: Epoch | None = None
    counted: set[str] = field(default_factory=set)
    restored: bool = False
    claims: dict[int, tuple[Epoch, str]] = field(default_factory=dict)  # by half
    places: list[str] = field(default_factory=lambda: ["s0"])  # each took over from the last


class Stores:
    """The stores of some processes, and how each step is done and judged."""

    def __init__(self, path: str) -> None:
        self.path, self.model, self.number = path, Model(), 0
        self.stores = [self.opened() for _ in range(WRITERS)]
        self.epochs: list[Epoch | None] = [None] * WRITERS
        self.idle = self.stores[0].open_epoch("idle", {"i": [AT]}, previous=None)
        self.static = self.stores[0].open_epoch("static", {"s0": [AT]}, previous=None)

    def opened(self) -> CommitStore:
        return CommitStore.open(self.path, segment_versions=4, snapshot_commits=11)

    def commit(self, who: int, offsets: set[int], loss: str) -> None:
        store, epoch, model = self.stores[who], self.epochs[who], self.model
        if epoch is None:
            return
        self.number += 1
        commit_id = f"run-{self.number}"

        def call() -> Any:
            pending = {AT: [Pending(31, attempts=self.number)]}
            return store.commit("g", epoch, f"m{who}", {AT: [(o, o) for o in offsets]},
                                pending=pending, commit_id=commit_id, too_old="report")  # fmt: skip

        if loss != "none" and epoch == model.in_force:
            lose(store, loss)
            try:
                call()
            except CommitLogUnavailable:
                pass
            else:
                raise AssertionError("an answer that was lost came")
        try:
            answer = call()
        except FencedMember:
            assert epoch != model.in_force
            self.epochs[who] = None
            return
        assert epoch == model.in_force
        fresh = offsets - model.done["g"]
        assert answer[AT].committed == len(fresh)
        model.done["g"] |= offsets
        if fresh:
            model.counted.add(commit_id)
        assert call() == answer  # once more: the first answer

    def epoch(self, who: int) -> None:
        store, model = self.stores[who], self.model
        previous = self.epochs[who] or model.in_force
        members = {f"m{number}": [AT] for number in range(WRITERS)}
        if previous != model.in_force:
            with pytest.raises(EpochConflict) as caught:
                store.open_epoch("g", members, previous=previous)
            assert caught.value.in_force == model.in_force
        else:
            model.in_force = store.open_epoch("g", members, previous=previous)
        self.epochs[who] = model.in_force

    def claim(self, who: int, half: int, takeover: bool, loss: str) -> None:
        """A claim; where its answer is lost, another process asks with its nonce."""
        claims = self.model.claims
        self.number += 1
        member = f"h{self.number}"

        def call(who: int) -> Epoch:
            return self.stores[who].claim("hand", member, [HALVES[half]], takeover=takeover,
                                          nonce=f"n{member}")  # fmt: skip

        if loss != "none":
            lose(self.stores[who], loss)
            with pytest.raises(CommitLogUnavailable):
                call(who)
        if half in claims and not takeover:
            with pytest.raises(ClaimConflict) as caught:
                call((who + 1) % WRITERS)
            assert (caught.value.holder_epoch, caught.value.holder) == claims[half]
            return
        epoch = call((who + 1) % WRITERS)
        assert all(epoch.number > other.number for other, _ in claims.values())
        claims[half] = epoch, member
        assert call(who) == epoch

    def release(self, who: int, half: int) -> None:
        if half in self.model.claims:
            assert self.stores[who].release("hand", *self.model.claims.pop(half))

    def take_over(self, who: int, is_late: bool, loss: str) -> None:
        """A new process of a static member, or one that was taken over already."""
        places = self.model.places
        if is_late and len(places) > 2:
            with pytest.raises(FencedMember):
                self.stores[who].take_over("static", self.static, places[1], replaces=places[0])
            return
        member, replaces = f"s{len(places)}", places[-1]

        def call(who: int) -> None:
            self.stores[who].take_over("static", self.static, member, replaces=replaces)

        if loss != "none":
            lose(self.stores[who], loss)
            with pytest.raises(CommitLogUnavailable):
                call(who)
        call((who + 1) % WRITERS)
        call(who)
        places.append(member)

    def commit_idle(self, who: int, offsets: set[int]) -> None:
        """A group that commits once in a while."""
        self.stores[who].commit("idle", self.idle, "i", {AT: [(o, o) for o in offsets]},
                                too_old="report")  # fmt: skip
        self.model.done["idle"] |= offsets

    def compact(self, who: int, crash: str) -> None:
        store = self.stores[who]
        engine: Any = store._engine
        if crash:
            step = {"before": "replace", "after": "tidy", "checkpoint": "_checkpoint"}[crash]
            setattr(engine, step, _unplugged)
        try:
            store.compact()
        except CommitLogUnavailable:
            assert crash
        if crash:
            self.stores[who] = self.opened()

    def others(self, what: str) -> None:
        table = DeltaTable(self.path)
        if what == "optimize":
            table.optimize.compact()
        elif what == "restore" and not self.model.restored:
            table.restore(max(0, table.version() - 3))
            self.model.restored = True
        elif what == "vacuum" and not self.model.restored:
            table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        elif what == "clean":
            self.stores[0].compact()
            self.model.restored = False  # a snapshot has saved what a restore took out
            table = DeltaTable(self.path)
            table.create_checkpoint()
            table.cleanup_metadata()

    def look(self) -> None:
        for store in self.stores:
            for group, done in self.model.done.items():
                state = store.state(group).get(AT)
                found = set(range(state.stable_offset)) | set(state.ranges.offsets().tolist()) \
                    if state else set()  # fmt: skip
                assert found == done
            assert store.current_epoch("g") == self.model.in_force
            assert set(store.counted_commits("g")) == self.model.counted
            claims = {(claim.epoch, *claim.members) for claim in store.claims("hand")}
            assert claims == set(self.model.claims.values())
            row = store.assignment("static", self.static)
            assert row is not None
            assert set(row.members) - set(row.fenced) == {self.model.places[-1]}


def _unplugged(*_: object, **__: object) -> int:
    raise CommitLogUnavailable("table", "compact", "unplugged")


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck),
          phases=[Phase.explicit, Phase.reuse, Phase.generate])  # fmt: skip
@given(st.lists(STEP, min_size=15, max_size=30))
def test_a_table_agrees_with_a_naive_model(steps: list[tuple[Any, ...]]) -> None:
    """After every step all stores say the same, and so does a new one at the end."""
    with tempfile.TemporaryDirectory() as folder:
        stores = Stores(folder + "/commits")
        stores.epoch(0)
        for kind, *rest in steps:
            if kind == "commit":
                stores.commit(*rest)
            elif kind == "epoch":
                stores.epoch(*rest)
            elif kind == "claim":
                stores.claim(*rest)
            elif kind == "release":
                stores.release(*rest)
            elif kind == "take over":
                stores.take_over(*rest)
            elif kind == "idle":
                stores.commit_idle(*rest)
            elif kind == "compact":
                stores.compact(*rest)
            elif kind == "restart":
                stores.stores[rest[0]] = stores.opened()
            else:
                stores.others(*rest)
        stores.look()
        stores.stores = [stores.opened()]
        stores.look()


@pytest.mark.slow
def test_killed_writers_lose_nothing_and_fence_each_other(tmp_path: Path) -> None:
    """Real processes, killed and frozen; `make chaos-store` does it for longer."""
    assert "nothing wrong" in play(tmp_path, rounds=3, seed=1)
