"""Tables that older versions have written, kept as test data.

``python -m tests.upgrade.kept REVISION`` adds those of a revision: `tests.upgrade.written` writes
them by its code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.event_process import ROOT
from tests.upgrade import versions

FOLDER = Path(__file__).parent / "tables"
KEPT = sorted(FOLDER.glob("*.tar.xz"))
"""The archives, the oldest version first."""

BEFORE = versions.History(
    "tests of groups with members of two versions",
    KEPT[-1].name.removesuffix(".tar.xz").rpartition("-")[2],
)
"""The newest of these versions."""


def unpacked(archive: Path, folder: Path) -> dict[str, Any]:
    """Write the tables of an archive to a folder; return what their version read from them."""
    with tarfile.open(archive) as tables:
        tables.extractall(folder, filter="data")
    found: dict[str, Any] = json.loads((folder / "read.json").read_text())["after"]
    return found


def written_by(root: Path, folder: Path, *words: str) -> None:
    """Have the sources in a folder write the tables, or continue them by ``--go-on``."""
    program = str(ROOT / "tests/upgrade/written.py")
    subprocess.run(
        [sys.executable, program, str(folder), *words],
        env=versions.environment(root), cwd=root, check=True,
    )  # fmt: skip


def main(revision: str) -> None:
    """Add the tables of a revision, named after its day."""
    day = versions.git("log", "-1", "--format=%cs-%h", revision).decode().strip()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "tables")
        written_by(versions.unpacked(revision, Path(temporary, "sources")), folder)
        FOLDER.mkdir(exist_ok=True)
        with tarfile.open(FOLDER / f"{day}.tar.xz", "w:xz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main(sys.argv[1])
