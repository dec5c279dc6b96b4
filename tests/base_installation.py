"""Reads every codec where nothing is installed but what coopconsume always needs.

A program for a process of its own, on a broker of its own. It prints what is wrong, one problem a
line.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from importlib.abc import MetaPathFinder
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec

#: Parts that run without Spark.
_PARTS = ("queue", "fenced log", "dead letters", "resets")


def required(name: str, found: set[str]) -> set[str]:
    """Add a distribution and those that it requires without any extra; return them all."""
    if name not in found:
        found.add(name)
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                required(canonicalize_name(requirement.name), found)
    return found


class Missing(MetaPathFinder):
    """Finds no module of the distributions that are not required."""

    def __init__(self) -> None:
        there = required("coopconsume", set())
        self.names = {
            module
            for module, owners in packages_distributions().items()
            if there.isdisjoint(map(canonicalize_name, owners))
        } - {"tests"}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        """Refuse a module that is to be missing."""
        del path, target
        if fullname.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def problems(folder: Path) -> Iterator[str]:
    """Run the parts, and yield what is wrong."""
    from coopconsume.testing.local.broker import LocalKafka
    from tests.situations.logs import Logs
    from tests.situations.parts import PARTS

    with LocalKafka(data_dir=folder / "kafka") as broker:
        logs = Logs(broker, folder / "kafka", ("codecs", "header_names"))
        logs.begin()
        for part in PARTS:
            if part.name in _PARTS:
                spark: Any = None
                run = part.run(logs, folder, spark, 0)
                used = logs.to_write if part.writes else logs.to_read
                expected = {log.topic: logs.kept(log) for log in used.values()} | run.expected
                yield from found_wrong(part.name, expected, run.seen)
                yield from (f"{part.name}: {topic}: {one!r}" for topic, one in run.errors.items())


def found_wrong(
    name: str, expected: Mapping[str, set[Any]], seen: Mapping[str, Sequence[Any]]
) -> Iterator[str]:
    """Yield the topics in which a part has not read what it had to."""
    for topic, records in expected.items():
        if sorted(seen.get(topic, ())) != sorted(records):
            yield f"{name}: {topic}: {seen.get(topic)!r} instead of {records!r}"


def main() -> None:
    """Print the problems."""
    missing = Missing()
    for name in [one for one in sys.modules if one.partition(".")[0] in missing.names]:
        del sys.modules[name]
    sys.meta_path.insert(0, missing)
    for name in ("pyspark", "zstandard", "crc32c", "pytest"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        sys.stdout.write(f"{name} is there\n")
    with tempfile.TemporaryDirectory() as folder:
        for problem in problems(Path(folder)):
            sys.stdout.write(f"{problem}\n")


if __name__ == "__main__":
    main()
