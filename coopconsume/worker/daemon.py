"""The process that Spark forks its Python workers from: what each of them needs is loaded once.

Set by ``spark.python.daemon.module=coopconsume.worker.daemon``. Before Python 3.12 every task makes
each ``zipimporter`` on the path read the index of its archive again, which takes longer than a
small task. The archives on a worker's path (PySpark's own, Spark's core jar, ``--py-files``) never
change: Spark puts new ones on the path under new names. Python 3.12 reads an index when it is next
needed, so nothing is changed there.

Spark also has PySpark come from an archive, from which Python compiles it at each start. If the
folder of the same PySpark is on the path, too, as pip installs it, this process and its workers use
the folder, where Python keeps what it has compiled.

Each worker of this library imports pyarrow, NumPy and pandas, which pyarrow imports as it makes an
array. That takes about half a second of processor time, and after each task PySpark has the
garbage collector look at all of it. Loaded here, before the fork, they cost the workers nothing.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import zipimport
from contextlib import suppress
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

#: Settings of the jemalloc in Arrow.
_ARROW_MEMORY: Final = "JE_ARROW_MALLOC_CONF"
_LOADED: Final = ("numpy", "pyarrow", "pandas")


def keep_archive_indexes() -> None:
    """Make ``zipimporter.invalidate_caches`` free where it is eager; elsewhere do nothing."""
    if sys.version_info < (3, 12):
        zipimport.zipimporter.invalidate_caches = _keep  # type: ignore[method-assign]


def _keep(self: zipimport.zipimporter) -> None:
    """Do nothing, for a ``zipimporter``."""


def leave_archive_of_pyspark() -> None:
    """Remove the archive of PySpark from the path if its folder comes next; else do nothing."""
    for archive in [entry for entry in sys.path if Path(entry).name == "pyspark.zip"]:
        others = [entry for entry in sys.path if entry != archive]
        found = PathFinder.find_spec("pyspark", others)
        # Spark's home, which has the archive in its python/lib.
        home = Path(archive).parent.parent.parent
        if found and found.origin and Path(found.origin).parent.resolve() == home.resolve():
            sys.path[:] = others


def load_before_forks() -> None:
    """Import what each worker would import, where that starts no thread; elsewhere do nothing.

    A forked process has only the thread that forked it. Arrow's jemalloc would start one, and NumPy
    does if a task may use several processors (``spark.task.cpus``).
    """
    # Spark sets the first one from spark.task.cpus; NumPy prefers the second one.
    own = os.environ.get("OMP_NUM_THREADS"), os.environ.get("OPENBLAS_NUM_THREADS", "1")
    one_thread = own == ("1", "1")
    if sys.platform != "linux" or not one_thread or _ARROW_MEMORY in os.environ:
        return
    os.environ[_ARROW_MEMORY] = "background_thread:false"
    for name in _LOADED:
        # What is broken fails the tasks that use it, and not this process.
        with suppress(Exception):
            importlib.import_module(name)
    os.register_at_fork(after_in_child=partial(_draw_own_numbers, os.getpid()))
    gc.freeze()


def _draw_own_numbers(daemon: int) -> None:
    """Seed NumPy's generator in a worker: otherwise all of them would draw the same numbers.

    Not in what a worker forks: there a thread that was drawing may have left the generator locked,
    and the user may have seeded it. Python's own generator sees to itself.
    """
    if os.getppid() == daemon and "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


if __name__ == "__main__":
    keep_archive_indexes()
    leave_archive_of_pyspark()
    load_before_forks()

    from pyspark.daemon import manager

    manager()
