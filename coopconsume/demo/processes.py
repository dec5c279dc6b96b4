"""Finds and kills a child process with all its descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

_GONE_TIMEOUT = 60.0
_LOOK_EVERY = 0.01


def process_tree(root: int) -> list[int]:
    """Returns the ids of a process and of its running descendants, parents first."""
    children: dict[int, list[int]] = {}
    for pid, parent in _running().items():
        children.setdefault(parent, []).append(pid)
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


def kill_tree(child: subprocess.Popen[Any]) -> int:
    """Kills a child and its descendants with SIGKILL and waits for their end; returns their number.

    Raises:
        TimeoutError: One of them still runs after a minute.
    """
    tree: list[int] = []
    # They are stopped first, so that none can start another; repeated until no new one appears.
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
            raise TimeoutError(f"processes {left} still run after SIGKILL")
        time.sleep(_LOOK_EVERY)
    return len(tree)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _running() -> dict[int, int]:
    """Returns the parent id of every running process by its id; zombies are left out."""
    if Path("/proc/self/stat").exists():
        return dict(filter(None, map(_status, Path("/proc").glob("[0-9]*"))))
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    rows = (line.split(maxsplit=2) for line in listing.stdout.splitlines())
    return {int(pid): int(parent) for pid, parent, state in rows if "Z" not in state}


def _status(folder: Path) -> tuple[int, int] | None:
    try:
        # The name in parentheses may contain any characters, parentheses included.
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:  # The process has ended.
        return None
    return None if state in "ZX" else (int(folder.name), int(parent))
