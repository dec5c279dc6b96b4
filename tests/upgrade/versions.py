"""The sources of other versions, from the history of the repository."""

from __future__ import annotations

import os
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from tests.event_process import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class History:
    """A version in the history of this repository.

    Attributes:
        tests: The tests that need it.
        revision: Its commit.
    """

    tests: str
    revision: str

    @property
    def missing(self) -> str:
        """Why its sources are missing, and what to do; empty if they are there."""
        try:
            git("cat-file", "-e", f"{self.revision}^{{tree}}")
        except RuntimeError as error:
            return str(error)
        return ""


def git(*words: str) -> bytes:
    """Return what git prints about this repository.

    Raises:
        RuntimeError: It fails, as where a clone lacks the history.
    """
    try:
        ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        raise RuntimeError("no git was found: apt-get install git") from None
    if ran.returncode:
        raise RuntimeError(
            f"git {' '.join(words)}: {ran.stderr.decode().strip()}: get the whole history by "
            "git fetch --unshallow, or clone the repository"
        )
    return ran.stdout


def unpacked(revision: str, folder: Path) -> Path:
    """Write the sources of a revision to a folder, which is returned."""
    archive = git("archive", revision, "assignors", "commits", "coopconsume", "tests")
    with tarfile.open(fileobj=BytesIO(archive)) as sources:
        sources.extractall(folder, filter="data")
    return folder


def environment(root: Path) -> dict[str, str]:
    """Return the environment of a program that runs the sources of a folder."""
    return os.environ | {"PYTHONPATH": str(root)}
