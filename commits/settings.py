"""The settings of the commit store: switches and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from commits.ownership import Ownership
from commits.rows import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commits.engine import LogEngine


ACCEPT_INDIVIDUAL_COMMIT = "accept.individual.commit"
"""The setting that allows commits in a store (KIP-X); true by default."""

ACCEPT_RANGE_FETCH = "accept.range.fetch"
"""The setting that allows members to share a topic by key range (KIP-X); false by default."""

MAX_NUM_RANGES = "maxNumRanges"
"""The setting of the store or of a topic that overrides the range limit of `CommitStore.open`."""

SNAPSHOT_COMMITS = "snapshotCommits"
"""The setting of the store that overrides after how many commits a snapshot is written."""

SNAPSHOT_BYTES = "snapshotBytes"
"""The setting of the store that overrides after how many bytes a snapshot is written."""

SYNC_COMMITS = "syncCommits"
"""The setting of the store that has commits on a local disk outlast a loss of power; true by
default. Epochs, claims and snapshots always do."""

DEFAULT_SNAPSHOT_COMMITS = 500
DEFAULT_SNAPSHOT_BYTES = 16 << 20
DEFAULT_RANGES_TO_COMMIT = 10_000

#: How much later others write a snapshot than the writer of the one before, in the largest delay by
#: writer: many groups make that many commits while one writes it.
_LATE: Final = 4


_SWITCHES = frozenset({ACCEPT_INDIVIDUAL_COMMIT, ACCEPT_RANGE_FETCH, SYNC_COMMITS})


class TableSettings(Ownership):
    """The settings of a commit table. They override the arguments of `CommitStore.open`.

    Args:
        engine: The table.
        cluster: The id of the Kafka cluster.
        max_ranges: See `CommitStore.open`, as for the other arguments.
        snapshot_commits: After how many appends a commit also writes a snapshot.
        snapshot_bytes: After how many bytes a commit also writes a snapshot.
        max_ranges_to_commit: How many ranges a row may have.
    """

    def __init__(
        self,
        engine: LogEngine,
        *,
        cluster: str,
        max_ranges: int,
        snapshot_commits: int = DEFAULT_SNAPSHOT_COMMITS,
        snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
        max_ranges_to_commit: int = DEFAULT_RANGES_TO_COMMIT,
    ) -> None:
        super().__init__(engine, cluster)
        self._max_ranges = max_ranges
        self._snapshot_commits = snapshot_commits
        self._snapshot_bytes = snapshot_bytes
        self._max_ranges_to_commit = max_ranges_to_commit

    def set_setting(self, name: str, value: Any, *, topic: str = "") -> None:
        """Set a setting of the store or of one topic; None removes it.

        Args:
            name: Its name.
            value: Any JSON value.
            topic: The topic; empty for the whole store.

        Raises:
            TypeError: If the value is not a JSON value; nothing was written.
            ValueError: If the value is not valid for the setting; nothing was written.
        """
        _check_setting(name, value)
        detail = {"name": name, "topic": topic, "value": value}
        with self._lock:
            self._append(Event("setting", self._new_id(), self._cluster, detail=detail))

    def set_settings(self, settings: Iterable[tuple[str, str, Any]]) -> None:
        """Set many settings in one append, all or none.

        Args:
            settings: Topic (empty for the whole store), name and value, as for `set_setting`.

        Raises:
            TypeError, ValueError: As for `set_setting`; nothing was written.
        """
        listed = [[name, topic, value] for topic, name, value in settings]
        for name, _, value in listed:
            _check_setting(name, value)
        if not listed:
            return
        with self._lock:
            detail = {"settings": listed}
            self._append(Event("setting", self._new_id(), self._cluster, detail=detail))

    def settings(self, topic: str = "") -> dict[str, Any]:
        """Return the settings of the store, overridden by those of a topic."""
        with self._lock:
            self._log.refresh()
            return self._settings(topic)

    def open_to_sharing(self, topics: Iterable[str]) -> set[str]:
        """Return the topics whose partitions members may share (KIP-X)."""
        with self._lock:
            self._log.refresh()
            return {topic for topic in topics if self._setting(ACCEPT_RANGE_FETCH, False, topic)}

    def _settings(self, topic: str) -> dict[str, Any]:
        settings = self._log.settings
        return settings.get((self._cluster, ""), {}) | settings.get((self._cluster, topic), {})

    def _setting(self, name: str, default: Any, topic: str = "") -> Any:
        """Return one setting of a topic or else of the store, without a merge of all settings."""
        settings = self._log.settings
        for of in (topic, ""):
            found = settings.get((self._cluster, of), {})
            if name in found:
                return found[name]
        return default

    def _limit(self, topic: str) -> int:
        limit: int = self._setting(MAX_NUM_RANGES, self._max_ranges, topic)
        return limit

    def _late_snapshot_limits(self) -> tuple[int, int]:
        """Return the limits with a delay by writer: not all write a snapshot at once.

        A snapshot needs the rows of all groups, which the writer of the one before has kept. The
        others leave it to that one, unless it is late.
        """
        commits, size = self._snapshot_limits()
        if not commits:
            return 0, size
        most = commits // 16
        late = crc32(self._writer.encode()) % (most + 1)
        return commits + late + (_LATE * most if self._log.is_left_to_others else 0), size

    def _snapshot_limits(self) -> tuple[int, int]:
        """Return after how many appends and bytes a snapshot is due; 0 for no limit."""
        return (
            int(self._setting(SNAPSHOT_COMMITS, self._snapshot_commits)),
            int(self._setting(SNAPSHOT_BYTES, self._snapshot_bytes)),
        )


def _check_setting(name: str, value: Any) -> None:
    if value is None:
        return
    if name in {MAX_NUM_RANGES, SNAPSHOT_COMMITS, SNAPSHOT_BYTES}:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be a whole number from 0, not {value!r}")
    elif name in _SWITCHES and not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
