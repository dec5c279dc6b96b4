"""What all parts of a running job have in common."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coopconsume.runtime.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from coopconsume.options import Options
    from coopconsume.runtime.event_queue import EventQueue
    from coopconsume.runtime.job_spec import JobSpec
    from coopconsume.runtime.status.progress import Meter


@dataclass(frozen=True)
class JobContext:
    """What does not change while a job runs.

    Attributes:
        spark: The session.
        options: Of the consumer.
        job_spec: What to do.
        slots: Spark tasks side by side.
        meter: Takes note of what happens, for progress.
        events: The events that the loop handles.
        run_id: Of this run of the job.
        commit_ids: Ids for commits, unique in the group.
        trace: Takes what the loop sees and decides.
    """

    spark: SparkSession
    options: Options
    job_spec: JobSpec
    slots: int
    meter: Meter
    events: EventQueue
    run_id: str
    commit_ids: Iterator[str]
    trace: Trace

    @classmethod
    def of_run(
        cls,
        spark: SparkSession,
        options: Options,
        job_spec: JobSpec,
        slots: int,
        meter: Meter,
        events: EventQueue,
    ) -> JobContext:
        """Returns the context of a new run; the trace is the one that the environment asks for."""
        run_id = uuid.uuid4().hex[:12]
        return cls(
            spark=spark,
            options=options,
            job_spec=job_spec,
            slots=slots,
            meter=meter,
            events=events,
            run_id=run_id,
            commit_ids=(f"{run_id}-{number}" for number in itertools.count()),
            trace=Trace.from_environment(run_id),
        )
