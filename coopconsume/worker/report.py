"""The work of a slot in a batch, and the slot's report to the driver. Task-side code.

Everything here is small and picklable: plain numbers, strings and bytes. Offsets travel as
differences of neighbours in the narrowest integer that holds them, compressed.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.worker.histogram import Histogram
from coopconsume.worker.rate_limit import Rates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commits import OffsetAndEpoch
    from coopconsume.decoding import Decoding
    from coopconsume.record import Headers
    from coopconsume.state.slot_state import StateSpec
    from coopconsume.worker.channel.spec import ChannelSpec
    from coopconsume.worker.handler_lines import SlotLines
    from coopconsume.worker.realtime.spec import RealTimeSpec

Ordering = Literal["key", "partition", "none"]


class QueryIds(NamedTuple):
    """The query that a batch belongs to: its ids, empty without a query, its slots, its member."""

    group_id: str = ""
    query_id: str = ""
    run_id: str = ""
    slots: int = 1
    client_id: str = ""


#: The column that marks the rows of records that do not pass the filter.
FILTERED = "filtered"


class GivenUp(NamedTuple):
    """A record that is given up without a call, as an operator decided.

    Attributes:
        reason: Why, for its dead letter and for people.
        park: Whether its key waits for a further decision; if not, the record is done.
    """

    reason: str
    park: bool


@dataclass(frozen=True)
class PartitionWork:
    """What one slot may start of one partition in one batch.

    Attributes:
        ranges: Offsets it may start, as ascending (first, last) pairs; others are not its own.
        attempts: Failures so far of the offsets that failed before.
        blocked: The lowest pending offset of each lane that has one (see
            `coopconsume.worker.key_queues`): no higher offset of the lane may start.
        added: The headers that handlers have added to records, by offset.
        ended: Records whose last call ended its worker, and how, by offset: that attempt counts as
            failed as soon as the record would be handled again.
        given_up: Records that are given up without a call, by offset.
    """

    ranges: tuple[tuple[int, int], ...]
    attempts: Mapping[int, int] = field(default_factory=dict)
    blocked: Mapping[int, int] = field(default_factory=dict)
    added: Mapping[int, Headers] = field(default_factory=dict)
    ended: Mapping[int, str] = field(default_factory=dict)
    given_up: Mapping[int, GivenUp] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchSpec:
    """One batch, as every task of its Spark job gets it.

    Attributes:
        batch: Number of the batch in this run.
        partitions: (topic, partition) by *part*, the index of a partition in this batch. Rows,
            slots and reports name partitions by it.
        slots: Slot number by the index of the Spark task.
        work: For each slot, its work by part.
        ordering: What is handled strictly one after another.
        concurrency: Handlers that run side by side in a slot.
        batch_time: Seconds, from the first record, after which no handler starts.
        handler_timeout: Seconds that running handlers get beyond ``batch_time``; if one still runs
            then, the worker ends itself: the driver can rely on the end of all handlers.
        headers: Whether rows carry record headers.
        has_ordering_keys: Whether records have the header `coopconsume.record.ORDERING_KEY`,
            whose value takes the place of their keys.
        filters: Whether rows carry the column `FILTERED`, as their last one.
        park: Whether a record that is given up holds its key back until somebody decides.
        rates: Records a second that may start.
        break_after: Failures in a row after which nothing more starts; 0: it goes on.
        streaks: Failures in a row with which slots ended their batch before; none: 0.
        gates: For slots, `SlotReport.gates` of their batch before, less the time since.
        run: Identifies this run of a job; empty: what was at work is not kept for a
            second attempt of the task.
        latest_start: After this instant, in seconds since the epoch on the worker's clock, no
            handler of the batch starts in a slot that has started none yet.
        state: What the slots need to know of the state per key; None: the handler has none.
        channel: Where the slots reach the driver; None: they report as they end, and stop by
            themselves.
        realtime: What the slots read themselves; None: Spark reads their records.
        query: What handlers that are opened get to know of the query.
        decoding: How keys and values are decoded for handlers; None: they get bytes.
        log_lines: The last lines that a call has logged and printed which its error has.
        shown_lines: Lines that the driver shows in a second, of those that calls log and print.
        has_spans: Whether each handler call has an OpenTelemetry span.
    """

    batch: int
    partitions: tuple[tuple[str, int], ...]
    slots: tuple[int, ...]
    work: Mapping[int, Mapping[int, PartitionWork]]
    ordering: Ordering
    concurrency: int
    batch_time: float
    handler_timeout: float
    headers: bool
    has_ordering_keys: bool = False
    filters: bool = False
    park: bool = False
    rates: Rates = field(default_factory=Rates)
    break_after: int = 0
    streaks: Mapping[int, int] = field(default_factory=dict)
    gates: Mapping[int, Mapping[int | None, float]] = field(default_factory=dict)
    run: str = ""
    latest_start: float = math.inf
    channel: ChannelSpec | None = None
    state: StateSpec | None = None
    realtime: RealTimeSpec | None = None
    query: QueryIds = field(default_factory=QueryIds)
    decoding: Decoding | None = None
    log_lines: int = 0
    shown_lines: int = 0
    has_spans: bool = False


@dataclass(frozen=True)
class Failure:
    """A record that is to be tried again ``delay`` seconds from now; its key is for people.

    With an infinite ``delay`` it is parked: it was given up, and its key waits for a decision.
    ``trace`` is that of the first failure of its type in a slot and batch; else it is empty.
    ``headers`` are all that handlers have added to the record.
    """

    offset: int
    key_hash: int
    key: bytes | None
    attempts: int
    delay: float
    error: str
    trace: str = ""
    headers: Headers = ()


@dataclass(frozen=True)
class DeadLetter:
    """A record that was given up, whole, with why.

    Its headers contain ``added``, those that handlers have added. ``key_hash`` and ``dealt_by`` are
    the hash and the key that it is dealt by; a queue deals no records.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    attempts: int
    reason: str
    trace: str
    added: Headers = ()
    key_hash: int = 0
    dealt_by: bytes | None = None


