"""Texts of errors of deltalake, for people."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commits.secrets import message_of

TRACE = """\x1b[31mKernel error: no JSON
   0: <unknown>
  12: start_thread
             at ./nptl/pthread_create.c:442:8
"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (TRACE, "Kernel error: no JSON"),
        ("no key at 0: it is empty\n ↳ second line", "no key at 0: it is empty second line"),
        ("s3://user:password@bucket is away", "s3://user:***@bucket is away"),
        ("", ""),
    ],
)
def test_a_message_is_one_line_for_people(text: str, shown: str) -> None:
    """What Rust adds for its developers, colours and passwords are left out."""
    assert message_of(OSError(text)) == shown


def test_a_damaged_table_is_a_sentence_also_with_rust_backtrace(tmp_path: Path) -> None:
    """Containers often set the variable."""
    log = tmp_path / "commits" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("garbage\n")
    done = subprocess.run(
        [sys.executable, "-m", "coopconsume", "store", "check", "--commit-table", log.parent],
        env={"RUST_BACKTRACE": "1"}, cwd=Path(__file__).parents[3],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "damaged" in done.stdout
    assert "pthread" not in done.stdout + done.stderr
    assert "unknown" not in done.stdout + done.stderr
