"""A class-data archive of Spark: the JVMs of local sessions start in about half the time.

Most of what a Spark JVM does at its start is to read and check the same classes. Java keeps them
ready to use in a file (AppCDS, JEP 350). ``make`` writes it into the virtual environment once; a
local session uses it if it is there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from coopconsume.testing.local.java import find_java

_TIMEOUT = 600.0
#: Loads what jobs load: Python workers and Delta.
_WORKLOAD = """
import sys
from coopconsume.testing.local.session import local_session, stop_session
work, archive = sys.argv[1:]
options = f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
spark = local_session(cores=2, conf={"spark.driver.extraJavaOptions": options})
rows = spark.range(10).repartition(2).mapInPandas(lambda frames: frames, "id long")
rows.write.format("delta").save(work)
assert spark.read.format("delta").load(work).count() == 10
stop_session(spark, timeout=300)
"""


def archive_path() -> Path:
    """Return where this environment keeps the archive for its Spark and the Java that is found.

    Raises:
        JavaNotFound: There is no Java.
        JavaVersionUnsupported: It is older than 17.
    """
    name = f"spark-{version('pyspark')}-java-{find_java().version}.jsa"
    return Path(sys.prefix, "share", "coopconsume", name)


def java_options() -> list[str]:
    """Return the options of a JVM that uses the archive; none if there is no archive.

    A JVM that cannot use it, since jars were exchanged, starts without it and does not say so.
    """
    path = archive_path()
    if not path.is_file():
        return []
    return [
        f'"-XX:SharedArchiveFile={path}"',
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
        "-Xlog:class+path=off",
    ]


def write_archive() -> Path | None:
    """Write the archive, unless it is there.

    Returns:
        The archive; None if this Java writes none.
    """
    path = archive_path()
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written = Path(folder, path.name)
        command = [sys.executable, "-c", _WORKLOAD, str(Path(folder, "table")), str(written)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       timeout=_TIMEOUT, check=False)  # fmt: skip
        if not written.is_file():
            return None
        written.rename(path)
    return path


if __name__ == "__main__":
    if write_archive() is None:
        sys.stderr.write("This Java writes no class-data archive: Spark starts slower.\n")
