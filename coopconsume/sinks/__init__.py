"""Where a job writes beside its commits: what handlers returned, and dead letters.

Both are written before the commit log, so a crash between the two leaves rows of a commit that
never counted. In Delta every row therefore carries its commit's id, and `counted` keeps the rows of
commits that the log counts: each record's rows appear there at most once, whatever crashed.
"""

from __future__ import annotations

from coopconsume.sinks.base import DeadLetterSink
from coopconsume.sinks.letters import DeadLetterTable, DeadLetterTopic, open_dead_letters
from coopconsume.sinks.reading import counted
from coopconsume.sinks.table import OutputTable

__all__ = [
    "DeadLetterSink",
    "DeadLetterTable",
    "DeadLetterTopic",
    "OutputTable",
    "counted",
    "open_dead_letters",
]
