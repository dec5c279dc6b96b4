"""A group's offsets as a file: JSON that keeps every offset and every failed record exactly.

    {"format": "coopconsume-offsets", "version": 1, "group": "shop", "cluster": "…",
     "partitions": [{"topic": "orders", "topic_id": "…", "partition": 0, "stable_offset": 13055,
                     "ranges": [[13057, 13060], [13062, 13062]],
                     "pending": [{"offset": 13055, "key_hash": 7, "attempts": 3,
                                  "due_ms": 1795255200000, "error": "…"}]}]}

Everything below ``stable_offset`` is done, and so are ``ranges``, both ends included. Numbers are
64-bit integers: a reader that takes them for floats rounds those above 2**53.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges, Pending
from coopconsume.admin.offsets.moves import Kept
from coopconsume.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = "coopconsume-offsets"
VERSION = 1
_MOST = 2**63 - 1


def write_document(group: str, cluster: str, kept: Iterable[Kept]) -> str:
    """The document of some partitions of a group.

    Args:
        group: Its id.
        cluster: The id of the Kafka cluster.
        kept: The partitions.
    """
    head = {"format": FORMAT, "version": VERSION, "group": group, "cluster": cluster}
    partitions = [
        {
            "topic": one.topic,
            "topic_id": one.topic_id,
            "partition": one.partition,
            "stable_offset": one.stable_offset,
            "ranges": one.done.pairs(),
            "pending": [
                {
                    "offset": p.offset,
                    "key_hash": p.key_hash,
                    "attempts": p.attempts,
                    "due_ms": p.due_ms,
                    "error": p.error,
                }
                for p in one.pending
            ],
        }
        for one in kept
    ]
    # One partition a line: still to be read, and a fraction of the size of an indented one.
    lines = ",\n ".join(json.dumps(one, separators=(",", ":")) for one in partitions)
    return f'{json.dumps(head)[:-1]}, "partitions": [\n {lines}\n]}}\n'


def read_document(text: str, name: str) -> tuple[str, list[Kept]]:
    """The group that a document is of, and its partitions.

    Args:
        text: The document.
        name: Of its file, for errors.

    Raises:
        InvalidOption: It is no such document, or of another version; names the place.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _wrong(name, f"is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _wrong(name, f"has not the format {FORMAT!r}")
    if found.get("version") != VERSION:
        raise _wrong(name, f"has version {found.get('version')!r}, known is {VERSION}")
    kept, seen = [], set()
    for number, one in enumerate(found.get("partitions", ())):
        try:
            part = _kept(one)
        except (KeyError, TypeError, ValueError) as error:
            missing = isinstance(error, KeyError)
            problem = f"{error} is missing" if missing else str(error)
            raise _wrong(name, f"partition entry {number}: {problem}") from None
        if (part.topic, part.partition) in seen:
            raise _wrong(name, f"{part.topic}-{part.partition} is in it twice")
        seen.add((part.topic, part.partition))
        kept.append(part)
    return str(found.get("group", "")), kept


def _kept(one: dict[str, Any]) -> Kept:
    pending = tuple(
        Pending(
            _integer("pending offset", p["offset"]),
            None if p["key_hash"] is None else _integer("key_hash", p["key_hash"]),
            _integer("attempts", p["attempts"]),
            _integer("due_ms", p["due_ms"]),
            str(p["error"]),
        )
        for p in one["pending"]
    )
    pairs = [(_integer("range", first), _integer("range", last)) for first, last in one["ranges"]]
    return Kept(
        str(one["topic"]),
        _integer("partition", one["partition"]),
        str(one["topic_id"]),
        _integer("stable_offset", one["stable_offset"]),
        OffsetRanges(pairs),
        pending,
    )


def _integer(name: str, value: Any) -> int:
    # A float is a number that some tool has rounded.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise ValueError(f"{name} is {value!r}, not an integer from 0 to 2**63 - 1")
    return value


def _wrong(name: str, problem: str) -> InvalidOption:
    return InvalidOption("FILE", name, f"it {problem}; give what 'offsets export' wrote")
