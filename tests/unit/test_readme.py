"""The README says what the code does: its options, its programs, the columns of the table."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from pathlib import Path

import pytest

from commits.rows import KINDS, SCHEMA
from coopconsume.admin.views import SCHEMAS
from coopconsume.cli.offset_text import LAG_COLUMNS
from coopconsume.cli.outcome import EXIT_CODES
from coopconsume.cli.text import EVENT_COLUMNS, MEMBER_COLUMNS, PARTITION_COLUMNS
from coopconsume.options import TABLE

_README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
_COMMANDS = re.findall(r"```sh\n(.*?)```", _README, re.DOTALL)
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


@pytest.mark.parametrize("commands", _COMMANDS, ids=range(len(_COMMANDS)))
def test_commands_are_a_shell_s(commands: str) -> None:
    """A block of commands has no quote, bracket or continuation left open."""
    checked = subprocess.run(
        ["bash", "-n"], input=commands, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


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


def test_the_sample_of_a_group_has_the_columns_of_the_command() -> None:
    """The sample under "Operating a group" is what `groups describe` still says."""
    section = _README.partition("## Operating a group")[2].partition("\n## ")[0]
    lines = section.splitlines()
    for columns in (MEMBER_COLUMNS, PARTITION_COLUMNS, EVENT_COLUMNS):
        assert " ".join(columns).split() in [line.split() for line in lines]


def test_columns_of_lag_and_of_the_views_are_named() -> None:
    """What operators and SQL users see is explained, each column by its name."""
    section = _README.partition("### Offsets of a group")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", section, flags=re.DOTALL)))
    assert named >= set(LAG_COLUMNS) - {"PARTITION"}
    for schema in SCHEMAS.values():
        assert named >= set(schema.names)
    holder = SCHEMAS["partitions"].field("holder").type
    assert named >= {field.name for field in holder}


def test_nothing_of_a_private_machine_is_told() -> None:
    """No home folder stands in the README, not even after a benchmark was pasted into it."""
    assert not re.search(r"/(home|root|Users|tmp|work)/", _README)


def test_links_lead_to_headings() -> None:
    """Each link within the README names one heading, by the anchor that GitHub makes of it."""
    text = re.sub(r"```.*?```", "", _README, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings]
    links = re.findall(r"\]\(#([^)]*)\)", text)
    assert links
    assert [link for link in links if anchors.count(link) != 1] == []


def test_tables_are_whole() -> None:
    """All rows of a table have as many cells as its head, and there is an empty line before it."""
    rows = re.compile(r"(?:(?<=\n\n)|(?<=-->\n))(?:\|.*\|\n)+")
    text = re.sub(r"```.*?```", "", _README, flags=re.DOTALL)
    tables = rows.findall(text)
    assert sum(len(table.splitlines()) for table in tables) == len(re.findall(r"\n\|", text))
    for table in tables:
        head, *others = (len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines())
        assert others
        assert set(others) == {head}, table
