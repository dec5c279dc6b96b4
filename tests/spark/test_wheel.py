"""The wheel, built from the sdist, in an environment that has nothing else of this project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pages import block

if TYPE_CHECKING:
    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ROOT = Path(__file__).parents[2]
HANDLER = "def on_order(record):\n    return {'n': int(record.value)}\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a release has it: made from the sdist, by the documented command."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(folder),
         str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    # hatchling is here already.
    isolated = os.environ | {"PIP_NO_BUILD_ISOLATION": "0"}
    line, _, _ = block("docs/how-to/deploy-on-a-cluster.md", "pip wheel").partition("\n")
    command = [sys.executable, "-m", *line.split()]
    subprocess.run(command, cwd=source, env=isolated, check=True, capture_output=True)
    (found,) = (source / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel and what it needs, but without this working copy."""
    home = tmp_path_factory.mktemp("wheel") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    # A folder that is added this way is searched; path files in it, as of this copy, are not read.
    (packages / "needed.pth").write_text(sysconfig.get_paths()["purelib"])
    found = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(found), "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--ignore-installed", str(wheel)], check=True)
    return found


def test_the_wheel_holds_all_packages(wheel: Path) -> None:
    """With their types and data, and without tests; Spark finds the data source by one of them."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"coopconsume", "commits", "assignors", "pyspark_coopconsume"}
    assert {f"{top}/py.typed" for top in tops} <= set(names)
    assert any(name.endswith("broker-log4j2.properties") for name in names)
    page = ROOT / "coopconsume" / "ui" / "static"
    assert {f"coopconsume/ui/static/{file.name}" for file in page.iterdir()} <= set(names)


def stable_offsets(python: Path, kafka: LocalKafka, group: str, folder: Path) -> list[int]:
    """What the installed command shows of a group."""
    command = str(python.with_name("coopconsume"))
    lag = subprocess.run(
        [command, "lag", group, "--bootstrap-servers", kafka.bootstrap_servers,
         "--commit-table", str(folder / "commits"), "--json"],
        cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [found["stable_offset"] for found in json.loads(lag.stdout)]


def test_a_job_runs_from_the_wheel(
    python: Path, kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path
) -> None:
    """By the installed command, in a folder of the user."""
    name = topic(1)
    produce(name, [(b"k%d" % (n % 7), b"%d" % n) for n in range(50)])
    (tmp_path / "shop.py").write_text(HANDLER)
    where = subprocess.run(
        [python, "-c", "import coopconsume as a, commits as b; print(a.__file__, b.__file__)"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    assert all(Path(path).is_relative_to(python.parents[1]) for path in where)
    command = str(python.with_name("coopconsume"))
    run = subprocess.run(
        [command, "run", "shop:on_order", "--available-now",
         "-o", f"kafka.bootstrap.servers={kafka.bootstrap_servers}", "-o", f"kafka.group.id={name}",
         "-o", f"subscribe={name}", "-o", f"commitTable={tmp_path / 'commits'}"],
        cwd=tmp_path, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert stable_offsets(python, kafka, name, tmp_path) == [50]


@pytest.mark.slow
def test_the_first_program_of_the_readme_prints_what_it_says(python: Path, tmp_path: Path) -> None:
    """With a broker of its own, and nothing but the wheel."""
    program = block("README.md", "from coopconsume.testing")
    (tmp_path / "program.py").write_text(program)
    run = subprocess.run(
        [python, "program.py"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert f"It prints `{run.stdout.rstrip()}`." in (ROOT / "README.md").read_text("utf-8")
    assert list(tmp_path.iterdir()) == [tmp_path / "program.py"]


@pytest.mark.parametrize(
    "files", [["commits.py"], ["assignors/__init__.py"], ["commits/__init__.py"]]
)
def test_a_module_of_the_user_that_hides_a_package_is_named(
    python: Path, tmp_path: Path, files: list[str]
) -> None:
    """Before anything else fails for it."""
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    run = subprocess.run(
        [python, "-c", "import coopconsume"],
        cwd=tmp_path, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 1
    error = run.stderr.splitlines()[-1]
    assert error.startswith("ImportError: coopconsume needs its package")
    assert str(tmp_path / files[0]) in error
    assert "rename your module" in error
