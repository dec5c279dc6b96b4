"""Child processes with all that they start, and how to end the lot by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

_GONE_TIMEOUT = 60.0
_LOOK_EVERY = 0.01


def process_tree(root: int) -> list[int]:
    """The ids of a process and of all its descendants that still run, parents first."""
    children: dict[int, list[int]] = {}
    for pid, parent in _running().items():
        children.setdefault(parent, []).append(pid)
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


def kill_tree(child: subprocess.Popen[str]) -> int:
    """End a child and all its descendants by SIGKILL; returns how many when none is left.

    Raises:
        TimeoutError: One of them is still there after a minute.
    """
    tree: list[int] = []
    # Stopped first, so that none of them can start another unseen; again until no new one shows.
    while new := [pid for pid in process_tree(child.pid) if pid not in tree]:
        for pid in new:
            _send(pid, signal.SIGSTOP)
        tree += new
    for pid in tree:
        _send(pid, signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + _GONE_TIMEOUT
    while left := [pid for pid in tree[1:] if pid in _running()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} are still there after SIGKILL")
        time.sleep(_LOOK_EVERY)
    return len(tree)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _running() -> dict[int, int]:
    """Parent by id of every process that runs; one that is dead and not yet waited for does not."""
    if Path("/proc/self/stat").exists():
        return dict(filter(None, map(_status, Path("/proc").glob("[0-9]*"))))
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    rows = (line.split(maxsplit=2) for line in listing.stdout.splitlines())
    return {int(pid): int(parent) for pid, parent, state in rows if "Z" not in state}


def _status(folder: Path) -> tuple[int, int] | None:
    try:
        # The name in brackets may hold anything, brackets too.
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:  # gone meanwhile
        return None
    return None if state in "ZX" else (int(folder.name), int(parent))
