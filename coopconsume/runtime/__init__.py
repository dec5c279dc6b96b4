"""A running job on the driver: plan, read, dispatch, settle, commit; and `poll`.

    loop ─┬─ epoch_state ── plan/partition ── plan/share     what is done, what each slot has left
          ├─ dispatch ──┬── plan/batch                       what the next batch reads
          │             ├── batch ── reading, worker         one Spark job
          │             └── slot_leases ── worker/channel    leases of slots, progressive reports
          └─ committer ─┬── outbox ── deliveries, sinks      dead letters and outputs
                        ├── log_calls ── commit, group       one append to the commit log
                        └── mirror                           the group's offsets in Kafka

`loop` handles `events` one at a time, in one thread. `realtime` runs long Spark jobs in place of
batches. `polling` implements `poll`, `commit`, `retry` and `reject`.
"""

from coopconsume.runtime.batch import run_batch
from coopconsume.runtime.loop import Job
from coopconsume.runtime.work import Work

__all__ = ["Job", "Work", "run_batch"]
