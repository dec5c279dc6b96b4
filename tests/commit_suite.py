"""What every commit table does, in any place and with any engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from commits import (
    CommitRefused,
    CommitResult,
    CommitStore,
    CommitTableNotFound,
    Epoch,
    EpochConflict,
    FencedMember,
    IndividualCommitTooOld,
    Pending,
)
from commits.entries import BEFORE, ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["P0", "P1", "as_written_before", "check_behaviour", "opened", "seen"]

P0, P1 = ("t", 0), ("t", 1)


def opened(store: CommitStore, *members: str, previous: Epoch | None = None) -> Epoch:
    """An epoch in which every member has both partitions."""
    shares = {member: [P0, P1] for member in members or ("m",)}
    return store.open_epoch("g", shares, previous=previous, topic_ids={"t": "id"})


def seen(store: CommitStore) -> list[object]:
    """All a user can see of the state of the group."""
    return [
        store.state("g"), store.pending("g"), store.assignment("g"),
        sorted(store.counted_commits("g")), store.settings(),
    ]  # fmt: skip


def check_behaviour(open_store: Callable[..., CommitStore]) -> None:
    """Answers, statuses, repeats, fencing, pending records, ends of logs: by two stores in turn.

    Args:
        open_store: Opens a table that is not there yet; with arguments of `CommitStore.open`.
    """
    with pytest.raises(CommitTableNotFound):
        open_store(create=False)
    store = open_store()
    old = opened(store, "m")
    far = 2**53 + 1
    store.start("g", old, "m", {P0: 43, P1: far})
    assert store.commit("g", old, "m", {P0: [(50, 50)], P1: [(far + 2, far + 2)]}) == {
        P0: CommitResult(43, 1, 0, 1),
        P1: CommitResult(far, 1, 0, 1),
    }
    first = store.commit("g", old, "m", {P0: [(45, 49)]}, commit_id="run-1",
                         pending={P0: [Pending(44, 2**63 - 1, 2, 5, "why")]})  # fmt: skip
    other = open_store()
    assert other.id == store.id
    assert other.commit("g", old, "m", {P0: [(45, 49)]}, commit_id="run-1") == first
    assert seen(other) == seen(store)
    assert other.pending("g") == {P0: {44: Pending(44, 2**63 - 1, 2, 5, "why")}}
    new = opened(other, "n", previous=old)
    with pytest.raises(FencedMember) as caught:  # it appends before it knows
        store.commit("g", old, "m", {P0: [(43, 44)]}, commit_id="late-1")
    assert caught.value.in_force == new
    with pytest.raises(EpochConflict):
        opened(store, "m", previous=old)
    with pytest.raises(CommitRefused, match="no share"):
        store.commit("g", new, "n", {("u", 0): [(0, 0)]})
    assert store.commit("g", new, "n", {P0: [(43, 43)]}, holes={P0: [(44, 44)]})[P0] == (
        CommitResult(51, 1, 0, 0)
    )
    with pytest.raises(IndividualCommitTooOld):
        other.commit("g", new, "n", {P0: [(43, 44)]})
    assert other.truncate("g", new, "n", {P0: 48})[P0].stable_offset == 48
    store.set_setting("x", {"y": [1]})
    counted = [e["counted"] for e in other.history("g") if e["id"] == "late-1"]
    assert counted == [False]
    assert seen(open_store()) == seen(other)


def as_written_before(path: str | Path) -> None:
    """Leaves a table as earlier versions have written it: entries have neither rows nor digests."""
    for entry in Path(path, "_delta_log").glob("*.json"):
        lines = []
        for action in map(json.loads, entry.read_text().splitlines()):
            if "commitInfo" in action:
                for name in (ROWS, BEFORE):
                    action["commitInfo"].pop(name, None)
            lines.append(json.dumps(action))
        entry.write_text("\n".join(lines))
