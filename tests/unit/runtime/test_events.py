"""Events of the loop are data, and each of them is handled in one place."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap

from coopconsume.runtime import events
from coopconsume.runtime.loop import Job

EVENTS = {
    name: kind
    for name, kind in vars(events).items()
    if isinstance(kind, type) and issubclass(kind, events.JobEvent) and kind is not events.JobEvent
}


def test_each_event_has_its_case_in_the_match_of_the_loop() -> None:
    """A new event without a case would end a job."""
    (match,) = [
        node
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(Job._handle))))
        if isinstance(node, ast.Match)
    ]
    classes = [case.pattern.cls for case in match.cases if isinstance(case.pattern, ast.MatchClass)]
    assert sorted(ast.unparse(one) for one in classes) == sorted(EVENTS)


def test_events_are_frozen() -> None:
    """The loop, the trace and a replay see the same event."""
    for name, kind in EVENTS.items():
        assert dataclasses.is_dataclass(kind), name
        assert kind.__dataclass_params__.frozen, name  # type: ignore[attr-defined]
