"""Which package may import which: `assignors` and `commits` stand on their own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEVER = {"assignors": {"coopconsume", "commits"}, "commits": {"coopconsume", "assignors"}}
# `assignors` is imported by Spark tasks, where only the standard library is sure to be there.
NOT_AT_IMPORT = {"assignors": {"pyspark", "xxhash", "kafka", "numpy"}, "commits": {"pyspark"}}
MODULES = [
    pytest.param(path, id=str(path.relative_to(ROOT)))
    for room in NEVER
    for path in sorted((ROOT / room).rglob("*.py"))
]


def imported(tree: ast.AST) -> set[str]:
    """Return the top packages that a piece of code imports anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES)
def test_no_module_names_another_room(path: Path) -> None:
    """No import in a module names another room, not even inside functions or for type checkers."""
    room = path.relative_to(ROOT).parts[0]
    assert not imported(ast.parse(path.read_text())) & NEVER[room]


@pytest.mark.parametrize("room", sorted(NEVER))
def test_importing_a_room_loads_nothing_foreign(room: str) -> None:
    """A fresh interpreter that imports all modules of a room has loaded nothing it must not."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / room).rglob("*.py"))
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert room in run.stdout.split()
    assert not set(run.stdout.split()) & (NEVER[room] | NOT_AT_IMPORT[room])


def test_imports_are_found() -> None:
    """The finder sees every form of import, wherever it stands."""
    code = "import a.b as c\nfrom d import e\nfrom . import f\ndef g():\n    from h.i import j\n"
    assert imported(ast.parse(code)) == {"a", "d", "h"}
