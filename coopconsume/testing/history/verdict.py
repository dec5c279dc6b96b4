"""What the checker answers: counts, and for each kind of fault the fewest calls that prove it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.testing.history.calls import Call


@dataclass(frozen=True, slots=True)
class Witness:
    """One fault, or one repeat, with the calls that show it.

    Attributes:
        topic: Where it happened.
        partition: Likewise.
        offset: The record it is about.
        key: Its key, or None.
        reason: What is wrong, in words.
        calls: The calls that prove it, in the order of their starts; empty where the fault is
            that there was none.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    reason: str
    calls: tuple[Call, ...] = ()

    def __str__(self) -> str:
        head = f"{self.topic}-{self.partition}@{self.offset} key {self.key!r}: {self.reason}"
        return "\n".join([head, *(f"    {call}" for call in self.calls)])


@dataclass(frozen=True, slots=True)
class Finding:
    """How often something was found, with the first few witnesses. False when it was not.

    Attributes:
        count: All cases.
        witnesses: Some of them, in order of offset or time.
    """

    count: int = 0
    witnesses: tuple[Witness, ...] = ()

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[Witness]:
        return iter(self.witnesses)


@dataclass(frozen=True)
class Verdict:
    """The books of a run. All but `repeated` and the plain counts must be empty.

    Attributes:
        produced: Records there were.
        done: Records that the log counts as committed, dead letters not among them.
        pending: Records that the log counts as read and not done.
        dead_lettered: Records given up.
        deleted: Records that retention deleted before they were handled.
        calls: Handler calls in the history.
        in_flight_at_kill: For each kill of the whole job, the records that had been started and
            were not committed.
        lost: Records in none of the books, or counted as done with no successful call, or as
            dead-lettered with no call.
        misplaced: Records in two books at once, or in one without having been produced; calls for
            records that were not produced, or with another key.
        order_breaks: Calls that started before a lower offset of their key was settled.
        overlaps: Calls that started while another of their key was running.
        repeated: Records started again after they were settled.
        repeated_outside_flight: Those among them that no kill or disturbance explains.
        attempts_back: Calls told an attempt number that was not higher than the last, without a
            kill or disturbance in between.
    """

    produced: int
    done: int
    pending: int
    dead_lettered: int
    deleted: int
    calls: int
    in_flight_at_kill: tuple[int, ...] = ()
    lost: Finding = Finding()
    misplaced: Finding = Finding()
    order_breaks: Finding = Finding()
    overlaps: Finding = Finding()
    repeated: Finding = Finding()
    repeated_outside_flight: Finding = Finding()
    attempts_back: Finding = Finding()

    @property
    def findings(self) -> dict[str, Finding]:
        """All findings by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Finding)}

    @property
    def faults(self) -> dict[str, Finding]:
        """The findings that ought to be empty and are not."""
        return {
            name: found for name, found in self.findings.items() if found and name != "repeated"
        }

    @property
    def ok(self) -> bool:
        """Whether the run kept every promise. Pending records are no fault."""
        return not self.faults

    def as_dict(self) -> dict[str, int | list[int] | bool]:
        """The figures alone, fit for JSON."""
        plain = ("produced", "done", "pending", "dead_lettered", "deleted", "calls")
        counts: dict[str, int | list[int] | bool] = {name: getattr(self, name) for name in plain}
        counts["in_flight_at_kill"] = list(self.in_flight_at_kill)
        counts |= {name: found.count for name, found in self.findings.items()}
        return counts | {"ok": self.ok}

    def __str__(self) -> str:
        rows = [
            (name.replace("_", " "), value)
            for name, value in self.as_dict().items()
            if not isinstance(value, bool | list)
        ]
        rows += [
            (f"in flight at kill {i}", count) for i, count in enumerate(self.in_flight_at_kill, 1)
        ]
        lines = [f"{name:<24}{count:>12,}" for name, count in rows]
        lines.append("every promise kept" if self.ok else f"broken: {', '.join(self.faults)}")
        for name, found in self.faults.items():
            shown = f"first {len(found.witnesses)} of {found.count:,}"
            lines.append(f"\n{name.replace('_', ' ')}, {shown}:")
            lines += [str(witness) for witness in found]
        return "\n".join(lines)
