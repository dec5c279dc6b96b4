"""Whether what several clients saw of a key-value store can have happened one after another.

A history is linearisable if each operation can be given one moment between its call and its answer
so that, taken in the order of these moments, every answer is right (Herlihy and Wing). The search
is Wing and Gong's with the remembered states of Lowe; each key is judged by itself, as
linearisability is local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


NEVER = float("inf")
"""The moment of an answer that never came: the operation may have happened, or may yet."""

State = str | None
S = TypeVar("S", bound="Hashable")
Call = TypeVar("Call", bound="_Step")


@dataclass(frozen=True)
class Operation:
    """One call to a store, as its client saw it.

    Attributes:
        client: Who called.
        kind: `get`, `put`, `delete` or `cas` (compare and set).
        key: The key.
        called: When it was called; any clock that all clients share.
        answered: When the answer came; `NEVER` if none did, or the answer was that it is not known.
        value: What was put or set; of a `get`, what it answered. None is: no such key.
        expected: What a `cas` compared with.
        done: Of a `cas`, whether it answered that it set the value.
    """

    client: str
    kind: str
    key: str
    called: float
    answered: float
    value: State = None
    expected: State = None
    done: bool = True

    @property
    def is_open(self) -> bool:
        """Whether no answer came."""
        return self.answered == NEVER

    def after(self, state: State) -> tuple[bool, State]:
        """Whether its answer is right if it happens in some state, and the state after it."""
        if self.kind == "get":
            return self.is_open or self.value == state, state
        if self.kind == "cas":
            fits = state == self.expected
            return self.is_open or fits == self.done, self.value if fits else state
        return True, self.value if self.kind == "put" else None


@dataclass(frozen=True)
class Unexplained:
    """A key whose operations cannot have happened one after another.

    Attributes:
        key: The key.
        explained: The longest beginning that can be explained, in an order that does.
        stuck: The operations that cannot come next.
        state: The value after those explained.
    """

    key: str
    explained: tuple[Operation, ...]
    stuck: tuple[Operation, ...]
    state: State


def check_linear(operations: Iterable[Operation]) -> Unexplained | None:
    """Judges a history of a store that was empty at first.

    Args:
        operations: All calls of all clients, in any order.

    Returns:
        The first key that cannot be explained; None if all can.

    Raises:
        ValueError: If an answer came before its call, or a client has two calls at once.
    """
    by_key: dict[str, list[Operation]] = {}
    last: dict[str, Operation] = {}
    for operation in sorted(operations, key=lambda o: (o.called, o.answered)):
        if operation.answered < operation.called:
            raise ValueError(f"answered before it was called: {operation}")
        before = last.get(operation.client)
        if before is not None and not before.is_open and before.answered > operation.called:
            raise ValueError(f"two calls at once: {before} and {operation}")
        last[operation.client] = operation
        by_key.setdefault(operation.key, []).append(operation)
    for key in sorted(by_key):
        found = search(by_key[key], None)
        if found is not None:
            return Unexplained(key, *found)
    return None


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
