"""The checker on runs of a consumer that keeps every promise, and with faults planted in them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.testing.history import (
    Call,
    Deletion,
    Seen,
)
from coopconsume.testing.history.recorder import fingerprint
from tests.examples import examples
from tests.model.checker_runs import TP, A, B, Run, call, killed

if TYPE_CHECKING:
    from collections.abc import Callable


def simulate(random: Random) -> Run:
    """A right run: keys in order over slots, failures with retries, dead letters, kills, deletions.

    Of what was deleted only calls that run go on; the log counts it as done.
    """
    size, limit = random.randint(1, 25), random.choice([None, 3])
    keys = {o: random.choice([None, b"", A, B]) for o in sorted(random.sample(range(60), size))}
    fails = {o: random.choice([0, 0, 0, 1, 2, 9 if limit else 2]) for o in keys}
    rejects = {o for o in keys if random.random() < 0.05}
    kills, calls = [], []
    kills_left = random.randint(0, 3)
    settled: dict[int, str] = {}
    committed: set[int] = set()
    attempts = dict.fromkeys(keys, 0)
    running: dict[int, Call] = {}
    gone: set[int] = set()
    deletions: list[Deletion] = []
    # The state that the done call of a record left; it is a number of its own for each call.
    left: dict[int, int] = {}

    def state_of(key: bytes | None, below: float = float("inf")) -> int | None:
        before = [o for o in left if keys[o] == key and o < below]
        return left[max(before)] if before else None

    now = 0
    for _ in range(random.randint(0, size * 10)):
        now += random.randint(1, 9)
        busy = {keys[o] for o in running if keys[o] is not None}
        ready = [
            o
            for o in keys
            if o not in settled
            and o not in running
            and o not in gone
            and (keys[o] is None or keys[o] not in busy)
            and all(
                p in settled or (p in gone and p not in running)
                for p in keys
                if p < o and keys[p] == keys[o] and keys[o] is not None
            )
        ]
        step = random.random()
        if step < 0.4 and ready and len(running) < 4:
            offset = random.choice(ready)
            process = f"{len(kills)}{random.randint(1, 2)}-aa"
            attempt = attempts[offset] + 1
            running[offset] = call(
                offset, now, None, key=keys[offset], attempt=attempt, process=process,
                saw="" if keys[offset] is None else fingerprint(state_of(keys[offset], offset)),
            )  # fmt: skip
        elif step < 0.8 and running:
            offset = random.choice([*running])
            begun = running.pop(offset)
            attempts[offset] += 1
            outcome = "reject" if offset in rejects else "done"
            if attempts[offset] <= fails[offset] and outcome == "done":
                outcome = "retry"
            found = ""
            if outcome == "done" and keys[offset] is not None:
                left[offset] = now
                found = fingerprint(now)
            calls.append(replace(begun, end_ns=now, outcome=outcome, left=found))
            if outcome != "retry" or (limit and attempts[offset] >= limit):
                settled[offset] = outcome
        elif step < 0.83:
            below = random.choice([*keys])
            gone |= {o for o in keys if o < below}
            deletions.append(Deletion(now, {TP: below}))
        elif step < 0.95:
            committed |= {o for o in settled if random.random() < 0.5}
        elif kills_left:
            kills_left -= 1
            calls += running.values()
            running.clear()
            kills.append(killed(now, *committed))
            now += 1
            settled = {o: how for o, how in settled.items() if o in committed}
            left = {o: value for o, value in left.items() if o in committed}
            # What the log had of failed attempts is there again, what it had not yet is not.
            attempts |= {o: random.randint(0, attempts[o]) for o in keys if o not in committed}
    for begun in running.values():
        now += 1
        calls.append(replace(begun, end_ns=now, outcome="retry"))
    dead = {o for o, how in settled.items() if how != "done"}
    done = (set(settled) | gone) - dead
    pending = set(keys) - done - dead
    seen = Seen(deletions=deletions)
    states = {key: state for key in (b"", A, B) if (state := state_of(key)) is not None}
    return Run(calls, keys, done, pending, dead, kills, limit, "key", seen, states)


# A run takes some hundred draws: one seed for all is a hundred times faster than a draw each.
SEEDS = st.integers(0, 2**63).map(Random)


@given(SEEDS)
@settings(max_examples=examples(500), deadline=None)
def test_right_runs_are_right(random: Random) -> None:
    """A consumer that keeps the rules is never blamed, whatever fails and whenever it is killed."""
    run = simulate(random)
    verdict = run.check()
    assert verdict.ok, str(verdict)
    assert (
        verdict.produced == verdict.done + verdict.pending + verdict.dead_lettered == len(run.keys)
    )


def _is_deleted(run: Run, offset: int) -> bool:
    assert run.seen is not None
    return any(offset < deletion.below[TP] for deletion in run.seen.deletions)


def _forgotten(run: Run, random: Random) -> tuple[str, int] | None:
    left = [offset for offset in run.keys if not _is_deleted(run, offset)]
    if not left:
        return None
    offset = random.choice(left)
    for book in (run.done, run.pending, run.dead):
        assert book is not None
        book.discard(offset)
    return "lost", offset


def _done_without_success(run: Run, random: Random) -> tuple[str, int] | None:
    done = [offset for offset in sorted(run.done or ()) if not _is_deleted(run, offset)]
    if not done:
        return None
    offset = random.choice(done)
    run.calls = [c for c in run.calls if (c.offset, c.outcome) != (offset, "done")]
    return "lost", offset


def _repeated_at_the_end(run: Run, random: Random) -> tuple[str, int] | None:
    done = [offset for offset in sorted(run.done or ()) if not _is_deleted(run, offset)]
    if not done:
        return None
    offset = random.choice(done)
    last = max(c.end_ns or c.start_ns for c in run.calls)
    run.calls.append(call(offset, last + 1, last + 2, key=run.keys[offset]))
    return "repeated_outside_flight", offset


def _counted_before_its_deletion(run: Run, random: Random) -> tuple[str, int] | None:
    assert run.seen is not None
    called = {c.offset for c in run.calls}
    gone = [
        offset
        for deletion in run.seen.deletions
        for offset in run.keys
        if offset < deletion.below[TP] and offset not in called
    ]
    if not gone:
        return None
    offset = random.choice(gone)
    run.seen = replace(run.seen, commits=[(0, {TP: [(offset, offset)]})])
    return "lost", offset


def _committed_before_the_kill(run: Run, random: Random) -> tuple[str, int] | None:
    again = [
        (k, c.offset)
        for k in range(len(run.kills))
        for c in run.calls
        if c.start_ns > run.kills[k].at_ns
        and any(d.offset == c.offset and (d.end_ns or run.kills[k].at_ns + 1) <= run.kills[k].at_ns
                and d.outcome == "done" for d in run.calls)
    ]  # fmt: skip
    if not again:
        return None
    index, offset = random.choice(again)
    kill = run.kills[index]
    run.kills[index] = killed(kill.at_ns, offset, *(a for a, _ in kill.committed[TP]))
    return "repeated_outside_flight", offset


def _pairs(run: Run) -> list[tuple[Call, Call]]:
    """Calls of one key and life, of neighbouring records, the later record's first."""
    return [
        (later, earlier)
        for later in run.calls
        for earlier in run.calls
        if later.key == earlier.key is not None
        and earlier.offset < later.offset
        and earlier.outcome == "done"
        and earlier.start_ns < later.start_ns
        and not any(earlier.start_ns <= k.at_ns < later.start_ns for k in run.kills)
    ]


