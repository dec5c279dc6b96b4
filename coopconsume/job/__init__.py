"""A running job: the loop that plans batches, runs them on Spark and commits what comes back.

`loop` decides, `dispatch` fills slots, `batch` is one Spark job, `shift` is the work under one
epoch, `saving` commits. The rest is pure: how large batches are, when to pause, whom to suspect.
"""

from coopconsume.job.batch import Work, run_batch
from coopconsume.job.loop import Job

__all__ = ["Job", "Work", "run_batch"]
