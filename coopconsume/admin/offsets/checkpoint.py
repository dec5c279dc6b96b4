"""Reads the offsets of the last committed batch from the checkpoint of a streaming query of Spark.

    checkpoint/commits/17    the batch is committed
    checkpoint/offsets/17    v1, a line of settings, and a line for each source; of Kafka's source
                             {"orders": {"0": 13055, "1": 12900}}, the offsets after the batch

In version 2 of the file the name of the source and a colon precede each line. A source without new
offsets has a dash. A line that begins with a brace and is no JSON was cut off: it may be Kafka's.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from commits import OffsetRanges
from coopconsume.admin.offsets.moves import Kept
from coopconsume.errors import InvalidOption

if TYPE_CHECKING:
    from pathlib import Path

_VERSIONS: Final = ("v1", "v2")
_NUMBER: Final = re.compile(r"-?[0-9]+")
#: More digits than a partition can have.
_DIGITS: Final = 11
_MOST_PARTITION: Final = 2**31 - 1
_MOST_OFFSET: Final = 2**63 - 1
#: Characters of a wrong value that an error shows, at most.
_SHOWN: Final = 60


def read_checkpoint(folder: Path) -> list[Kept]:
    """Returns the partitions of a checkpoint's Kafka sources, with the offsets to go on from.

    A batch that Spark has started and not committed counts as not done, as for Spark itself.

    Args:
        folder: The folder of the checkpoint, on a local disk.

    Raises:
        InvalidOption: The folder is no checkpoint, no batch is committed, its offsets are not those
            of Kafka's source, or a file is damaged.
    """
    batch = _last_batch(folder)
    file = folder / "offsets" / str(batch)
    if not file.is_file():
        raise _wrong(folder, f"commits/{batch} has no offsets/{batch} beside it")
    name = f"offsets/{batch}"
    try:
        version, *lines = file.read_text("utf-8").splitlines() or [""]
    except UnicodeDecodeError as error:
        raise _damaged(folder, f"{name} is not UTF-8 at byte {error.start}") from None
    if not version:
        raise _damaged(folder, f"{name} is empty, or its first line is")
    if version not in _VERSIONS:
        raise _wrong(folder, f"{name} has version {version!r}, not v1 or v2")
    kept: dict[tuple[str, int], Kept] = {}
    for number, line in enumerate(lines[1:], 3):
        try:
            found = _offsets(line)
        except ValueError as error:
            raise _damaged(folder, f"{name}, line {number}: {error}") from None
        for topic, partition, offset in found:
            if (topic, partition) in kept:
                raise _wrong(folder, f"two sources of its query read {topic}-{partition}")
            kept[topic, partition] = Kept(topic, partition, "", offset, OffsetRanges())
    if not kept:
        raise _wrong(folder, f"{name} has no offsets of Kafka's source")
    return [kept[tp] for tp in sorted(kept)]


def _last_batch(folder: Path) -> int:
    commits = folder / "commits"
    if not commits.is_dir() or not (folder / "offsets").is_dir():
        raise _wrong(folder, "it has no folders commits and offsets")
    # Other files are checksums, and those that Spark has not finished.
    batches = [int(file.name) for file in commits.iterdir() if file.name.isdecimal()]
    if not batches:
        raise _wrong(folder, "its query has committed no batch")
    return max(batches)


def _offsets(line: str) -> list[tuple[str, int, int]]:
    """Returns topics, partitions and offsets of a source; one other than Kafka's has none.

    Raises:
        ValueError: The line is damaged.
    """
    text = (line if line.startswith("{") else line.partition(":")[2]).strip()
    if not text.startswith("{"):
        return []
    try:
        found = json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it ends early or is no JSON ({error}): {_short(text)}") from None
    if not any(map(_has_partitions, found.values())):
        return []
    return [
        (topic, _partition(topic, partition), _offset(topic, partition, offset))
        for topic, partitions in found.items()
        for partition, offset in _as_object(topic, partitions).items()
    ]


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name appears twice in {_short(str([name for name, _ in pairs]))}")
    return found


def _has_partitions(value: Any) -> bool:
    """Whether a value has the form of Kafka's: the names in it are numbers."""
    return isinstance(value, dict) and any(map(_NUMBER.fullmatch, value))


def _as_object(topic: str, partitions: Any) -> dict[str, Any]:
    if not isinstance(partitions, dict):
        raise ValueError(f"topic {topic} has {_short(repr(partitions))} instead of partitions")  # noqa: TRY004 - as for other values
    return partitions


def _partition(topic: str, name: str) -> int:
    number = int(name) if _NUMBER.fullmatch(name) and len(name) < _DIGITS else -1
    if not 0 <= number <= _MOST_PARTITION or str(number) != name:
        raise ValueError(f"topic {topic} has {_short(repr(name))}, which is no partition")
    return number


def _offset(topic: str, partition: str, value: Any) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST_OFFSET:
        found = _short(repr(value))
        raise ValueError(f"{topic}-{partition} has {found}, not an offset from 0 to 2**63 - 1")
    return int(value)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _damaged(folder: Path, problem: str) -> InvalidOption:
    return InvalidOption("FILE", str(folder), f"{problem}; copy the whole checkpoint once more")


def _wrong(folder: Path, problem: str) -> InvalidOption:
    remedy = "give the checkpointLocation of a streaming query that reads Kafka"
    return InvalidOption("FILE", str(folder), f"{problem}; {remedy}")
