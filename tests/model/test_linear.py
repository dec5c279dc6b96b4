"""The checker of linearisability: true histories pass, planted faults are found."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.testing.history.linear import NEVER
from tests.examples import examples
from tests.linear import Operation, check_linear

KEYS = ("a", "b")


def true_history(seed: int, clients: int, count: int, doubt: float) -> list[Operation]:
    """What clients see of a store that does one thing after another, with all delays random."""
    draw = random.Random(seed)
    store: dict[str, str | None] = {}
    free_at = {f"client-{n}": 0.0 for n in range(clients)}
    operations, moment, numbers = [], 0.0, itertools.count()
    for _ in range(count):
        moment += draw.random()
        ready = [name for name, at in free_at.items() if at < moment]
        if not ready:
            continue
        client, key = draw.choice(ready), draw.choice(KEYS)
        kind = draw.choice(["get", "put", "cas", "cas", "delete"])
        called = max(free_at[client], moment - 2 * draw.random())
        answered = moment + 2 * draw.random()
        value, expected, done = f"v{next(numbers)}", None, True
        if kind == "get":
            value = store.get(key)
        elif kind == "cas":
            expected = store.get(key) if draw.random() < 0.7 else "other"
            done = store.get(key) == expected
        lost = draw.random() < doubt
        happens = not lost or draw.random() < 0.5
        if happens and kind != "get" and done:
            store[key] = None if kind == "delete" else value
        if kind == "delete":
            value = None
        operations.append(
            Operation(client, kind, key, called, NEVER if lost else answered, value, expected, done)
        )
        free_at[client] = NEVER if lost else answered
        if lost:
            free_at[f"{client}'"] = moment
    return operations


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 5), st.sampled_from([0.0, 0.15]))
def test_true_histories_pass(seed: int, clients: int, doubt: float) -> None:
    """Whatever the delays, and with answers that were lost."""
    assert check_linear(true_history(seed, clients, 40, doubt)) is None


def brute_force(operations: list[Operation]) -> bool:
    """Whether any order at all explains a short history of one key."""
    sure = [o for o in operations if not o.is_open]
    maybe = [o for o in operations if o.is_open]
    for size in range(len(maybe) + 1):
        for extra in itertools.combinations(maybe, size):
            for order in itertools.permutations([*sure, *extra]):
                state, fits = None, True
                for at, operation in enumerate(order):
                    late = any(later.answered < operation.called for later in order[at + 1 :])
                    right, state = operation.after(state)
                    fits = fits and right and not late
                if fits:
                    return True
    return False


values = st.sampled_from([None, "x", "y"])


@st.composite
def short_histories(draw: st.DrawFn) -> list[Operation]:
    """Any few operations on one key, most of them impossible together."""
    found = []
    for number in range(draw(st.integers(1, 5))):
        called = draw(st.integers(0, 8))
        answered = draw(st.sampled_from([called + 1, called + 3, NEVER]))
        kind = draw(st.sampled_from(["get", "put", "delete", "cas"]))
        found.append(
            Operation(
                f"client-{number}", kind, "a", called, answered, draw(values), draw(values),
                draw(st.booleans()),
            )
        )  # fmt: skip
    return found


@settings(max_examples=examples(600), deadline=None)
@given(short_histories())
def test_it_says_what_trying_every_order_says(operations: list[Operation]) -> None:
    """Also of operations at the same moment, and of those without an answer."""
    assert (check_linear(operations) is None) == brute_force(operations)


def op(
    client: str, kind: str, called: float, answered: float, value=None, expected=None, done=True
):
    """An operation on the key a."""
    return Operation(client, kind, "a", called, answered, value, expected, done)


FAULTS = {
    "two claimants both set the same old value": [
        op("1", "cas", 0, 3, "x"), op("2", "cas", 1, 4, "y"),
    ],
    "a write that was acknowledged is lost": [op("1", "put", 0, 1, "x"), op("2", "get", 2, 3)],
    "an old value is read after a new one was": [
        op("1", "put", 0, 1, "x"), op("1", "put", 2, 9, "y"),
        op("2", "get", 3, 4, "y"), op("2", "get", 5, 6, "x"),
    ],
    "a value nobody wrote": [op("1", "put", 0, 1, "x"), op("2", "get", 0, 1, "y")],
    "a refusal although the value was there": [
        op("1", "put", 0, 1, "x"), op("2", "cas", 2, 3, "y", "x", done=False),
    ],
    "a refused one happened all the same": [
        op("1", "put", 0, 1, "x"), op("2", "cas", 2, 3, "y", "z", done=False),
        op("1", "get", 4, 5, "y"),
    ],
    "a write without an answer happens twice": [
        op("1", "put", 0, NEVER, "x"), op("2", "get", 1, 2, "x"), op("2", "put", 3, 4, "y"),
        op("2", "get", 5, 6, "x"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    """The result names the operations at which every explanation ends."""
    operations = FAULTS[fault]
    found = check_linear(operations)
    assert found is not None
    assert found.key == "a"
    assert found.stuck
    assert set(found.explained) | set(found.stuck) <= set(operations)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 5))
def test_a_wrong_read_planted_in_a_true_history_is_found(seed: int, clients: int) -> None:
    """A read answers with a value that was never written."""
    operations = true_history(seed, clients, 40, 0.1)
    reads = [i for i, o in enumerate(operations) if o.kind == "get" and not o.is_open]
    if reads:
        at = reads[seed % len(reads)]
        operations[at] = replace(operations[at], value="never written")
        found = check_linear(operations)
        assert found is not None
        assert found.key == operations[at].key


def test_a_history_that_cannot_be_is_refused() -> None:
    """An answer before its call, and one client in two places."""
    with pytest.raises(ValueError, match="before it was called"):
        check_linear([op("1", "put", 2, 1)])
    with pytest.raises(ValueError, match="at once"):
        check_linear([op("1", "put", 0, 3), op("1", "put", 1, 2)])
