"""What a benchmark gives back, and how it is shown: medians, ranges, ratios against targets."""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Turns that do not count: the JVM compiles what it runs often only after a while.
WARM_UPS = 2


@dataclass(frozen=True)
class Figure:
    """The values of one side, one a turn."""

    name: str
    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """The middle value."""
        return median(self.values)


@dataclass(frozen=True)
class Ratio:
    """One side over another in the same turn, the median of all turns, and what it ought to be.

    What slows the machine down for a while slows both sides of a turn. Where the sides have not as
    many values each, it is the ratio of their medians.

    Attributes:
        at_most: The greatest ratio that is good; None: there is no such bound.
        at_least: The smallest ratio that is good; None: there is no such bound.
    """

    name: str
    over: str
    under: str
    _: KW_ONLY
    at_most: float | None = None
    at_least: float | None = None

    @property
    def target(self) -> str:
        """The bounds in words; empty without a bound."""
        bounds = {"at least": self.at_least, "at most": self.at_most}
        return ", ".join(f"{what} {at:g}" for what, at in bounds.items() if at is not None)

    def is_met_by(self, value: float) -> bool:
        """Whether a measured ratio is within the bounds."""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


@dataclass
class Report:
    """One benchmark: its figures, ratios and notes.

    Attributes:
        title: A line.
        setting: What was measured, in a sentence or two.
        figures: By name, in the order to be shown.
    """

    title: str
    setting: str
    figures: dict[str, Figure] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, values: list[float], unit: str) -> None:
        """Take in the values of one side."""
        self.figures[name] = Figure(name, tuple(values), unit)

    def add_all(self, values: Mapping[str, list[float]], unit: str) -> None:
        """Takes in the values of several sides, as `take_turns` returns them."""
        for name, found in values.items():
            self.add(name, found, unit)

    def value(self, ratio: Ratio) -> float:
        """The measured ratio."""
        over, under = self.figures[ratio.over], self.figures[ratio.under]
        if len(over.values) != len(under.values):
            return over.median / under.median
        return median(a / b for a, b in zip(over.values, under.values, strict=True))

    def render(self, *, markdown: bool) -> str:
        """The report as text: Markdown, or columns for a terminal."""
        rows = [
            (
                f.name,
                _number(f.median),
                f"{_number(min(f.values))} to {_number(max(f.values))}",
                f.unit,
            )
            for f in self.figures.values()
        ]
        tables = [_table(("", "median", "range", "unit"), rows, markdown=markdown)]
        if self.ratios:
            shown = [
                (r.name, f"{self.value(r):.2f}", r.target, self._verdict(r)) for r in self.ratios
            ]
            tables.append(_table(("ratio", "measured", "target", ""), shown, markdown=markdown))
        head = f"## {self.title}" if markdown else f"{self.title}\n{'=' * len(self.title)}"
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join(part for part in (head, self.setting, *tables, notes) if part)

    def _verdict(self, ratio: Ratio) -> str:
        if not ratio.target:
            return ""
        return "met" if ratio.is_met_by(self.value(ratio)) else "missed"


def take_turns(
    sides: Mapping[str, Callable[[int], float]],
    turns: int,
    *,
    say: Callable[[str], None],
    warm_ups: int = WARM_UPS,
) -> dict[str, list[float]]:
    """Run every side a few times for warmth, then all of them in turn, there and back again.

    Every second turn goes the other way, so that no side always comes after the same one.

    Args:
        sides: By name, a function of the number of the turn (below 1 while warming up) that
            returns what it measured.
        turns: How many count.
        say: Called with a text for each value.
        warm_ups: How many turns come before, and do not count.
    """
    values: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(1 - warm_ups, turns + 1):
        for name, side in list(sides.items())[:: 1 if turn % 2 else -1]:
            value = side(turn)
            if turn > 0:
                values[name].append(value)
            say(f"  {f'turn {turn}' if turn > 0 else 'warm-up'}: {name}: {_number(value)}")
    return values


def seconds_of(call: Callable[[], object]) -> float:
    """Wall-clock seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _number(value: float) -> str:
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    if markdown:
        rule = ("---", *["---:"] * (len(head) - 1))
        return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )
