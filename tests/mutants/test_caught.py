"""Every planted fault that needs neither a broker nor Spark is caught by its tests."""

from __future__ import annotations

import os

from tests.mutants.catalogue import MUTANTS
from tests.mutants.runner import try_all


def test_every_planted_fault_is_caught():
    """Those that need a broker or Spark are planted by ``make mutants`` alone."""
    fast = [mutant for mutant in MUTANTS if mutant.is_fast]
    results = try_all(fast, workers=os.cpu_count() or 1)
    assert len(results) == len(fast)
    missed = [f"{r.mutant.name}: {r.problem}\n{r.output[-2000:]}" for r in results if r.problem]
    assert not missed, "\n".join(missed)
