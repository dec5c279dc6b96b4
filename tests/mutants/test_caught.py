"""One planted fault of each group is caught by its tests."""

from __future__ import annotations

import os

import pytest

from tests.mutants.catalogue import GROUPS
from tests.mutants.runner import try_all


@pytest.mark.slow
@pytest.mark.nightly
def test_a_planted_fault_of_each_group_is_caught() -> None:
    """``make mutants`` plants all of them, also those that need a broker or Spark."""
    chosen = [[mutant for mutant in group if mutant.is_fast][-1] for group in GROUPS]
    results = try_all(chosen, workers=os.cpu_count() or 1)
    assert len(results) == len(GROUPS)
    missed = [f"{r.mutant.name}: {r.problem}\n{r.output[-2000:]}" for r in results if r.problem]
    assert not missed, "\n".join(missed)
