"""One planted fault in each source file is caught by its tests."""

from __future__ import annotations

import os

from tests.mutants.catalogue import MUTANTS
from tests.mutants.runner import try_all


def test_a_planted_fault_in_each_file_is_caught():
    """``make mutants`` plants all of them, also those that need a broker or Spark."""
    chosen = list({mutant.file: mutant for mutant in MUTANTS if mutant.is_fast}.values())
    results = try_all(chosen, workers=os.cpu_count() or 1)
    assert len(results) == len(chosen)
    missed = [f"{r.mutant.name}: {r.problem}\n{r.output[-2000:]}" for r in results if r.problem]
    assert not missed, "\n".join(missed)
