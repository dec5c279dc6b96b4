"""The text output of the demo."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from coopconsume.demo.job import MAX_ATTEMPTS
from coopconsume.monitoring.screen import bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from coopconsume.demo.commit_snapshot import CommitSnapshot
    from coopconsume.demo.report import Planned, RunReport

_SHOWN_GAPS = 4


def slow_aircraft(
    planned: Planned, legs: tuple[int, int], is_bad: Callable[[int, int], bool]
) -> str:
    """Returns an aircraft that blocks its partition when it is slow, while nothing else does.

    Args:
        planned: The key of each record.
        legs: The minimum and maximum number of its flights.
        is_bad: Returns whether the record at a partition and offset fails.
    """
    candidates = []
    for (_, partition), keys in planned.items():
        bad, below = 0, {}
        for offset, key in keys.items():
            bad += is_bad(partition, offset)
            below[key] = (bad, offset)  # The last flight of the key wins.
        for key, count in Counter(keys.values()).items():
            if key is not None:
                far = max(legs[0] - count, count - legs[1], 0)
                candidates.append((far, *below[key], key.decode()))
    return str(min(candidates)[-1])


def progress_line(progress: Mapping[str, Any], done: int, of: int, rate: float) -> str:
    """Returns the progress line of a query, and what it waits for if it commits nothing.

    Args:
        progress: The progress event.
        done: The number of flights that are done, with those of an earlier run.
        of: The number of all flights.
        rate: Flights done per second.
    """
    handled = " ".join(f"{slot['handled']:,}" for slot in progress["slots"])
    line = f"{bar(done, of)} {done:,} of {of:,} flights, {rate:,.0f}/s, by slot: {handled}"
    waiting = progress["waitingFor"]
    return line if waiting is None else f"{line}; {waiting['message']}"


def slots_table(slots: Iterable[Mapping[str, Any]]) -> str:
    """Returns the number of records and the busy time of each slot."""
    shown = (f"{s['slot']}: {s['handled']:,} in {s['busySeconds']:.1f} s" for s in slots)
    return "by slot " + ", ".join(shown)


class BlockerLines:
    """Describes how far a slow and a failed record block the stable offset, from progress events.

    Args:
        planned: The key of each record.
        slow: The slow aircraft.
    """

    def __init__(self, planned: Planned, slow: str) -> None:
        self._planned = planned
        self._slow = slow.encode()
        self._widest: dict[bool, tuple[int, str]] = {}

    def look(self, partitions: Iterable[Mapping[str, Any]]) -> None:
        """Examines the partitions of a progress event."""
        for at in partitions:
            tp, stable = (at["topic"], at["partition"]), at["stableOffset"]
            width = at["highestDone"] - stable
            # Offsets between the stable offset and the first gap are done and not yet committed.
            blocking = at["firstGaps"][0][0] if at["firstGaps"] else stable
            key = self._planned[tp].get(blocking)
            if width <= 0 or key is None:
                continue
            is_slow, blocker = key == self._slow, at["blocker"]
            # The blocker is the first record that is not done. What is done below it may not be
            # committed yet: then the stable offset does not stand for it.
            has_failed = blocker and blocker["attempts"] and blocker["offset"] == blocking
            if not is_slow and not has_failed:
                continue
            if width > self._widest.get(is_slow, (0, ""))[0]:
                self._widest[is_slow] = width, self._describe(at, key, is_slow=is_slow)

    def lines(self) -> list[str]:
        """Returns the widest blocks: by the slow aircraft, then by a failed record."""
        return [self._widest[is_slow][1] for is_slow in (True, False) if is_slow in self._widest]

    def _describe(self, at: Mapping[str, Any], key: bytes, *, is_slow: bool) -> str:
        stable, gaps = at["stableOffset"], at["firstGaps"][:_SHOWN_GAPS]
        shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in gaps)
        more = ", …" if at["gapRanges"] > len(gaps) else ""
        why = f"{key.decode()} blocks it: its handler is still running"
        if not is_slow:
            blocker, due = at["blocker"], at["blocker"]["dueInSeconds"]
            retry = "retry in progress" if due is None else f"retry in {due} s"
            why = (
                f"{blocker['key']} blocks it: {blocker['error']}, {retry}, {blocker['behind']} of "
                "its flights are blocked behind it"
            )
        return (
            f"{at['topic']}-{at['partition']}: stable offset {stable:,}, highest done "
            f"{at['highestDone']:,}, {at['gapRanges']} gaps: {shown}{more}. {why}."
        )


def kill_line(processes: int, snapshot: CommitSnapshot, of: int) -> str:
    """Returns the state of the job when it was killed."""
    pending = sum(map(len, snapshot.pending.values()))
    return (
        f"SIGKILL to all {processes} processes of the job: {snapshot.done:,} of {of:,} flights are "
        f"committed, {snapshot.undone_below:,} uncommitted below them in {snapshot.gap_ranges} "
        f"gaps, {pending} of them failed and awaiting a retry."
    )


def lost_slot_lines(report: RunReport) -> list[str]:
    """Returns the lost slots of a run, and how many records each one had repeated."""
    return [
        f"  {'lost slot':<14}{repeated:>10,}  repeated, as slot {one.slot} was lost: its worker, "
        f"process {one.pid}, has ended: {one.reason}"
        if one.has_ended
        else f"  {'lost slot':<14}{repeated:>10,}  repeated, as slot {one.slot} was lost"
        for one, repeated in report.lost_slots
    ]


def report_lines(report: RunReport) -> list[str]:
    """Returns the report, line by line."""
    v = report.verdict
    gaps, seconds = report.gaps_after_restart
    outside = v.repeated_outside_flight.count
    table = [
        ("produced", v.produced, "flights sent to the topic"),
        (
            "done",
            v.done,
            f"each with one output row, {report.with_previous:,} name the previous flight",
        ),
        ("dead-lettered", v.dead_lettered, "failed three times, stored with the reason"),
        ("pending", v.pending, "read and not done"),
        ("lost", report.lost, "produced - done - dead-lettered - pending"),
        (
            "order breaks",
            v.order_breaks.count,
            f"in the history of {v.calls:,} handler calls",
        ),
        (
            "in flight",
            sum(v.in_flight_at_kill),
            "started and not committed when the job was killed",
        ),
        ("repeated", v.repeated.count, f"{outside} of them were not in flight"),
        ("gaps", gaps, f"at the kill, handled within {seconds:.1f} s of the restart"),
    ]
    lines = [f"  {name:<14}{count:>10,}  {what}" for name, count, what in table]
    lines += lost_slot_lines(report)
    for what, offsets in (
        ("stable offsets", report.snapshot.stable),
        ("log ends", report.ends),
        ("offsets in Kafka", report.primary),
    ):
        shown = "  ".join(f"{t}-{p}: {offset:,}" for (t, p), offset in sorted(offsets.items()))
        lines.append(f"  {what:<20}{shown}")
    return lines


def summary_lines(report: RunReport, *, passed: bool) -> list[str]:
    """Returns what happened, in sentences: what was killed, what was repeated, what was lost."""
    v = report.verdict
    in_flight, outside = sum(v.in_flight_at_kill), v.repeated_outside_flight.count
    rows = {
        "Killed": f"the whole job; {in_flight:,} flights were started and not committed",
        "Started again": f"with the same command; next flight after {report.next_call:.1f} s",
        "Repeated": f"{v.repeated.count:,} flights, {outside} of them not in flight at the kill",
        "Lost": f"{report.lost} of {v.produced:,} flights",
        "Done": f"{v.done:,} flights, each with one output row",
        "Dead letters": f"{v.dead_lettered:,} flights, which failed {MAX_ATTEMPTS} times",
        "Out of order": f"{v.order_breaks.count} of {v.calls:,} handler calls",
        "Checks": "all passed" if passed else "some failed",
    }
    return ["", *(f"  {name + ':':<15}{what}." for name, what in rows.items())]
