"""Tools to test handlers: a local broker and Spark session, faults, and a checker of histories.

`run_handler` runs a handler on all of them at once. Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

if TYPE_CHECKING:
    from coopconsume.testing.faults import Fault as Fault
    from coopconsume.testing.faults import recorded as recorded
    from coopconsume.testing.handlers import HandlerRun as HandlerRun
    from coopconsume.testing.handlers import run_handler as run_handler
    from coopconsume.testing.history import Kill as Kill
    from coopconsume.testing.history import Recorder as Recorder
    from coopconsume.testing.history import Verdict as Verdict
    from coopconsume.testing.history import check as check
    from coopconsume.testing.history import read_history as read_history
    from coopconsume.testing.local.broker import LocalKafka as LocalKafka
    from coopconsume.testing.local.session import local_session as local_session

_HOME = {
    "Fault": "faults",
    "HandlerRun": "handlers",
    "Kill": "history",
    "LocalKafka": "local.broker",
    "Recorder": "history",
    "Verdict": "history",
    "check": "history",
    "local_session": "local.session",
    "read_history": "history",
    "recorded": "faults",
    "run_handler": "handlers",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
