"""Whether what several clients saw can have happened one after another.

A history is linearisable if each operation can be given one moment between its call and its answer
so that, taken in the order of these moments, every answer is right (Herlihy and Wing). The search
is Wing and Gong's with the remembered states of Lowe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

NEVER = float("inf")
"""The moment of an answer that never came: the operation may have happened, or may yet."""

S = TypeVar("S", bound="Hashable")
Call = TypeVar("Call", bound="_Step")


class _Step(Protocol):
    """A call and its answer: `after` checks it in a state, and returns the state after it."""

    @property
    def called(self) -> float: ...

    @property
    def answered(self) -> float: ...

    @property
    def is_open(self) -> bool: ...

    def after(self, state: Any) -> tuple[bool, Any]: ...


def search(
    operations: Sequence[Call], initial: S
) -> tuple[tuple[Call, ...], tuple[Call, ...], S] | None:
    """Looks for an order that explains all answers, depth first, each case once.

    Args:
        operations: The calls.
        initial: The state before them.

    Returns:
        None if there is such an order; else the longest beginning that can be explained, the
        operations that cannot come next, and the state between the two.
    """
    must = frozenset(i for i, operation in enumerate(operations) if not operation.is_open)
    seen: set[tuple[frozenset[int], S]] = set()
    longest: tuple[int, ...] = ()
    longest_state = initial
    stack: list[tuple[frozenset[int], S, tuple[int, ...]]] = [
        (frozenset(range(len(operations))), initial, ())
    ]
    while stack:
        left, state, order = stack.pop()
        if not left & must:
            return None
        if (left, state) in seen:
            continue
        seen.add((left, state))
        if len(order) > len(longest):
            longest, longest_state = order, state
        # Nothing may come next that was called after another one had been answered.
        until = min(operations[i].answered for i in left)
        for i in left:
            if operations[i].called <= until:
                is_right, after = operations[i].after(state)
                if is_right:
                    stack.append((left - {i}, after, (*order, i)))
    done = set(longest)
    rest = [i for i in range(len(operations)) if i not in done]
    until = min(operations[i].answered for i in rest)
    stuck = tuple(operations[i] for i in rest if operations[i].called <= until)
    return tuple(operations[i] for i in longest), stuck, longest_state
