"""Where a job writes beside its commits: what handlers returned, and dead letters.

Both are written before the commit log, so a crash between the two leaves rows of a commit that
never counted. In Delta every row therefore carries its commit's id, and `counted` keeps the rows of
commits that the log counts: each record's rows appear there at most once, whatever crashed. For a
topic that holds in transactions, after the commit (`TransactionalTopic`).
"""

from __future__ import annotations

from coopconsume.sinks.base import DeadLetterSink, Outputs, OutputSink
from coopconsume.sinks.letters import DeadLetterTable, DeadLetterTopic, open_dead_letters
from coopconsume.sinks.merge import MergeTable
from coopconsume.sinks.others import OutputFunction, open_output
from coopconsume.sinks.reading import counted, create_counted_view
from coopconsume.sinks.table import OutputTable
from coopconsume.sinks.topic import OutputTopic
from coopconsume.sinks.transactional import TransactionalTopic

__all__ = [
    "DeadLetterSink",
    "DeadLetterTable",
    "DeadLetterTopic",
    "MergeTable",
    "OutputFunction",
    "OutputSink",
    "OutputTable",
    "OutputTopic",
    "Outputs",
    "TransactionalTopic",
    "counted",
    "create_counted_view",
    "open_dead_letters",
    "open_output",
]
