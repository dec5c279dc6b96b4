"""PartitionCommits against a naive model: a set of offsets and a number."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from commits import IndividualCommitTooOld, MaxIndividualCommitsReached, PartitionCommits
from tests.examples import examples

SIZE = 40

OFFSET = st.integers(0, SIZE)
PAIR = st.tuples(OFFSET, st.integers(0, 6)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))
STEP = st.one_of(
    st.tuples(st.sampled_from(["commit", "commit", "commit", "amend"]), st.lists(PAIR, max_size=4)),
    st.tuples(st.sampled_from(["log_start", "truncate", "reset"]), OFFSET),
)


class Naive:
    """What is committed at or above the stable offset, offset by offset."""

    def __init__(self, stable: int, limit: int) -> None:
        self.stable, self.limit, self.above = stable, limit, set[int]()

    def count(self) -> int:
        return sum(1 for offset in self.above if offset - 1 not in self.above)

    def settle(self) -> None:
        self.above = {offset for offset in self.above if offset >= self.stable}
        while self.stable in self.above:
            self.above.remove(self.stable)
            self.stable += 1

    def commit(self, pairs: list[tuple[int, int]], *, is_hole: bool) -> object:
        offered = {offset for first, last in pairs for offset in range(first, last + 1)}
        if not is_hole and offered and max(offered) < self.stable:
            return IndividualCommitTooOld
        before = self.stable, set(self.above), self.count()
        fresh = {offset for offset in offered if offset >= self.stable} - self.above
        self.above |= fresh
        self.settle()
        if not is_hole and self.count() > self.limit and self.count() > before[2]:
            self.stable, self.above = before[:2]
            return MaxIndividualCommitsReached
        return self.stable, len(fresh), len(offered) - len(fresh), self.count()


@settings(max_examples=examples(400))
@given(OFFSET, st.integers(0, 6), st.lists(STEP, max_size=40))
def test_every_step_agrees_with_a_naive_model(
    stable: int, limit: int, steps: list[tuple[str, object]]
) -> None:
    """Answers, errors and state are those of plain sets; an error changes nothing."""
    real, naive = PartitionCommits(stable, max_ranges=limit), Naive(stable, limit)
    for name, value in steps:
        if name in {"commit", "amend"}:
            assert isinstance(value, list)
            expected = naive.commit(value, is_hole=name == "amend")
            try:
                result = getattr(real, name)(value)
                answer: object = (
                    result.stable_offset, result.committed, result.duplicates, result.range_count,
                )  # fmt: skip
            except (IndividualCommitTooOld, MaxIndividualCommitsReached) as error:
                answer = type(error)
            assert answer == expected
        else:
            assert isinstance(value, int)
            getattr(real, name)(value)
            if name == "log_start":
                naive.stable = max(naive.stable, value)
            elif name == "truncate":
                naive.stable = min(naive.stable, value)
                naive.above = {offset for offset in naive.above if offset < value}
            else:
                naive.stable, naive.above = value, set()
            naive.settle()
        assert real.stable_offset == naive.stable
        assert set(real.ranges.offsets().tolist()) == naive.above
        open_ones = set(real.uncommitted(0, SIZE + 10).offsets().tolist())
        assert open_ones == set(range(naive.stable, SIZE + 11)) - naive.above
