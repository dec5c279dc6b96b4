"""How long a leader takes to deal a large group's shares; without Kafka, and without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from assignors import (
    KeyRangeAssignor,
    Member,
    RangeKeyRangeAssignor,
    RoundRobinKeyRangeAssignor,
    StickyKeyRangeAssignor,
)
from tests.bench.figures import Ratio, Report, seconds_of, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

_MEMBERS, _TOPICS, _EACH, _SLOTS = 1_000, 10, 1_000, 8
_LIMIT = "limit"


def assignors(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Seconds for each assignor, for a new group and for one that a member has left."""
    topics = {f"topic-{number}": _EACH for number in range(_TOPICS)}
    new = [
        Member(f"member-{number:04}", list(topics), _SLOTS, allow_key_share=True)
        for number in range(_MEMBERS)
    ]
    sides: dict[str, Callable[[int], float]] = {}

    def side(name: str, assignor: KeyRangeAssignor, members: list[Member]) -> None:
        sides[name] = lambda _: seconds_of(lambda: assignor.assign(topics, members))

    sticky = StickyKeyRangeAssignor()
    side("round robin", RoundRobinKeyRangeAssignor(), new)
    side("range", RangeKeyRangeAssignor(), new)
    side("sticky", sticky, new)
    owned = sticky.assign(topics, new)
    side("sticky, nothing changed", sticky, [replace(m, owned=owned[m.id]) for m in new])
    side("sticky, one has left", sticky, [replace(m, owned=owned[m.id]) for m in new[1:]])
    report = Report(
        "Dealing a large group's shares",
        f"{_MEMBERS:,} members of {_SLOTS} slots, {_TOPICS * _EACH:,} partitions of {_TOPICS} "
        "topics, everybody subscribed to all of them and open to parts of partitions.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say), "s")
    report.add(_LIMIT, [1.0], "s")
    report.ratios = [Ratio(f"{name} / limit", name, _LIMIT, at_most=1.0) for name in sides]
    return [report]
