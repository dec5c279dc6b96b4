"""A producer without a broker."""

from __future__ import annotations

import threading
import time

import pytest

from coopconsume.errors import OutputNotWritten
from coopconsume.kafka.producer import Message, Producer
from coopconsume.options import Options


@pytest.mark.parametrize("count", [1, 100_100], ids=["sent", "full"])
def test_a_write_that_waits_does_not_hold_up_the_end(count: int) -> None:
    """It fails, as its records may not have been written; its patience is two minutes.

    Also one that waits for space among the 100,000 records that the client takes.
    """
    options = Options.parse(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "commitTable": "/none"}
    )
    producer, failed = Producer(options, "outputs"), list[OutputNotWritten]()

    def write() -> None:
        with pytest.raises(OutputNotWritten, match="before it was closed") as found:
            producer.write([Message("t", None, b"x")] * count)
        failed.append(found.value)

    writing = threading.Thread(target=write)
    writing.start()
    while producer._client is None or len(producer._client) < min(count, 100_000):
        time.sleep(0.01)
    began = time.monotonic()
    producer.close()
    writing.join()
    assert len(failed) == 1
    assert time.monotonic() - began < 60
