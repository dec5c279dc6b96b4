"""The README says what the code does: its options, its programs, the columns of the table."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from commits.rows import KINDS, SCHEMA
from coopconsume.cli.outcome import EXIT_CODES
from coopconsume.options import TABLE

_README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
_PROGRAMS = re.findall(r"```python\n(.*?)```", _README, re.DOTALL)


def _shown(default: object) -> str:
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_the_table_of_options_is_that_of_the_code() -> None:
    """Every option, its default and its meaning, in the order of the code; and no other."""
    found = re.search(r"<!-- options:begin -->\n(.*?)<!-- options:end -->", _README, re.DOTALL)
    assert found is not None
    expected = ["| Option | Default | Meaning |", "| --- | --- | --- |"]
    expected += [f"| `{o.name}` | {_shown(o.default)} | {o.doc} |" for o in TABLE]
    text = "\n".join(expected)
    assert found[1].splitlines() == expected, f"put this between the marks:\n{text}"


@pytest.mark.parametrize("program", _PROGRAMS, ids=range(len(_PROGRAMS)))
def test_programs_compile_and_import_what_exists(program: str) -> None:
    """A program of the README is Python, and the names that it imports are there."""
    tree = ast.parse(program)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        module = importlib.import_module(node.module or "")
        for name in node.names:
            assert hasattr(module, name.name), f"{node.module} has no {name.name}"


def test_all_columns_and_kinds_of_the_commit_table_are_named() -> None:
    """The section on the commit table leaves out no column and no kind of row."""
    section = _README.partition("## The commit table")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert named >= set(SCHEMA.names)
    assert named >= KINDS


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    """The README has a row for each exit code that --help tells, and no other."""
    section = _README.partition("### Exit codes")[2].partition("\n## ")[0]
    told = re.findall(r"^ +(\d+) ", EXIT_CODES, re.MULTILINE)
    assert told
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == told


def test_nothing_of_a_private_machine_is_told() -> None:
    """No home folder stands in the README, not even after a benchmark was pasted into it."""
    assert not re.search(r"/(home|root|Users|tmp|work)/", _README)
