"""The folders of demo runs: who removes them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coopconsume.demo.folder import kept_folder, run_folder

KILLED = """
import os, signal
from coopconsume.demo.folder import run_folder
with run_folder() as folder:
    (folder / "table").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_removes_its_folder_and_those_of_killed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that was kept nor that of a run at work, nor what others have made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "coopconsume-demo-other").mkdir()
    kept = kept_folder()
    with run_folder() as first:
        ended = subprocess.run([sys.executable, "-c", KILLED], check=False, timeout=60)
        assert ended.returncode == -9
        (killed,) = {*tmp_path.iterdir()} - {first, kept, tmp_path / "coopconsume-demo-other"}
        with run_folder() as second:
            assert not killed.exists()
            assert first.is_dir()
        assert not second.exists()
    assert {*tmp_path.iterdir()} == {kept, tmp_path / "coopconsume-demo-other"}
