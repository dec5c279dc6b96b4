"""Reads and writes a group's offsets as JSON, with every offset and every failed record.

    {"format": "coopconsume-offsets", "version": 1, "group": "shop", "cluster": "…",
     "partitions": [{"topic": "orders", "topic_id": "…", "partition": 0, "stable_offset": 13055,
                     "ranges": [[13057, 13060], [13062, 13062]],
                     "pending": [{"offset": 13055, "key_hash": 7, "attempts": 3,
                                  "due_ms": 1795255200000, "error": "…"}]}]}

Offsets below ``stable_offset`` and in ``ranges`` (both ends included) are committed. Numbers are
64-bit integers; a reader that parses them as floats rounds those above 2**53. A failed record to
which headers were added has them as ``headers``: pairs of a name and a value in base64, or null.
``key`` is the text of its key, or of its ordering key (option ``orderingKey``), if the commit log
has it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from commits import OffsetRanges, Pending
from commits.model import MAX_SHORT_KEY, headers_from_plain, headers_to_plain
from coopconsume.admin.offsets.moves import Kept
from coopconsume.errors import InvalidOption
from coopconsume.group.owned import kept_key
from coopconsume.record import checked_headers, without_ordering_key
from coopconsume.values.shown import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coopconsume.record import Headers

FORMAT = "coopconsume-offsets"
VERSION = 1
_MOST = 2**63 - 1


def write_document(group: str, cluster: str, kept: Iterable[Kept]) -> str:
    """Returns the document for some partitions of a group.

    Args:
        group: The group id.
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
                    **_plain(p),
                }
                for p in one.pending
            ],
        }
        for one in kept
    ]
    # One partition per line: readable, and a fraction of the size of an indented document.
    lines = ",\n ".join(json.dumps(one, separators=(",", ":")) for one in partitions)
    return f'{json.dumps(head)[:-1]}, "partitions": [\n {lines}\n]}}\n'


def read_document(text: str, name: str) -> tuple[str, list[Kept]]:
    """Returns the group and the partitions of a document.

    Args:
        text: The document.
        name: The name of its file, for errors.

    Raises:
        InvalidOption: The text is not such a document, or has another version.
    """
    try:
        found = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise _wrong(name, f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _wrong(name, f"its format is not {FORMAT!r}")
    if found.get("version") != VERSION:
        raise _wrong(name, f"its version is {found.get('version')!r}, not {VERSION}")
    partitions = found.get("partitions", [])
    if not isinstance(partitions, list):
        raise _wrong(name, f"its partitions are {type(partitions).__name__}, not a list")
    kept, seen = [], set()
    for number, one in enumerate(partitions):
        try:
            part = _kept(one)
        except (KeyError, TypeError, ValueError) as error:
            missing = isinstance(error, KeyError)
            problem = f"{error} is missing" if missing else str(error)
            raise _wrong(name, f"partition entry {number}: {problem}") from None
        if (part.topic, part.partition) in seen:
            raise _wrong(name, f"{part.topic}-{part.partition} appears twice")
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
            headers=_headers(p),
            key=_key(p),
        )
        for p in one["pending"]
    )
    pairs = [(_integer("range", first), _integer("range", last)) for first, last in one["ranges"]]
    return Kept(
        str(one["topic"]),
        _integer("partition", one["partition"]),
        topic_id=str(one["topic_id"]),
        stable_offset=_integer("stable_offset", one["stable_offset"]),
        done=OffsetRanges(pairs),
        pending=pending,
    )


def _plain(pending: Pending) -> dict[str, Any]:
    added, key = without_ordering_key(pending.headers), kept_key(pending)
    found: dict[str, Any] = {} if key is None else {"key": key}
    if added:
        found["headers"] = headers_to_plain(added)
    return found


def _headers(pending: Mapping[str, Any]) -> Headers:
    return checked_headers(headers_from_plain(pending.get("headers", ())))


def _key(pending: Mapping[str, Any]) -> str | None:
    key = pending.get("key", pending.get("ordering_key"))  # the name in earlier versions
    return None if key is None else clean(str(key), MAX_SHORT_KEY)  # a person may have written it


def _integer(name: str, value: Any) -> int:
    # A float may have been rounded by another tool.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise ValueError(f"{name} is {value!r}, not an integer from 0 to 2**63 - 1")
    return value


def _wrong(name: str, problem: str) -> InvalidOption:
    return InvalidOption("FILE", name, f"{problem}; give a file of 'offsets export'")
