"""The process that runs the tests of one mutant: forked where the packages of others are loaded."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

#: Loaded once for all mutants; none of them loads anything of this repository.
PRELOADED = [
    "tests.mutants.child", "hypothesis.stateful", "numpy", "pyarrow.compute", "pyarrow.csv",
    "pyarrow.ipc", "deltalake", "pyroaring", "xxhash", "kafka", "kafka.admin", "click",
    "pyspark.sql", "pytest_timeout",
]  # fmt: skip
_OURS = ("assignors", "commits", "coopconsume")
# Nobody reads the smallest example of a planted fault.
settings.register_profile(
    "mutants", derandomize=True, database=None, deadline=None, report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip


class Outcomes:
    """A plugin for pytest: notes how each test ended.

    A test that ends by an assertion, or an error that the library raises itself, is distinguished
    from one that ends by another error: an edit that breaks an import or a name proves nothing.

    Attributes:
        ended: ``passed``, ``assertion`` or another error's name, by node id.
    """

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Note the first failure of a test, or that it passed."""
        report = yield
        error = call.excinfo
        if error is not None and not isinstance(error.value, pytest.skip.Exception):
            is_assertion = call.when == "call" and _is_assertion(error.value)
            outcome = "assertion" if is_assertion else f"{error.typename} at {call.when}"
            if self.ended.get(item.nodeid, "passed") == "passed":
                self.ended[item.nodeid] = outcome
        elif report.when == "call":
            self.ended[item.nodeid] = "passed"
        return report


def _is_assertion(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_assertion, error.exceptions))
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, AssertionError | pytest.fail.Exception) or package in _OURS


def run(tree: str, root: str, tests: list[str]) -> None:
    """Run tests of a copied tree; ``outcomes.json`` and ``output.txt`` in it say what came of them.

    Args:
        tree: The copy.
        root: The checkout; nothing of it may be loaded.
        tests: Node ids.
    """
    os.setsid()
    os.chdir(tree)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    # The checkout stands on the path, too, as an installation that can be edited puts it there.
    sys.path[:] = [tree, *(path for path in sys.path if path not in ("", tree, root))]
    sys.dont_write_bytecode = True
    # What a fault brings to a standstill is waited for no longer than this: to fail is right here.
    os.environ |= {
        "PYTHONPATH": tree, "PYTHONDONTWRITEBYTECODE": "1", "COOPCONSUME_TEST_PATIENCE": "15",
        "COOPCONSUME_TEST_RUN": tree,
    }  # fmt: skip
    outcomes = Outcomes()
    pytest.main(
        [
            # Without what takes long to load, and is used by no test.
            "-q", "-p", "no:cacheprovider", "-p", "no:nbmake", "-p", "no:anyio",
            "--hypothesis-profile=mutants", "--tb=short", *tests,
        ],
        plugins=[outcomes],
    )  # fmt: skip
    Path("outcomes.json").write_text(json.dumps(outcomes.ended))
    sys.stdout.flush()
    # Threads that a fault left behind do not matter.
    os._exit(0)
