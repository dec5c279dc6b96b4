"""Runs a selection of the tests on each supported Spark: ``python -m tests.matrix``.

Each minor version of PySpark gets a virtual environment of its own in ``build/matrix``. The results
are written to ``docs/reference/versions.md`` between its markers. ``--smoke`` tries one part of
the selection with each supported version of Kafka.

    python -m tests.matrix                      all versions of Spark
    python -m tests.matrix 4.1 4.2              some of them
    python -m tests.matrix --kafka 3.9.2 4.0    the brokers of another version of Kafka
    python -m tests.matrix --python python3.13 4.2
    JAVA_HOME=… python -m tests.matrix 4.2      another Java
    python -m tests.matrix --smoke --jobs 2     two combinations at a time
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coopconsume.spark_versions import SUPPORTED, SparkMinor
from coopconsume.testing.local.jars import KAFKA_VERSION
from coopconsume.testing.local.java import find_java

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "versions.md"
#: By what they show: the tests, and whether they need Delta in Spark.
PARTS = {
    "source, commits, order": (
        "tests/spark/test_query.py::test_failed_records_hold_their_key_and_no_other", False
    ),
    "`poll`": ("tests/spark/test_poll.py", False),
    "channel": ("tests/spark/test_handlers.py", False),
    "Connect": ("tests/spark/test_connect.py", False),
    "catalog tables": ("tests/spark/test_commit_catalog.py", True),
    "cluster mode": ("tests/spark/test_spark_submit.py", False),
    "demo": ("tests/spark/test_demo.py::test_all_checks_pass_and_nothing_is_left", False),
}  # fmt: skip
#: The part that is tried with every combination of the versions.
SMOKE = "source, commits, order"
#: What is supported beside the versions of Spark.
KAFKAS = ("3.9.2", "4.1.1", KAFKA_VERSION)
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
JAVAS = ("17", "21")
#: Versions that PySpark itself does not support together: it got Python 3.14 with 4.1.
EXCLUDED = ("4.0", "3.14")
_TIMEOUT = 1_800
_WRITING = threading.Lock()
_NOT_TRIED, _NOT_SUPPORTED = "not tried", "not supported"


@dataclass(frozen=True)
class Row:
    """Results on one version of Spark.

    Attributes:
        spark: Version of PySpark. ``kafka``, ``python``, ``java``: of the others.
        delta: Artifact of Delta.
        results: ``ok``, ``failed`` or ``no Delta``, by the parts of the suite.
    """

    spark: str
    kafka: str
    python: str
    java: str
    delta: str
    results: dict[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        """What a newer result replaces this one for."""
        return *(_minor(one) for one in (self.spark, self.kafka, self.python)), self.java

    @property
    def smoke_result(self) -> str:
        """The result of the part that is tried with every combination."""
        return self.results[SMOKE]

    @property
    def is_ok(self) -> bool:
        """Whether no part failed."""
        return "failed" not in self.results.values()

    @property
    def line(self) -> str:
        """The row of the table."""
        versions = [self.spark, self.kafka, self.python, self.java, self.delta]
        cells = [*versions, *(self.results[part] for part in PARTS)]
        return f"| {' | '.join(cells)} |"

    @classmethod
    def of(cls, cells: list[str]) -> Row:
        """The row that a line of the table shows."""
        spark, kafka, python, java, delta, *results = cells
        return cls(spark, kafka, python, java, delta, dict(zip(PARTS, results, strict=True)))


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def environment(minor: SparkMinor, base: str = sys.executable) -> Path:
    """Make the virtual environment of a minor version, if need be; returns its interpreter.

    Args:
        minor: The version.
        base: The Python to make it of.
    """
    code = "import platform; print(platform.python_version())"
    version = _minor(_said(base, "-c", code))
    home = ROOT / "build" / "matrix" / f"{minor.version}-python{version}"
    python = home / "bin" / "python"
    ready = home / "ready"
    if not ready.exists():
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        wanted = [f"pyspark[connect]~={minor.version}.0", minor.pandas]
        wanted += [*project["dependencies"], *extras["demo"]]
        wanted += [one for one in extras["dev"] if not one.startswith("pyspark")]
        subprocess.run([base, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
        (packages,) = home.glob("lib/python*/site-packages")
        (packages / "coopconsume-matrix.pth").write_text(f"{ROOT}\n")
        ready.touch()
    return python


def versions_of(python: Path) -> tuple[str, str]:
    """The versions of PySpark and of Python in an environment."""
    code = "import platform; from importlib.metadata import version as v; "
    code += "print(v('pyspark'), platform.python_version())"
    spark, version = _said(str(python), "-c", code).split()
    return spark, version


def _said(*command: str) -> str:
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def tried(python: Path, minor: SparkMinor, kafka: str) -> Row:
    """Run the suite in an environment."""
    (spark, version), results = versions_of(python), {}
    for part, (tests, needs_delta) in PARTS.items():
        if needs_delta and minor.delta is None:
            results[part] = "no Delta"
            continue
        started = time.monotonic()
        results[part] = "ok" if _passes(python, kafka, tests) else "failed"
        took = time.monotonic() - started
        _say(f"Spark {spark}, Kafka {kafka}, {part}: {results[part]}, {took:.0f} s")
    delta = f"`{minor.delta}`" if minor.delta else "none"
    return Row(spark, kafka, version, str(find_java().release), delta, results)


def _passes(python: Path, kafka: str, tests: str) -> bool:
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    variables = os.environ | {"COOPCONSUME_TEST_KAFKA": kafka}
    try:
        run = subprocess.run(command, cwd=ROOT, env=variables, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def try_combination(python: Path, minor: SparkMinor, kafka: str) -> bool:
    """Run the smoke test in an environment, and write the result; returns whether it passed."""
    started = time.monotonic()
    is_ok = _passes(python, kafka, PARTS[SMOKE][0])
    version, java = _minor(versions_of(python)[1]), str(find_java().release)
    result, took = "ok" if is_ok else "failed", time.monotonic() - started
    at = minor.version, _minor(kafka), version, java
    _say(f"Spark, Kafka, Python, Java {', '.join(at)}: {result}, {took:.0f} s")
    with _WRITING:
        _write("combinations", combinations_table({at: result}))
    return is_ok


def combinations() -> dict[tuple[str, ...], str]:
    """Results of all combinations of the versions."""
    found: dict[tuple[str, ...], str] = {}
    columns = [(python, java) for python in PYTHONS for java in JAVAS]
    for spark, kafka, *cells in _lines("combinations"):
        results = zip(columns, cells, strict=True)
        found |= {(spark, kafka, *column): cell for column, cell in results}
    return found


def combinations_table(results: dict[tuple[str, ...], str]) -> str:
    """The table of all combinations, with results of now in the place of earlier ones."""
    whole = {row.key: row.smoke_result for row in written()}
    known = whole | {at: one for at, one in combinations().items() if one != _NOT_TRIED} | results
    columns = [(python, java) for python in PYTHONS for java in JAVAS]
    head = ["Spark", "Kafka", *(f"{python}, Java {java}" for python, java in columns)]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for minor, kafka in itertools.product(SUPPORTED, KAFKAS):
        at = minor.version, _minor(kafka)
        cells = [
            known.get((*at, *column), _NOT_TRIED)
            if (minor.version, column[0]) != EXCLUDED
            else _NOT_SUPPORTED
            for column in columns
        ]
        lines.append(f"| {' | '.join([*at, *cells])} |")
    return "\n".join(lines)


def table(rows: list[Row]) -> str:
    """The table of results, with what was found before for other versions."""
    known = {row.key: row for row in [*written(), *rows]}
    head = ["Spark", "Kafka", "Python", "Java", "Delta", *PARTS]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(known[at].line for at in sorted(known))])


def written() -> list[Row]:
    """The results that the page has."""
    return [Row.of(cells) for cells in _lines("matrix")]


def _marks(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)


def _lines(name: str) -> list[list[str]]:
    """The cells of each line of a table of the page."""
    found = _marks(name).search(PAGE.read_text())
    assert found, f"{PAGE} has no markers of {name}"
    lines = [line for line in found[0].splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def _write(name: str, body: str) -> None:
    """Write a table to the page."""
    day = datetime.now(UTC).date().isoformat()
    text = f"Last run on {day}.\n\n{body}\n"
    PAGE.write_text(_marks(name).sub(lambda m: f"{m[1]}{text}{m[2]}", PAGE.read_text()))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the matrix; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    names = [minor.version for minor in SUPPORTED]
    parser.add_argument("minors", nargs="*", choices=names, default=names, metavar="MINOR")
    parser.add_argument("--kafka", help="version of the broker")
    parser.add_argument("--python", default=sys.executable, help="to make environments of")
    parser.add_argument("--smoke", action="store_true", help="one part, each version of Kafka")
    parser.add_argument("--jobs", type=int, default=1, help="smoke tests at a time")
    asked = parser.parse_args()
    minors = [minor for minor in SUPPORTED if minor.version in asked.minors]
    pythons = {minor: environment(minor, asked.python) for minor in minors}
    for python in pythons.values():
        subprocess.run([str(python), "-m", "coopconsume.testing.local.jars"], check=True, cwd=ROOT)
    if asked.smoke:
        kafkas = [asked.kafka] if asked.kafka else KAFKAS
        with ThreadPoolExecutor(asked.jobs) as pool:
            runs = [
                pool.submit(try_combination, pythons[minor], minor, kafka)
                for minor, kafka in itertools.product(minors, kafkas)
            ]
        return int(not all(run.result() for run in runs))
    rows = []
    for minor, python in pythons.items():
        rows.append(tried(python, minor, asked.kafka or KAFKA_VERSION))
        _write("matrix", table(rows))
    _say(table(rows))
    return int(not all(row.is_ok for row in rows))


if __name__ == "__main__":
    sys.exit(main())
