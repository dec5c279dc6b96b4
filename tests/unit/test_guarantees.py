"""Every row of docs/guarantees.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_every_row_names_a_test():
    """Every guarantee has a test."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    heads = [row for row in rows if row.startswith(("| Failure |", "| --- |"))]
    assert len(heads) == 2 * PAGE.count("\n## ")
    without = [row for row in rows if row not in heads and "`tests/" not in row]
    assert not without
    assert len(NAMED) == PAGE.count("`tests/")


def test_each_named_test_exists():
    """Where a test is renamed or removed the page follows."""
    missing = [
        f"{path}::{name}"
        for path, name in NAMED
        if not (ROOT / path).is_file()
        or not re.search(rf"^(def {name}\(|{name} = )", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert not missing
