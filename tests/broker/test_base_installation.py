"""What works where coopconsume is installed without any extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_every_codec_is_read_without_extras() -> None:
    """By the queue, fenced logs, dead letters and resets; header names of any bytes, too."""
    program = [sys.executable, "-m", "tests.base_installation"]
    ran = subprocess.run(
        program, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
