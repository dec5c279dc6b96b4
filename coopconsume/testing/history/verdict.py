"""The verdict of the checker: counts, and for each fault the calls that prove it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.testing.history.calls import Call


@dataclass(frozen=True, slots=True)
class Witness:
    """A fault or a repeat, with the calls that prove it.

    Attributes:
        topic: The topic of the record.
        partition: The partition of the record.
        offset: The offset of the record.
        key: The key of the record, or None.
        reason: A description of the fault.
        calls: The calls that prove it, sorted by start time; empty if a call is missing.
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
    """The number of cases of a finding, with the first few witnesses; false if there are no cases.

    Attributes:
        count: The number of cases.
        witnesses: Some of the cases, in order of offset or time.
    """

    count: int = 0
    witnesses: tuple[Witness, ...] = ()

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[Witness]:
        return iter(self.witnesses)


@dataclass(frozen=True)
class Verdict:
    """The result of a check. All findings but `repeated` must be empty.

    Attributes:
        produced: The number of produced records.
        done: The number of committed records without dead letters.
        pending: The number of records that were read and are not done.
        dead_lettered: The number of records that were given up.
        deleted: The number of records that retention deleted before they were handled.
        calls: The number of handler calls in the history.
        in_flight_at_kill: For each kill of the whole job, the number of records that were started
            and not committed.
        lost: Records that are neither done, pending nor dead-lettered; done records without a
            successful call; dead-lettered records without a call.
        misplaced: Records that are pending and in another set, or in a set without having been
            produced; calls for records that were not produced, or with another key.
        order_breaks: Calls that started before a lower offset of their key was settled.
        overlaps: Calls that started while another call of their key was running.
        repeated: Records started again after they were settled.
        repeated_outside_flight: Repeats that no kill or disturbance explains.
        attempts_back: Calls whose attempt number was not higher than that of the last call that
            counted as an attempt, without a kill or disturbance in between.
        state_breaks: Calls with state that did not see what the done call before them left, and
            records whose change is not in the final state of their key.
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
    state_breaks: Finding = Finding()

    @property
    def findings(self) -> dict[str, Finding]:
        """All findings by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Finding)}

    @property
    def faults(self) -> dict[str, Finding]:
        """The findings that must be empty and are not."""
        return {
            name: found for name, found in self.findings.items() if found and name != "repeated"
        }

    @property
    def ok(self) -> bool:
        """Whether the run kept every guarantee. Pending records are not a fault."""
        return not self.faults

    def as_dict(self) -> dict[str, int | list[int] | bool]:
        """Returns the figures for JSON."""
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
        lines.append("every guarantee kept" if self.ok else f"broken: {', '.join(self.faults)}")
        for name, found in self.faults.items():
            shown = f"first {len(found.witnesses)} of {found.count:,}"
            lines.append(f"\n{name.replace('_', ' ')}, {shown}:")
            lines += [str(witness) for witness in found]
        return "\n".join(lines)
