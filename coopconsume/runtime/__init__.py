"""A running job on the driver: plan, read, dispatch, settle, commit; and `poll`.

`loop` decides what happens next. `plan` chooses what to read, `reading` reads it, `dispatch` fills
the slots, `batch` is one Spark job, `epoch_state` is the work under one epoch, `committer` commits.
`polling` implements `poll`, `commit`, `retry` and `reject`.
"""

from coopconsume.runtime.batch import run_batch
from coopconsume.runtime.loop import Job
from coopconsume.runtime.work import Work

__all__ = ["Job", "Work", "run_batch"]
