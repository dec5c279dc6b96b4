"""Plans what to read next, and settles outcomes: the pure core of a job's loop.

The key ranges of a partition are divided over the slots. Each slot has a `SlotCursor` in it, with

- ``position``: all offsets below it were read;
- ``todo``: offsets below the position to read again: gaps at the start, records that did not fit
  into the time of a batch, retries that are due;
- ``waiting``: failed records that are not due, each with the later records of its key behind it;
- ``dispatched``: the offsets that the batch of its slot may start.

In a cooperative epoch a cursor has no position: ``todo`` has the slices that its slot was dealt of
what the member has acquired. In real time ``unread`` are those dispatched that its slot has got and
not read.

Three facts keep the order of keys. A cursor's offsets are planned in ascending order, all of
``todo`` before new ones. Batches name the keys that have a waiting record, and no slot starts them.
A slot is in one batch at a time; if it has given records back, those that it keeps wait like failed
records until their handlers have ended.

There is no clock, socket or Spark: callers pass the time of the monotonic clock.
"""

from __future__ import annotations

from coopconsume.runtime.plan.batch_plan import BatchPlan, deal_window, plan_batch
from coopconsume.runtime.plan.cursor import SlotCursor, deal, scope_of
from coopconsume.runtime.plan.partition import Partition
from coopconsume.runtime.plan.range_limit import Limits
from coopconsume.runtime.plan.reads import Read, covering, reach_of
from coopconsume.runtime.plan.waiting_record import Waiting

__all__ = [
    "BatchPlan",
    "Limits",
    "Partition",
    "Read",
    "SlotCursor",
    "Waiting",
    "covering",
    "deal",
    "deal_window",
    "plan_batch",
    "reach_of",
    "scope_of",
]
