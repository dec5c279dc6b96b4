"""Connects to the demo's Kafka cluster and deletes the demo's topic and groups."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options

if TYPE_CHECKING:
    from contextlib import ExitStack

_GROUP_PATIENCE = 60.0


def open_cluster(stack: ExitStack, servers: str, group: str, commits: str) -> Cluster:
    """Connects to the cluster as a group; the stack closes the connection.

    Raises:
        BrokerUnreachable: No broker answers.
    """
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.group.id": group,
        "commitTable": commits,
    }
    cluster = Cluster(Options.parse(options))
    stack.callback(cluster.close)
    return cluster


def delete_from(servers: str, topic: str, groups: list[str]) -> None:
    """Deletes the demo's topic and groups from a cluster."""
    from kafka.admin import KafkaAdminClient, MemberToRemove

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        if topic in admin.list_topics():
            admin.delete_topics([topic])
        until = time.monotonic() + _GROUP_PATIENCE
        while groups and time.monotonic() < until:
            for name, group in admin.describe_groups(groups).items():
                # A killed member stays in its group until its session times out.
                left = [MemberToRemove(member["member_id"]) for member in group["members"]]
                admin.remove_group_members(name, left)
            answers = admin.delete_groups(groups)
            groups = [group for group, answer in answers.items() if "NonEmpty" in str(answer)]
            time.sleep(0.5 if groups else 0.0)
    finally:
        admin.close()