def _too_early(run: Run, random: Random) -> tuple[str, int] | None:
    pairs = [
        (later, earlier)
        for later, earlier in _pairs(run)
        if [c for c in run.calls if c.offset == earlier.offset and c.outcome == "done"] == [earlier]
    ]
    if not pairs:
        return None
    later, earlier = random.choice(pairs)
    run.calls.remove(later)
    # Strictly before any other call of the key at that instant.
    run.calls.append(replace(later, start_ns=earlier.start_ns - 1, end_ns=earlier.start_ns))
    return "order_breaks", later.offset


def _side_by_side(run: Run, random: Random) -> tuple[str, int] | None:
    if not (pairs := _pairs(run)):
        return None
    later, earlier = random.choice(pairs)
    run.calls.remove(earlier)
    run.calls.append(replace(earlier, end_ns=later.start_ns + 1))
    return "overlaps", later.offset


def _same_attempt_twice(run: Run, random: Random) -> tuple[str, int] | None:
    retried = [
        (b, a)
        for a in run.calls
        for b in run.calls
        if a.offset == b.offset
        and a.outcome == "retry"
        and a.attempt + 1 == b.attempt
        and a.start_ns < b.start_ns
        and not any(a.start_ns <= k.at_ns < b.start_ns for k in run.kills)
        and not (run.max_attempts and a.attempt >= run.max_attempts)
    ]
    if not retried:
        return None
    later, earlier = random.choice(retried)
    run.calls.remove(later)
    run.calls.append(replace(later, attempt=earlier.attempt))
    return "attempts_back", later.offset


