"""The result of `coopconsume.diagnose`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from coopconsume.admin.html import html
from coopconsume.admin.tables import Headline, Table
from coopconsume.admin.text import text_lines
from coopconsume.texts import counted

if TYPE_CHECKING:
    from coopconsume.admin.tables import Part

#: It works; it works with a limit; it does not work; it could not be tried.
Outcome = Literal["ok", "warning", "failed", "untried"]


@dataclass(frozen=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: What it is.
        outcome: Whether it works: ``ok``, ``warning``, ``failed`` or ``untried``.
        found: What was found.
        remedy: What to do, with the option or setting; empty where nothing is to be done, or where
            ``found`` is the message of an error, which says it.
    """

    name: str
    outcome: Outcome
    found: str
    remedy: str = ""


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What works and what does not.

    Attributes:
        checks: In the order in which they were made.
    """

    checks: tuple[Check, ...]

    @property
    def is_ok(self) -> bool:
        """Whether no check has failed."""
        return all(check.outcome != "failed" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        return {"isOk": self.is_ok, "checks": [asdict(check) for check in self.checks]}

    def parts(self) -> list[Part]:
        """Returns the result as people read it: what fails comes in the first line."""
        rows = [(c.name, c.outcome, c.found, c.remedy or None) for c in self.checks]
        return [self._headline(), Table(("check", "outcome", "found", "what to do"), rows)]

    def _headline(self) -> Headline:
        by_outcome = {
            outcome: [check.name for check in self.checks if check.outcome == outcome]
            for outcome in ("failed", "warning", "untried")
        }
        failed, warned = by_outcome["failed"], by_outcome["warning"]
        if failed:
            return Headline(f"Does not work: {', '.join(failed)}.", "action")
        if warned:
            return Headline(f"Works, with a limit: {', '.join(warned)}.", "waiting")
        untried = by_outcome["untried"]
        tail = f" {counted(len(untried), 'check')} could not be tried." if untried else ""
        passed = counted(len(self.checks) - len(untried), "check")
        return Headline(f"{passed} passed.{tail}", "ok")

    def __repr__(self) -> str:
        """Returns the result as plain text."""
        return "\n".join(text_lines(self.parts()))

    def _repr_html_(self) -> str:
        return html(self.parts())
