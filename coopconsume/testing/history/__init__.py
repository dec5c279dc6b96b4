"""Records the history of handler calls, and checks it against the guarantees."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from coopconsume.testing.history.recorder import RecordedCall, Recorder

if TYPE_CHECKING:
    from coopconsume.testing.history.calls import Call, CorruptHistory, History, read_history
    from coopconsume.testing.history.checker import check
    from coopconsume.testing.history.rules import Deletion, Disturbance, Kill, Seen
    from coopconsume.testing.history.verdict import Finding, Verdict, Witness

__all__ = [
    "Call",
    "CorruptHistory",
    "Deletion",
    "Disturbance",
    "Finding",
    "History",
    "Kill",
    "RecordedCall",
    "Recorder",
    "Seen",
    "Verdict",
    "Witness",
    "check",
    "read_history",
]

# The checker needs numpy, which may be missing on a Spark worker.
_HOMES = {
    "Call": "calls",
    "CorruptHistory": "calls",
    "Finding": "verdict",
    "History": "calls",
    "Deletion": "rules",
    "Disturbance": "rules",
    "Kill": "rules",
    "Seen": "rules",
    "Verdict": "verdict",
    "Witness": "verdict",
    "check": "checker",
    "read_history": "calls",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
