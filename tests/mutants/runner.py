"""Runs mutants: each in a copy of the sources, in a pytest process that sees only the copy."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tests.mutants.child import PRELOADED, run
from tests.mutants.mutant import ROOT, Mutant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_COPIED = (
    "assignors", "commits", "coopconsume", "docs", "notebooks", "tests",
    "pyproject.toml",
)  # fmt: skip
#: Seconds for the tests of one mutant; without a broker or Spark, and with them.
_FAST_TIMEOUT, _SLOW_TIMEOUT = 300.0, 1800.0


@dataclass(frozen=True)
class Result:
    """The result of one mutant.

    Attributes:
        mutant: Which.
        problem: Why it does not count as caught; empty if it is caught.
        seconds: How long its tests took.
        output: What pytest printed.
    """

    mutant: Mutant
    problem: str
    seconds: float
    output: str


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the sources and tests, for as long as the context is open."""
    folder = Path(tempfile.mkdtemp(prefix="coopconsume-mutants-"))
    try:
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                # Compiled files stay valid, as the copies keep the times of the sources.
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns(".*"))
            else:
                shutil.copy2(source, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_tests(tree: Path, tests: Sequence[str], timeout: float) -> tuple[dict[str, str], str]:
    """Run tests of a copied tree.

    Returns:
        How each test ended, by node id: ``passed``, ``assertion``, or another error's name; and
        what pytest printed.
    """
    outcomes, output = tree / "outcomes.json", tree / "output.txt"
    for left in (outcomes, output):  # by the tests before
        left.unlink(missing_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=run, args=(str(tree), str(ROOT), list(tests)))
    process.start()
    process.join(timeout)
    late = process.is_alive()
    with suppress(ProcessLookupError):
        # Also what it has started and left behind.
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    said = output.read_text(errors="replace") if output.exists() else ""
    ended = json.loads(outcomes.read_text()) if outcomes.exists() else {}
    if late or process.exitcode:
        said += f"\nno end after {timeout:g} s" if late else f"\nended with {process.exitcode}"
    return ended, said


def of_test(ended: dict[str, str], test: str) -> list[str]:
    """How a test ended, with all its parameters."""
    return [end for node, end in ended.items() if test in (node, node.partition("[")[0])]


def problem_of(mutant: Mutant, ended: dict[str, str]) -> str:
    """Why a mutant does not count as caught by how its tests ended; empty if it is caught."""
    for test in mutant.tests:
        found = of_test(ended, test)
        if not found:
            return f"{test} did not run to its end"
        if "assertion" not in found:
            others = sorted(set(found) - {"passed"})
            how = f"failed by {', '.join(others)}, not by an assertion" if others else "passed"
            return f"{test} {how}"
    return ""


def try_mutant(mutant: Mutant, tree: Path) -> Result:
    """Run the tests of one mutant in a copy, which has the sources as they are before and after."""
    begun = time.monotonic()
    target = tree / mutant.file
    target.write_text(mutant.mutated(target.read_text()))
    timeout = _FAST_TIMEOUT if mutant.is_fast else _SLOW_TIMEOUT
    try:
        ended, output = run_tests(tree, mutant.tests, timeout)
    finally:
        shutil.copy2(ROOT / mutant.file, target)
    return Result(mutant, problem_of(mutant, ended), time.monotonic() - begun, output)


def try_all(
    mutants: Sequence[Mutant], *, workers: int, report: Callable[[Result], None] = lambda _: None
) -> list[Result]:
    """Run mutants, several at once where they need neither a broker nor Spark.

    Those that run at once have a copy each, and those that follow use it again: to copy all sources
    takes longer than many a test.
    """
    results: list[Result] = []
    unused: SimpleQueue[Path] = SimpleQueue()

    def one(mutant: Mutant) -> None:
        tree = unused.get()
        try:
            results.append(try_mutant(mutant, tree))
        finally:
            unused.put(tree)
        report(results[-1])

    with ExitStack() as stack:
        for _ in range(min(workers, len(mutants))):
            unused.put(stack.enter_context(copied()))
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(one, [mutant for mutant in mutants if mutant.is_fast]))
        for mutant in mutants:
            if not mutant.is_fast:
                one(mutant)
    return results


def failing_without(mutants: Sequence[Mutant]) -> tuple[list[str], str]:
    """Tests of some mutants that fail on the sources as they are: those prove nothing.

    Returns:
        The tests, and what pytest printed.
    """
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    with copied() as tree:
        ended, output = run_tests(tree, tests, _SLOW_TIMEOUT)
    return [test for test in tests if {"passed"} != set(of_test(ended, test))], output
