"""What a handler that hangs costs the keys beside it: a slot of its own gives its others back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from coopconsume import CooperativeConsumer, local_session
from coopconsume.testing.local.session import stop_session
from tests.bench.figures import Ratio, Report, take_turns
from tests.bench.handlers import Stuck
from tests.bench.processes import figures_of, print_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness

_HANGS, _CALM = "one handler hangs for 60 s", "none does"
_SLOTS, _KEYS, _SECONDS = 8, 200, 60.0
_KEY = b"key-7"
_TOPICS = ("relief-a", "relief-b")
_TIMEOUT = 600


def relief(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Seconds until all other keys are committed, with a handler that hangs and without."""
    each = harness.size(20_000, 4_000)
    for topic in _TOPICS:
        harness.load(topic, each, _KEYS, 100)
    sides = {
        _HANGS: lambda _: _others_take(harness, each, _SECONDS),
        _CALM: lambda _: _others_take(harness, each, 0.0),
    }
    report = Report(
        "A handler that hangs",
        f"Two topics of one partition, {each:,} records and {_KEYS} keys each, handlers of 5 ms, "
        f"{_SLOTS} slots of concurrency 1 in a process of its own. Seconds from the first handler "
        f"call until all records but those of one key of the first topic are committed. The first "
        f"handler of that key hangs for {_SECONDS:.0f} s, or takes 5 ms.",
    )
    report.add_all(take_turns(sides, harness.turns, say=say, warm_ups=0), "s")
    report.ratios = [Ratio("hangs / none does", _HANGS, _CALM)]
    report.notes.append(
        "One of eight slots is kept by the handler that hangs, and all of them are at work: 1.14 "
        "times as long is lost by that alone. As no core is free, the slot is asked for its other "
        "records after 10 s, and they are the last to be done; with a free core it is asked after "
        "2 s."
    )
    return [report]


def _others_take(harness: Harness, each: int, seconds: float) -> float:
    folder = harness.path("first-starts")
    folder.mkdir()
    options = harness.options(",".join(_TOPICS), slots=_SLOTS, handlerTimeout=120)
    (took,) = figures_of("tests.bench.relief", options, str(folder), each, seconds)
    return took


def _run(options: dict[str, Any], folder: str, each: int, seconds: float) -> list[float]:
    others = len(_TOPICS) * each - sum(b"key-%d" % (n % _KEYS) == _KEY for n in range(each))
    spark = local_session("coopconsume-bench-relief", cores=_SLOTS + 2)
    seen: list[tuple[float, int]] = []
    handler = Stuck(folder, _TOPICS[0], _KEY, seconds or 0.005)
    try:
        with CooperativeConsumer(options, spark) as consumer:
            query = consumer.foreach(handler, concurrency=1).onProgress(
                lambda event: seen.append((time.time(), event["totals"]["done"]))
            ).start()  # fmt: skip
            until = time.monotonic() + _TIMEOUT
            while not seen or seen[-1][1] < others:
                if time.monotonic() > until:
                    raise AssertionError(f"{seen[-1:]} of {others}")
                time.sleep(0.02)
            query.stop(timeout=0)
    finally:
        stop_session(spark)
    reached = next(at for at, done in seen if done >= others)
    return [reached - handler.first_start()]


if __name__ == "__main__":
    print_figures(_run)
