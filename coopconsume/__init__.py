"""Cooperative consumption of Kafka on Spark: many workers share a partition, in key order.

Names are imported when first used, so that Spark's workers load only what they run.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafka import TopicPartition as TopicPartition

    from assignors import MAX_KEY_HASH as MAX_KEY_HASH
    from assignors import KeyRange as KeyRange
    from assignors import Share as Share
    from assignors import key_hash as key_hash
    from commits import CommitResult as CommitResult
    from commits import CommitStore as CommitStore
    from commits import OffsetRanges as OffsetRanges
    from commits import PartitionCommits as PartitionCommits
    from coopconsume.admin.client import Admin as Admin
    from coopconsume.consumer import CooperativeConsumer as CooperativeConsumer
    from coopconsume.decoding import DecoderFactory as DecoderFactory
    from coopconsume.decoding import SchemaRegistryDecoder as SchemaRegistryDecoder
    from coopconsume.doctor import diagnose as diagnose
    from coopconsume.errors import CoopConsumeError as CoopConsumeError
    from coopconsume.fenced import FencedWriter as FencedWriter
    from coopconsume.fenced.election import LeaderElection as LeaderElection
    from coopconsume.fenced.exclusive import ExclusiveProducer as ExclusiveProducer
    from coopconsume.fenced.ownership import OwnershipRegistry as OwnershipRegistry
    from coopconsume.fenced.ownership.model import AccessMode as AccessMode
    from coopconsume.group.callbacks import RebalanceListener as RebalanceListener
    from coopconsume.kafka.topics import set_shareable as set_shareable
    from coopconsume.options import Options as Options
    from coopconsume.query import CooperativeQuery as CooperativeQuery
    from coopconsume.queue import AcknowledgeType as AcknowledgeType
    from coopconsume.queue import AsyncQueueConsumer as AsyncQueueConsumer
    from coopconsume.queue import QueueConsumer as QueueConsumer
    from coopconsume.record import Record as Record
    from coopconsume.record import Reject as Reject
    from coopconsume.record import Retry as Retry
    from coopconsume.record import RetryPolicy as RetryPolicy
    from coopconsume.sinks import committed_rows as committed_rows
    from coopconsume.sinks import create_committed_rows_view as create_committed_rows_view
    from coopconsume.state.reading import committed_state as committed_state
    from coopconsume.state.value import State as State
    from coopconsume.testing.local.broker import LocalKafka as LocalKafka
    from coopconsume.testing.local.session import local_session as local_session
    from coopconsume.worker.circuit_breaker import CircuitBreaker as CircuitBreaker
    from coopconsume.worker.circuit_breaker import CircuitOpen as CircuitOpen
    from coopconsume.worker.concurrency_limit import ConcurrencyLimit as ConcurrencyLimit
    from coopconsume.worker.handler_life import SlotContext as SlotContext
    from coopconsume.worker.handler_lines import HandlerLine as HandlerLine
    from coopconsume.worker.handler_logs import RecordLogFilter as RecordLogFilter
    from coopconsume.worker.slot import current_slot as current_slot

__version__ = "0.1.0"

_HOME = {
    "AccessMode": "coopconsume.fenced.ownership.model",
    "AcknowledgeType": "coopconsume.queue",
    "Admin": "coopconsume.admin.client",
    "AsyncQueueConsumer": "coopconsume.queue",
    "CircuitBreaker": "coopconsume.worker.circuit_breaker",
    "CircuitOpen": "coopconsume.worker.circuit_breaker",
    "CommitResult": "commits",
    "CommitStore": "commits",
    "ConcurrencyLimit": "coopconsume.worker.concurrency_limit",
    "CoopConsumeError": "coopconsume.errors",
    "CooperativeConsumer": "coopconsume.consumer",
    "CooperativeQuery": "coopconsume.query",
    "DecoderFactory": "coopconsume.decoding",
    "ExclusiveProducer": "coopconsume.fenced.exclusive",
    "FencedWriter": "coopconsume.fenced",
    "HandlerLine": "coopconsume.worker.handler_lines",
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
    "RecordLogFilter": "coopconsume.worker.handler_logs",
    "Reject": "coopconsume.record",
    "Retry": "coopconsume.record",
    "RetryPolicy": "coopconsume.record",
    "SchemaRegistryDecoder": "coopconsume.decoding",
    "Share": "assignors",
    "SlotContext": "coopconsume.worker.handler_life",
    "State": "coopconsume.state.value",
    "TopicPartition": "kafka",
    "set_shareable": "coopconsume.kafka.topics",
    "committed_rows": "coopconsume.sinks",
    "committed_state": "coopconsume.state.reading",
    "create_committed_rows_view": "coopconsume.sinks",
    "current_slot": "coopconsume.worker.slot",
    "diagnose": "coopconsume.doctor",
    "key_hash": "assignors",
    "local_session": "coopconsume.testing.local.session",
}

__all__ = list(_HOME)


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
