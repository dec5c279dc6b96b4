"""A connection that shows a worker process when a query has ended.

Nothing is sent on it. The driver closes it at the end of the query, and with its own end. Task-side
code: the standard library.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import TYPE_CHECKING

from coopconsume.worker.channel.client import authenticated
from coopconsume.worker.channel.wire import NO_BATCH, Identity, ProtocolError

if TYPE_CHECKING:
    from coopconsume.worker.channel.spec import ChannelSpec

log = logging.getLogger(__name__)

#: Seconds in which it connects.
_TIME = 5.0


def watch_driver(spec: ChannelSpec, run: str, slot: int) -> socket.socket | None:
    """Returns a connection that can be read once a run of a job has ended; None without one.

    Args:
        spec: Of the channel.
        run: Identifies the run of the job.
        slot: A slot that this process runs, for people.
    """
    deadline = time.monotonic() + _TIME
    sock = None
    try:
        sock = socket.create_connection((spec.host, spec.port), timeout=_TIME)
        authenticated(sock, spec.secret, Identity(run, NO_BATCH, slot, os.getpid()), deadline)
    except (OSError, ProtocolError) as error:
        log.debug("no connection that shows the end of the query: %s", error)
        if sock is not None:
            sock.close()
        return None
    return sock
