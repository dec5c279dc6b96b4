"""Errors after which a job continues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from commits import Epoch, FencedMember
from coopconsume.runtime.recovery import Recovery

PASSED, IN_FORCE = Epoch(1, "one"), Epoch(2, "two")


@pytest.mark.parametrize(
    ("is_late", "is_awaited", "refused", "may_pass"),
    [
        (True, False, IN_FORCE, True),
        (True, True, PASSED, True),
        (True, True, IN_FORCE, False),
        (False, False, PASSED, False),
        (False, True, PASSED, False),
    ],
)
def test_a_refusal_between_two_epochs_passes(
    is_late: bool, is_awaited: bool, refused: Epoch, may_pass: bool
) -> None:
    """Unless the group waits for what is left of the epoch that was refused."""
    assignment: Any = SimpleNamespace(epoch=IN_FORCE, may_be_late=lambda _: is_late)
    rebalance: Any = SimpleNamespace(is_awaited=is_awaited)
    nobody: Any = None
    recovery = Recovery(nobody, nobody, rebalance, nobody)
    error = FencedMember("g", "m", refused, IN_FORCE, "another epoch")
    assert recovery.may_pass(error, assignment) == may_pass
