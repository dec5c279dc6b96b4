"""The datasets that sinks write, for lineage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.monitoring.datasets import table_dataset, topic_dataset
from coopconsume.monitoring.lineage import Output
from coopconsume.sinks.letters import DeadLetterTopic
from coopconsume.sinks.table import Table
from coopconsume.sinks.topic import OutputTopic
from coopconsume.sinks.transactional import TransactionalTopic
from coopconsume.values.schema import named_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def outputs_of(servers: str, sinks: Iterable[Any]) -> Iterator[Output]:
    """Yields what sinks write; nothing for a function and for None.

    Rows are counted from now on. Those of a `TransactionalTopic` are not.

    Args:
        servers: The ``bootstrap.servers`` of topics.
        sinks: The sinks.
    """
    for sink in sinks:
        if isinstance(sink, Table):
            dataset = table_dataset(sink.path, named_types(sink.columns))
            yield Output(dataset, _counted(sink))
        elif isinstance(sink, DeadLetterTopic | OutputTopic):
            yield Output(topic_dataset(servers, sink.topic), _counted(sink))
        elif isinstance(sink, TransactionalTopic):
            yield Output(topic_dataset(servers, sink.topic))


def _counted(sink: Table | DeadLetterTopic | OutputTopic) -> Callable[[], int]:
    before = sink.rows_written
    return lambda: sink.rows_written - before
