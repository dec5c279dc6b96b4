"""A consumer of a work queue as a program: it polls, works, and acknowledges in every way.

Its argument is a JSON object of options. Each line of its output is an event as JSON: the records
that it got, what it is about to acknowledge, and the result. It ends when its standard input does.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from coopconsume.errors import CoopConsumeError
from coopconsume.queue import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    AcknowledgeType,
    QueueConsumer,
    QueueReplica,
)
from tests.event_process import report, wait_for_end

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coopconsume import Record

#: Of 40 offsets in a row, the one that is always rejected and the one that is never done.
REJECTED, NEVER_DONE = 7, 13
_ONCE = {3: RELEASE, 21: None, 30: RENEW}


def decide(offset: int, attempt: int) -> AcknowledgeType | None:
    """Return what becomes of a record; None: nothing, so that its hold ends."""
    which = offset % 40
    if which == REJECTED:
        return REJECT
    if which == NEVER_DONE:
        return RELEASE
    return _ONCE.get(which, ACCEPT) if attempt == 1 else ACCEPT


class Worker:
    """Polls, works and acknowledges.

    Args:
        consumer: The consumer.
        seconds: The work on a record takes, on average.
        luck: The source of its draws.
    """

    def __init__(self, consumer: QueueConsumer, seconds: float, luck: random.Random) -> None:
        self._consumer = consumer
        self._seconds = seconds
        self._luck = luck

    def connect(self) -> bool:
        """Connect, so that the first poll takes no longer than others; whether it succeeded."""
        try:
            self._consumer.stable_offsets()
        except CoopConsumeError as error:
            _failed(error)
            return False
        return True

    def turn(self) -> None:
        """Poll once and settle what came."""
        asked = time.monotonic()
        try:
            records = self._consumer.poll(self._luck.randint(1, 20), timeout=0.3)
        except CoopConsumeError as error:
            _failed(error)
            return
        report("got", asked=asked, records=[(r.partition, r.offset, r.attempt) for r in records])
        ways: dict[AcknowledgeType, list[Record]] = {}
        for record in records:
            time.sleep(self._seconds * 2 * self._luck.random())
            kind = decide(record.offset, record.attempt)
            if kind is not None:
                ways.setdefault(kind, []).append(record)
        refused = self._settle(ways)
        renewed = [r for r in ways.get(RENEW, []) if (r.partition, r.offset) not in refused]
        if renewed:
            self._settle({ACCEPT: renewed})

    def _settle(self, ways: dict[AcknowledgeType, list[Record]]) -> set[tuple[int, int]]:
        """Acknowledge records, and return which acknowledgements do not count."""
        delay = self._luck.choice([0.0, 0.5])
        for kind, records in ways.items():
            for record in records:
                self._consumer.acknowledge(record, kind, delay=delay if kind is RELEASE else 0.0)
        report("settling", **{kind.value: _places(found) for kind, found in ways.items()})
        while True:
            try:
                refused = {*self._consumer.commit().not_held}
            except CoopConsumeError as error:
                _failed(error)
            else:
                report("settled", not_held=sorted(refused))
                return refused


def _places(records: Iterable[Record]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def _failed(error: CoopConsumeError) -> None:
    """Report an error after which the same call is right; raise any other."""
    if not error.retriable:
        raise error
    report("failed", error=type(error).__name__, text=str(error))


def main(config: dict[str, Any]) -> None:
    """Work until the command to end, then close in order."""
    logging.basicConfig(filename=config["log"], format="%(created).3f %(name)s %(message)s")
    ended = threading.Event()
    threading.Thread(target=wait_for_end, args=(ended,), daemon=True).start()
    replicas = [QueueReplica(**replica) for replica in config["replicas"]]
    consumer = QueueConsumer(
        config["options"], config["topic"], replicas, hold=config["hold"],
        max_deliveries=config["max_deliveries"],
    )  # fmt: skip
    worker = Worker(consumer, config["seconds"], random.Random(config["seed"]))
    is_connected = False
    while not ended.is_set():
        if is_connected:
            worker.turn()
        else:
            is_connected = worker.connect()
    report("closing")
    try:
        consumer.close()
    except CoopConsumeError as error:
        _failed(error)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
