"""Leaves the group for members of it that crashed on this host, so that nobody waits for them.

A member that leaves says in the commit log that nothing of it runs, and sends Kafka a LeaveGroup
request. One that was killed does neither. The next member on its host does both, once the locks of
the dead one (see `coopconsume.worker.host_locks`) say that its driver and all of its tasks have
ended. Without that, Kafka ends its session, and who gets its key ranges waits, as ever.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from coopconsume.group.core import left_by
from coopconsume.group.owned import left_ms
from coopconsume.worker.host_locks import DriverLock, dead_drivers

if TYPE_CHECKING:
    import threading

    from commits import CommitStore
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.options import Options
    from coopconsume.worker.host_locks import DeadDriver

log = logging.getLogger(__name__)

#: Epochs that may be opened while a member is released under the one before.
_TRIES = 5
#: Seconds beyond the life of handlers that their processes have to end.
_SPARE = 2.0


def locked(options: Options, store: CommitStore, cluster: Cluster) -> DriverLock | None:
    """Returns the lock of this process as a driver of the group; None: the host has no locks."""
    try:
        return DriverLock(_name(options, store, cluster))
    except OSError as error:
        log.debug("a crash of this process is not known to its host: %s", error)
        return None


def leave_for_dead(
    options: Options, store: CommitStore, cluster: Cluster, over: threading.Event
) -> None:
    """Leaves the group for each member of it that crashed on this host and runs nothing any more.

    Args:
        options: Of the consumer.
        store: The commit store.
        cluster: The Kafka cluster.
        over: Ends the wait for handlers that a dead driver has left running.
    """
    for dead in dead_drivers(_name(options, store, cluster)):
        try:
            _leave_for(dead, options, store, cluster, over)
        except Exception as error:  # noqa: BLE001 - then all wait as they would without it
            log.warning(
                "group %s: process %s of this host has crashed and is waited for: %s",
                options.group_id,
                dead.pid,
                error,
            )


def _leave_for(
    dead: DeadDriver,
    options: Options,
    store: CommitStore,
    cluster: Cluster,
    over: threading.Event,
) -> None:
    group = options.group_id
    row = store.assignment(group)
    lives = [row.life_of(member) / 1000 for member in dead.members if row and member in row.members]
    within = max(lives, default=0.0) + _SPARE
    if not dead.workers_ended(0.0, over):
        log.warning(
            "group %s: waiting for handlers that process %s of this host left running when it "
            "ended, at most %.0f s", group, dead.pid, within,
        )  # fmt: skip
        if not dead.workers_ended(within, over):
            return
    for _ in range(_TRIES):
        row = store.assignment(group)
        left = left_by(row, dead.members)
        if row is None or not left:
            break
        for member, waits in left:
            store.release(group, row.epoch, member, running=left_ms(waits))
    # Kafka gives our own instance the place of its dead process without a wait.
    ours = options.kafka.get("group.instance.id")
    gone = {m: instance for m, instance in dead.members.items() if ours is None or instance != ours}
    if gone:
        cluster.remove_members(gone)
    dead.forget()
    log.info(
        "group %s: process %s of this host has crashed and runs nothing any more: nobody waits for "
        "it",
        group,
        dead.pid,
    )


def _name(options: Options, store: CommitStore, cluster: Cluster) -> str:
    """Returns what makes a group another one: its name, cluster or commit table."""
    return f"{cluster.cluster_id}\0{store.id}\0{options.group_id}"
