"""Runs a selection of the tests on each supported Spark: ``python -m tests.matrix``.

Each minor version of PySpark gets a virtual environment of its own in ``build/matrix``. The results
are written to ``docs/reference/versions.md`` between its markers.

    python -m tests.matrix                      all versions of Spark
    python -m tests.matrix 4.1 4.2              some of them
    python -m tests.matrix --kafka 3.9.2 4.0    the brokers of another version of Kafka
    python -m tests.matrix --python python3.13 4.2
    JAVA_HOME=… python -m tests.matrix 4.2      another Java
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coopconsume.spark_versions import SUPPORTED, SparkMinor
from coopconsume.testing.local.jars import KAFKA_VERSION
from coopconsume.testing.local.java import find_java

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "versions.md"
MARKS = re.compile(r"(<!-- matrix:begin -->\n).*?(<!-- matrix:end -->)", re.DOTALL)
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
#: What is supported beside the versions of Spark.
KAFKAS = ("3.9", "4.1", "4.3")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
JAVAS = ("17", "21")
#: Versions that PySpark itself does not support together: it got Python 3.14 with 4.1.
EXCLUDED = ("4.0", "3.14")
_TIMEOUT = 1_800


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
    def of(cls, line: str) -> Row:
        """The row that a line of the table shows."""
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        return cls(*cells[:5], dict(zip(PARTS, cells[5:], strict=True)))


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
    subprocess.run([str(python), "-m", "coopconsume.testing.local.jars"], check=True, cwd=ROOT)
    for part, (tests, needs_delta) in PARTS.items():
        if needs_delta and minor.delta is None:
            results[part] = "no Delta"
            continue
        started = time.monotonic()
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
        more = {"COOPCONSUME_TEST_KAFKA": kafka}
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=os.environ | more, timeout=_TIMEOUT, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        results[part] = "failed" if code else "ok"
        took = time.monotonic() - started
        _say(f"Spark {spark}, Kafka {kafka}, {part}: {results[part]}, {took:.0f} s")
    delta = f"`{minor.delta}`" if minor.delta else "none"
    return Row(spark, kafka, version, str(find_java().release), delta, results)


def table(rows: list[Row]) -> str:
    """The table of results, with what was found before for other versions."""
    known = {row.key: row for row in [*written(), *rows]}
    head = ["Spark", "Kafka", "Python", "Java", "Delta", *PARTS]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(known[at].line for at in sorted(known))])


def written() -> list[Row]:
    """The results that the page has."""
    found = MARKS.search(PAGE.read_text())
    assert found, f"{PAGE} has no markers"
    lines = [line for line in found[0].splitlines() if re.match(r"\| \d", line)]
    return [Row.of(line) for line in lines]


def write(rows: list[Row]) -> None:
    """Write the results to the page."""
    day = datetime.now(UTC).date().isoformat()
    body = f"Last run on {day}.\n\n{table(rows)}\n"
    PAGE.write_text(MARKS.sub(lambda m: f"{m[1]}{body}{m[2]}", PAGE.read_text()))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the matrix; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    names = [minor.version for minor in SUPPORTED]
    parser.add_argument("minors", nargs="*", choices=names, default=names, metavar="MINOR")
    parser.add_argument("--kafka", default=KAFKA_VERSION, help="version of the broker")
    parser.add_argument("--python", default=sys.executable, help="to make environments of")
    asked = parser.parse_args()
    rows = []
    for minor in SUPPORTED:
        if minor.version in asked.minors:
            rows.append(tried(environment(minor, asked.python), minor, asked.kafka))
            write(rows)
    _say(table(rows))
    return int(not all(row.is_ok for row in rows))


if __name__ == "__main__":
    sys.exit(main())
