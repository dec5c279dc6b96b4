"""``coopconsume run`` on a terminal: its status and what others write there."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import Any, Final

import pytest

from coopconsume.cli.logs import _OtherOutput
from coopconsume.monitoring.screen import Screen, _size_of
from tests.terminal import on_terminal, shown

_PATIENCE: Final = 120.0
_PROGRAM: Final = """
import logging, subprocess, sys, warnings
from coopconsume.cli.logs import TextScreen

warnings.simplefilter("always")
with TextScreen(sys.stderr) as screen:
    screen.line("started")
    screen.status("1,000 done " * 20, force=True)
    subprocess.run(["sh", "-c", "echo of a JVM >&2; echo of its output; printf begun"], check=True)
    print(", and of a handler")
    screen.status("2,000 done", force=True)
    logging.getLogger("commits.log").warning("of a library")
    warnings.warn("of Python")
    screen.status("3,000 done", force=True)
    sys.stderr.write("of the driver\\n")
print("afterwards")
"""


def run(**how: Any) -> tuple[str, bytes]:
    """Returns what a terminal gets of the program, and its output if that goes elsewhere."""
    got = bytearray()
    process, reader = on_terminal([sys.executable, "-c", _PROGRAM], got.extend, **how)
    output = b"" if process.stdout is None else process.stdout.read()
    assert process.wait(_PATIENCE) == 0, got
    reader.join(_PATIENCE)
    assert not reader.is_alive()
    return got.decode(), output


def test_what_others_write_to_a_terminal_does_not_mix_with_the_status() -> None:
    """Each of their lines is a row of its own; of the status nothing is left at the end."""
    text, _ = run()
    rows = shown(text)
    assert not [row for row in rows if "000 done" in row], rows
    assert rows[0] == "started"
    assert rows[-1] == "afterwards"
    for words in ("of a JVM", "of its output", "begun, and of a handler", "of a library",
                  "of the driver"):  # fmt: skip
        assert rows.count(words) == 1, (words, rows)
    assert [row for row in rows if row.endswith("UserWarning: of Python")]


def test_output_that_goes_elsewhere_is_left_alone() -> None:
    """As with `coopconsume run … > file`."""
    text, output = run(stdout=subprocess.PIPE)
    wanted = ["of its output", "begun, and of a handler", "afterwards"]
    assert output.decode().splitlines() == wanted
    assert "of its output" not in text
    assert "of a JVM" in shown(text)


def test_a_progress_bar_of_others_is_one_row() -> None:
    """It writes each state over the one before."""
    taken: list[str] = []
    reads, writes = os.pipe()
    os.write(writes, b"\r10%\r20%\r30%\nlast\r\nend")
    os.close(writes)
    others = _OtherOutput.__new__(_OtherOutput)
    others._take = taken.append
    others._pass_on(reads)
    assert taken == ["30%", "last", "end"]


@pytest.mark.parametrize(("columns", "lines"), [(40, 10), (200, 50)])
def test_the_status_fits_the_terminal_of_its_stream(
    monkeypatch: pytest.MonkeyPatch, columns: int, lines: int
) -> None:
    """Standard output, which a pipe may have taken the place of, has another size or none."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        assert _size_of(stream) == (columns, lines)
    os.close(ours)
    assert _size_of(io.StringIO()).columns > 0


def test_what_a_stream_cannot_encode_is_escaped() -> None:
    """Nothing else that is written gets lost, either."""
    written = io.BytesIO()
    screen = Screen(io.TextIOWrapper(written, encoding="latin-1"))
    screen.line("waits …")
    screen.line("goes on")
    assert written.getvalue().decode("latin-1").splitlines() == ["waits \\u2026", "goes on"]


@pytest.mark.parametrize("columns", [20, 80])
def test_the_echo_of_ctrl_c_does_not_move_the_status_to_another_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """Terminals show ^C behind it; what is longer than a row goes on in the next one."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with Screen() as screen:
        screen.status("x" * 200, force=True)
        rows = capsys.readouterr().out.split("\n")
    assert {len(row) + len("^C") for row in rows[:-1]} == {columns - 1}
