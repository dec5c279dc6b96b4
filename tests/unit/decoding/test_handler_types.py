"""What type checkers know of handlers, on a program with right and wrong calls."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, block

PROGRAM = Path(__file__).parent / "typed_program.py"
WRONG = {
    number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# wrong" in line
}


def by_mypy(job):
    """The lines at which mypy finds errors, in the program and in the job of the README."""
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml",
         "--no-error-summary", str(PROGRAM), str(job)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not found.stderr
    errors = re.findall(r"^(\S+?):(\d+): error", found.stdout, re.MULTILINE)
    assert {Path(name).name for name, _ in errors} == {PROGRAM.name}, found.stdout
    return {int(number) for _, number in errors}


def by_pyright(job):
    """The lines at which pyright finds errors, in the program and in the job of the README."""
    found = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable,
         str(PROGRAM), str(job)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors = [
        one for one in json.loads(found.stdout)["generalDiagnostics"] if one["severity"] == "error"
    ]
    assert {Path(one["file"]).name for one in errors} == {PROGRAM.name}, errors
    return {1 + one["range"]["start"]["line"] for one in errors}


@pytest.mark.parametrize("errors", [by_mypy, by_pyright])
def test_checkers_find_what_is_wrong_and_nothing_else(errors, tmp_path):
    """Plain, async, frame and stateful handlers: what they take, and what they may return."""
    assert len(WRONG) > 10
    job = tmp_path / "billing.py"
    job.write_text(block("README.md", "from dataclasses"))
    assert errors(job) == WRONG
