"""A fenced writer as a program: it takes the log, appends, loses it, and takes it again.

Its argument is a JSON object of options. Each line of its output is an event as JSON: what it is
about to append, and the outcome. It ends when its standard input does. After SIGUSR1 it stops in
the middle of its next batch, whose first records are then in the log, until SIGCONT.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import confluent_kafka

from coopconsume import FencedWriter
from coopconsume.errors import (
    AppendOutcomeUnknown,
    FencedLogError,
    LogCorrupt,
    OffsetMismatch,
    ProducerFenced,
)
from tests.event_process import report, wait_for_end

if TYPE_CHECKING:
    from coopconsume.fenced.log import AppendOptions

#: From this offset on writers do not look up batch ids; all of them are new.
_LONG = 2_000


def stall_if_requested() -> None:
    """After SIGUSR1, stops this process before a record that is not the first of its batch."""
    is_requested = False

    def request(*_: object) -> None:
        # It calls nothing: confluent-kafka calls back with an error set, and what is called there
        # by a handler of signals fails.
        nonlocal is_requested
        is_requested = True

    signal.signal(signal.SIGUSR1, request)

    class Stalling(confluent_kafka.Producer):  # type: ignore[misc]
        """Stops before a record of a batch."""

        def produce(self, *args: Any, headers: Any = (), **kwargs: Any) -> None:
            nonlocal is_requested
            if is_requested and headers and int.from_bytes(headers[0][1][-4:]):
                self.flush()  # Raises if it is fenced here; the next batch stalls then.
                is_requested = False
                os.kill(os.getpid(), signal.SIGSTOP)
            super().produce(*args, headers=headers, **kwargs)

    confluent_kafka.Producer = Stalling


def append(writer: FencedWriter, luck: random.Random) -> None:
    """Append a batch, with one of the ways to expect its place, and report what came of it."""
    batch = uuid.uuid4().hex
    rows = [b"%d" % i for i in range(luck.randint(1, 20))]
    ways: list[AppendOptions] = [
        {}, {"expected_seq": writer.next_seq}, {"expected_offset": writer.next_offset},
    ]  # fmt: skip
    expected = luck.choice(ways)
    report("trying", batch=batch)
    try:
        # On a busy machine each new owner of a long log would be fenced while it reads the ids.
        is_new = writer.next_offset > _LONG
        how: AppendOptions = {"batch_id": batch, "is_new": is_new, **expected}
        done = writer.append(rows, **how)
    except AppendOutcomeUnknown as unknown:
        report("unknown", batch=batch, problem=unknown.problem)
        raise
    except (LogCorrupt, FencedLogError) as error:
        report("refused", batch=batch, error=type(error).__name__, text=str(error))
        if not isinstance(error, OffsetMismatch):
            raise
        return
    report("acked", batch=batch, at=[done.first_offset, done.first_seq, done.count])


def main(config: dict[str, Any]) -> None:
    """Append until the command to end."""
    stall_if_requested()
    ended = threading.Event()
    threading.Thread(target=wait_for_end, args=(ended,), daemon=True).start()
    luck = random.Random(config["seed"])
    acquired = 0.0  # seconds that the last acquisition took
    options = {
        "kafka.bootstrap.servers": config["servers"], "kafka.transaction.timeout.ms": "5000",
    }  # fmt: skip
    while not ended.is_set():
        began = time.monotonic()
        writer = FencedWriter(
            options, config["topic"], visibility=config["visibility"], owner=config["owner"],
            timeout=5.0,
        )  # fmt: skip
        try:
            with writer:
                acquired = time.monotonic() - began
                report("owner", epoch=writer.epoch, seconds=round(acquired, 2))
                while not ended.is_set():
                    append(writer, luck)
        except ProducerFenced:
            report("fenced")
        except FencedLogError as error:
            report("failed", error=type(error).__name__, text=str(error))
        # On a busy machine writers that return at once would fence each other before any append.
        ended.wait(luck.uniform(0, 0.4 + 2 * acquired))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