def _saw_another_state(run: Run, random: Random) -> tuple[str, int] | None:
    """A handler is given a state that nobody left, as after a lost or repeated change."""
    with_state = [i for i, c in enumerate(run.calls) if c.saw]
    if not with_state:
        return None
    i = random.choice(with_state)
    run.calls[i] = replace(run.calls[i], saw=fingerprint(-1))
    return "state_breaks", run.calls[i].offset


def _saw_the_state_before_the_last(run: Run, random: Random) -> tuple[str, int] | None:
    """The change of the record before was not there yet."""
    deletions = run.seen.deletions if run.seen else ()
    pairs = [
        (i, a)
        for i, b in enumerate(run.calls)
        for a in run.calls
        if a.left
        and b.saw == a.left
        and not any(d.at_ns < b.start_ns and a.offset < d.below[TP] for d in deletions)
        and not any(c.offset == a.offset and c is not a and c.outcome != "retry" for c in run.calls)
    ]
    if not pairs:
        return None
    i, before = random.choice(pairs)
    run.calls[i] = replace(run.calls[i], saw=before.saw)
    return "state_breaks", run.calls[i].offset


def _the_last_change_is_lost(run: Run, random: Random) -> tuple[str, int] | None:
    """The state at the end is another one than the last record of a key left."""
    assert run.states is not None
    assert run.done is not None
    last = {c.key: max(run.done & {d.offset for d in run.calls if d.key == c.key and d.left},
                       default=-1) for c in run.calls if c.key is not None}  # fmt: skip
    keys = [key for key, offset in last.items() if offset >= max(0, _first_kept(run))]
    if not keys:
        return None
    key = random.choice(keys)
    assert key is not None
    run.states[key] = -1
    return "state_breaks", last[key]


def _first_kept(run: Run) -> int:
    """The offset from which on nothing was deleted."""
    return max((one.below[TP] for one in run.seen.deletions), default=0) if run.seen else 0


def _done_and_pending(run: Run, random: Random) -> tuple[str, int] | None:
    if not run.done:
        return None
    offset = random.choice(sorted(run.done))
    run.pending.add(offset)
    return "misplaced", offset


PLANTS = (
    _forgotten,
    _done_without_success,
    _repeated_at_the_end,
    _counted_before_its_deletion,
    _committed_before_the_kill,
    _too_early,
    _side_by_side,
    _same_attempt_twice,
    _done_and_pending,
    _saw_another_state,
    _saw_the_state_before_the_last,
    _the_last_change_is_lost,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_fault_planted_in_a_right_run_is_found(
    plant: Callable[[Run, Random], tuple[str, int] | None],
) -> None:
    """Whatever the run, one fault planted in it is found, and a witness names its record."""
    found = 0

    @given(SEEDS)
    @settings(max_examples=examples(150), deadline=None)
    def search(random: Random) -> None:
        nonlocal found
        run = simulate(random)
        planted = plant(run, random)
        if planted is None:
            return
        fault, offset = planted
        finding = run.check().findings[fault]
        assert offset in {witness.offset for witness in finding} or finding.count > 5
        assert finding.count
        found += 1

    search()
    assert found >= 5
