"""Replicas note for each other which logs they have; one that was replaced is named."""

from __future__ import annotations

from coopconsume.queue.replica import ReplicaState
from coopconsume.queue.replica_notes import replica_notes, times_replaced
from coopconsume.queue.rows import ReplicaRow, decode, encode


def noted(states, found, former=None, readable=None):
    """Let replicas note the logs that are there."""
    notes = replica_notes(states, found, former or {}, readable or range(len(states)))
    for replica, row in notes.items():
        written = decode(encode(ReplicaRow("begin", "a", replicas=row)), "a log")
        for _ in range(2):  # a row may come twice
            states[replica].fold(0, written)
    return notes


def test_a_replaced_replica_is_noted_by_all():
    """Once, also by itself, and whatever comes late."""
    states = [ReplicaState() for _ in range(3)]
    first = {0: "a", 1: "b", 2: "c"}
    noted(states, first)
    assert noted(states, first) == {}
    states[1] = ReplicaState()
    second = first | {1: "d"}
    assert times_replaced(states, second, {}, 1) == (1, True)
    noted(states, second)
    assert noted(states, second) == {}
    states[0].fold(9, ReplicaRow("begin", "a", replicas={1: ("", "b")}))
    assert [times_replaced(states, second, {}, n) for n in range(3)] == [
        (0, False), (1, False), (0, False),
    ]  # fmt: skip
    again = ReplicaState.restore(states[1].snapshot())
    assert again.replicas == states[1].replicas == {0: ("a", 0), 1: ("d", 1), 2: ("c", 0)}


def test_a_single_replica_is_noted_elsewhere():
    """With the group's offsets in Kafka: it takes its own notes with it."""
    (state,) = states = [ReplicaState()]
    assert noted(states, {0: "a"}, {0: "a"}) == {0: {0: ("", "a")}}
    assert times_replaced(states, {0: "a"}, {0: "a"}, 0) == (0, False)
    (state,) = states = [ReplicaState()]
    assert times_replaced(states, {0: "b"}, {0: "a"}, 0) == (1, True)
    noted(states, {0: "b"}, {0: "a"})
    assert state.replicas == {0: ("b", 1)}
    assert times_replaced(states, {0: "b"}, {0: "a"}, 0) == (1, False)
