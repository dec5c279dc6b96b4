"""Work queues: each record goes to one consumer at a time, in no order, without Spark.

Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

if TYPE_CHECKING:
    from coopconsume.queue.acknowledge_type import ACCEPT as ACCEPT
    from coopconsume.queue.acknowledge_type import REJECT as REJECT
    from coopconsume.queue.acknowledge_type import RELEASE as RELEASE
    from coopconsume.queue.acknowledge_type import RENEW as RENEW
    from coopconsume.queue.acknowledge_type import AcknowledgeType as AcknowledgeType
    from coopconsume.queue.async_consumer import AsyncQueueConsumer as AsyncQueueConsumer
    from coopconsume.queue.consumer import QueueCommit as QueueCommit
    from coopconsume.queue.consumer import QueueConsumer as QueueConsumer
    from coopconsume.queue.inspection import QueueStatus as QueueStatus
    from coopconsume.queue.inspection import queue_status as queue_status
    from coopconsume.queue.settings import QueueReplica as QueueReplica

_HOME = {
    "ACCEPT": "acknowledge_type",
    "AcknowledgeType": "acknowledge_type",
    "AsyncQueueConsumer": "async_consumer",
    "QueueCommit": "consumer",
    "QueueConsumer": "consumer",
    "QueueReplica": "settings",
    "QueueStatus": "inspection",
    "REJECT": "acknowledge_type",
    "RELEASE": "acknowledge_type",
    "RENEW": "acknowledge_type",
    "queue_status": "inspection",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
