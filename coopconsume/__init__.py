"""Cooperative consumption of Kafka on Spark: many workers share a partition, in key order.

Names are imported when first used, so that Spark's workers load only what they run.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafka import TopicPartition

    from assignors import MAX_KEY_HASH, KeyRange, Share, key_hash
    from commits import CommitResult, CommitStore, OffsetRanges, PartitionCommits
    from coopconsume.admin.client import Admin
    from coopconsume.consumer import CooperativeConsumer
    from coopconsume.errors import CoopConsumeError
    from coopconsume.fenced import FencedWriter
    from coopconsume.fenced.election import LeaderElection
    from coopconsume.fenced.exclusive import ExclusiveProducer
    from coopconsume.fenced.ownership import OwnershipRegistry
    from coopconsume.fenced.ownership.model import AccessMode
    from coopconsume.group.callbacks import RebalanceListener
    from coopconsume.kafka.topics import set_shareable
    from coopconsume.options import Options
    from coopconsume.query import CooperativeQuery
    from coopconsume.queue import AcknowledgeType, AsyncQueueConsumer, QueueConsumer
    from coopconsume.record import Record, Reject, Retry, RetryPolicy
    from coopconsume.sinks import committed_rows, create_committed_rows_view
    from coopconsume.state.reading import committed_state
    from coopconsume.state.value import State
    from coopconsume.testing.local.broker import LocalKafka
    from coopconsume.testing.local.session import local_session
    from coopconsume.worker.slot import current_slot

__version__ = "0.1.0"

_HOME = {
    "AccessMode": "coopconsume.fenced.ownership.model",
    "AcknowledgeType": "coopconsume.queue",
    "Admin": "coopconsume.admin.client",
    "AsyncQueueConsumer": "coopconsume.queue",
    "CommitResult": "commits",
    "CommitStore": "commits",
    "CoopConsumeError": "coopconsume.errors",
    "CooperativeConsumer": "coopconsume.consumer",
    "CooperativeQuery": "coopconsume.query",
    "ExclusiveProducer": "coopconsume.fenced.exclusive",
    "FencedWriter": "coopconsume.fenced",
    "KeyRange": "assignors",
    "LeaderElection": "coopconsume.fenced.election",
    "LocalKafka": "coopconsume.testing.local.broker",
    "MAX_KEY_HASH": "assignors",
    "OffsetRanges": "commits",
    "Options": "coopconsume.options",
    "OwnershipRegistry": "coopconsume.fenced.ownership",
    "PartitionCommits": "commits",
    "QueueConsumer": "coopconsume.queue",
    "RebalanceListener": "coopconsume.group.callbacks",
    "Record": "coopconsume.record",
    "Reject": "coopconsume.record",
    "Retry": "coopconsume.record",
    "RetryPolicy": "coopconsume.record",
    "Share": "assignors",
    "State": "coopconsume.state.value",
    "TopicPartition": "kafka",
    "set_shareable": "coopconsume.kafka.topics",
    "committed_rows": "coopconsume.sinks",
    "committed_state": "coopconsume.state.reading",
    "create_committed_rows_view": "coopconsume.sinks",
    "current_slot": "coopconsume.worker.slot",
    "key_hash": "assignors",
    "local_session": "coopconsume.testing.local.session",
}

__all__ = [
    "MAX_KEY_HASH",
    "AccessMode",
    "AcknowledgeType",
    "Admin",
    "AsyncQueueConsumer",
    "CommitResult",
    "CommitStore",
    "CoopConsumeError",
    "CooperativeConsumer",
    "CooperativeQuery",
    "ExclusiveProducer",
    "FencedWriter",
    "KeyRange",
    "LeaderElection",
    "LocalKafka",
    "OffsetRanges",
    "Options",
    "OwnershipRegistry",
    "PartitionCommits",
    "QueueConsumer",
    "RebalanceListener",
    "Record",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Share",
    "State",
    "TopicPartition",
    "committed_rows",
    "committed_state",
    "create_committed_rows_view",
    "current_slot",
    "key_hash",
    "local_session",
    "set_shareable",
]


def _check_packages() -> None:
    """Refuses to go on if a user's module hides `assignors` or `commits`.

    Raises:
        ImportError: It names the module and what to do.
    """
    for name, module in (("assignors", "ranges"), ("commits", "offsets")):
        found = find_spec(name)
        places = found.submodule_search_locations if found else None
        # Without an import: workers load only what they run.
        if places is None or PathFinder.find_spec(f"{name}.{module}", places) is None:
            raise ImportError(
                f"coopconsume needs its package {name!r}, but Python finds "
                f"{found.origin if found else 'nothing'}: rename your module {name!r}, or install "
                "coopconsume again if the package is missing",
                name=name,
            )


_check_packages()


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
