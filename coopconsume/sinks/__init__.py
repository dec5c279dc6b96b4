"""Sinks of a job: outputs (the rows that handlers return) and dead letters; and of Spark streams.

Both are written before the commit log, so a crash between the two writes leaves rows of a commit
that does not count. In Delta every row has the id of its commit, and `committed_rows` returns
only the rows of commits that count: at most one set of rows for each record, whatever crashed. A
topic gives the same guarantee with transactions, after the commit (`TransactionalTopic`).

`FencedDeltaSink` and `FencedKafkaSink` are functions for `foreachBatch` of any Spark stream.

Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

if TYPE_CHECKING:
    from coopconsume.sinks.base import DeadLetterSink as DeadLetterSink
    from coopconsume.sinks.base import Outputs as Outputs
    from coopconsume.sinks.base import OutputSink as OutputSink
    from coopconsume.sinks.fenced_delta import FencedDeltaSink as FencedDeltaSink
    from coopconsume.sinks.fenced_kafka import FencedKafkaSink as FencedKafkaSink
    from coopconsume.sinks.letters import DeadLetterTable as DeadLetterTable
    from coopconsume.sinks.letters import DeadLetterTopic as DeadLetterTopic
    from coopconsume.sinks.letters import open_dead_letters as open_dead_letters
    from coopconsume.sinks.merge import MergeTable as MergeTable
    from coopconsume.sinks.others import OutputFunction as OutputFunction
    from coopconsume.sinks.others import open_output as open_output
    from coopconsume.sinks.reading import committed_rows as committed_rows
    from coopconsume.sinks.reading import create_committed_rows_view as create_committed_rows_view
    from coopconsume.sinks.table import OutputTable as OutputTable
    from coopconsume.sinks.topic import OutputTopic as OutputTopic
    from coopconsume.sinks.transactional import TransactionalTopic as TransactionalTopic

_HOME = {
    "DeadLetterSink": "base",
    "DeadLetterTable": "letters",
    "DeadLetterTopic": "letters",
    "FencedDeltaSink": "fenced_delta",
    "FencedKafkaSink": "fenced_kafka",
    "MergeTable": "merge",
    "OutputFunction": "others",
    "OutputSink": "base",
    "OutputTable": "table",
    "OutputTopic": "topic",
    "Outputs": "base",
    "TransactionalTopic": "transactional",
    "committed_rows": "reading",
    "create_committed_rows_view": "reading",
    "open_dead_letters": "letters",
    "open_output": "others",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
