"""The judge of chaos runs of a work queue: what each planted fault looks like."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.queue_judge import Outcomes, problems

HOLD = 3.0
PLACE = [0, 7]


def got(asked: float, at: float, attempt: int = 1) -> dict[str, Any]:
    """A consumer gets the record."""
    return {"event": "got", "asked": asked, "at": at, "records": [[*PLACE, attempt]]}


def settling(at: float, kind: str) -> dict[str, Any]:
    """A consumer is about to acknowledge the record."""
    return {"event": "settling", "at": at, kind: [PLACE]}


def settled(at: float, *refused: list[int]) -> dict[str, Any]:
    """A consumer knows that it counts, or not."""
    return {"event": "settled", "at": at, "not_held": list(refused)}


def accepted(at: float) -> list[dict[str, Any]]:
    """A consumer accepts the record."""
    return [settling(at, "accept"), settled(at + 0.1)]


def judged(*histories: list[dict[str, Any]], letters: int = 0, calm: bool = True) -> list[str]:
    """What the judge says of the histories of some consumers of one record."""
    found = Outcomes(HOLD)
    for number, events in enumerate(histories):
        for event in events:
            found.take(number, event)
    dead = {(0, 7): letters} if letters else {}
    return problems(found, {(0, 7): 0.0}, dead, 2, [] if calm else [(0.0, 100.0)])


@pytest.mark.parametrize(
    "histories",
    [
        [[got(1.0, 1.1), *accepted(2.0)]],
        # The hold ends, or the record is released, also by a consumer that closes.
        [[got(1.0, 1.1)], [got(3.5, 4.1, 2), *accepted(5.0)]],
        [[got(1.0, 1.1), settling(1.5, "release")], [got(1.4, 1.6, 2), *accepted(2.0)]],
        [[got(1.0, 1.1), {"event": "closing", "at": 1.5}], [got(1.4, 1.6, 2), *accepted(2.0)]],
        # A late acknowledgement is refused; a renewal that is refused extends nothing.
        [
            [got(1.0, 1.1), settling(4.5, "accept"), settled(4.6, PLACE)],
            [got(3.5, 4.1, 2), *accepted(5.0)],
        ],
        [
            [got(1.0, 1.1), settling(2.0, "renew"), settled(2.1, PLACE)],
            [got(3.5, 4.1, 2), *accepted(5.0)],
        ],
        # A consumer was frozen in the call for longer than the hold.
        [[got(1.0, 9.0)], [got(8.5, 8.9, 2), *accepted(9.1)]],
    ],
)
def test_a_queue_that_is_right(histories: list[list[dict[str, Any]]]) -> None:
    """Nothing is found."""
    late = any(event.get("at", 0) - event.get("asked", 9) > HOLD for event in histories[0])
    assert judged(*histories, calm=not late) == []


@pytest.mark.parametrize(
    ("rule", "histories", "letters"),
    [
        ("Q1", [[got(1.0, 1.1), settling(2.0, "release"), settled(2.1)]], 0),
        ("Q2", [[got(1.0, 1.1), *accepted(2.0)], [got(5.0, 5.1, 2)]], 0),
        ("Q3", [[got(1.0, 1.1)], [got(1.2, 1.3, 2), *accepted(2.0)]], 0),
        (
            "Q3",
            [
                [got(1.0, 1.1), settling(2.0, "renew"), settled(2.1)],
                [got(3.5, 4.1, 2), *accepted(5.0)],
            ],
            0,
        ),
        ("Q4", [[got(1.0, 1.1, 2), *accepted(2.0)]], 0),
        ("Q4", [[got(1.0, 1.1)], [got(3.5, 4.1, 1), *accepted(5.0)]], 0),
        ("Q5", [[got(1.0, 1.1), settling(2.0, "reject"), settled(2.1)]], 0),
        ("Q5", [[got(1.0, 1.1)]], 2),
    ],
)
def test_a_fault_is_found(rule: str, histories: list[list[dict[str, Any]]], letters: int) -> None:
    """By its rule alone."""
    found = judged(*histories, letters=letters)
    assert [problem[:2] for problem in found] == [rule]


def test_an_attempt_may_be_too_high_if_something_failed_and_never_too_low() -> None:
    """A hold of a consumer that died before it handed out the record counts, too."""
    again = [got(3.5, 4.1, 3), *accepted(5.0)]
    assert judged([got(1.0, 1.1)], again, calm=False) == []
    assert judged([got(1.0, 1.1)], again)[0].startswith("Q4")
    again[0]["records"] = [[*PLACE, 1]]
    assert judged([got(1.0, 1.1)], again, calm=False)[0].startswith("Q4")
