"""The planted faults fit the sources as they are, and the runner takes nothing else for a catch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, Mutant, StaleMutant
from tests.mutants.runner import copied, problem_of, try_mutant

_FILE = "assignors/ranges.py"
_TEST = "tests/unit/assignors/test_ranges.py::test_the_whole_space_is_the_default"


def mutant(old="self.last - self.first + 1", new="self.last - self.first", test=_TEST):
    """One that breaks the size of a key range."""
    return Mutant("size", "A range has both of its ends.", _FILE, old, new, (test,))


def test_each_fault_fits_the_sources_once():
    """A change of a line that a mutant edits must update the mutant."""
    assert len(MUTANTS) >= 25
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)
    for one in MUTANTS:
        one.check()


def test_no_fault_uses_a_name_that_is_not_there(tmp_path):
    """It would end every test, and prove nothing."""
    for number, one in enumerate(MUTANTS):
        target = tmp_path / f"{number}.py"
        target.write_text(one.mutated((ROOT / one.file).read_text()))
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "."]
    found = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not found.returncode, found.stdout


@pytest.mark.parametrize(
    ("stale", "why"),
    [
        (mutant(old="no such text"), "contains its old text 0 times"),
        (mutant(old="self.last"), "times, expected once"),
        (mutant(new="self.last -"), "is no Python"),
        (
            mutant(test="tests/unit/assignors/test_ranges.py::test_of_another_name"),
            "there is no test",
        ),
    ],
)
def test_a_fault_that_does_not_fit_is_named(stale, why):
    """With what to do about it."""
    with pytest.raises(StaleMutant, match=f"'size' needs an update.*{why}"):
        stale.check()


@pytest.mark.parametrize(
    ("ended", "problem"),
    [
        ({_TEST: "assertion"}, ""),
        ({f"{_TEST}[1]": "passed", f"{_TEST}[2]": "assertion"}, ""),
        ({_TEST: "passed"}, f"{_TEST} passed"),
        ({_TEST: "NameError at call"}, f"{_TEST} failed by NameError at call, not by an assertion"),
        ({}, f"{_TEST} did not run to its end"),
    ],
)
def test_only_a_failed_assertion_is_a_catch(ended, problem):
    """An edit that breaks an import, or a test that was not run, proves nothing."""
    assert problem_of(mutant(), ended) == problem


def test_a_fault_is_planted_in_a_copy_alone():
    """The tests see it there, and not without it; the next one finds the sources as they were."""
    with copied() as tree:
        assert try_mutant(mutant(), tree).problem == ""
        harmless = try_mutant(mutant(new="1 + self.last - self.first"), tree)
        assert harmless.problem == f"{_TEST} passed", harmless.output
        broken = try_mutant(mutant(new="unknown_name"), tree)
        assert "not by an assertion" in broken.problem
        assert (tree / _FILE).read_bytes() == (ROOT / _FILE).read_bytes()