@dataclass(frozen=True)
class PartitionReport:
    """The outcomes of one partition's records in one slot and batch; it does not change.

    Attributes:
        done: Offsets that are settled, dead letters included (`pack_offsets`).
        resume: First offset that was not looked at; everything wanted from there on is untouched
            unless named elsewhere. None: all was looked at.
        failed: Records to try again.
        blocked: (offset, key hash) of records that wait behind a failed one of their key.
        filtered: Offsets of records that do not pass the filter: settled without a handler. They
            are not among ``done``.
        read: Offsets of the records that a real-time slot has begun to work on since its last
            report. Its progressive reports have ``blocked``, too. After a crash: those that were at
            work, as the driver may not have heard of them.
        position: Everything below was read by a real-time slot, and is in ``read`` if it is the
            slot's own. None: no other one than before.
        reached: How far the log reached in which leader epoch, by the last record that a real-time
            slot has read. None: no further than before, or not known.
        retrying: Failures of records that a real-time slot tries again by itself; for people, and
            so that the attempts are known if the slot is lost.
        holes: (first, last) of offsets below the position at which there is no record; only of
            slots that are to find holes.
        times: Timestamps of the records in ``done``, in the order of their offsets (`pack_times`);
            of many only every n-th (`sampling`).
    """

    done: bytes = b""
    resume: int | None = None
    failed: list[Failure] = field(default_factory=list)
    blocked: list[tuple[int, int]] = field(default_factory=list)
    filtered: bytes = b""
    read: bytes = b""
    position: int | None = None
    holes: list[tuple[int, int]] = field(default_factory=list)
    reached: OffsetAndEpoch | None = None
    retrying: list[Failure] = field(default_factory=list)
    times: bytes = b""

    @cached_property
    def done_offsets(self) -> pa.Array:
        """The offsets in ``done``, in ascending order; several readers share them."""
        return unpack_offsets(self.done)


