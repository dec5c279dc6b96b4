"""The words and figures that the demo's acts are told in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from coopconsume.monitoring.screen import bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from coopconsume.demo.books import Books, Planned, Standing

_SHOWN_GAPS = 4


def slow_aircraft(
    planned: Planned, legs: tuple[int, int], is_bad: Callable[[int, int], bool]
) -> str:
    """The aircraft whose slowness will be seen best: nothing else holds its partition back.

    Args:
        planned: Which key each record has.
        legs: How many flights it may have, at least and at most.
        is_bad: Whether the record at a partition and offset will fail.
    """
    sights = []
    for (_, partition), keys in planned.items():
        bad, below = 0, {}
        for offset, key in keys.items():
            bad += is_bad(partition, offset)
            below[key] = (bad, offset)  # at its last flight in the end
        for key, count in Counter(keys.values()).items():
            if key is not None:
                far = max(legs[0] - count, count - legs[1], 0)
                sights.append((far, *below[key], key.decode()))
    return min(sights)[-1]


def working(done: int, of: int, rate: float, slots: Iterable[Mapping[str, Any]]) -> str:
    """The progress line of a query."""
    handled = " ".join(f"{slot['handled']:,}" for slot in slots)
    return f"{bar(done, of)} {done:,} of {of:,} flights, {rate:,.0f}/s, by slot: {handled}"


def slots_table(slots: Iterable[Mapping[str, Any]]) -> str:
    """What each slot did."""
    shown = (f"{s['slot']}: {s['handled']:,} in {s['busySeconds']:.1f} s" for s in slots)
    return "by slot " + ", ".join(shown)


class Holdups:
    """Looks out for the two sights of act 2: what a slow and what a failed record hold back.

    Args:
        planned: Which key each record has.
        slow: The slow aircraft.
    """

    def __init__(self, planned: Planned, slow: str) -> None:
        self._planned = planned
        self._slow = slow.encode()
        self._widest: dict[bool, tuple[int, str]] = {}

    def look(self, partitions: Iterable[Mapping[str, Any]]) -> None:
        """Take note of a progress event's partitions."""
        for at in partitions:
            tp, stable = (at["topic"], at["partition"]), at["stableOffset"]
            width = at["highestDone"] - stable
            # What is done and not yet committed lies between the stable offset and the first gap.
            holder = at["firstGaps"][0][0] if at["firstGaps"] else stable
            key = self._planned[tp].get(holder)
            if width <= 0 or key is None:
                continue
            is_slow = key == self._slow
            if not is_slow and not (at["holder"] and at["holder"]["attempts"]):
                continue
            if width > self._widest.get(is_slow, (0, ""))[0]:
                self._widest[is_slow] = width, self._tell(at, key, is_slow=is_slow)

    def lines(self) -> list[str]:
        """What was seen at its widest: the slow aircraft, then a failed record."""
        return [self._widest[is_slow][1] for is_slow in (True, False) if is_slow in self._widest]

    def _tell(self, at: Mapping[str, Any], key: bytes, *, is_slow: bool) -> str:
        stable, gaps = at["stableOffset"], at["firstGaps"][:_SHOWN_GAPS]
        shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in gaps)
        more = ", …" if at["gapRanges"] > len(gaps) else ""
        why = f"{key.decode()} holds it back: still in the air"
        if not is_slow:
            holder, blocker = at["holder"], at["blocker"]
            again = f"again in {blocker['dueInSeconds']} s" if blocker else "being tried again"
            why = (
                f"{holder['key']} holds it back: {holder['error']}, {again}, {holder['behind']} of "
                "its flights wait behind it"
            )
        return (
            f"{at['topic']}-{at['partition']}: stable offset {stable:,}, highest done "
            f"{at['highestDone']:,}, {at['gapRanges']} gaps: {shown}{more}. {why}."
        )


def kill_line(processes: int, standing: Standing, of: int) -> str:
    """What was there when the job was killed."""
    pending = sum(map(len, standing.pending.values()))
    return (
        f"SIGKILL to all {processes} processes of the job: {standing.done:,} of {of:,} flights are "
        f"committed, {standing.undone_below:,} gaps below them in {standing.gap_ranges} ranges, "
        f"{pending} of them failed and waiting for another attempt."
    )


def books_table(books: Books) -> list[str]:
    """The books, line by line."""
    v = books.verdict
    gaps, seconds = books.gaps_again
    outside = v.repeated_outside_flight.count
    table = [
        ("produced", v.produced, "flights sent to the topic"),
        (
            "done",
            v.done,
            f"each with one output row, {books.with_previous:,} know the flight before",
        ),
        ("dead-lettered", v.dead_lettered, "failed three times, kept with the reason"),
        ("pending", v.pending, "read and not done"),
        ("lost", books.lost, "produced - done - dead-lettered - pending"),
        (
            "order breaks",
            v.order_breaks.count,
            f"over {v.calls:,} handler calls, by their own history",
        ),
        (
            "in flight",
            sum(v.in_flight_at_kill),
            "started and not committed when the job was killed",
        ),
        ("repeated", v.repeated.count, f"{outside} of them without need"),
        ("gaps", gaps, f"left by the kill, handled within {seconds:.1f} s of the restart"),
    ]
    lines = [f"  {name:<14}{count:>10,}  {what}" for name, count, what in table]
    for what, offsets in (
        ("stable offsets", books.standing.stable),
        ("log ends", books.ends),
        ("as Kafka shows them", books.primary),
    ):
        shown = "  ".join(f"{t}-{p}: {offset:,}" for (t, p), offset in sorted(offsets.items()))
        lines.append(f"  {what:<20}{shown}")
    return lines
