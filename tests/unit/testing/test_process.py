"""Processes that are stopped by SIGSTOP."""

from __future__ import annotations

import mmap
import subprocess
import sys
from typing import TYPE_CHECKING

from coopconsume.testing.local.process import suspend

if TYPE_CHECKING:
    from pathlib import Path

#: Eight threads count, each in a byte of its own.
COUNTS = """
import mmap, os, sys, threading
counts = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8)
def count(place):
    while True:
        counts[place] = (counts[place] + 1) % 256
for place in range(8):
    threading.Thread(target=count, args=(place,)).start()
print("counts", flush=True)
"""


def test_nothing_of_a_suspended_process_runs(tmp_path: Path) -> None:
    """No thread does anything more once the call is back; a process that is gone is no error."""
    path = tmp_path / "counts"
    path.write_bytes(bytes(8))
    with (
        path.open("r+b") as file,
        mmap.mmap(file.fileno(), 8) as counts,
        subprocess.Popen(
            [sys.executable, "-c", COUNTS, str(path)], stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "counts\n"
            suspend(child.pid)
            at_once = counts[:]
            later = {counts[:] for _ in range(20_000)}
        finally:
            child.kill()
        assert later == {at_once}
        assert any(at_once)
        child.wait()
        suspend(child.pid)
