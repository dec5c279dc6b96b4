"""Parsed entries of a Delta table's log, one for each version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


SNAPSHOT_OF = "coopconsume.folded"
"""Field of the entry of a snapshot: the version of the folded state."""

REPAIR = "coopconsume.repair"
"""Field of the entry of a repair: its snapshot replaces all earlier rows."""


APPEND = "coopconsume.append"
"""Field of the entry of an append: its unique token."""

BEFORE = "coopconsume.before"
"""Field of the entry of an append: the digest of the entry before it; empty if it was not read."""

ROWS = "coopconsume.rows"
"""Field of the entry of an append: its rows; see `commits.entry_rows`."""


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """The changes of one version of a table.

    Attributes:
        is_append: Whether it only added rows.
        snapshot_of: The version of the state in its snapshot; -1 without a snapshot.
        disturbs: Whether another tool removed or restored files of the table.
        repairs: Whether it is a repair.
        timestamp_ms: The time of the version by the writer's clock.
        token: The unique token that its writer chose; empty without one.
        files: The added data files, by their paths within the table.
        rows: Its rows, as `commits.entry_rows` writes them; None: they are in the files alone.
        digest: A digest that is unique to the entry.
        size: Its bytes.
        before: The digest of the entry before it; empty if its writer did not note it.
        changes_table: Whether it has other properties, columns or features of the table.
    """

    is_append: bool
    snapshot_of: int
    disturbs: bool
    repairs: bool
    timestamp_ms: int
    token: str
    files: tuple[str, ...]
    rows: Mapping[str, Any] | None
    digest: str
    size: int
    before: str
    changes_table: bool

    @classmethod
    def parse(cls, data: bytes) -> VersionEntry:
        """Parse a file of the Delta log.

        Raises:
            KeyError, ValueError: If it is not a valid entry.
        """
        try:
            return cls.of(actions_of(data), data)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"an action of the table's log is not valid: {error}") from error

    @classmethod
    def of(cls, actions: Sequence[Mapping[str, Any]], data: bytes) -> VersionEntry:
        """Return the entry of some actions.

        Args:
            actions: The actions.
            data: The file that they are in.
        """
        info: Mapping[str, Any] = {}
        for action in actions:
            info = action.get("commitInfo", info)
        adds = [action["add"] for action in actions if "add" in action]
        removes = [action["remove"] for action in actions if "remove" in action]
        words = entry_words(info)
        snapshot_of = _whole_number(words.get(SNAPSHOT_OF))
        parameters = info.get("operationParameters") or {}
        is_append = info.get("operation") == "WRITE" and parameters.get("mode") == "Append"
        changes_table = any("metaData" in action or "protocol" in action for action in actions)
        rows = words.get(ROWS)
        return cls(
            is_append=is_append and bool(adds) and not removes,
            snapshot_of=snapshot_of,
            # OPTIMIZE changes no data, but a vacuum can then remove files that tails are read from.
            disturbs=snapshot_of < 0 and (bool(removes) or info.get("operation") == "RESTORE"),
            repairs=snapshot_of >= 0 and REPAIR in words,
            timestamp_ms=max(0, _whole_number(info.get("timestamp"))),
            token=str(words.get(APPEND, "")),
            files=tuple(unquote(add["path"]) for add in adds),
            rows=rows if isinstance(rows, dict) else None,
            digest=digest_of(data),
            size=len(data),
            before=str(words.get(BEFORE, "")),
            changes_table=changes_table,
        )


def actions_of(data: bytes) -> list[Mapping[str, Any]]:
    """Return the actions in a file of the Delta log.

    Raises:
        ValueError: If it is not a file of JSON objects.
    """
    actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    if not actions or not all(isinstance(action, dict) for action in actions):
        raise ValueError("an entry of the table's log is made of JSON objects")
    return actions


def digest_of(data: bytes) -> str:
    """Return a digest that is unique to a file of the Delta log."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def words_of(snapshot_of: int, *, repair: bool = False) -> dict[str, str]:
    """Return the entry fields of a snapshot."""
    return {SNAPSHOT_OF: str(snapshot_of)} | ({REPAIR: "true"} if repair else {})


def entry_words(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of the `commitInfo` of an entry, with those that its writer noted."""
    # Spark stores the metadata of the writer in a separate field.
    noted = info.get("userMetadata")
    if not noted:
        return info
    try:
        words = json.loads(noted)
    except (TypeError, ValueError):
        words = {}
    return {**info, **(words if isinstance(words, dict) else {})}


def _whole_number(value: Any) -> int:
    try:
        return -1 if value is None else int(value)
    except (TypeError, ValueError):
        return -1
