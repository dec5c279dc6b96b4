"""The blocked keys of a group on the live page: what blocks each, and what is behind it (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from coopconsume.admin.offsets.status import since_of
from coopconsume.admin.records.tables import record_arguments
from coopconsume.admin.tables import Table
from coopconsume.group.owned import kept_key
from coopconsume.texts import due_in, one_line

if TYPE_CHECKING:
    from datetime import datetime

    from commits import Pending
    from coopconsume.admin.overview.blocked import BlockedKeys
    from coopconsume.admin.overview.data import GroupOverview, PartitionOverview

#: Characters of an error that are shown, at most.
_ERROR: Final = 200
_TITLES: Final = (
    "record", "key", "state", "since", "records behind", "attempts", "due in", "error"
)  # fmt: skip
#: What the commands of ``coopconsume records`` do with a failed record.
CHOICES: Final = {
    "retry": "Try it again now; if it is parked, from attempt 1 on.",
    "park": "Stop trying it. The later records of its key wait for a decision.",
    "skip": "Mark it as done without its handler. The later records of its key go on.",
}


class BlockedRows:
    """The rows of the keys of a group that failed records block, the most urgent first.

    Args:
        group: The group.
        keys: Its keys.
    """

    def __init__(self, group: GroupOverview, keys: BlockedKeys) -> None:
        self._group = group
        self._records = keys.first

    @property
    def places(self) -> list[dict[str, Any]]:
        """The place of the record of each row, and what commands that decide on it are given."""
        return [
            {
                "topic": one.topic,
                "partition": one.partition,
                "offset": record.offset,
                "arguments": self._arguments(one, record),
            }
            for one, record in self._records
        ]

    def table(self, now: datetime) -> Table:
        """Returns a row for each key that is shown."""
        return Table(
            _TITLES,
            [
                (
                    f"{one.name}@{record.offset}", _key(one, record),
                    "parked" if record.is_parked else "failed", since_of(record),
                    _behind(one, record), record.attempts,
                    None if record.is_parked else self._due_in(record, now),
                    one_line(record.error, _ERROR),
                )
                for one, record in self._records
            ],
        )  # fmt: skip

    def _arguments(self, one: PartitionOverview, record: Pending) -> str:
        place = one.topic, one.partition, record.offset
        return record_arguments(self._group.group, place, self._group.place)

    def _due_in(self, record: Pending, now: datetime) -> str:
        left = record.due_ms / 1000 - now.timestamp()
        return due_in(left, is_worked_on=self._group.is_worked_on)


def _key(one: PartitionOverview, record: Pending) -> str | None:
    blocker = one.blocker if record.offset == one.stable_offset else None
    if blocker is not None:
        return blocker.shown_key
    key = kept_key(record)
    return f"hash {record.key_hash}" if key is None and record.key_hash is not None else key


def _behind(one: PartitionOverview, record: Pending) -> str | None:
    """Returns how many records wait behind a parked one of their key, as far as it is known."""
    found = one.behind_parked
    if found is None or not record.is_parked or record.key_hash is None:
        return None
    return f"{'' if found.is_all else 'at least '}{found.keys.get(record.key_hash, 0):,}"
