"""What a user ships with ``spark-submit``, and workers that have no more than they need."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PACKAGES = ("coopconsume", "commits", "assignors")


def documented_commands(sign: str) -> str:
    """Returns the block of shell commands that contains ``sign`` on the page about clusters."""
    page = ROOT / "docs" / "how-to" / "deploy-on-a-cluster.md"
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if sign in block)
    return str(found)


def checkout(folder: Path) -> Path:
    """A folder that has the three packages, as a user's working copy."""
    folder.mkdir(parents=True)
    for name in _PACKAGES:
        (folder / name).symlink_to(ROOT / name)
    return folder


def packed(folder: Path) -> Path:
    """The three packages in a zip, made by the documented command."""
    (command,) = (c for c in documented_commands("zipfile").splitlines() if "zipfile" in c)
    words = command.split()
    assert words[0] == "python"
    subprocess.run([sys.executable, *words[1:]], cwd=checkout(folder / "checkout"), check=True)
    return folder / "checkout" / "coopconsume.zip"


def bare_python(home: Path) -> Path:
    """An interpreter whose only package is pyarrow; PySpark brings itself along."""
    venv.create(home, with_pip=False, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    spec = find_spec("pyarrow")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    (packages / "pyarrow").symlink_to(installed)
    libraries = installed.with_name("pyarrow.libs")
    if libraries.exists():
        (packages / "pyarrow.libs").symlink_to(libraries)
    return home / "bin" / "python"
