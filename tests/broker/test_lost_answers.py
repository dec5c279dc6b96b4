"""A commit table that loses every first row or answer: members, claims and jobs go on."""

from __future__ import annotations

import pytest

from commits import CommitStore, OffsetRanges, Pending
from coopconsume.group.membership import Membership
from coopconsume.kafka import connection
from coopconsume.options import Options
from coopconsume.runtime.poll.session import PollSession
from tests.lost_answers import lose_each_first

pytestmark = [pytest.mark.broker]


@pytest.mark.parametrize("loss", ["answer", "row"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_whatever_lost_its_answer_is_repeated(
    kafka, topic, produce, tmp_path, monkeypatch, loss, by_hand
):
    """Epoch or claim, start, commit and release: each counts once, nobody waits or joins twice."""
    name = topic(1)
    produce(name, [(b"k", b"") for _ in range(10)])
    options = Options.parse(
        {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": f"{name}-group", "commitTable": str(tmp_path / "commits"),
        }
    )  # fmt: skip
    lost = []

    def opened(*args, **kwargs):
        store = CommitStore.open(*args, **kwargs)
        lost.append(lose_each_first(store, loss))
        return store

    monkeypatch.setattr(connection, "CommitStore", type("Opens", (), {"open": opened}))
    at, group = (name, 0), options.group_id
    member = Membership(options, 1, PollSession())
    try:
        if by_hand:
            member.assign({at: []}, takeover=False)
        else:
            member.subscribe([name], None, None)
        assignment = member.wait_for_assignment()
        assert assignment.epoch.number == 1
        done = OffsetRanges([(0, 4), (6, 6)])
        pending = {at: [Pending(5, 33, 1, 0, "no luck")]}
        result = assignment.commit({at: done}, pending=pending)[at]
        assert (result.stable_offset, result.committed, result.duplicates) == (5, 6, 0)
        assert assignment.commit({at: OffsetRanges([(5, 5)])}, commit_id="run-0")[at].committed == 1
        assignment.logs.check_starts()
    finally:
        member.leave()
    first = "claim" if by_hand else "epoch"
    store = CommitStore.open(tmp_path / "commits", cluster=member.cluster.cluster_id)
    assert store.state(group)[at].stable_offset == 7
    assert {kind for kind, _ in lost[0]} == {first, "start", "commit", "release"}
    rows = [(row["kind"], row["counted"]) for row in store.history(group)]
    counted = [kind for kind, is_counted in rows if is_counted]
    assert counted[0] == first
    assert counted.count(first) == 1
    assert "release" in counted
