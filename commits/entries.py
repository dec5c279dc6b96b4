"""Entries of a Delta table's own log: what a version did, as the commit log needs to know it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["APPEND", "REPAIR", "SNAPSHOT_OF", "Entry", "words_in", "words_of"]

SNAPSHOT_OF = "coopconsume.folded"
"""What a version that brought a snapshot says in its entry: the version that was folded."""

REPAIR = "coopconsume.repair"
"""What a version says that a repair wrote: all before it counts only as its snapshot has it."""


APPEND = "coopconsume.append"
"""What an append says that tells it from every other one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one version of a table did.

    Attributes:
        is_append: Whether it only added rows.
        snapshot_of: The version that its snapshot tells of; -1 if it brought none.
        disturbs: Whether somebody else took files out of the table, or put them back in.
        repairs: Whether it is a repair.
        timestamp_ms: The writer's clock.
        token: The word by which its writer knows it again; empty if it said none.
        files: The data files it added, by their paths within the table.
        digest: Tells it from every other entry.
    """

    is_append: bool
    snapshot_of: int
    disturbs: bool
    repairs: bool
    timestamp_ms: int
    token: str
    files: tuple[str, ...]
    digest: bytes

    @classmethod
    def parse(cls, data: bytes) -> Entry:
        """The entry that a file of the log holds.

        Raises:
            KeyError, ValueError: If it is no entry.
        """
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        if not all(isinstance(action, dict) for action in actions):
            raise ValueError("an entry of the table's log is made of JSON objects")
        info: Mapping[str, Any] = {}
        for action in actions:
            info = action.get("commitInfo", info)
        adds = [action["add"] for action in actions if "add" in action]
        removes = [action["remove"] for action in actions if "remove" in action]
        words = _words(info)
        snapshot_of = _whole_number(words.get(SNAPSHOT_OF))
        parameters = info.get("operationParameters") or {}
        is_append = info.get("operation") == "WRITE" and parameters.get("mode") == "Append"
        return cls(
            is_append=is_append and bool(adds) and not removes,
            snapshot_of=snapshot_of,
            # OPTIMIZE changes no data, but lets a vacuum take the files that tails are read from.
            disturbs=snapshot_of < 0 and (bool(removes) or info.get("operation") == "RESTORE"),
            repairs=snapshot_of >= 0 and REPAIR in words,
            timestamp_ms=max(0, _whole_number(info.get("timestamp"))),
            token=str(words.get(APPEND, "")),
            files=tuple(unquote(add["path"]) for add in adds),
            digest=hashlib.blake2b(data, digest_size=16).digest(),
        )


def words_of(snapshot_of: int, *, repair: bool = False) -> dict[str, str]:
    """What the version of a snapshot is to say in its entry."""
    return {SNAPSHOT_OF: str(snapshot_of)} | ({REPAIR: "true"} if repair else {})


def words_in(metadata: str | None) -> Mapping[str, Any]:
    """What is said in the `userMetadata` of an entry; nothing if somebody wrote other words."""
    try:
        words = json.loads(metadata or "{}")
    except (TypeError, ValueError):
        return {}
    return words if isinstance(words, dict) else {}


def _words(info: Mapping[str, Any]) -> Mapping[str, Any]:
    # Spark puts the words of whoever wrote into a field of its own.
    return {**info, **words_in(info.get("userMetadata"))}


def _whole_number(value: Any) -> int:
    try:
        return -1 if value is None else int(value)
    except (TypeError, ValueError):
        return -1
