"""One application of a group, by the code of any version: ``python tests/upgrade/app.py SETTINGS``.

It uses what all versions have, and notes each call of its handler. It stops in order once its
standard input closes. Its sources are those that ``PYTHONPATH`` names.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import coopconsume
from coopconsume import CooperativeConsumer, Reject, RetryPolicy, local_session


class Work:
    """Takes some milliseconds and notes that; records of two keys fail, and one is parked.

    Args:
        name: Of the application.
        folder: Where calls are noted. Once its file ``mended`` is there, no record fails.
    """

    def __init__(self, name: str, folder: str) -> None:
        self.name = name
        self.folder = folder

    def __call__(self, record: Any, state: Any = None) -> None:
        """Add the offset to the state of the key, if there is one."""
        before: list[int] | None = None
        if state is not None:
            before = state.get([])
            state.set([*(before or ()), record.offset])
        place = [record.partition, record.offset, record.key.decode(), record.attempt, before]
        self._note("begin", place)
        time.sleep(0.02)
        if not Path(self.folder, "mended").exists():
            if record.key.startswith(b"fails"):
                self._note("fail", place)
                raise RuntimeError("not yet")
            if record.value == b"bad":
                self._note("fail", place)
                raise Reject("bad")
        self._note("end", place)

    def _note(self, what: str, place: list[Any]) -> None:
        line = json.dumps([what, time.time_ns(), self.name, *place])
        with Path(self.folder, f"calls-{self.name}-{os.getpid()}").open("a") as file:
            file.write(f"{line}\n")


def main(settings: dict[str, Any]) -> None:
    """Run until standard input closes or the query ends."""
    source = Path(coopconsume.__file__).parents[1]
    assert source == Path(settings["root"]), f"this runs {source}, not {settings['root']}"
    spark = local_session(settings["name"], cores=2)
    words: dict[str, Any] = {
        "concurrency": 2,
        "retry": RetryPolicy(backoff=0.5, max_backoff=2.0),
        "dead_letter": str(Path(settings["folder"], "letters")),
        "on_dead": "park",
    }
    with CooperativeConsumer(settings["options"], spark) as consumer:
        work = Work(settings["name"], settings["folder"])
        if settings["mode"] == "state":
            state = str(Path(settings["folder"], "state"))
            builder = consumer.foreach_with_state(
                work, state_schema="array<bigint>", state=state, **words
            )
        else:
            ordering = "none" if settings["mode"] == "cooperative" else "key"
            of: Any = consumer  # whose types differ from version to version
            builder = of.foreach(work, ordering=ordering, **words)
        if settings["mode"] == "real-time":
            builder.trigger(realTime="5 minutes")
        query = builder.start()
        closed = threading.Event()

        def wait() -> None:
            sys.stdin.read()
            closed.set()

        threading.Thread(target=wait, daemon=True).start()
        while query.isActive and not closed.wait(0.2):
            pass
        query.stop()
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
