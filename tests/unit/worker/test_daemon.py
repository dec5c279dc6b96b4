"""The process that Spark forks its Python workers from."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from coopconsume.worker.daemon import leave_archive_of_pyspark

if TYPE_CHECKING:
    from pathlib import Path

_ARCHIVE = "home/pyspark/python/lib/pyspark.zip"


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ([_ARCHIVE, "py4j.zip", "home"], ["py4j.zip", "home"]),
        # Spark's home is no package where it was not installed by pip.
        ([_ARCHIVE, "py4j.zip"], [_ARCHIVE, "py4j.zip"]),
        ([_ARCHIVE, "other", "home"], [_ARCHIVE, "other", "home"]),
        (["home"], ["home"]),
    ],
    ids=["same", "archive alone", "another one", "folder alone"],
)
def test_the_archive_of_pyspark_is_left_for_the_same_pyspark_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: list[str], left: list[str]
) -> None:
    """Workers get no other PySpark than Spark has put on their path."""
    for folder in ("home", "other"):
        package = tmp_path / folder / "pyspark"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / entry) for entry in path])
    leave_archive_of_pyspark()
    assert sys.path == [str(tmp_path / entry) for entry in left]