class Reads(NamedTuple):
    """What a real-time slot read, and from where.

    Attributes:
        hits: Fetches that the fetch server of the host answered with records.
        misses: Fetches whose records were not in its memory.
        broker_bytes: Bytes from the brokers, those of the fetch server included that it has named
            to this slot.
    """

    hits: int = 0
    misses: int = 0
    broker_bytes: int = 0

    def since(self, before: Reads) -> Reads:
        """Returns what has come since an earlier count."""
        return Reads(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass(frozen=True)
class SlotStats:
    """Counts and times of a slot. Those of a final report do not contain what earlier ones had.

    Attributes:
        rows: Records read, those that did not pass the filter included; only of a final report.
        handled: Handler calls made. ``failures``: those that did not succeed.
        filtered: Records that did not pass the filter.
        reads: What a real-time slot read, since its last report.
        starts: Times from the timestamps of records to their first handler call.
        calls: Times of the handler calls that have ended. A call of a frame handler is one call.
        value_bytes: Bytes of key and value of those that passed; only of a final report.
        busy: Seconds from the first rows to the end of the last handler; 0 without any, and in a
            progressive report.
        restored: Keys of the state that were restored from the changelog, and the seconds that it
            took; only of a final report.
    """

    rows: int = 0
    handled: int = 0
    failures: int = 0
    filtered: int = 0
    reads: Reads = field(default_factory=Reads)
    starts: Histogram = field(default_factory=Histogram)
    calls: Histogram = field(default_factory=Histogram)
    value_bytes: int = 0
    busy: float = 0.0
    restored: tuple[int, float] = (0, 0.0)


@dataclass(frozen=True)
class SlotEnd:
    """How the part of a slot in a batch ended, in its final report.

    Attributes:
        unknown: This is a second run of a Spark task: nothing was started, and what the first run
            did is not known. ``crashed``: it is known that its worker has ended, and nothing of it
            counts. ``culprits``: (part, offset) of the records that certainly ended it.
            ``suspects``: of those that were at work then and may have ended it, if that is not
            certain. ``overdue``: it was ended, as a handler did not end in time. ``deserted``: it
            was ended, as it had not heard of its driver for too long.
        timed_out: The time box closed before the rows were through.
        tripped: The last of so many failures in a row that nothing more was started; else empty.
        streak: Failures in a row with which it ended, those of batches before included.
        fatal: Why the job cannot go on, for the person who runs it; empty: it can.
        late: How many seconds after the batch's latest start the rows came; then nothing was
            started.
        clock: The worker's clock as the slot ended, in seconds since the epoch.
        unacknowledged: The progressive reports that the driver did not acknowledge, in their order.
        channel_error: Why the slot had no channel, and started nothing; empty: it had one, or the
            batch has none.
        state_error: Why the slot could not read the state, and started nothing; empty: it could.
        open_error: Why the slot could not open its handler, and started nothing; empty: it could.
        read_error: Why a real-time slot cannot read on; empty: it can.
        error: Why the library's own code, or what it stands on, has failed in the slot; then its
            worker has ended itself. Empty: it has not.
        stopped: Why the slot started nothing more before its rows and its time were over: ``stop``
            by the driver's word, ``lease`` as its lease was not renewed, ``connection`` as it was
            lost, ``relief`` as it gave its records back, ``time`` as even the time of running
            handlers was over, ``error`` by an error of its own; else empty.
    """

    unknown: bool = False
    crashed: bool = False
    overdue: bool = False
    deserted: bool = False
    culprits: list[tuple[int, int]] = field(default_factory=list)
    suspects: list[tuple[int, int]] = field(default_factory=list)
    timed_out: bool = False
    tripped: str = ""
    streak: int = 0
    fatal: str = ""
    late: float = 0.0
    clock: float = 0.0
    unacknowledged: list[SlotReport] = field(default_factory=list)
    channel_error: str = ""
    state_error: str = ""
    open_error: str = ""
    read_error: str = ""
    error: str = ""
    stopped: str = ""


@dataclass(frozen=True)
class SlotReport:
    """What a slot reports of its part of a batch; it does not change.

    The final report holds what is in no progressive report.

    Attributes:
        pid: The process id of the slot's worker; 0: it is not known.
        seq: Number of a progressive report of the slot in this batch, from 1; 0: the final report.
        partitions: The outcomes of records, by part; a progressive report has those since the one
            before it, and of a batch only `done`, `filtered`, `failed` and `times` of each.
        dead: Records that were given up.
        outputs: Rows that handlers returned, as an Arrow IPC stream with the columns ``_part``,
            ``_offset`` and ``_key_hash`` added; None without rows.
        changes: Changes of the state, in the same form.
        gates: Seconds until more may start of a partition, by its index; None: in the slot. Empty
            in a progressive report without ``kept``.
        kept: In a progressive report, the slot gives its records back: it has started none of those
            that no report names, and never will. It keeps these records, as (index of the
            partition, offset, key hash), which handlers work on. None: it gives nothing back.
        leaving: In a progressive report, the number of the driver's last message about key ranges
            that leave, and their records that are at work, in the same form: the slot starts no
            other of them. None: as in an earlier report.
        stats: Counts and times.
        lines: What handlers have logged and printed, for the driver to show; None: nothing.
        end: How the slot ended; without meaning in a progressive report.
    """

    batch: int
    slot: int
    pid: int = 0
    seq: int = 0
    partitions: dict[int, PartitionReport] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    outputs: bytes | None = None
    changes: bytes | None = None
    gates: dict[int | None, float] = field(default_factory=dict)
    kept: list[tuple[int, int, int]] | None = None
    leaving: tuple[int, list[tuple[int, int, int]]] | None = None
    stats: SlotStats = field(default_factory=SlotStats)
    lines: SlotLines | None = None
    end: SlotEnd = field(default_factory=SlotEnd)

    @property
    def has_progress(self) -> bool:
        """Whether it has more than lines of handlers: outcomes, or records that are given back."""
        return bool(self.partitions) or self.kept is not None or self.leaving is not None

    def with_end(self, **facts: Any) -> SlotReport:
        """Returns this report with more facts of the slot's end, by the fields of `SlotEnd`."""
        return replace(self, end=replace(self.end, **facts))


_HEAD = struct.Struct("<bqq")
_TIMES_HEAD = struct.Struct("<bqqq")
#: Latencies of a report are those of at most so many of its records.
_MOST_TIMES = 1024
#: Milliseconds since the epoch, in the year 37648.
_NO_SUCH_TIME = 1 << 50
_STEPS = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}


