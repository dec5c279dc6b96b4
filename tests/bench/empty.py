"""An empty handler, where nothing but our own cost is left: beside plain Spark and beside peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.figures import Ratio, Report, seconds_of, take_turns
from tests.bench.peers import PARALLEL_CONSUMER, java_peers
from tests.bench.throughput import empty_job, tuned_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.harness import Harness
    from tests.bench.peers import Peer

_OURS = "coopconsume"
_PLAIN = "plain Spark, same fetch settings"
_BESIDE = "coopconsume, beside the peers"
#: Turns of ours and of plain Spark for each that the peers have: single ones differ by a fifth.
_MORE, _WARM_UPS = 3, 5


def empty(harness: Harness, say: Callable[[str], None]) -> list[Report]:
    """Records a second through an empty handler, in the order of each key, from one partition."""
    ours, its = harness.size(4_000_000, 50_000), harness.size(200_000, 10_000)
    harness.load("empty-ours", ours, keys=10_000, value_bytes=100)
    harness.load("empty-its", its, keys=10_000, value_bytes=100)
    peers = java_peers(harness, say)

    def job(_: int) -> float:
        return ours / seconds_of(lambda: empty_job(harness, "empty-ours", ours))

    def plain(_: int) -> float:
        return ours / seconds_of(lambda: tuned_plain(harness, "empty-ours", ours))

    def theirs(peer: Peer) -> Callable[[int], float]:
        return lambda _: its / peer.seconds("empty-its", its, "none", 16)

    turns = _MORE * harness.turns
    found = take_turns({_OURS: job, _PLAIN: plain}, turns, say=say, warm_ups=_WARM_UPS)
    beside: dict[str, Callable[[int], float]] = {_BESIDE: job}
    beside |= {peer.name: theirs(peer) for peer in peers}
    found |= take_turns(beside, harness.turns, say=say, warm_ups=1)
    report = Report(
        "Empty handler, one partition",
        f"10,000 keys. Ours: {ours:,} records, in the order of each key, from making the consumer "
        "to its end. Plain Spark reads as many, with the same fetch settings and the same call "
        f"of each record; these two in {turns} turns after {_WARM_UPS} for warmth. Peers: {its:,} "
        "records, 16 at once, from the first handler's start to the last commit.",
    )
    report.add_all(found, "records/s")
    report.ratios = [Ratio("ours / plain Spark", _OURS, _PLAIN, at_least=0.9)]
    for peer in peers:
        goal = 10.0 if peer.name == PARALLEL_CONSUMER else None
        report.ratios.append(Ratio(f"ours / {peer.name}", _BESIDE, peer.name, at_least=goal))
    return [report]
