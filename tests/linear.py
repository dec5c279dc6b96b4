"""Whether what several clients saw of a key-value store can have happened one after another.

Each key is judged by itself, as linearisability is local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coopconsume.testing.history.linear import NEVER, search

if TYPE_CHECKING:
    from collections.abc import Iterable

State = str | None


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
