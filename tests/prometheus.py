"""Prometheus, for the tests of alert rules and of the dashboard.

``python -m tests.prometheus`` installs it where that can be done, as in CI.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.apt import Programs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROGRAMS = Programs(
    "tests of alert rules and of the dashboard", (("promtool",), ("prometheus",)), ("prometheus",)
)
RESOURCES = Path(__file__).parents[1] / "docs/reference/monitoring"
RULES = RESOURCES / "prometheus-alerts.yml"
DASHBOARD = RESOURCES / "grafana-dashboard.json"
#: Minutes after which alerts are looked at: all have fired that are to fire.
_LATE = 120
_SAMPLE = re.compile(r"^(coopconsume_\w+(?:\{.*\})?) (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A history of metrics, and what is to be found at its end.

    Attributes:
        name: Its name.
        series: The values of series, one a minute, in promtool's notation.
        firing: The names of the alerts that fire, all of them.
        values: The values of expressions that have one.
    """

    name: str
    series: Mapping[str, str]
    firing: Iterable[str] = ()
    values: Mapping[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The case for promtool."""
        alerts = 'count by (alertname) (count by (alertname, group) (ALERTS{alertstate="firing"}))'
        # Its own messages do not name a case.
        named = f'label_replace({alerts}, "case", "{self.name}", "", "")'
        firing = [
            {"labels": f'{{alertname="{name}",case="{self.name}"}}', "value": 1}
            for name in self.firing
        ]
        found = [(named, firing)] + [
            (expression, [{"labels": "{}", "value": value}])
            for expression, value in self.values.items()
        ]
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": [
                {"series": series, "values": values} for series, values in self.series.items()
            ],
            "promql_expr_test": [
                {"expr": expression, "eval_time": f"{_LATE}m", "exp_samples": samples}
                for expression, samples in found
            ],
        }


def constant(value: float | str) -> str:
    """A value that a series always has."""
    return f"{value}+0x{_LATE}"


def series_of(scraped: str) -> dict[str, str]:
    """The series of a scrape, as if each had always this value."""
    return {name: constant(f"{float(value):f}") for name, value in _SAMPLE.findall(scraped)}


def judge(folder: Path, cases: Iterable[Case]) -> None:
    """Fails if the rules find something else in a case than it says."""
    file = folder / "cases.json"
    document = {
        "rule_files": [str(RULES)], "evaluation_interval": "1m",
        "tests": [case.document() for case in cases],
    }  # fmt: skip
    file.write_text(json.dumps(document))
    ran = subprocess.run(
        [PROGRAMS.path(), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def expressions(**values: str) -> dict[str, list[str]]:
    """The expressions of each panel of the dashboard, with values for its variables."""
    found: dict[str, list[str]] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(f"${name}", value)
            found.setdefault(panel["title"], []).append(expression)
    return found


if __name__ == "__main__":
    sys.exit(PROGRAMS.install())
