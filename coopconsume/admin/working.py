"""Whether anybody works on a group, for commands that show nothing else of it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from coopconsume.errors import BrokerUnreachable, NotAuthorized
from coopconsume.kafka.cluster import Cluster

if TYPE_CHECKING:
    from commits import CommitStore
    from coopconsume.options import Options


def is_worked_on(options: Options, store: CommitStore) -> bool | None:
    """Returns whether a group has members or claims, as `GroupOverview.is_worked_on` says.

    Args:
        options: The options of its consumer.
        store: Its commit store.

    Returns:
        None if that is not known: its coordinator does not answer, or this user has no right to
        describe the group.

    Raises:
        commits.CommitStoreError: The commit table cannot be read.
    """
    group = options.group_id
    if store.claims(group):
        return True
    try:
        with closing(Cluster(options)) as cluster:
            members = cluster.describe_groups([group])[group].members
    except (BrokerUnreachable, NotAuthorized):
        return None
    row = store.assignment(group)
    # A fenced member that Kafka still lists has just left.
    fenced = row.fenced if row else {}
    return any(member.id not in fenced for member in members)
