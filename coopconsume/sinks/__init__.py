"""Sinks of a job: outputs (the rows that handlers return) and dead letters; and of Spark streams.

Both are written before the commit log, so a crash between the two writes leaves rows of a commit
that does not count. In Delta every row has the id of its commit, and `committed_rows` returns
only the rows of commits that count: at most one set of rows for each record, whatever crashed. A
topic gives the same guarantee with transactions, after the commit (`TransactionalTopic`).

`FencedDeltaSink` and `FencedKafkaSink` are functions for `foreachBatch` of any Spark stream.
"""

from __future__ import annotations

from coopconsume.sinks.base import DeadLetterSink, Outputs, OutputSink
from coopconsume.sinks.fenced_delta import FencedDeltaSink
from coopconsume.sinks.fenced_kafka import FencedKafkaSink
from coopconsume.sinks.letters import DeadLetterTable, DeadLetterTopic, open_dead_letters
from coopconsume.sinks.merge import MergeTable
from coopconsume.sinks.others import OutputFunction, open_output
from coopconsume.sinks.reading import committed_rows, create_committed_rows_view
from coopconsume.sinks.table import OutputTable
from coopconsume.sinks.topic import OutputTopic
from coopconsume.sinks.transactional import TransactionalTopic

__all__ = [
    "DeadLetterSink",
    "DeadLetterTable",
    "DeadLetterTopic",
    "FencedDeltaSink",
    "FencedKafkaSink",
    "MergeTable",
    "OutputFunction",
    "OutputSink",
    "OutputTable",
    "OutputTopic",
    "Outputs",
    "TransactionalTopic",
    "committed_rows",
    "create_committed_rows_view",
    "open_dead_letters",
    "open_output",
]
