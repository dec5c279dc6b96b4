"""Progressive reports, and chunks, on the wire: a JSON header of a fixed schema, then binary parts.

Where a field is binary, the header has the length of the part, or null without a part. The parts
follow in the order of the header.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

from commits import OffsetAndEpoch
from coopconsume.worker.channel.wire import Identity, ProtocolError
from coopconsume.worker.handler_lines import CallPlace, HandlerLine, SlotLines
from coopconsume.worker.histogram import Histogram
from coopconsume.worker.report import (
    DeadLetter,
    Failure,
    GivenUp,
    PartitionReport,
    PartitionWork,
    Reads,
    SlotReport,
    SlotStats,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.record import Headers

_LENGTH = struct.Struct(">I")


class _Parts:
    """The binary parts of a message that is being written."""

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def add(self, part: bytes | None) -> int | None:
        if part is None:
            return None
        self.all.append(part)
        return len(part)


class _PartReader:
    """The binary parts of a message that is being read."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._at = start

    def take(self, length: int | None) -> bytes | None:
        return None if length is None else self.need(length)

    def need(self, length: int) -> bytes:
        start, self._at = self._at, self._at + length
        if length < 0 or self._at > len(self._data):
            raise ProtocolError("a report with a part that is longer than the report")
        return self._data[start : self._at]

    def end(self) -> None:
        if self._at != len(self._data):
            raise ProtocolError("more bytes than the header names")


def encode_report(report: SlotReport) -> bytes:
    """Returns a progressive report as bytes."""
    parts = _Parts()
    header = {
        "seq": report.seq,
        "handled": report.stats.handled,
        "filtered": report.stats.filtered,
        "reads": report.stats.reads,
        "starts": [report.stats.starts.counts, report.stats.starts.seconds],
        "calls": [report.stats.calls.counts, report.stats.calls.seconds],
        "failures": report.stats.failures,
        "partitions": [
            [
                part,
                parts.add(of.done),
                parts.add(of.filtered),
                [_failure(one, parts) for one in of.failed],
                parts.add(of.read),
                of.position,
                of.holes,
                of.reached,
                of.blocked,
                [_failure(one, parts) for one in of.retrying],
                parts.add(of.times),
            ]
            for part, of in report.partitions.items()
        ],
        "dead": [_letter(one, parts) for one in report.dead],
        "outputs": parts.add(report.outputs),
        "changes": parts.add(report.changes),
        "kept": report.kept,
        "gates": list(report.gates.items()),
        "leaving": report.leaving,
        "lines": None if report.lines is None else _put_lines(report.lines, parts),
    }
    return _packed(header, parts)


def decode_report(data: bytes, of: Identity) -> SlotReport:
    """The inverse of `encode_report`, for the slot whose connection it came by.

    Raises:
        ProtocolError: The bytes are no progressive report.
    """
    try:
        header, parts = _unpacked(data)
        stats = SlotStats(
            handled=_count(header["handled"]), failures=_count(header["failures"]),
            filtered=_count(header["filtered"]), reads=Reads(*map(_count, header["reads"])),
            starts=_histogram(header["starts"]), calls=_histogram(header["calls"]),
        )  # fmt: skip
        partitions = {}
        for part, done, filtered, failed, read, position, *more in header["partitions"]:
            holes, reached, blocked, retrying, times = more
            partitions[_count(part)] = PartitionReport(
                done=parts.need(done),
                filtered=parts.need(filtered),
                failed=[_failed(one, parts) for one in failed],
                read=parts.need(read),
                position=None if position is None else _count(position),
                holes=[(_count(first), _count(last)) for first, last in holes],
                reached=None if reached is None else OffsetAndEpoch(*map(_count, reached)),
                blocked=[(_count(offset), int(key_hash)) for offset, key_hash in blocked],
                retrying=[_failed(one, parts) for one in retrying],
                times=parts.need(times),
            )
        kept, leaving = header["kept"], header["leaving"]
        if leaving is not None:
            number, rows = leaving
            leaving = _count(number), _rows_at_work(rows)
        report = SlotReport(
            of.batch, of.slot, of.pid, _count(header["seq"]), partitions,
            dead=[_dead(one, parts) for one in header["dead"]],
            outputs=parts.take(header["outputs"]), changes=parts.take(header["changes"]),
            gates={
                None if part is None else _count(part): float(left)
                for part, left in header["gates"]
            },
            kept=None if kept is None else _rows_at_work(kept), leaving=leaving, stats=stats,
            lines=None if header["lines"] is None else _taken_lines(header["lines"], parts),
        )  # fmt: skip
        parts.end()
    except (KeyError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise ProtocolError(f"no progressive report: {type(error).__name__}: {error}") from None
    return report


def _rows_at_work(rows: Any) -> list[tuple[int, int, int]]:
    """Returns records that handlers work on, as in `SlotReport.kept`."""
    return [(_count(part), _count(offset), int(lane)) for part, offset, lane in rows]


def encode_chunks(work: Mapping[int, PartitionWork]) -> bytes:
    """Returns the offsets that a real-time slot gets, by part, as bytes."""
    parts = _Parts()
    header = [
        [
            part,
            one.ranges,
            list(one.attempts.items()),
            [[offset, _put_headers(added, parts)] for offset, added in one.added.items()],
            list(one.ended.items()),
            [[offset, *given_up] for offset, given_up in one.given_up.items()],
        ]
        for part, one in work.items()
    ]
    return _packed(header, parts)


def decode_chunks(data: bytes) -> dict[int, PartitionWork]:
    """The inverse of `encode_chunks`.

    Raises:
        ProtocolError: The bytes are no such message.
    """
    try:
        header, parts = _unpacked(data)
        found = {
            _count(part): PartitionWork(
                tuple((_count(first), _count(last)) for first, last in ranges),
                {_count(offset): _count(failures) for offset, failures in attempts},
                added={_count(offset): _taken_headers(some, parts) for offset, some in added},
                ended={_count(offset): str(how) for offset, how in ended},
                given_up={_count(o): GivenUp(str(why), bool(park)) for o, why, park in given_up},
            )
            for part, ranges, attempts, added, ended, given_up in header
        }
        parts.end()
    except (TypeError, ValueError, RecursionError, struct.error) as error:
        raise ProtocolError(f"no chunks: {type(error).__name__}: {error}") from None
    return found


def _packed(header: Any, parts: _Parts) -> bytes:
    head = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *parts.all))


