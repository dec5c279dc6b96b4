"""The ordering key of a group: all that work for it deal records by the same one.

The setting ``orderingKey:GROUP`` of the commit table has it. Members that join are compared by the
leader (see `coopconsume.group.core`); the leader and claims by hand change the setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.errors import GroupRefused

if TYPE_CHECKING:
    from collections.abc import Collection

    from commits import CommitStore, Epoch


def agreed_ordering_key(store: CommitStore, group: str) -> str | None:
    """Returns the expression that a group deals its records by; None: by their keys."""
    found: str | None = store.settings().get(_name(group))
    return found


def check_ordering_key(store: CommitStore, group: str, mine: str | None) -> None:
    """Makes sure that the group has the ordering key of this member.

    Raises:
        GroupRefused: It has another one.
    """
    found = agreed_ordering_key(store, group)
    if found != mine:
        raise _other(group, mine, found, "stop all of its members before you change it")


def agree_on_ordering_key(
    store: CommitStore, group: str, mine: str | None, *, at_work: Collection[Epoch] = ()
) -> None:
    """Makes an ordering key the group's, if nothing depends on the one before.

    Args:
        store: The commit store.
        group: The group.
        mine: The expression; None: records are dealt by their keys.
        at_work: Epochs and claims of others whose members may be at work.

    Raises:
        GroupRefused: Others are at work with another one, or records are pending that are dealt by
            it.
    """
    found = agreed_ordering_key(store, group)
    if found == mine:
        return
    if at_work:
        raise _other(group, mine, found, "stop all of its members and claims before you change it")
    for (topic, partition), records in sorted(store.pending(group).items()):
        raise _other(
            group, mine, found,
            f"records that failed keep their hashes, such as {topic}-{partition}@{min(records)}: "
            "process them with the ordering key before, or set the group's offsets, which forgets "
            "them",
        )  # fmt: skip
    store.set_setting(_name(group), mine)


def _name(group: str) -> str:
    return f"orderingKey:{group}"


def _other(group: str, mine: str | None, found: str | None, remedy: str) -> GroupRefused:
    return GroupRefused(
        group,
        f"it works with orderingKey {mine or 'none'}, the group with {found or 'none'}; {remedy}",
    )
