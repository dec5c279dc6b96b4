"""Which part of the product may import which: dependencies point one way, without cycles."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("assignors", "commits", "coopconsume")
# Each layer may import the layers before it. A layer names modules by the start of their path; the
# longest that fits counts. Layers on one line are beside each other: neither may import the other.
LAYERS = [
    {"assignors"},
    {"commits"},
    {
        "coopconsume.backoff",
        "coopconsume.closing",
        "coopconsume.record",
        "coopconsume.errors",
        "coopconsume.interrupts",
        "coopconsume.lazy_names",
        "coopconsume.texts",
    },
    {"coopconsume.values", "coopconsume.spark_versions"},
    {
        "coopconsume.classic",
        "coopconsume.kafka.security",
        "coopconsume.kafka.partitioner",
    },
    {"coopconsume.decoding"},
    {
        "coopconsume.kafka.settings",
        "coopconsume.kafka.headers",
        "coopconsume.kafka.librdkafka",
        "coopconsume.kafka.identity",
        "coopconsume.filters",
    },
    {"coopconsume.option_names", "coopconsume.option_values", "coopconsume.table_places"},
    {"coopconsume.option_declaration"},
    {"coopconsume.options"},
    {"coopconsume.command_place"},
    {"coopconsume.state"},
    {"coopconsume.kafka", "coopconsume.worker"},
    {"coopconsume.group", "coopconsume.monitoring", "coopconsume.fenced"},
    {"coopconsume.testing.history", "coopconsume.testing.local"},
    {"coopconsume.sinks"},
    {"coopconsume.runtime", "coopconsume.queue"},
    {"coopconsume.admin"},
    {"coopconsume.ui", "coopconsume.doctor"},
    {"coopconsume.subscription", "coopconsume.handler_types"},
    {"coopconsume.query"},
    {"coopconsume.foreach"},
    {"coopconsume.consumer"},
    {"coopconsume.testing"},
    {"coopconsume"},
    {"coopconsume.demo"},
    {"coopconsume.cli"},
    {"coopconsume.__main__", "coopconsume.jobs", "coopconsume.data_source"},
]
# Imports for type checkers alone that may go the other way: an error's attributes, what is drawn,
# the state that a rule is applied to.
BACK = {
    ("assignors.errors", "assignors.ranges"),
    ("commits.errors", "commits.partition_commits"),
    ("commits.grant_rules", "commits.fold"),
    ("commits.partition_rules", "commits.fold"),
    ("coopconsume.admin.pictures", "coopconsume.consumer"),
}
# `assignors` is imported by Spark tasks, where only the standard library is sure to be there.
NOT_AT_IMPORT = {
    "assignors": {"coopconsume", "commits", "pyspark", "xxhash", "kafka", "numpy"},
    "commits": {"coopconsume", "pyspark", "xxhash"},
}
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}


def modules() -> dict[str, Path]:
    """Every module of the product, by its dotted name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


MODULES = modules()


def layer_of(module: str) -> str:
    """The layer that a module belongs to."""
    if module == "coopconsume":
        return module
    found = [name for name in HEIGHT if module == name or module.startswith(f"{name}.")]
    name = max(found, key=len)
    assert name != "coopconsume", f"{module} is in no layer: add it to LAYERS"
    return name


def imported(code: ast.AST) -> set[str]:
    """The modules that a piece of code imports, inside functions and for type checkers included."""
    found: set[str] = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found


IMPORTS = {
    module: {name for name in imported(ast.parse(path.read_text())) if name in MODULES}
    for module, path in MODULES.items()
}


def is_allowed(module: str, other: str) -> bool:
    """Whether a module may import another one."""
    mine, its = layer_of(module), layer_of(other)
    return mine == its or HEIGHT[its] < HEIGHT[mine] or (module, other) in BACK


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_lower_layers_only(module: str) -> None:
    """Type-only imports and imports inside functions count."""
    assert [other for other in sorted(IMPORTS[module]) if not is_allowed(module, other)] == []


def test_no_modules_import_each_other() -> None:
    """There is no cycle of imports; a package that lists its modules does not depend on them."""
    graph = {
        module: {
            other
            for other in others
            if not other.startswith(f"{module}.") and (module, other) not in BACK
        }
        for module, others in IMPORTS.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(" -> ".join(cycle.args[1]))


@pytest.mark.parametrize("package", sorted(NOT_AT_IMPORT))
def test_importing_a_pure_package_loads_nothing_foreign(package: str) -> None:
    """A fresh interpreter that imports all of its modules has loaded nothing that it must not."""
    names = [name for name in MODULES if name.split(".")[0] == package]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert package in run.stdout.split()
    assert not set(run.stdout.split()) & NOT_AT_IMPORT[package]


def test_imports_are_found() -> None:
    """The finder sees every form of import, wherever it stands."""
    code = (
        "import a.b as c\nfrom d import e\nfrom . import f\nfrom coopconsume import query\n"
        "def g():\n    from h.i import j\n"
    )
    assert imported(ast.parse(code)) == {"a.b", "d", "coopconsume.query", "h.i"}


def test_a_wrong_direction_is_found() -> None:
    """Upwards, and beside each other."""
    assert is_allowed("coopconsume.runtime.loop", "coopconsume.group.member")
    assert not is_allowed("coopconsume.group.member", "coopconsume.runtime.loop")
    assert not is_allowed("assignors.ranges", "commits.store")
    assert not is_allowed("coopconsume.monitoring.listener", "coopconsume.group.member")
