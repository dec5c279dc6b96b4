"""A job whose commit table and connections fail as files say: for tests of leases."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from commits import CommitLogUnavailable, CommitStore
from coopconsume import CooperativeConsumer, local_session
from coopconsume.worker.channel.server import ChannelServer
from tests.proxy import Proxy
from tests.spark.support import Recorded

#: Every call that reads or writes the table, while the file of that name is there.
AWAY = "table-away"
#: Once this file is there, one connection of a slot is cut.
CUT = "cut"
_CALLS = (
    "check", "commit", "release", "state", "pending", "assignment", "open_epoch", "current_epoch",
    "claims", "acquire", "acquisitions", "note_primary", "known_primary",
)  # fmt: skip


def fail_while(marker: Path) -> None:
    """Has the commit log be away as long as a file is there."""

    def failing(name: str) -> Any:
        call = getattr(CommitStore, name)

        def may_fail(*args: Any, **more: Any) -> Any:
            if marker.exists():
                raise CommitLogUnavailable("the log", name, "no route")
            return call(*args, **more)

        return may_fail

    for name in _CALLS:
        setattr(CommitStore, name, failing(name))


def cut_once(marker: Path) -> None:
    """Puts a proxy before the driver, which cuts one connection once a file is there."""
    spec, made = ChannelServer.spec, dict[int, Proxy]()

    def proxied(server: ChannelServer) -> Any:
        port = spec(server).port
        if port not in made:
            made[port] = Proxy(port)
        return replace(spec(server), port=made[port].port)

    ChannelServer.spec = proxied  # type: ignore[method-assign]

    def watch() -> None:
        while not marker.exists():
            time.sleep(0.05)
        for proxy in made.values():
            for near, _ in proxy.pairs[:1]:
                near.shutdown(socket.SHUT_RDWR)
        marker.unlink()

    threading.Thread(target=watch, daemon=True).start()


class Takes:
    """A handler that takes a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, _record: Any) -> None:
        """Takes it."""
        time.sleep(self.seconds)


def main(config: dict[str, Any]) -> None:
    """Runs until standard input ends."""
    folder = Path(config["folder"])
    fail_while(folder / AWAY)
    cut_once(folder / CUT)
    spark = local_session("with-faults", cores=3)
    with CooperativeConsumer(config["options"], spark) as consumer:
        handler = Recorded(config["history"], Takes(config["takes"]))
        query = consumer.foreach(handler, concurrency=3).start()
        sys.stdin.read()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
