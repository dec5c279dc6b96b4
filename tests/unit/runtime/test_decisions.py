"""Decisions on parked records."""

from __future__ import annotations

import logging
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from commits import CommitStore, OffsetRanges, Pending
from commits.model import PARKED_MS
from coopconsume.runtime.decisions import Decision, apply_decisions, decide, decided
from coopconsume.runtime.plan import Waiting

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from coopconsume.group.epoch_assignment import EpochAssignment

TP = ("t", 0)


def test_a_decision_on_a_deleted_topic_is_dropped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic was created again, and has a parked record at the same offset; that stays."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = store.open_epoch("g", {"m": [TP]}, previous=None)
    store.start("g", epoch, "m", {TP: 0})
    log = {TP: [Pending(offset, 33, 2, PARKED_MS, "no") for offset in (3, 5)]}
    store.commit("g", epoch, "m", {}, pending=log)

    def commit(offsets: dict[tuple[str, int], OffsetRanges], **kept: Any) -> None:
        store.commit("g", epoch, "m", offsets, **kept)

    assignment = cast(
        "EpochAssignment",
        SimpleNamespace(
            options=SimpleNamespace(group_id="g"), store=store, owned={TP: None},
            topic_ids={"t": "new"}, commit=commit,
        ),
    )  # fmt: skip
    parked = [(TP, Waiting(offset, 33, 2, float("inf"), "no")) for offset in (3, 5)]
    ids = (f"decided-{number}" for number in count())
    decide(
        store,
        "g",
        [Decision(*TP, 3, "discard", "old"), of_the_new := Decision(*TP, 5, "replay", "new")],
    )
    with caplog.at_level(logging.WARNING, "coopconsume"):
        assert apply_decisions(assignment, parked, ids) == [of_the_new]
        assert apply_decisions(assignment, parked[:1], ids) == []
    assert [record.getMessage() for record in caplog.records] == [
        "the discard of t-0@3 is dropped: its topic was deleted since"
    ]
    assert decided(store, "g", ["t"]) == []
    assert store.pending("g")[TP][3].is_parked