def pack_offsets(offsets: pa.Array) -> bytes:
    """Ascending int64 offsets as bytes: the first, and compressed steps to the next."""
    if len(offsets) == 0:
        return b""
    width, size, packed = _narrow(pc.subtract(offsets[1:], offsets[:-1]))
    return _HEAD.pack(width, offsets[0].as_py(), size) + packed


def _narrow(steps: pa.Array) -> tuple[int, int, bytes]:
    """Returns numbers from 0 on in the narrowest integers: their width, size, and compressed."""
    widest = pc.max(steps).as_py() or 0
    width = next(w for w in _STEPS if widest < 1 << 8 * w)
    narrow = steps.cast(_STEPS[width])
    start, size = narrow.offset * width, len(narrow) * width
    body = memoryview(narrow.buffers()[1] or b"")[start : start + size]
    packed: bytes = pa.compress(body, codec="lz4", asbytes=True) if size else b""
    return width, size, packed


def unpack_offsets(data: bytes) -> pa.Array:
    """The inverse of `pack_offsets`: an int64 array."""
    if not data:
        return pa.array([], pa.int64())
    width, first, size = _HEAD.unpack_from(data)
    offsets = pa.array([first], pa.int64())
    if not size:
        return offsets
    steps = _widened(data[_HEAD.size :], width, size)
    return pc.cumulative_sum(pa.concat_arrays([offsets, steps]))


def _widened(packed: bytes, width: int, size: int) -> pa.Array:
    """The inverse of `_narrow`."""
    body = pa.decompress(packed, decompressed_size=size, codec="lz4")
    return pa.Array.from_buffers(_STEPS[width], size // width, [None, body]).cast(pa.int64())


def sampling(done: int) -> int:
    """Returns n, where a report with so many done records has the timestamp of every n-th."""
    return -(-done // _MOST_TIMES) or 1


def pack_times(times: pa.Array) -> bytes:
    """Timestamps in any order as bytes: the first, the smallest step, and steps less that.

    Timestamps that no clock has, as producers can set them, become -1.
    """
    if len(times) == 0:
        return b""
    is_known = pc.and_(pc.greater_equal(times, 0), pc.less(times, _NO_SUCH_TIME))
    times = pc.if_else(is_known, times, -1)
    steps = pc.subtract(times[1:], times[:-1])
    least = pc.min(steps).as_py() or 0
    width, size, packed = _narrow(pc.subtract(steps, least))
    return _TIMES_HEAD.pack(width, times[0].as_py(), least, size) + packed


def unpack_times(data: bytes) -> pa.Array:
    """The inverse of `pack_times`: an int64 array."""
    if not data:
        return pa.array([], pa.int64())
    width, first, least, size = _TIMES_HEAD.unpack_from(data)
    times = pa.array([first], pa.int64())
    if not size:
        return times
    steps = pc.add(_widened(data[_TIMES_HEAD.size :], width, size), least)
    return pc.cumulative_sum(pa.concat_arrays([times, steps]))


def pack_chunks(chunks: Sequence[pa.Array]) -> bytes:
    """Returns offsets that are ascending in each chunk as bytes."""
    if not chunks:
        return b""
    offsets = pa.concat_arrays(chunks)
    return pack_offsets(offsets.take(pc.sort_indices(offsets)) if len(chunks) > 1 else offsets)


def pack_done(chunks: Sequence[pa.RecordBatch]) -> tuple[bytes, bytes]:
    """Returns done offsets and their timestamps, as in `PartitionReport`."""
    if not chunks:
        return b"", b""
    offsets, times = (pa.concat_arrays([chunk.column(n) for chunk in chunks]) for n in range(2))
    bounds = [(one[0].as_py(), one[-1].as_py()) for chunk in chunks if len(one := chunk.column(0))]
    if any(after[0] < before[1] for before, after in pairwise(bounds)):
        order = pc.sort_indices(offsets)
        offsets, times = offsets.take(order), times.take(order)
    return pack_offsets(offsets), pack_times(times[:: sampling(len(times))])
