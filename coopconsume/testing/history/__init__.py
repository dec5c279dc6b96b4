"""Records the history of handler calls, and checks it against the guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

if TYPE_CHECKING:
    from coopconsume.testing.history.calls import Call as Call
    from coopconsume.testing.history.calls import CorruptHistory as CorruptHistory
    from coopconsume.testing.history.calls import History as History
    from coopconsume.testing.history.calls import read_history as read_history
    from coopconsume.testing.history.checker import check as check
    from coopconsume.testing.history.recorder import RecordedCall as RecordedCall
    from coopconsume.testing.history.recorder import Recorder as Recorder
    from coopconsume.testing.history.rules import Deletion as Deletion
    from coopconsume.testing.history.rules import Disturbance as Disturbance
    from coopconsume.testing.history.rules import Kill as Kill
    from coopconsume.testing.history.rules import Seen as Seen
    from coopconsume.testing.history.verdict import Finding as Finding
    from coopconsume.testing.history.verdict import Verdict as Verdict
    from coopconsume.testing.history.verdict import Witness as Witness

# The checker needs numpy, which may be missing on a Spark worker.
_HOME = {
    "Call": "calls",
    "CorruptHistory": "calls",
    "Finding": "verdict",
    "History": "calls",
    "Deletion": "rules",
    "Disturbance": "rules",
    "Kill": "rules",
    "RecordedCall": "recorder",
    "Recorder": "recorder",
    "Seen": "rules",
    "Verdict": "verdict",
    "Witness": "verdict",
    "check": "checker",
    "read_history": "calls",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
