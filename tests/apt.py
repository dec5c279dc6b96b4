"""Programs of Debian that some tests need, and how to install them: with apt-get, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Programs:
    """Programs that some tests need.

    Attributes:
        tests: The tests.
        each: The names of each program, the first one that is found counts.
        packages: The packages that have them.
    """

    tests: str
    each: tuple[tuple[str, ...], ...]
    packages: tuple[str, ...]

    @property
    def missing(self) -> str:
        """What is not there, and how to install it; empty if all is there."""
        for names in self.each:
            if not any(map(shutil.which, names)):
                return (
                    f"no {' or '.join(names)} was found: apt-get install {' '.join(self.packages)}"
                )
        return ""

    def path(self, number: int = 0) -> str:
        """The path of a program."""
        assert not self.missing, self.missing
        return next(filter(None, map(shutil.which, self.each[number])))

    def install(self) -> int:
        """Install what is missing; 1 if it is missing in the end."""
        if self.missing and os.geteuid() == 0 and shutil.which("apt-get"):
            sys.stdout.write(f"==> for the {self.tests}: {' '.join(self.packages)}\n")
            sys.stdout.flush()
            settings = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            install = ["install", "-y", "-qq", "--no-install-recommends", *self.packages]
            for command in (["update", "-qq"], install):
                subprocess.run(
                    ["apt-get", *command], env=settings, stdout=subprocess.DEVNULL, check=False
                )
        if self.missing:
            sys.stderr.write(f"THE {self.tests.upper()} CANNOT RUN: {self.missing}\n")
        return bool(self.missing)
