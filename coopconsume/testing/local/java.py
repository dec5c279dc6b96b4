"""Find a Java that Kafka 4 and Spark 4 run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from coopconsume.errors import JavaNotFound, JavaVersionUnsupported

_OLDEST = 17
_ASK_TIMEOUT = 60.0

_versions: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found and asked for its version.

    Attributes:
        path: The ``java`` program.
        release: Its feature release, such as 17.
        version: Its whole version, such as ``"17.0.15"``.
    """

    path: str
    release: int
    version: str


def find_java(*, needed_by: str = "Kafka 4", newest: int | None = None) -> Java:
    """Find Java in ``JAVA_HOME``, else on ``PATH``, and check its release.

    Args:
        needed_by: What is to run on it, for the error's text.
        newest: The newest feature release that will do; None where any later one does.

    Returns:
        The Java to use.

    Raises:
        JavaNotFound: None is there, or ``JAVA_HOME`` points at none, or it does not start.
        JavaVersionUnsupported: It is older than 17 or newer than ``newest``.
    """
    needs = f"{_OLDEST} or later" if newest is None else f"{_OLDEST} to {newest}"
    home = os.environ.get("JAVA_HOME")
    if home:
        # Spark's own scripts trust JAVA_HOME blindly, so falling back to PATH would only
        # move the failure to a less clear place.
        candidate = Path(home, "bin", "java")
        if not os.access(candidate, os.X_OK) or candidate.is_dir():
            raise JavaNotFound(f"JAVA_HOME={home} has no bin/java", needs)
        path = str(candidate)
    else:
        path = shutil.which("java") or ""
        if not path:
            raise JavaNotFound("JAVA_HOME is not set and PATH has no java", needs)
    version, said = _ask_version(path)
    if version is None:
        raise JavaNotFound(f"{path} does not print its version: {said}", needs)
    release = _feature_release(version)
    if release < _OLDEST or (newest is not None and release > newest):
        raise JavaVersionUnsupported(path, version, needs, needed_by)
    return Java(path, release, version)


def _ask_version(path: str) -> tuple[str | None, str]:
    """Return what ``java -version`` says between the quotes, or None and what it says instead."""
    if path in _versions:
        return _versions[path], ""
    try:
        answer = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_ASK_TIMEOUT:.0f} s"
    except OSError as error:
        return None, error.strerror or str(error)
    match = re.search(r'version "(\d[^"]*)"', answer.stderr + answer.stdout)
    if match and answer.returncode == 0:
        # A failure is not kept: it may be one of a moment, as when memory is short.
        _versions[path] = match.group(1)
        return match.group(1), ""
    lines = (answer.stderr + answer.stdout).strip().splitlines()
    return None, f"exit code {answer.returncode}" + (f", {lines[0].strip()}" if lines else "")


def _feature_release(version: str) -> int:
    """Return 17 for ``"17.0.15"`` and 8 for ``"1.8.0_392"``, the form before release 9."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
