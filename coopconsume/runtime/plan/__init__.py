"""Plans what to read next, and settles outcomes: the pure core of a job's loop.

A member works on *shares*: of each partition, every slot has one piece of the key range. A share
knows its ``position`` (offsets below it were looked at), its ``todo`` (offsets below the position
that must be looked at again: gaps found at the start, what a time box left over, retries that are
due) and its ``waiting`` records (failed, not due yet, with those of their key behind them).

The order rule is kept by three facts. A share's rows are planned in ascending offsets, all of
``todo`` before anything new. A key with a waiting record is named in the batch as blocked. A slot
is in one batch at a time, or has given back all of its earlier batch but records that wait like
failed ones until their handlers have ended.

No clock, no socket, no Spark: times come in, on the monotonic clock.
"""

from __future__ import annotations

from coopconsume.runtime.plan.batch import BatchPlan, deal_window, plan_batch
from coopconsume.runtime.plan.limits import Limits
from coopconsume.runtime.plan.partition import Partition
from coopconsume.runtime.plan.reads import Read, covering, reach_of
from coopconsume.runtime.plan.share import Share, deal, scope_of
from coopconsume.runtime.plan.waiting import Waiting, shown_key

__all__ = [
    "BatchPlan",
    "Limits",
    "Partition",
    "Read",
    "Share",
    "Waiting",
    "covering",
    "deal",
    "deal_window",
    "plan_batch",
    "reach_of",
    "scope_of",
    "shown_key",
]
