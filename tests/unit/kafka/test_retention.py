"""Foreseeing what retention deletes, of several groups at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commits import OffsetRanges
from coopconsume.kafka.retention import (
    ExpiringOffsets,
    OpenOffsets,
    find_all_expiring,
    find_expiring,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from commits.model import TopicPartition

DAY = 86_400.0


class Logs:
    """The part of a cluster that is asked; one topic has a retention, and its old records."""

    def __init__(self) -> None:
        self.calls: list[list[TopicPartition]] = []

    def retention(self, topics: Collection[str]) -> dict[str, float]:
        return dict.fromkeys({"old"} & set(topics), 8 * DAY)

    def first_at(self, partitions: Iterable[TopicPartition], _: int) -> dict[TopicPartition, int]:
        self.calls.append(sorted(partitions))
        return {tp: 10 * tp[1] for tp in self.calls[-1]}


def test_any_number_of_groups_is_foreseen_by_the_same_requests() -> None:
    """Each has what is not done of its own partitions; where nothing expires one look is enough."""
    logs, open_from_3 = Logs(), OpenOffsets(3, 100, OffsetRanges())
    groups = {
        "a": {("old", 1): open_from_3, ("kept", 0): open_from_3},
        "b": {("old", 1): OpenOffsets(8, 100, OffsetRanges([(9, 9)])), ("old", 2): open_from_3},
        "c": {("old", 0): open_from_3},
        "d": {},
    }
    found = find_all_expiring(logs, groups)  # type: ignore[arg-type]
    assert found == {
        "a": ExpiringOffsets(7, DAY / 8, (("old", 1),)),
        "b": ExpiringOffsets(18, DAY / 8, (("old", 2), ("old", 1))),  # that loses most first
        "c": None, "d": None,
    }  # fmt: skip
    assert found["b"] is not None
    assert found["b"].names == ["old-2", "old-1"]
    both = [("old", 1), ("old", 2)]
    assert logs.calls == [[("old", 0), *both], both, both, both]
    for group, partitions in groups.items():
        assert find_expiring(logs, partitions) == found[group]  # type: ignore[arg-type]
