"""Work queues: each record goes to one consumer at a time, in no order, without Spark."""

from __future__ import annotations

from coopconsume.queue.async_consumer import AsyncQueueConsumer
from coopconsume.queue.consumer import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    AcknowledgeType,
    QueueCommit,
    QueueConsumer,
)
from coopconsume.queue.inspection import QueueStatus, queue_status
from coopconsume.queue.settings import QueueReplica

__all__ = [
    "ACCEPT",
    "REJECT",
    "RELEASE",
    "RENEW",
    "AcknowledgeType",
    "AsyncQueueConsumer",
    "QueueCommit",
    "QueueConsumer",
    "QueueReplica",
    "QueueStatus",
    "queue_status",
]
