"""Clients of a driver's port that do not know the secret of its job."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from coopconsume.worker.channel.messages import encode_report
from coopconsume.worker.channel.wire import Frame, Identity, SlotHandshake, frame
from coopconsume.worker.report import PartitionReport, SlotReport, pack_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds that a process on a loaded machine may take to close a connection.
_PATIENCE = 60.0


def forged(run: str) -> dict[str, bytes]:
    """Returns what strangers say, by its name; a report claims that offset 3 is done."""
    report = SlotReport(0, 0, seq=1, partitions={0: PartitionReport(pack_offsets(pa.array([3])))})
    return {
        "garbage": os.urandom(300),
        "a forged handshake": SlotHandshake(b"x" * 32, Identity(run, 0, 0)).hello()
        + frame(Frame.PROOF, b"x" * 32),
        "a report": frame(Frame.PROGRESS, encode_report(report), b"x" * 32),
    }


@contextmanager
def flood(host: str, port: int, said: bytes) -> Iterator[list[bool]]:
    """Has four strangers connect to a port again and again, and say something.

    Yields:
        Of each try that reached the port, whether the connection was closed in return.
    """
    tries: list[bool] = []
    quiet = threading.Event()

    def talk() -> None:
        while not quiet.is_set():
            with suppress(OSError), socket.create_connection((host, port)) as sock:
                sock.sendall(said)
                sock.settimeout(_PATIENCE)
                try:
                    while sock.recv(1 << 10):
                        pass
                    tries.append(True)
                except TimeoutError:
                    tries.append(False)

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield tries
    finally:
        quiet.set()
        for thread in threads:
            thread.join()
