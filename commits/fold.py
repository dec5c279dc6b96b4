"""The pure fold of the whole log: all groups and the settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from commits.group import Answer, GroupState

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
        settings: Switches and limits by name, for each cluster id and topic; the topic is empty for
            those of the whole store.
        store: The nonce of the store since it was repaired; empty if it never was.
    """

    version: int = -1
    groups: dict[GroupKey, GroupState] = field(default_factory=dict)
    settings: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    store: str = ""

    def group(self, cluster: str, group: str) -> GroupState:
        """The state of a group; an empty one, not kept, if the log does not know it."""
        return self.groups.get((cluster, group)) or GroupState()

    def knows(self, event: Event) -> bool:
        """Whether an event with this id was folded, as far as that is still known."""
        return self.group(event.cluster, event.group).knows(event)

    def answer_later(self, event: Event) -> Answer:
        """The answer to an event that is folded in, and of whose id nothing is known any more."""
        if event.kind == "setting":
            return Answer(counted=True)
        return self.group(event.cluster, event.group).answer_later(event)

    def fold(self, events: Iterable[Event]) -> Iterator[tuple[Event, Answer]]:
        """Applies the next events of the log; yields each that changes state with its answer."""
        for event in events:
            if event.kind == "setting":
                yield event, self._set(event)
            elif event.kind != "snapshot":  # tells nothing that is not folded in already
                key = event.cluster, event.group
                yield event, self.groups.setdefault(key, GroupState()).fold(event)

    def _set(self, event: Event) -> Answer:
        detail = event.detail
        single = [(detail["name"], detail["topic"], detail["value"])] if "name" in detail else []
        for name, topic, value in (*single, *detail.get("settings", ())):
            key = event.cluster, topic
            if value is not None:
                self.settings.setdefault(key, {})[name] = value
            elif key in self.settings:
                self.settings[key].pop(name, None)
                if not self.settings[key]:
                    del self.settings[key]
        return Answer(counted=True)
