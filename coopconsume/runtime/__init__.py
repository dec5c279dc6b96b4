"""A running job on the driver: plan, read, dispatch, settle, commit; and `poll`.

A turn of the `loop` takes a batch through these folders, from top to bottom:

    plan        what is done, what each slot has left, what is read next
    read        the records of a batch, by Spark
    dispatch    the Spark job of a batch, the leases of its slots, their reports
    settle      what failures leave: crashed workers, lost slots, failed batches, failed records
    commit      dead letters and outputs, one append to the commit log, offsets in Kafka

`loop` handles `events` one at a time, in one thread. `rebalance` has what the group asks of it.
`realtime` runs long Spark jobs in place of batches. `status` says what a job does. `poll`
implements `poll`, `commit`, `retry` and `reject`.
"""

from coopconsume.runtime.dispatch.batch import run_batch
from coopconsume.runtime.job_spec import JobSpec
from coopconsume.runtime.loop import Job

__all__ = ["Job", "JobSpec", "run_batch"]
