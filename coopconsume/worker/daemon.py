"""The process that Spark forks its Python workers from, without an import call that dominates.

Set by ``spark.python.daemon.module=coopconsume.worker.daemon``. Before Python 3.12 every task makes
each ``zipimporter`` on the path read the index of its archive again, which takes longer than a
small task. The archives on a worker's path (PySpark's own, Spark's core jar, ``--py-files``) never
change: Spark puts new ones on the path under new names. Python 3.12 reads an index when it is next
needed, so nothing is changed there.
"""

from __future__ import annotations

import sys
import zipimport


def keep_archive_indexes() -> None:
    """Make ``zipimporter.invalidate_caches`` free where it is eager; elsewhere do nothing."""
    if sys.version_info < (3, 12):
        zipimport.zipimporter.invalidate_caches = _keep  # type: ignore[method-assign]


def _keep(self: zipimport.zipimporter) -> None:
    """Do nothing, for a ``zipimporter``."""


if __name__ == "__main__":
    keep_archive_indexes()

    from pyspark.daemon import manager

    manager()
