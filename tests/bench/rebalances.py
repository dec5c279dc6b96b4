"""What rebalances cost the keys that do not move: the rate of their handlers."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from assignors import coverage, key_hash
from coopconsume import CooperativeConsumer, set_shareable
from coopconsume.group.membership import Membership
from coopconsume.options import Options
from tests.bench.figures import Ratio, Report
from tests.bench.harness import SLOTS
from tests.bench.worker import IdleWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assignors import KeyRange
    from coopconsume import Record
    from coopconsume.group.epoch_assignment import EpochAssignment
    from tests.bench.harness import Harness

_CALM = "without a rebalance"
_DURING = "while another member joins and leaves"
_AFTER = "as long again after that"
_KEYS, _CONCURRENCY = 12, 8
_HANDLER_SECONDS = 0.01
_JOINS, _TOPIC = 20, "rebalances"
#: Seconds after the first call, and after the last member left, before a calm time counts: by then
#: keys that were away have caught up.
_REST = 15.0
#: Seconds of a calm time: more than a batch.
_CALM_SECONDS = 15.0


class Noting:
    """Takes 10 ms a record, and notes which calls have ended when.

    Records of keys that were away take no time: these keys catch up, and do not hold back the
    others, whose records are not read far ahead.

    Args:
        folder: Where each process notes them.
        moved: A file of the keys that were away.
    """

    def __init__(self, folder: str, moved: str) -> None:
        self.folder = folder
        self.moved = moved
        self._known: set[bytes] = set()
        self._looked = 0.0

    def __call__(self, record: Record) -> None:
        """Handle one record."""
        if time.monotonic() - self._looked > 1.0:
            self._looked = time.monotonic()
            self._known = set(Path(self.moved).read_bytes().split())
        if record.key not in self._known:
            time.sleep(_HANDLER_SECONDS)
        with Path(self.folder, str(os.getpid())).open("ab") as file:
            file.write(b"%s %f %d\n" % (record.key, time.monotonic(), record.offset))


class _Taker(IdleWorker):
    """A worker that takes key ranges away and does nothing with them."""

    def __init__(self) -> None:
        self.taken: list[KeyRange] = []

    def begin(self, assignment: EpochAssignment) -> None:
        self.taken += [one for ranges in assignment.key_ranges.values() for one in ranges]

    def has(self, key: bytes) -> bool:
        """Whether it took a key at any time."""
        return any(one.contains(key_hash(key) or 0) for one in self.taken)


def rebalances(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Handler calls a second of keys that stay: in calm, during rebalances and after them."""
    joins = harness.size(_JOINS, 4)
    together = max(1, joins // harness.turns)
    harness.load(_TOPIC, harness.size(600_000, 200_000), _KEYS, 100)
    folder = harness.path("calls")
    folder.mkdir()
    moved = harness.path("moved")
    moved.touch()
    options = harness.options(_TOPIC)
    set_shareable(options, [_TOPIC])
    taker = _Taker()
    #: Of each side, by turn.
    spans: dict[str, list[list[tuple[float, float]]]] = {_CALM: [], _DURING: [], _AFTER: []}
    with CooperativeConsumer(options, harness.spark) as consumer:
        query = consumer.foreach(Noting(str(folder), str(moved)), concurrency=_CONCURRENCY).start()
        while not any(folder.iterdir()):
            time.sleep(0.1)
        for turn in range(joins + 1):  # In turn 0 it is only seen which keys move.
            if turn % together == 1 or (turn and together == 1):
                time.sleep(_REST)
                began = time.monotonic()
                time.sleep(_CALM_SECONDS)
                spans[_CALM].append([(began, time.monotonic())])
                spans[_DURING].append([])
                spans[_AFTER].append([])
            began = time.monotonic()
            other = Membership(Options.parse(options), 1, taker)
            other.subscribe([_TOPIC], None)
            while not other.owned:
                time.sleep(0.01)
            other.leave()
            while coverage(one for some in consumer.assignment().values() for one in some).holes:
                time.sleep(0.01)
            ended = time.monotonic()
            keys = (b"key-%d" % number for number in range(_KEYS))
            moved.write_bytes(b" ".join(key for key in keys if taker.has(key)))
            if not turn:
                continue
            time.sleep(ended - began)
            spans[_DURING][-1].append((began, ended))
            spans[_AFTER][-1].append((ended, time.monotonic()))
            say(f"  join {turn} of {joins}: {ended - began:.2f} s")
        query.stop()
    calls, offsets = _calls(folder)
    stay = {key: calls[key] for key in calls if not taker.has(key)}
    report = _report(spans, stay, joins, together)
    twice = sum(count > 1 for count in offsets.values())
    report.notes.append(
        f"{twice} of {len(offsets):,} records were handled more than once, those of keys that move "
        "included."
    )
    return [report]


def _report(
    spans: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    calls: Mapping[bytes, Sequence[float]],
    joins: int,
    together: int,
) -> Report:
    report = Report(
        "Keys that stay while others move",
        f"Another member joins and leaves {joins} times, and takes a third of the key ranges each "
        f"time. {len(calls)} of {_KEYS} keys never move; handlers take 10 ms, on {SLOTS} slots "
        f"with {_CONCURRENCY} handlers each, so every key has one running all the time. A turn is "
        f"{_CALM_SECONDS:.0f} s without a rebalance, {_REST:.0f} s after the last one, and then "
        f"{together} of the joins; the longest time without a call is that of any of these keys, "
        "in each of the times. Records of the keys that move take no time, so that these catch up.",
    )
    for name, turns in spans.items():
        report.add(name, [_rate(turn, calls) for turn in turns], "calls/s")
    for name, turns in spans.items():
        gaps = [_gap(one, calls) for turn in turns for one in turn]
        report.add(f"longest time without a call, {name}", gaps, "s")
    report.ratios = [
        Ratio(f"{name} / {_CALM}", name, _CALM, at_least=0.9) for name in (_DURING, _AFTER)
    ]
    return report


def _rate(spans: Sequence[tuple[float, float]], calls: Mapping[bytes, Sequence[float]]) -> float:
    """Calls a second in some spans."""
    found = sum(len(_within(span, ends)) for span in spans for ends in calls.values())
    return found / sum(last - first for first, last in spans)


def _gap(span: tuple[float, float], calls: Mapping[bytes, Sequence[float]]) -> float:
    """The longest time in a span in which no call of one of the keys has ended."""
    found = [[span[0], *_within(span, ends), span[1]] for ends in calls.values()]
    return max(after - before for ends in found for before, after in pairwise(ends))


def _within(span: tuple[float, float], ends: Sequence[float]) -> Sequence[float]:
    first, last = span
    return ends[bisect_left(ends, first) : bisect_left(ends, last)]


def _calls(folder: Path) -> tuple[dict[bytes, list[float]], Counter[int]]:
    """When calls of each key have ended, and how many there were of each offset."""
    found: dict[bytes, list[float]] = {}
    offsets: Counter[int] = Counter()
    for file in folder.iterdir():
        for line in file.read_bytes().splitlines():
            key, at, offset = line.split()
            found.setdefault(key, []).append(float(at))
            offsets[int(offset)] += 1
    return {key: sorted(ends) for key, ends in found.items()}, offsets
