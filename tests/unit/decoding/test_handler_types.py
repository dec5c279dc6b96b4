"""What type checkers know of handlers, on a program with right and wrong calls."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "typed_program.py"
WRONG = {
    number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# wrong" in line
}


def by_mypy():
    """The lines at which mypy finds errors."""
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml",
         "--no-error-summary", str(PROGRAM)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not found.stderr
    errors = re.findall(r"^(\S+?):(\d+): error", found.stdout, re.MULTILINE)
    assert {Path(name).name for name, _ in errors} == {PROGRAM.name}, found.stdout
    return {int(number) for _, number in errors}


def by_pyright():
    """The lines at which pyright finds errors."""
    found = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable,
         str(PROGRAM)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        1 + one["range"]["start"]["line"]
        for one in json.loads(found.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    }


@pytest.mark.parametrize("errors", [by_mypy, by_pyright])
def test_checkers_find_what_is_wrong_and_nothing_else(errors):
    """Plain, async, frame and stateful handlers: what they take, and what they may return."""
    assert len(WRONG) > 10
    assert errors() == WRONG
