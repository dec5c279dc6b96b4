"""The pure fold of the whole log: all groups and the settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from commits.group import Answer, GroupState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commits.model import Doubt
    from commits.rows import Event

__all__ = ["GroupKey", "LogState"]

GroupKey: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class LogState:
    """The state of the log at one version of the table.

    Attributes:
        version: The last folded version; -1 for none.
        groups: The state of each group, by Kafka cluster id and group id.
        settings: Settings by name, for each cluster id and topic; the topic is empty for settings
            of the whole store.
        store: The nonce of the store since its last repair; empty without a repair.
    """

    version: int = -1
    groups: dict[GroupKey, GroupState] = field(default_factory=dict)
    settings: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    store: str = ""

    def group(self, cluster: str, group: str) -> GroupState:
        """Return the state of a group, or a new empty one if the log does not have the group."""
        return self.groups.get((cluster, group)) or GroupState()

    def knows(self, event: Event) -> bool:
        """Return whether an event with this id was folded, as far as ids are kept."""
        return self.group(event.cluster, event.group).knows(event)

    def answer_later(self, event: Event) -> Answer:
        """Return the answer to a folded event whose id is no longer kept."""
        if event.kind == "setting":
            return Answer(counted=True)
        return self.group(event.cluster, event.group).answer_later(event)

    def fold(self, events: Iterable[Event]) -> Iterator[tuple[Event, Answer]]:
        """Apply the next events of the log; yields each one that changes state with its answer."""
        for event in events:
            if event.kind == "setting":
                yield event, self._set(event)
            elif event.kind != "snapshot":  # its content is folded already
                key = event.cluster, event.group
                yield event, self.groups.setdefault(key, GroupState()).fold(event)

    def doubts_after(self, event: Event) -> tuple[Doubt, ...]:
        """Return the shares in doubt after an event that gave shares to members; else nothing."""
        group = self.groups.get((event.cluster, event.group))
        if group is None or event.kind not in ("epoch", "takeover", "claim"):
            return ()
        grant = group.grant(event.epoch)
        return () if grant is None else grant.doubts

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
