"""One individual commit of scattered offsets, against a bare append."""

from __future__ import annotations

import random
import uuid
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

from assignors import KeyRange, Share
from commits import CommitStore
from commits.rows import SCHEMA
from tests.bench.figures import Ratio, Report, seconds_of, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable

    from commits import Epoch
    from tests.bench.harness import Harness

_AT = ("topic", 0)
_OURS = "commit of 10,000 scattered offsets, answered"
_ONE = "commit of one offset, answered"
_MANY_UNSYNCED = "10,000 offsets, syncCommits off"
_ONE_UNSYNCED = "one offset, syncCommits off"
_BARE = "bare append of one row"


def commit(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Milliseconds of a commit, call to answer, against a one-row append to such a table."""
    from deltalake import DeltaTable

    rounds = harness.size(20, 3)
    scattered, single = _Committer(harness, 10_000), _Committer(harness, 1)
    many_unsynced = _Committer(harness, 10_000, is_synced=False)
    one_unsynced = _Committer(harness, 1, is_synced=False)
    # The same kind of table: made by the store itself, then written without it.
    target = str(harness.path("bare"))
    CommitStore.open(target)
    handle = DeltaTable(target)
    sides: dict[str, Callable[[int], float]] = {
        _OURS: lambda turn: scattered.milliseconds(turn, rounds),
        _ONE: lambda turn: single.milliseconds(turn, rounds),
        _MANY_UNSYNCED: lambda turn: many_unsynced.milliseconds(turn, rounds),
        _ONE_UNSYNCED: lambda turn: one_unsynced.milliseconds(turn, rounds),
        _BARE: lambda _: _bare(handle, rounds),
    }
    report = Report(
        "An individual commit",
        "10,000 offsets drawn at random from 100,000, every commit above the last one, so that the "
        "ranges above the stable offset grow; from the call to the answer with the new stable "
        "offset. The bare side is `write_deltalake` through an open handle, to a table made the "
        f"same way. Each value is the median of {rounds} commits.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "ms")
    report.ratios = [
        Ratio("10,000 scattered offsets / bare append", _OURS, _BARE, at_most=3.0),
        Ratio("one offset / bare append", _ONE, _BARE),
    ]
    return [report]


class _Committer:
    """A member that commits as many offsets a time, to a new group each turn."""

    def __init__(self, harness: Harness, offsets: int, *, is_synced: bool = True) -> None:
        self._store = CommitStore.open(harness.path("commits"))
        self._store.set_setting("syncCommits", is_synced)
        self._random = random.Random(7)
        self._offsets = offsets

    def milliseconds(self, turn: int, rounds: int) -> float:
        """The median of some commits."""
        group, share = f"bench-{turn}", Share(*_AT, KeyRange())
        epoch = self._store.open_epoch(group, {"member": [share]}, previous=None, generation=1)
        self._store.start(group, epoch, "member", {_AT: 0})
        return 1000 * median(self._once(group, epoch, number) for number in range(rounds))

    def _once(self, group: str, epoch: Epoch, number: int) -> float:
        first, span = 1 + number * 10 * self._offsets, 10 * self._offsets
        drawn = sorted(self._random.sample(range(first, first + span), self._offsets))
        pairs = [(offset, offset) for offset in drawn]
        return seconds_of(lambda: self._store.commit(group, epoch, "member", {_AT: pairs}))


def _bare(handle: DeltaTable, rounds: int) -> float:
    from deltalake import write_deltalake

    def append() -> None:
        row = {"format": 1, "kind": "commit", "row_id": uuid.uuid4().hex, "row": 0, "segment": 0,
               "cluster_id": "", "group_id": "bench"}  # fmt: skip
        table = pa.Table.from_pylist([row], schema=SCHEMA)
        write_deltalake(handle, table, mode="append")

    return 1000 * median(seconds_of(append) for _ in range(rounds))
