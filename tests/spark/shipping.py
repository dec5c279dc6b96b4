"""What a user ships with ``spark-submit``, and workers that have no more than they need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from coopconsume.testing.local.jars import pyspark_home
from tests.jvm import JVM_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conftest import Produce

Produced: TypeAlias = "dict[tuple[str, int], dict[int, bytes]]"
ROOT = Path(__file__).parents[2]
_PACKAGES = ("coopconsume", "commits", "assignors")


def documented_commands(sign: str) -> str:
    """Returns the block of shell commands that contains ``sign`` on the page about clusters."""
    page = ROOT / "docs" / "how-to" / "deploy-on-a-cluster.md"
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if sign in block)
    return str(found)


def filled(commands: str, values: Mapping[str, str]) -> str:
    """Returns documented commands with values where they have placeholders, each once."""
    for placeholder, value in values.items():
        assert commands.count(placeholder) == 1, placeholder
        commands = commands.replace(placeholder, value)
    return commands


def submitting(folder: Path, workers: str | Path) -> dict[str, str]:
    """Returns the environment of documented commands: PySpark's own Spark, on this machine.

    Args:
        folder: For links to programs.
        workers: The Python of the workers.
    """
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "bin" / "spark-submit").symlink_to(pyspark_home() / "bin" / "spark-submit")
    return os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "SPARK_HOME": str(pyspark_home()),
        "JDK_JAVA_OPTIONS": JVM_OPTIONS,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(workers),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def job_folder(folder: Path, handlers: str) -> Path:
    """A `checkout` with a module of handlers, ``shop.py``, and what it imports of the tests."""
    (checkout(folder) / "shop.py").write_text(handlers)
    shutil.copy(ROOT / "tests" / "spark" / "support.py", folder)
    return folder


def produced_orders(produce: Produce, topic: str, each: int, keys: int) -> Produced:
    """Writes records to two partitions; returns their keys by partition and offset."""
    found: Produced = {}
    for partition in (0, 1):
        records = [(b"k%d" % (i % keys), b"%d" % i) for i in range(each)]
        offsets = produce(topic, records, partition)
        found[topic, partition] = {o: k for o, (k, _) in zip(offsets, records, strict=True)}
    return found


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
