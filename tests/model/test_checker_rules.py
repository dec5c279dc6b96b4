"""The checker against its rules, written down a second time, one call at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.testing.history import (
    Call,
    Deletion,
    Kill,
    Seen,
)
from tests.examples import examples
from tests.model.checker_runs import TP, A, Run, call, killed

if TYPE_CHECKING:
    pass


def plainly(run: Run) -> dict[str, int]:
    """What the checker must count: the rules as its module states them, without any cleverness."""
    calls = sorted(run.calls, key=lambda c: c.start_ns)
    keys = {c.offset: c.key for c in calls} | run.keys
    done = {c.offset for c in calls if c.outcome == "done"} if run.done is None else run.done

    def took(kill: Kill, c: Call) -> bool:
        return kill.pids is None or int(c.process.split("-")[0]) in kill.pids

    def holds(kill: Kill, offset: int) -> bool:
        return any(a <= offset <= b for a, b in kill.committed.get(TP, ()))

    def end(c: Call) -> float:
        after = [k.at_ns for k in run.kills if k.at_ns >= c.start_ns and took(k, c)]
        return c.end_ns if c.end_ns is not None else min(after, default=float("inf"))

    def between(kill: Kill, earlier: float, later: float) -> bool:
        return earlier <= kill.at_ns < later

    def settles(c: Call) -> bool:
        if c.outcome in {"done", "reject"} or c.outcome is None:
            return c.outcome is not None
        if run.max_attempts is not None:
            return c.outcome == "retry" and c.attempt >= run.max_attempts
        return c.offset in run.dead and c is [d for d in calls if d.offset == c.offset][-1]

    def scope(offset: int) -> object:
        if run.ordering == "partition":
            return "all"
        return offset if run.ordering == "none" or keys[offset] is None else keys[offset]

    deletions = run.seen.deletions if run.seen else ()
    deleted_at = {
        o: min((d.at_ns for d in deletions if o < d.below[TP]), default=float("inf")) for o in keys
    }

    looks = run.seen.commits if run.seen else ()
    committed_at = {
        o: min((at for at, book in looks if (o, o) in book[TP]), default=float("inf")) for o in keys
    }

    def is_gone(offset: int, at: int) -> bool:
        return deleted_at[offset] <= at and all(end(c) <= at for c in calls if c.offset == offset)

    def is_deleted(offset: int) -> bool:
        handled = offset in run.dead or any(
            c.offset == offset and c.outcome == "done" for c in calls
        )
        return deleted_at[offset] < committed_at[offset] and not handled

    def stands(offset: int, at: int) -> bool:
        return is_gone(offset, at) or any(
            end(s) <= at
            and all(
                holds(k, offset) for k in run.kills if k.pids is None and between(k, end(s), at)
            )
            for s in calls
            if s.offset == offset and settles(s)
        )

    breaks = overlaps = back = 0
    repeated, outside = set(), set()
    for i, c in enumerate(calls):
        lower = [o for o in keys if o < c.offset and scope(o) == scope(c.offset)]
        breaks += not all(stands(o, c.start_ns) for o in lower)
        same = [d for d in calls[:i] if scope(d.offset) == scope(c.offset)]
        overlaps += any(end(d) > c.start_ns for d in same)
        own = [d for d in calls[:i] if d.offset == c.offset]
        least = own[-1].attempt + (own[-1].outcome != "postponed") if own else 1
        if own and not settles(own[-1]) and c.attempt < least:
            back += not any(
                took(k, own[-1]) and between(k, own[-1].start_ns, c.start_ns) for k in run.kills
            )
        settled = [d for d in own if settles(d)]
        if settled:
            repeated.add(c.offset)
            last = settled[-1]
            explained = any(
                took(k, last) and between(k, end(last), c.start_ns) and not holds(k, c.offset)
                for k in run.kills
            )
            kept = any(k.at_ns < c.start_ns and holds(k, c.offset) for k in run.kills)
            kept |= committed_at[c.offset] <= c.start_ns
            if kept or not explained:
                outside.add(c.offset)
    succeeded = {c.offset for c in calls if c.outcome == "done"}
    called = {c.offset for c in calls}
    lost = sum(
        (o not in done | run.pending | run.dead and not is_deleted(o))
        or (o in done - run.dead - succeeded and not is_deleted(o))
        or (o in run.dead - called)
        for o in keys
    )
    return {
        "deleted": sum(map(is_deleted, keys)),
        "order_breaks": breaks,
        "overlaps": overlaps,
        "attempts_back": back,
        "repeated": len(repeated),
        "repeated_outside_flight": len(outside),
        "lost": lost,
    }


@st.composite
def any_run(draw: st.DrawFn) -> Run:
    """Random calls, commits and kills: seldom right, always well formed."""
    offsets = st.integers(0, 5)
    keys = draw(st.fixed_dictionaries({o: st.sampled_from([None, b"", A]) for o in range(6)}))
    # Starts differ, as the position of calls that start at one instant means nothing.
    starts = draw(st.lists(st.integers(0, 60), unique=True, max_size=10))
    calls = []
    for start in starts:
        offset = draw(offsets)
        outcome = draw(st.sampled_from(["done", "done", "retry", "reject", "postponed", None]))
        calls.append(
            call(
                offset,
                start,
                None if outcome is None else start + draw(st.integers(0, 15)),
                key=keys[offset],
                outcome=outcome,
                attempt=draw(st.integers(1, 3)),
                process=draw(st.sampled_from(["7-aa", "8-bb"])),
            )
        )
    some = st.sets(offsets)
    seen = st.builds(
        lambda deletions, commits: Seen(
            commits=[(at, {TP: [(o, o) for o in found]}) for at, found in commits],
            deletions=[Deletion(at, {TP: below}) for at, below in deletions],
        ),
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=2),
        st.lists(st.tuples(st.integers(0, 60), some), max_size=2),
    )
    kill = st.builds(
        lambda at, committed, pids: killed(at, *committed, pids=pids),
        st.integers(0, 60),
        some,
        st.sampled_from([None, None, frozenset({7}), frozenset({8})]),
    )
    return Run(
        calls,
        keys,
        draw(some),
        draw(some),
        draw(some),
        draw(st.lists(kill, max_size=3)),
        draw(st.sampled_from([None, 2, 3])),
        draw(st.sampled_from(["key", "key", "partition", "none"])),
        draw(st.none() | seen),
    )


@given(any_run())
@settings(max_examples=examples(1000), deadline=None)
def test_the_checker_counts_what_the_rules_say(run: Run) -> None:
    """On any history the columns come to the same as the rules applied call by call."""
    figures = run.check().as_dict()
    assert {name: figures[name] for name in plainly(run)} == plainly(run)
