"""The job through ``spark-submit``, with workers that have nothing but pyarrow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

import coopconsume
from coopconsume.testing.local.jars import pyspark_home
from coopconsume.testing.local.session import build_conf
from tests.spark.shipping import bare_python, packed

if TYPE_CHECKING:
    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = [pytest.mark.spark, pytest.mark.broker]

HANDLER = '''
import sys

LEFT_OUT = ("numpy", "pandas", "kafka", "deltalake", "pyroaring", "click", "rich")

def work(record):
    """Reports which interpreter it runs in, and what that one could load."""
    found = [name for name in LEFT_OUT if name in sys.modules or _can_load(name)]
    return {"prefix": sys.prefix, "found": ",".join(found), "at": __file__}

def _can_load(name):
    import importlib.util
    return importlib.util.find_spec(name) is not None
'''


def test_the_same_job_through_spark_submit(
    kafka: LocalKafka, topic: TopicFactory, produce: Produce, tmp_path: Path
) -> None:
    """Packages and handler come as --py-files, and workers get by with pyarrow."""
    name = topic(2)
    produce(name, ((b"k%d" % (n % 5), b"x") for n in range(60)))
    (tmp_path / "shipped.py").write_text(HANDLER)
    python = bare_python(tmp_path / "bare")
    conf = build_conf(cores=4, work_dir=tmp_path / "spark")
    # Workers have coopconsume from the zip only, which is not there yet when their daemon starts.
    for given in (
        "spark.python.daemon.module",
        "spark.pyspark.python",
        "spark.pyspark.driver.python",
    ):
        del conf[given]
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": f"{name}-group",
        "subscribe": name,
        "commitTable": str(tmp_path / "commits"),
        "slots": "2",
    }
    home = pyspark_home()
    done = subprocess.run(
        [
            str(home / "bin" / "spark-submit"), *settings,
            "--py-files", f"{packed(tmp_path)},{tmp_path / 'shipped.py'}",
            str(Path(str(coopconsume.__file__)).with_name("jobs.py")), "shipped:work",
            *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
            "--available-now", "--output", str(tmp_path / "out"),
            "--output-schema", "prefix string, found string, at string",
        ],
        env=os.environ | {
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        cwd=tmp_path / "bare", capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "drained: 60 records done" in said
    rows = DeltaTable(tmp_path / "out").to_pyarrow_table()
    assert len(rows) == 60
    assert rows["prefix"].unique().to_pylist() == [str(python.parent.parent)]
    assert rows["found"].unique().to_pylist() == [""]
