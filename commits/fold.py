"""The pure fold of the whole log: all groups and the settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from commits.group import Answer, GroupState
from commits.ids import CommitIds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commits.rows import Event

__all__ = ["GroupKey", "LogState"]

GroupKey: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class LogState:
    """What the log says, up to and with one version of the table.

    Attributes:
        version: The last version that is folded in; -1 for none.
        groups: The state of each group, by Kafka cluster id and group id.
        settings: Switches and limits by cluster id, name and topic; the topic is empty for those
            of the whole store.
        seen: Ids of settings.
        store: The nonce of the store since it was repaired; empty if it never was.
    """

    version: int = -1
    groups: dict[GroupKey, GroupState] = field(default_factory=dict)
    settings: dict[tuple[str, str, str], Any] = field(default_factory=dict)
    seen: CommitIds = field(default_factory=CommitIds)
    store: str = ""

    def group(self, cluster: str, group: str) -> GroupState:
        """The state of a group; an empty one, not kept, if the log does not know it."""
        return self.groups.get((cluster, group)) or GroupState()

    def knows(self, event: Event) -> bool:
        """Whether an event with this id was folded, as far as that is still known."""
        if event.kind == "setting":
            return event.id in self.seen
        return self.group(event.cluster, event.group).knows(event.id)

    def fold(self, events: Iterable[Event]) -> Iterator[tuple[Event, Answer]]:
        """Applies the next events of the log; yields each that changes state with its answer."""
        for event in events:
            if event.kind == "setting":
                yield event, self._set(event)
            elif event.kind != "snapshot":  # tells nothing that is not folded in already
                key = event.cluster, event.group
                yield event, self.groups.setdefault(key, GroupState()).fold(event)

    def _set(self, event: Event) -> Answer:
        if event.id not in self.seen:
            self.seen.add(event.id)
            key = event.cluster, event.detail["name"], event.detail["topic"]
            if event.detail["value"] is None:
                self.settings.pop(key, None)
            else:
                self.settings[key] = event.detail["value"]
        return Answer(counted=True)
