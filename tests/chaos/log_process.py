"""A fenced writer as a program: it takes the log, appends, loses it, and takes it again.

Started with a JSON of its options. Each line it prints is an event as JSON: what it is about to
append, and what came of it. It ends when its standard input does.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import uuid
from typing import Any

from coopconsume import FencedWriter
from coopconsume.errors import (
    AppendOutcomeUnknown,
    FencedLogError,
    LogCorrupt,
    OffsetMismatch,
    ProducerFenced,
)


def report(event: str, **facts: Any) -> None:
    """Print an event."""
    sys.stdout.write(f"{json.dumps({'event': event, **facts})}\n")
    sys.stdout.flush()


def append(writer: FencedWriter, luck: random.Random) -> None:
    """Append a batch, with one of the ways to expect its place, and report what came of it."""
    batch = uuid.uuid4().hex
    rows = [b"%d" % i for i in range(luck.randint(1, 20))]
    expected = luck.choice(
        [{}, {"expected_seq": writer.next_seq}, {"expected_offset": writer.next_offset}]
    )
    report("trying", batch=batch)
    try:
        done = writer.append(rows, batch_id=batch, **expected)
    except AppendOutcomeUnknown as unknown:
        report("unknown", batch=batch, problem=unknown.problem)
        raise
    except (LogCorrupt, FencedLogError) as error:
        report("refused", batch=batch, error=type(error).__name__, text=str(error))
        if not isinstance(error, OffsetMismatch):
            raise
        return
    report("acked", batch=batch, told=[done.first_offset, done.first_seq, done.count])


def main(config: dict[str, Any]) -> None:
    """Append until told to end."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
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
