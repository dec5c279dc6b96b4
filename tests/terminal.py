"""What a terminal shows of a program's output, and programs that run on one."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PARTS: Final = re.compile(r"\x1b\[(\d*)([A-Z])|([\r\n])|([^\x1b\r\n]+)")


def shown(text: str) -> list[str]:
    """Returns the rows that a terminal shows, without those that are empty at the end.

    It knows the moves that a status uses: to the row above, to its begin, and the removal of a row.
    """
    rows, row, column = [""], 0, 0
    for count, move, end, words in _PARTS.findall(text):
        if words:
            rows[row] = rows[row][:column].ljust(column) + words + rows[row][column + len(words) :]
            column += len(words)
        elif end == "\r":
            column = 0
        elif end:
            row += 1
            rows += [""] * (row >= len(rows))
        elif move == "A":
            row -= int(count or 1)
        else:
            assert (count, move) == ("2", "K"), f"unknown: {count}{move}"
            rows[row] = ""
    while rows and not rows[-1]:
        rows.pop()
    return rows


def on_terminal(
    command: Sequence[str], take: Callable[[bytes], object], **how: Any
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Starts a program whose output and errors go to a terminal.

    Args:
        command: The program and its arguments.
        take: Is called with each part of what the terminal gets, in a thread.
        how: Further arguments of `subprocess.Popen`.

    Returns:
        The process, and the thread, which ends when nobody has the terminal open any more.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, **{"stdout": theirs, "stderr": theirs} | how)
    os.close(theirs)

    def read() -> None:
        try:
            while data := os.read(ours, 4096):
                take(data)
        except OSError:  # Linux' answer once the other side is closed
            pass
        finally:
            os.close(ours)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return process, reader
