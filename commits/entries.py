"""Entries of a Delta table's own log: what a version did, as the commit log needs to know it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["SNAPSHOT_OF", "Entry", "runs"]

SNAPSHOT_OF = "coopconsume.folded"
"""What a version that brought a snapshot says in its entry: the version that was folded."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one version of a table did.

    Attributes:
        is_append: Whether it only added rows.
        snapshot_of: The version that its snapshot tells of; -1 if it brought none.
        disturbs: Whether somebody else took rows out of the table, or put them back in.
        digest: Tells it from every other entry.
    """

    is_append: bool
    snapshot_of: int
    disturbs: bool
    digest: bytes

    @classmethod
    def parse(cls, data: bytes) -> Entry:
        """The entry that a file of the log holds.

        Raises:
            ValueError: If it is no entry.
        """
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        if not all(isinstance(action, dict) for action in actions):
            raise ValueError("an entry of the table's log is made of JSON objects")
        info: Mapping[str, Any] = {}
        for action in actions:
            info = action.get("commitInfo", info)
        adds = [action["add"] for action in actions if "add" in action]
        removes = [action["remove"] for action in actions if "remove" in action]
        snapshot_of = _snapshot_of(info)
        # Others may optimise and clean the table: that changes no data.
        changes = [action for action in removes if action.get("dataChange", True)]
        parameters = info.get("operationParameters") or {}
        is_append = info.get("operation") == "WRITE" and parameters.get("mode") == "Append"
        return cls(
            is_append=is_append and bool(adds) and not removes,
            snapshot_of=snapshot_of,
            disturbs=snapshot_of < 0 and (bool(changes) or info.get("operation") == "RESTORE"),
            digest=hashlib.blake2b(data, digest_size=16).digest(),
        )


def runs(versions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Unbroken runs of versions that are in order: first and last of each."""
    first = last = None
    for version in versions:
        if first is None or last is None:
            first = last = version
        elif version == last + 1:
            last = version
        else:
            yield first, last
            first = last = version
    if first is not None and last is not None:
        yield first, last


def _snapshot_of(info: Mapping[str, Any]) -> int:
    # Spark puts the words of whoever wrote into a field of its own.
    folded = info.get(SNAPSHOT_OF)
    if folded is None and info.get("userMetadata"):
        try:
            words = json.loads(info["userMetadata"])
        except ValueError:
            return -1
        folded = words.get(SNAPSHOT_OF) if isinstance(words, dict) else None
    try:
        return -1 if folded is None else int(folded)
    except (TypeError, ValueError):
        return -1
