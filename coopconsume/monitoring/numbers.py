"""The metrics of jobs and of groups: names, units, and the fields that they come from.

A job exports what is in its progress events. Who watches a group from outside, as the exporter
does, has the same metrics of partitions and verdicts, and those of a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Number(NamedTuple):
    """One metric.

    Attributes:
        field: Its field in progress events.
        metric: Its name in OpenTelemetry.
        unit: Its unit in UCUM.
        doc: Its description.
    """

    field: str
    metric: str
    unit: str
    doc: str


#: Fields of ``totals``. They never decrease.
COUNTERS = (
    Number("handled", "coopconsume.records.handled", "{record}", "Handler calls."),
    Number(
        "filtered",
        "coopconsume.records.filtered",
        "{record}",
        "Records that did not pass the filter; they are committed without a handler call.",
    ),
    Number("done", "coopconsume.records.done", "{record}", "Records committed."),
    Number("retries", "coopconsume.records.retried", "{record}", "Failed calls to be retried."),
    Number("deadLetters", "coopconsume.records.dead", "{record}", "Dead-lettered records."),
    Number("failedBatches", "coopconsume.batches.failed", "{batch}", "Spark jobs that failed."),
    Number("lostSlots", "coopconsume.slots.lost", "{slot}", "Slots that never reported."),
    Number(
        "cacheHits",
        "coopconsume.fetch.hits",
        "{fetch}",
        "Fetches of real-time slots that the fetch server of their host answered with records.",
    ),
    Number(
        "cacheMisses",
        "coopconsume.fetch.misses",
        "{fetch}",
        "Fetches whose records had left the memory of the fetch server, or were never there.",
    ),
    Number(
        "brokerBytes",
        "coopconsume.fetch.bytes",
        "By",
        "Bytes that the brokers sent to real-time slots and to their fetch servers.",
    ),
    Number("rebalances", "coopconsume.rebalances", "{rebalance}", "Epochs that the member began."),
)
#: Fields of each entry of ``partitions``.
GAUGES = (
    Number("lag", "coopconsume.lag", "{record}", "Offsets not done, gaps counted."),
    Number("stableOffset", "coopconsume.stable_offset", "{offset}", "First offset not done."),
    Number(
        "pending",
        "coopconsume.pending",
        "{record}",
        "Failed records that are not done, parked ones included.",
    ),
    Number("parked", "coopconsume.parked", "{record}", "Records that wait for a decision."),
    Number("gapRanges", "coopconsume.gap.ranges", "{range}", "Gaps below the highest done offset."),
    Number(
        "outputsWaiting",
        "coopconsume.outputs.waiting",
        "{record}",
        "Outputs that wait for the stable offset.",
    ),
    Number(
        "stableAgeSeconds",
        "coopconsume.stable_offset.age",
        "s",
        "Time for which a record has blocked the stable offset; 0 if all is done.",
    ),
    Number(
        "blockerAttempts", "coopconsume.blocker.attempts", "{attempt}", "Failures of the blocker."
    ),
    Number(
        "inDoubtSeconds",
        "coopconsume.in_doubt",
        "s",
        "Time for which an earlier owner is still waited for.",
    ),
)
#: The fields of those that are also known from outside.
SEEN_FROM_OUTSIDE: Final = frozenset(
    number.field for number in GAUGES if number.field != "outputsWaiting"
)
#: Gauges of what a member has of a partition: each member reports its own.
_OF_MEMBER = {"inDoubtSeconds"}
#: The same, unless the members share the partition by chunks: then these are of all members.
_OF_KEY_RANGES = {"pending", "parked"}


def is_reported(number: Number, partition: Mapping[str, Any]) -> bool:
    """Whether a member reports a gauge of a partition.

    What holds for the whole partition is reported by one of the members that share it, so that a
    sum over members counts it once.

    Args:
        number: The gauge.
        partition: The partition's entry in progress.
    """
    own = _OF_MEMBER if partition["sharesChunks"] else _OF_MEMBER | _OF_KEY_RANGES
    return partition["ownsFirst"] or number.field in own


#: The gauges of a job.
JOB_GAUGES = (
    Number("epoch", "coopconsume.epoch", "{epoch}", "The group's epoch in the commit log."),
    Number(
        "silentSeconds",
        "coopconsume.slot.silent",
        "s",
        "Longest time for which a slot of a running batch has reported nothing: its handlers run, "
        "or it does not start.",
    ),
    Number(
        "oldestHandlerSeconds",
        "coopconsume.handler.oldest",
        "s",
        "Time for which the oldest handler call has run; 0 if none runs for a second.",
    ),
    Number(
        "verdictSeverity",
        "coopconsume.verdict",
        "1",
        "The level of the job's verdict: 0 all done, 1 working, 2 waiting, 3 somebody must act, 4 "
        "records are lost.",
    ),
)
#: What is known of a group from outside; the scope says which labels there are beside ``group``.
MEMBERS = Number(
    "members",
    "coopconsume.members",
    "{member}",
    "Members by state: working, joining, gone (Kafka no longer lists it), fenced, and claim for a "
    "standalone claim.",
)
OWNED = Number(
    "owned",
    "coopconsume.member.owned",
    "{partition}",
    "Hash space that a member owns, in partitions.",
)
REASONS = Number(
    "reasons",
    "coopconsume.verdict.reason",
    "1",
    "The level of each thing that holds of the group, by its reason.",
)
GROUP_GAUGES = (
    Number(
        "doneIn",
        "coopconsume.done_in",
        "s",
        "Time until all is done, by the rates of the last half minute; absent if it is not known.",
    ),
    Number(
        "retentionSeconds",
        "coopconsume.retention.left",
        "s",
        "Time within which retention deletes records that are not done, foreseen for a quarter of "
        "retention.ms, a day at most; absent if it deletes none by then.",
    ),
    Number(
        "retentionRecords",
        "coopconsume.retention.records",
        "{record}",
        "Records that are not done and that retention deletes within that time, at most.",
    ),
    Number(
        "deleted",
        "coopconsume.retention.deleted",
        "{record}",
        "Offsets that retention has deleted and that were not done.",
    ),
    Number(
        "behindParked",
        "coopconsume.parked.behind",
        "{record}",
        "Records behind parked ones of their keys, as far as they were counted.",
    ),
    Number(
        "age",
        "coopconsume.exporter.age",
        "s",
        "Time since the group was last read, by the clock of the exporter.",
    ),
)
#: The interval of the exporter; the age of a group is compared with it.
INTERVAL = Number(
    "interval",
    "coopconsume.exporter.interval",
    "s",
    "Time between two readings of a group, as it was given.",
)
#: The sources of the exporter, by the label ``source``: kafka and commit_table.
SOURCES = Number(
    "up",
    "coopconsume.exporter.up",
    "1",
    "Whether a source has answered the last time that it was asked, for all groups.",
)
#: The commit table, of all groups.
TABLE_GAUGES = (
    Number(
        "appends",
        "coopconsume.commit_table.appends",
        "{append}",
        "Appends to the commit table since its last snapshot.",
    ),
    Number(
        "size",
        "coopconsume.commit_table.size",
        "By",
        "Bytes of uncompressed rows since its last snapshot.",
    ),
    Number(
        "due",
        "coopconsume.commit_table.snapshot_due",
        "1",
        "How far the table is on its way to the next snapshot: above 1.4, snapshots fail or "
        "nobody writes them.",
    ),
)
#: The entries of ``durationMs``, by phase.
PHASES = Number("durationMs", "coopconsume.phase.duration", "s", "Time by phase of a batch.")
#: Histograms of many times, as `coopconsume.worker.histogram` counts them.
HISTOGRAMS = (
    Number(
        "handlerTimes",
        "coopconsume.handler.duration",
        "s",
        "Time of a handler call; a call of a frame handler is one call.",
    ),
    Number(
        "startLatency",
        "coopconsume.latency.start",
        "s",
        "Time from a record's timestamp to its first handler call.",
    ),
    Number(
        "commitLatency",
        "coopconsume.latency.commit",
        "s",
        "Time from a handled record's timestamp to the answer of its commit, retries included.",
    ),
)
