"""Ask Ivy, the dependency manager that PySpark carries, for jars."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from coopconsume.errors import JarsUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FETCH_TIMEOUT = 1800.0
_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Dependency:
    """A Maven artifact.

    Attributes:
        group: Its group, such as ``org.apache.kafka``.
        artifact: Its name within the group.
        version: Its version.
        transitive: Whether what it needs at run time is wanted too.
    """

    group: str
    artifact: str
    version: str
    transitive: bool = True

    @property
    def coordinates(self) -> str:
        """The artifact as Maven writes it."""
        return f"{self.group}:{self.artifact}:{self.version}"


def retrieve(
    dependencies: Sequence[Dependency],
    provided: Iterable[str],
    folder: Path,
    *,
    home: Path,
    java: str,
    cache: Path,
) -> None:
    """Put the jars of the dependencies into a folder.

    Args:
        dependencies: What is wanted.
        provided: Names of artifacts that are left out, with what only they need.
        folder: Where to; made if need be.
        home: The PySpark whose Ivy is used.
        java: The ``java`` program.
        cache: Ivy's own cache.

    Raises:
        JarsUnavailable: Ivy is not there or failed, or the settings file of
            ``COOPCONSUME_IVY_SETTINGS`` is not there.
    """
    coordinates = tuple(dependency.coordinates for dependency in dependencies)
    ivy = next(iter(sorted((home / "jars").glob("ivy-*.jar"))), None)
    if ivy is None:
        raise JarsUnavailable(coordinates, f"no Ivy in {home / 'jars'}")
    options = []
    settings = os.environ.get("COOPCONSUME_IVY_SETTINGS")
    if settings:
        if not Path(settings).is_file():
            reason = f"COOPCONSUME_IVY_SETTINGS={settings} is not a file"
            raise JarsUnavailable(coordinates, reason)
        options = ["-settings", settings]
    with tempfile.TemporaryDirectory(prefix="coopconsume-ivy-") as scratch:
        module = Path(scratch, "ivy.xml")
        module.write_text(_ivy_xml(dependencies, provided), encoding="utf-8")
        command = [java, "-jar", str(ivy), *options, "-ivy", str(module), "-cache", str(cache)]
        command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
        command += ["-types", "jar", "bundle"]
        output, failed = _run(command)
    # The exit code alone is not trusted: a jar that was asked for must be there.
    wanted = [folder / f"{asked.artifact}-{asked.version}.jar" for asked in dependencies]
    if failed or not all(jar.is_file() for jar in wanted):
        raise JarsUnavailable(coordinates, _tail(output))


def _run(command: list[str]) -> tuple[str, bool]:
    """Return what Ivy said, and whether it failed."""
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Ivy was not done after {_FETCH_TIMEOUT:.0f} s", True
    return ran.stdout, ran.returncode != 0


def _ivy_xml(dependencies: Iterable[Dependency], provided: Iterable[str]) -> str:
    """Describe what is wanted as a module of our own that depends on it."""
    lines = [
        '<ivy-module version="2.0">',
        '<info organisation="coopconsume" module="jars"/>',
        '<configurations><conf name="default"/></configurations>',
        "<dependencies>",
    ]
    for asked in dependencies:
        conf = "default->master,runtime" if asked.transitive else "default->master"
        lines.append(
            f"<dependency org={quoteattr(asked.group)} name={quoteattr(asked.artifact)} "
            f"rev={quoteattr(asked.version)} conf={quoteattr(conf)}/>"
        )
    lines += [f"<exclude module={quoteattr(name)}/>" for name in sorted(provided)]
    return "\n".join([*lines, "</dependencies>", "</ivy-module>"])


def _tail(output: str) -> str:
    """Return the end of what Ivy said, without its frames and blank lines."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" \t:")]
    return "\n".join(lines[-_TAIL_LINES:]) or "Ivy said nothing"
