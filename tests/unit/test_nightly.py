"""Tests that CI leaves to every night: which these are, that they run then, and that CI says so."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"`(tests/[\w/]+\.py::\w+)`")


def is_nightly(node: ast.AST) -> bool:
    """Whether a decorator, or what is assigned to `pytestmark`, has the marker."""
    return "pytest.mark.nightly" in ast.unparse(node)


def marked_tests() -> set[str]:
    """The tests that have the marker, or some of whose parameters have it."""
    found = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        body = ast.parse(file.read_text()).body
        are_all = any(isinstance(node, ast.Assign) and is_nightly(node) for node in body)
        tests = (node for node in body if isinstance(node, ast.FunctionDef))
        found |= {
            f"{file.relative_to(ROOT)}::{test.name}"
            for test in tests
            if test.name.startswith("test_")
            and (are_all or any(map(is_nightly, test.decorator_list)))
        }
    return found


def test_each_has_its_reason():
    """The tests that judge the same exist, and CI runs them."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = text.split("| Nightly test |")[1].split("\n\n")[0].splitlines()[2:]
    nightly = {name for row in rows for name in _NAME.findall(row.split(" | ")[0])}
    assert nightly == marked_tests()
    instead = [name for row in rows for name in _NAME.findall(row.split(" | ")[1])]
    assert not nightly & {*instead}
    for name in instead:
        path, _, test = name.partition("::")
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), name


def test_they_run_every_night_and_in_no_run_of_ci():
    """Each other target of the tests leaves them out by the marker, or with all slow tests."""
    assert "make test-nightly" in (ROOT / ".ci" / "scheduled").read_text().splitlines()

    def recipe(target: str) -> str:
        command = ["make", "-n", target]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout

    assert "-m nightly" in recipe("test-nightly")
    assert "-m 'not nightly'" in recipe("test-all")
    assert "-m 'slow and not nightly'" in recipe("test-slow")
    assert "-m 'not slow'" in recipe("test")
    for file in map(Path, {name.partition("::")[0] for name in marked_tests()}):
        assert "pytest.mark.slow" in (ROOT / file).read_text(), "make test leaves these out, too"


def test_the_end_of_a_run_says_how_many_it_leaves_out():
    """The processes of pytest-xdist leave them out, and another one writes the end."""
    file = "tests/mutants/test_caught.py"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "MAKE"))}
    words = ["-n", "1", "-m", "not nightly", "-p", "no:cacheprovider", file]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Nightly tests left out: 1. make test-nightly runs them" in run.stdout
