"""What a real-time slot still has to read: by set arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopconsume.worker.realtime.wanted import LAST, NOTHING, WantedOffsets

RANGES = st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda one: (one[0], sum(one)))


def numbers(pairs: object) -> set[int]:
    """The offsets of some ranges."""
    return {n for first, last in pairs for n in range(first, last + 1)}  # type: ignore[attr-defined]


@given(st.lists(st.tuples(st.booleans(), RANGES), max_size=40))
def test_what_was_wanted_is_taken_once(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    """However chunks come, and in which order they are read."""
    wanted, left = WantedOffsets(), set[int]()
    for is_new, (first, last) in steps:
        if is_new:
            wanted.add([(first, last)])
            left |= numbers([(first, last)])
        else:
            taken = numbers(wanted.take(first, last + 1))
            assert taken == left & numbers([(first, last)])
            left -= taken
        assert bool(wanted) == bool(left)
        assert wanted.first == min(left, default=NOTHING)
        if left:
            assert wanted.last == max(left)
            assert numbers([(wanted.first, wanted.until)]) <= left
            assert wanted.until + 1 not in left


def test_all_from_an_offset_on_never_ends() -> None:
    """As for a slot that has key ranges."""
    wanted = WantedOffsets(5)
    assert (wanted.first, wanted.until, wanted.last) == (5, LAST, LAST)
    assert wanted.take(5, 6) == ((5, 5),)
    assert wanted.take(0, 9) == ((6, 8),)
    assert wanted.take(2, 9) == ()
    assert wanted.first == 9
