"""Says what the batches of an epoch do, for people: which are silent, or at a long call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from coopconsume.classic import running_tasks
from coopconsume.runtime.status.waiting import BatchFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from coopconsume.runtime.dispatch.run import Run
    from coopconsume.runtime.dispatch.slot_leases import SlotLeases
    from coopconsume.runtime.status.waiting import OldestCall

log = logging.getLogger(__name__)


def batch_facts(
    batches: Iterable[Run], leases: SlotLeases, spark: SparkSession, title: str, now: float
) -> list[BatchFacts]:
    """Returns what is known of batches that are waited for.

    Args:
        batches: Of the epoch.
        leases: Knows which slots have started.
        spark: The session.
        title: Of the job; Spark finds its tasks by it.
        now: The time, on the monotonic clock.
    """
    found = []
    for running in batches:
        tasks = running.unfinished
        if not tasks or running.begins_at > now:
            continue
        met = [leases.has_met(at) for at in running.connections]
        if all(met) and all(running.rests(task, now) for task in tasks):
            continue
        known = running.tasks.values()
        heard = [running.begins_at, *(t.heard_at for t in known if t.heard_at is not None)]
        heard += [running.first_report] if running.first_report is not None else []
        started = None if running.channel is None else sum(met)
        has_reported = running.first_report is not None or any(task.seq for task in known)
        is_seen = started is None or started or has_reported
        found.append(
            BatchFacts(
                running.number,
                now - running.begins_at,
                slots=len(tasks),
                started=started,
                silent=now - max(heard),
                tasks=None if is_seen else _tasks_of_spark(spark, title),
                oldest_call=running.oldest_call(now),
            )
        )
    return found


def _tasks_of_spark(spark: SparkSession, title: str) -> int | None:
    try:
        return running_tasks(spark, title)
    except Exception:
        log.debug("Spark does not say what it runs", exc_info=True)
        return None


def longest_silence(batches: Iterable[Run], now: float) -> float:
    """Returns for how long the slot that is silent for longest has reported nothing."""
    silences = [
        now - (running.begins_at if task.heard_at is None else task.heard_at)
        for running in batches
        for task in running.unfinished
        if not running.rests(task, now)
    ]
    return max(silences, default=0.0)


def oldest_call(batches: Iterable[Run], now: float) -> OldestCall | None:
    """Returns the handler call that has run for longest; None: none takes long."""
    calls = [found for one in batches if (found := one.oldest_call(now)) is not None]
    return max(calls, key=lambda call: call.seconds, default=None)
