"""Which Java is taken, and what is said when none will do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from coopconsume.errors import JavaNotFound, JavaVersionUnsupported
from coopconsume.testing.local.java import find_java

if TYPE_CHECKING:
    from pathlib import Path


def _java_home(folder: Path, said: str, code: int = 0) -> Path:
    """Make a folder whose ``bin/java`` says this on standard error, as Java does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("said", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="1"\njava version "21.0.2" 2024-01-16 LTS', 21),
    ],
)
def test_java_home_comes_first(
    said: str, release: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAVA_HOME wins over PATH, and noise before the version is passed over."""
    home = _java_home(tmp_path / "home", said)
    other = _java_home(tmp_path / "other", 'openjdk version "99"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(other / "bin"), prepend=":")
    found = find_java()
    assert (found.path, found.release) == (str(home / "bin" / "java"), release)


def test_path_is_searched_without_java_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without JAVA_HOME the first java of PATH is taken."""
    home = _java_home(tmp_path, 'openjdk version "17.0.1"')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(home / "bin"), prepend=":")
    assert find_java().path == str(home / "bin" / "java")


@pytest.mark.parametrize(
    ("version", "newest"), [("11.0.2", None), ("1.8.0_392", None), ("25.0.1", 21), ("16-ea", None)]
)
def test_wrong_release_is_named(
    version: str, newest: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too old or too new a Java is refused with what was found and what is needed."""
    home = _java_home(tmp_path, f'openjdk version "{version}"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaVersionUnsupported) as caught:
        find_java(needed_by="Spark 4", newest=newest)
    assert caught.value.found == version
    assert f"is Java {version}, but Spark 4 needs Java 17" in str(caught.value)


def test_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No JAVA_HOME and no java on PATH: one sentence with the remedy."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaNotFound, match=r"install Java 17 or later, or point JAVA_HOME"):
        find_java()


def test_broken_java_home_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JAVA_HOME without java is an error, as Spark's own scripts would use it regardless."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound, match=r"has no bin/java"):
        find_java()


@pytest.mark.parametrize(("said", "code"), [("Error: could not open libjvm", 1), ("hello", 0)])
def test_java_that_does_not_start_is_reported(
    said: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A java that fails, or prints no version, counts as missing: what it says is shown."""
    monkeypatch.setenv("JAVA_HOME", str(_java_home(tmp_path, said, code)))
    shown = f"does not print its version: exit code {code}, {said}"
    with pytest.raises(JavaNotFound, match=shown):
        find_java()
    # The next look is a new one, as the cause may be gone.
    _java_home(tmp_path, 'openjdk version "17.0.15"', 0)
    assert find_java().release == 17
