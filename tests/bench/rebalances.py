"""What rebalances cost the keys that do not move: the rate of their handlers."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from assignors import coverage, key_hash
from coopconsume import CooperativeConsumer, set_shareable
from coopconsume.group.membership import Membership
from coopconsume.options import Options
from tests.bench.figures import Ratio, Report
from tests.bench.harness import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assignors import KeyRange, Share
    from coopconsume import Record
    from coopconsume.group.epoch_assignment import EpochAssignment
    from tests.bench.harness import Harness

_CALM = "without a rebalance"
_DURING = "while another member joins and leaves"
_AFTER = "as long again after that"
_KEYS, _CONCURRENCY = 12, 8
_HANDLER_SECONDS = 0.01
_JOINS, _TOPIC = 20, "rebalances"
#: Seconds after the first call before anything is counted.
_WARM_UP = 10.0


class Noting:
    """Takes 10 ms a record, and notes when calls of each key have ended.

    Args:
        folder: Where each process notes them.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, record: Record) -> None:
        """Handle one record."""
        time.sleep(_HANDLER_SECONDS)
        with Path(self.folder, str(os.getpid())).open("ab") as file:
            file.write(b"%s %f\n" % (record.key, time.monotonic()))


class _Taker:
    """A worker that takes key ranges away and does nothing with them."""

    def __init__(self) -> None:
        self.taken: list[KeyRange] = []

    def begin(self, holding: EpochAssignment) -> None:
        self.taken += [one for ranges in holding.key_ranges.values() for one in ranges]

    def has(self, key: bytes) -> bool:
        """Whether it took a key at any time."""
        return any(one.contains(key_hash(key)) for one in self.taken)

    def keep(self, _timeout: float) -> bool:
        return False

    def give_up(self, _shares: Sequence[Share], _timeout: float) -> None:
        pass

    def extend(self, _load: Callable[[], EpochAssignment]) -> None:
        pass

    def drain(self, _timeout: float) -> Sequence[Share]:
        return []

    def drop(self) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        raise error


def rebalances(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Handler calls a second of keys that stay: in calm, during rebalances and after them."""
    joins = harness.size(_JOINS, 4)
    harness.load(_TOPIC, harness.size(400_000, 100_000), _KEYS, 100)
    folder = harness.path("calls")
    folder.mkdir()
    options = harness.options(_TOPIC)
    set_shareable(options, [_TOPIC])
    taker = _Taker()
    spans: dict[str, list[tuple[float, float]]] = {_CALM: [], _DURING: [], _AFTER: []}
    with CooperativeConsumer(options, harness.spark) as consumer:
        query = consumer.foreach(Noting(str(folder)), concurrency=_CONCURRENCY).start()
        while not any(folder.iterdir()):
            time.sleep(0.1)
        time.sleep(_WARM_UP)
        for turn in range(1, joins + 1):
            began = time.monotonic()
            other = Membership(Options.parse(options), 1, taker)
            other.subscribe([_TOPIC], None)
            while not other.owned:
                time.sleep(0.01)
            other.leave()
            while coverage(one for some in consumer.assignment().values() for one in some).holes:
                time.sleep(0.01)
            ended = time.monotonic()
            time.sleep(2 * (ended - began))
            now, half = time.monotonic(), (ended + time.monotonic()) / 2
            spans[_DURING].append((began, ended))
            spans[_AFTER].append((ended, half))
            spans[_CALM].append((half, now))
            say(f"  join {turn} of {joins}: {ended - began:.2f} s")
        query.stop()
    calls = _calls(folder)
    stay = {key: calls[key] for key in calls if not taker.has(key)}
    return [_report(spans, stay, joins, max(1, joins // harness.turns))]


def _report(
    spans: Mapping[str, Sequence[tuple[float, float]]],
    calls: Mapping[bytes, Sequence[float]],
    joins: int,
    together: int,
) -> Report:
    report = Report(
        "Keys that stay while others move",
        f"Another member joins and leaves {joins} times, and takes a third of the key ranges each "
        f"time. {len(calls)} of {_KEYS} keys never move; handlers take 10 ms, on {SLOTS} slots "
        f"with {_CONCURRENCY} handlers each, so every key has one running all the time. A turn is "
        f"{together} of the joins; the longest time without a call is that of any of these keys, "
        "in each join.",
    )
    for name, some in spans.items():
        turns = [some[first : first + together] for first in range(0, joins, together)]
        report.add(name, [_rate(turn, calls) for turn in turns], "calls/s")
    for name, some in spans.items():
        report.add(f"longest time without a call, {name}", [_gap(one, calls) for one in some], "s")
    report.ratios = [
        Ratio(f"{name} / {_CALM}", name, _CALM, 0.9, "at least") for name in (_DURING, _AFTER)
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


def _calls(folder: Path) -> dict[bytes, list[float]]:
    """When calls of each key have ended."""
    found: dict[bytes, list[float]] = {}
    for file in folder.iterdir():
        for line in file.read_bytes().splitlines():
            key, at = line.split()
            found.setdefault(key, []).append(float(at))
    return {key: sorted(ends) for key, ends in found.items()}
