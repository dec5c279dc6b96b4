"""The rows of a replica's log, and their wire format: one JSON object per record."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from commits import OffsetRanges
from coopconsume.errors.queue import QueueLogFormat
from coopconsume.queue.incarnation import LogIncarnation

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


FORMAT, FAR_FORMAT = 1, 2
"""The version of the wire format, and that of rows with `Beginning.start`. Rows have the lowest one
that says what they mean. A reader stops at one that it does not know."""

MOST_LISTED = 1 << 32
"""The largest number of done offsets that a row lists: more take a second to read."""

Kind: TypeAlias = Literal[
    "begin", "acquire", "renew", "accept", "reject", "release", "tombstone", "expire", "snapshot",
]  # fmt: skip

Offsets: TypeAlias = "dict[int, OffsetRanges]"
"""Sets of offsets by partition."""

_KINDS = frozenset(get_args(Kind))
_encode = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` makes a new one each time


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a partition begins, or begins again because its log is another one.

    Attributes:
        epoch: The leader epoch in which the log was seen; -1: not known.
        before: The identity that the partition has until then; None: it has not begun. The row has
            no effect on a partition with another one.
        keep_below: What is done below this offset stays done: it is the same log up to there.
        start: All offsets below it are done; so many that a row does not list them.
    """

    epoch: int = -1
    before: LogIncarnation | None = None
    keep_below: int = 0
    start: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A row of a replica's log.

    Attributes:
        kind: What the row does; see `ReplicaState.fold`.
        holder: The id of the consumer that wrote it.
        request: The number of the request; it grows with each request of a consumer.
        offsets: The offsets that it concerns. A ``begin`` row has the offsets that are done.
        seconds: The duration of a hold, or the delay of a release.
        delivered: Whether released offsets had been handed out.
        positions: The positions of the holds that expire.
        state: The content of a snapshot.
        topic_id: The id of the topic whose offsets these are; empty: not known.
        cuts: By partition, `LogIncarnation.cut` of its log; without an entry it is 0.
        beginnings: For ``begin``, by partition.
        watched: For ``expire``, by position: the seconds for which a hold has lasted at least.
        replicas: For ``begin``, by number of the replica: the identity of its log before, empty if
            there was none, and now.
    """

    kind: Kind
    holder: str
    request: int = 0
    offsets: Mapping[int, OffsetRanges] = field(default_factory=dict)
    seconds: float = 0.0
    delivered: bool = False
    positions: tuple[int, ...] = ()
    state: Mapping[str, Any] | None = None
    topic_id: str = ""
    cuts: Mapping[int, int] = field(default_factory=dict)
    beginnings: Mapping[int, Beginning] = field(default_factory=dict)
    watched: Mapping[int, float] = field(default_factory=dict)
    replicas: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    def log(self, partition: int) -> LogIncarnation:
        """Return the identity of the log whose offsets of a partition these are."""
        return LogIncarnation(self.topic_id, self.cuts.get(partition, 0))


#: Fields that are written as they are, unless they are empty. A version that does not know
#: ``watched`` ends these holds later.
_PLAIN = (
    "seconds", "delivered", "positions", "state", "topic_id", "cuts", "watched", "replicas",
)  # fmt: skip


def encode(row: ReplicaRow) -> bytes:
    """Return the bytes of a row."""
    is_far = any(beginning.start for beginning in row.beginnings.values())
    document: dict[str, Any] = {
        "format": FAR_FORMAT if is_far else FORMAT,
        "kind": row.kind,
        "holder": row.holder,
        "request": row.request,
    }
    if row.offsets:
        document["offsets"] = plain_offsets(row.offsets)
    if row.beginnings:
        document["beginnings"] = {p: _plain_beginning(b) for p, b in row.beginnings.items()}
    for name in _PLAIN:
        if value := getattr(row, name):
            document[name] = value
    return _encode(document).encode()


def decode(value: bytes | None, place: str) -> ReplicaRow | None:
    """Read a row.

    Args:
        value: The value of a record.
        place: The log, for the error.

    Returns:
        None if the record is no row of this library.

    Raises:
        QueueLogFormat: A newer version of this library wrote it.
    """
    try:
        found = json.loads((value or b"").decode())
        kind, version = found["kind"], found["format"]
        if type(version) is int and version > FAR_FORMAT:
            raise QueueLogFormat(place, f"format {version}", f"format {FORMAT} or {FAR_FORMAT}")
        if version not in (FORMAT, FAR_FORMAT) or kind not in _KINDS:
            return None
        return ReplicaRow(
            kind,
            str(found["holder"]),
            int(found["request"]),
            offsets_of(found.get("offsets", {})),
            float(found.get("seconds", 0.0)),
            bool(found.get("delivered", False)),
            tuple(int(position) for position in found.get("positions", ())),
            found.get("state"),
            str(found.get("topic_id", "")),
            {int(p): int(cut) for p, cut in found.get("cuts", {}).items()},
            {int(p): _beginning(plain) for p, plain in found.get("beginnings", {}).items()},
            watched_of(found.get("watched", {})),
            {int(n): (str(a), str(b)) for n, (a, b) in found.get("replicas", {}).items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def plain_log(log: LogIncarnation) -> list[Any]:
    """Return an identity as JSON has it."""
    return [log.topic_id, log.cut]


def log_of(plain: Any) -> LogIncarnation:
    """Read an identity that `plain_log` wrote.

    Raises:
        ValueError, TypeError: It has another form.
    """
    topic_id, cut = plain
    return LogIncarnation(str(topic_id), int(cut))


def _plain_beginning(found: Beginning) -> dict[str, Any]:
    before = None if found.before is None else plain_log(found.before)
    plain = {"epoch": found.epoch, "before": before, "keep_below": found.keep_below}
    return plain | {"start": found.start} if found.start else plain


def _beginning(plain: Mapping[str, Any]) -> Beginning:
    before = None if plain["before"] is None else log_of(plain["before"])
    start = int(plain.get("start", 0))
    return Beginning(int(plain["epoch"]), before, int(plain["keep_below"]), start)


def watched_of(found: Mapping[str, Any]) -> dict[int, float]:
    """Read the seconds of holds by position.

    Raises:
        ValueError, TypeError, AttributeError: They have another form.
    """
    return {int(position): float(seconds) for position, seconds in found.items()}


def plain_offsets(offsets: Mapping[int, OffsetRanges]) -> dict[str, Any]:
    """Return offsets as JSON has them: pairs, or a roaring bitmap if that is shorter."""
    return {str(partition): _plain(found) for partition, found in offsets.items()}


def offsets_of(found: Mapping[str, Any]) -> Offsets:
    """Read offsets that `plain_offsets` wrote.

    Raises:
        ValueError: They have another form.
    """
    return {int(partition): _ranges_of(plain) for partition, plain in found.items()}


_MANY = 100  # a pair takes about 14 characters


def _plain(offsets: OffsetRanges) -> Any:
    if len(offsets) == 1:
        return [(offsets.first, offsets.first)]
    if offsets.range_count <= _MANY:
        return offsets.pairs()
    return base64.b85encode(offsets.to_bytes()).decode()


def _ranges_of(plain: Any) -> OffsetRanges:
    if isinstance(plain, str):
        return OffsetRanges.from_bytes(base64.b85decode(plain))
    return OffsetRanges([(first, last) for first, last in plain])


def minus(offsets: Mapping[int, OffsetRanges], other: Mapping[int, OffsetRanges]) -> Offsets:
    """Return the offsets that the other ones do not contain."""
    left = {p: found - other[p] if p in other else found for p, found in offsets.items()}
    return {partition: found for partition, found in left.items() if found}


def common(offsets: Mapping[int, OffsetRanges], other: Mapping[int, OffsetRanges]) -> Offsets:
    """Return the offsets that both contain."""
    both = {p: found & other[p] for p, found in offsets.items() if p in other}
    return {partition: found for partition, found in both.items() if found}


def union(offsets: Mapping[int, OffsetRanges], other: Mapping[int, OffsetRanges]) -> Offsets:
    """Return the offsets that at least one of them contains."""
    both = dict(offsets)
    for partition, found in other.items():
        both[partition] = both[partition] | found if partition in both else found
    return both


def without(offsets: Mapping[int, OffsetRanges], partitions: Collection[int]) -> Offsets:
    """Return the offsets of all other partitions."""
    return {p: found for p, found in offsets.items() if p not in partitions}


def at_least(count: int, found: list[Offsets]) -> Offsets:
    """Return the offsets that at least `count` of the sets contain."""
    if len(found) <= count:  # the common case of an answer that decides
        return reduce(common, found) if len(found) == count else {}
    levels: list[Offsets] = [{} for _ in range(count + 1)]
    for offsets in found:
        for n in range(count, 1, -1):
            levels[n] = union(levels[n], common(levels[n - 1], offsets))
        levels[1] = union(levels[1], offsets)
    return levels[count]