def _unpacked(data: bytes) -> tuple[Any, _PartReader]:
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    return json.loads(data[_LENGTH.size : start]), _PartReader(data, start)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ProtocolError(f"{value!r} where a number from 0 on was expected")
    return value


def _histogram(fields: list[Any]) -> Histogram:
    counts, seconds = fields
    found = Histogram()
    if len(counts) != len(found.counts):
        raise ProtocolError(f"a histogram of {len(counts)} buckets")
    return Histogram([_count(count) for count in counts], float(seconds))


def _failure(one: Failure, parts: _Parts) -> list[Any]:
    delay = None if one.delay == math.inf else one.delay
    return [
        one.offset, one.key_hash, parts.add(one.key), one.attempts, delay, one.error, one.trace,
        _put_headers(one.headers, parts),
    ]  # fmt: skip


def _failed(fields: list[Any], parts: _PartReader) -> Failure:
    offset, key_hash, key, attempts, delay, error, trace, headers = fields
    wait = math.inf if delay is None else float(delay)
    return Failure(
        _count(offset), int(key_hash), parts.take(key), _count(attempts), wait, str(error),
        str(trace), _taken_headers(headers, parts),
    )  # fmt: skip


def _put_lines(found: SlotLines, parts: _Parts) -> list[Any]:
    lines = [
        [parts.add(one.text.encode()), one.place and list(vars(one.place).values())]
        for one in found.lines
    ]
    return [lines, found.left_out]


def _taken_lines(fields: list[Any], parts: _PartReader) -> SlotLines:
    lines, left_out = fields
    found = (
        HandlerLine(parts.need(length).decode(), None if place is None else _place(*place))
        for length, place in lines
    )
    return SlotLines(tuple(found), _count(left_out))


def _place(topic: Any, partition: Any, offset: Any, last: Any, key: Any, attempt: Any) -> CallPlace:
    return CallPlace(
        str(topic), _count(partition), _count(offset), _count(last),
        None if key is None else str(key), None if attempt is None else _count(attempt),
    )  # fmt: skip


def _put_headers(headers: Headers, parts: _Parts) -> list[list[Any]]:
    return [[name, parts.add(value)] for name, value in headers]


def _taken_headers(fields: list[Any], parts: _PartReader) -> Headers:
    return tuple((str(name), parts.take(value)) for name, value in fields)


def _letter(one: DeadLetter, parts: _Parts) -> list[Any]:
    return [
        one.topic, one.partition, one.offset, parts.add(one.key), parts.add(one.value),
        one.timestamp, _put_headers(one.headers, parts),
        one.attempts, one.reason, one.trace, _put_headers(one.added, parts), one.key_hash,
        parts.add(one.dealt_by),
    ]  # fmt: skip


def _dead(fields: list[Any], parts: _PartReader) -> DeadLetter:
    topic, partition, offset, key, value, timestamp, headers, *more = fields
    attempts, reason, trace, added, key_hash, dealt_by = more
    return DeadLetter(
        str(topic), _count(partition), _count(offset), parts.take(key), parts.take(value),
        int(timestamp), _taken_headers(headers, parts),
        _count(attempts), str(reason), str(trace), _taken_headers(added, parts), int(key_hash),
        parts.take(dealt_by),
    )  # fmt: skip
