"""The numbers that metrics are made of: names, units and where they stand in a progress event."""

from __future__ import annotations

from typing import NamedTuple


class Number(NamedTuple):
    """One metric.

    Attributes:
        field: Its name in progress events.
        metric: Its name, in OpenTelemetry's manner.
        unit: Its unit, in UCUM.
        doc: What it is.
    """

    field: str
    metric: str
    unit: str
    doc: str


#: Of ``totals``: they only grow.
COUNTERS = (
    Number("handled", "coopconsume.records.handled", "{record}", "Handler calls."),
    Number("done", "coopconsume.records.done", "{record}", "Records committed."),
    Number("retries", "coopconsume.records.retried", "{record}", "Calls that failed for now."),
    Number("deadLetters", "coopconsume.records.dead", "{record}", "Records given up."),
    Number("failedBatches", "coopconsume.batches.failed", "{batch}", "Spark jobs that failed."),
    Number("lostSlots", "coopconsume.slots.lost", "{slot}", "Slots that never reported."),
)
#: Of each of ``partitions``.
GAUGES = (
    Number("lag", "coopconsume.lag", "{record}", "Offsets not done, gaps counted."),
    Number("stableOffset", "coopconsume.stable_offset", "{offset}", "First offset not done."),
    Number("pending", "coopconsume.pending", "{record}", "Records that wait."),
    Number("parked", "coopconsume.parked", "{record}", "Records that wait for a decision."),
    Number("gapRanges", "coopconsume.gap.ranges", "{range}", "Gaps below the highest done offset."),
    Number(
        "outputsWaiting", "coopconsume.outputs.waiting", "{record}", "Held by the stable offset."
    ),
)
EPOCH = Number("epoch", "coopconsume.epoch", "{epoch}", "The group's epoch in the commit log.")
#: Of ``durationMs``, by phase.
PHASES = Number("durationMs", "coopconsume.phase.duration", "s", "Time by phase of a batch.")
