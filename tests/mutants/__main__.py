"""``python -m tests.mutants``: plants every fault, one by one, and sees its tests fail."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.mutants.catalogue import MUTANTS
from tests.mutants.runner import Result, failing_without, try_all


def main() -> int:
    """Run as the command line says; returns 1 if a mutant is not caught."""
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__)
    parser.add_argument("-k", metavar="WORDS", default="", help="only names that contain this")
    parser.add_argument("--fast", action="store_true", help="only those without broker or Spark")
    parser.add_argument("--list", action="store_true", help="print the rules and run nothing")
    given = parser.parse_args()
    mutants = [m for m in MUTANTS if given.k in m.name and (m.is_fast or not given.fast)]
    if given.list:
        for mutant in mutants:
            print(f"{mutant.name:<44}{mutant.rule}")  # noqa: T201
        return 0
    for mutant in mutants:
        mutant.check()
    begun = time.monotonic()
    count = 0

    def report(result: Result) -> None:
        nonlocal count
        count += 1
        verdict = result.problem or "caught"
        _say(f"{count:3}/{len(mutants)}  {result.seconds:6.1f} s  {result.mutant.name}: {verdict}")

    _say(f"{len(mutants)} mutants; their tests on the sources as they are")
    broken, output = failing_without(mutants)
    if broken:
        _say(output[-10_000:])
    for test in broken:
        _say(f"{test} fails without any mutant")
    results = [] if broken else try_all(mutants, workers=os.cpu_count() or 1, report=report)
    missed = [result for result in results if result.problem]
    for result in missed:
        _say(f"\n{result.mutant.name}\n  breaks: {result.mutant.rule}\n  {result.problem}")
        _say(f"{result.output[-3000:]}")
    caught = len(results) - len(missed)
    _say(f"\n{caught} of {len(mutants)} mutants caught in {time.monotonic() - begun:.0f} s")
    return int(bool(missed or broken))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
