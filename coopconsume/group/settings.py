"""Settings of a group's members."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING, Any

from commits.places import is_named
from coopconsume.errors import InvalidOption
from coopconsume.group.owned import LEASE

if TYPE_CHECKING:
    from coopconsume.options import Options

_LEASE_IN_CATALOG = 6.0
_SESSION_MS = 15_000
_SESSION_MS_IN_CATALOG = 45_000
_HEARTBEAT_MS = 1_000
_REBALANCE_SPARE = 30.0


def session_ms(options: Options) -> int:
    """Returns after how many milliseconds without a sign of life a member or claim is gone.

    Heartbeats come from a thread of the driver, which a loaded host delays by seconds at most. In a
    third of a session a leader opens an epoch and a claim writes its sign of life: with a commit
    table in a catalog each takes Spark jobs.
    """
    usual = _SESSION_MS_IN_CATALOG if is_named(options.commit_table) else _SESSION_MS
    return int(options.kafka.get("session.timeout.ms", usual))


def lease_of(options: Options) -> float:
    """Returns for how many seconds a slot may start records after a look at the commit log."""
    # A look at a commit table in a catalog takes a Spark job.
    return _LEASE_IN_CATALOG if is_named(options.commit_table) else LEASE


def life_of(options: Options, lease: float) -> float:
    """Returns after how many seconds without a driver of its group a slot runs no handler.

    Args:
        options: Of the consumer.
        lease: Of the slot.
    """
    return lease + min(options.lease_grace, options.handler_timeout)


def client_name(application: str) -> str:
    """Returns the default ``client.id`` of a member, of application, host and process id.

    Args:
        application: The name of the application; what Kafka's metrics do not take is replaced.
    """
    name = f"{application or 'coopconsume'}-{socket.gethostname()}-{os.getpid()}"
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", name)


def client_id(options: Options, application: str = "") -> str:
    """Returns the ``client.id`` of a member; arguments are those of `consumer_config`."""
    return str(options.kafka.get("client.id", client_name(application)))


def consumer_config(options: Options, application: str = "") -> dict[str, Any]:
    """Returns the settings of the kafka-python consumer that is a group's member.

    Args:
        options: Of the consumer.
        application: The name of the application, for the default ``client.id``.

    Raises:
        InvalidOption: ``kafka.max.poll.interval.ms`` leaves no time to hand over.
    """
    kafka = options.kafka
    session = session_ms(options)
    longest = 1000 * (options.drain_timeout + _REBALANCE_SPARE)
    interval = int(kafka.get("max.poll.interval.ms", max(longest, session)))
    if interval <= 1000 * options.drain_timeout:
        raise InvalidOption(
            "kafka.max.poll.interval.ms",
            str(interval),
            f"give more than drainTimeout, {options.drain_timeout:g} s: a member that takes longer "
            "to hand over is thrown out of the group",
        )
    return options.client_config() | {
        "client_id": client_id(options, application),
        "group_id": options.group_id,
        "group_instance_id": kafka.get("group.instance.id"),
        "session_timeout_ms": session,
        "heartbeat_interval_ms": int(
            kafka.get("heartbeat.interval.ms", min(_HEARTBEAT_MS, session // 3))
        ),
        "max_poll_interval_ms": interval,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,
    }
