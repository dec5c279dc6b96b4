"""A running job on the driver: plan, read, dispatch, settle, commit; and `poll`.

    loop ─┬─ epoch_state ── plan         what is done, what each slot has left, what is read next
          ├─ dispatch ──┬── read         the records of a batch, by Spark
          │             └── settle       what slots report: crashes, failures
          └─ commit ────┬── outbox       dead letters and outputs
                        ├── log_calls    one append to the commit log
                        └── mirror       the group's offsets in Kafka

`loop` handles `events` one at a time, in one thread. `realtime` runs long Spark jobs in place of
batches. `status` says what a job does. `poll` implements `poll`, `commit`, `retry` and `reject`.
"""

from coopconsume.runtime.dispatch.batch import run_batch
from coopconsume.runtime.loop import Job
from coopconsume.runtime.work import Work

__all__ = ["Job", "Work", "run_batch"]
