"""What differs between the minor versions of Spark: supported versions, jars, Python libraries.

Code that has to behave differently on another minor version asks this module. Nothing is imported
here but errors, as ``python -m coopconsume.testing.local.jars`` runs before Spark is used.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Final

from coopconsume.errors import SessionUnusable, SparkVersionUnsupported


@dataclass(frozen=True, slots=True)
class SparkMinor:
    """A minor version of Spark and what belongs to it.

    Attributes:
        version: The minor version, such as ``"4.2"``.
        connector: Version of Spark's Kafka source that the tests use. A cluster takes the version
            of its own Spark.
        delta: Artifact and version of Delta for this minor version, such as
            ``"delta-spark_4.2_2.13:4.4.0"``; None while Delta publishes none. Without it, tables
            in a catalog and reads of Delta tables by Spark are not available; paths are.
        pandas: Versions of pandas that PySpark accepts, as a requirement.
        pyarrow: Oldest pyarrow that works with it.
    """

    version: str
    connector: str
    delta: str | None
    pandas: str
    pyarrow: str

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Maven coordinates of Spark's Kafka source and of Delta, as far as there is one."""
        kafka = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{self.connector}"
        return (kafka,) if self.delta is None else (kafka, f"io.delta:{self.delta}")


#: The supported minor versions, oldest first.
SUPPORTED: Final = (
    SparkMinor("4.0", "4.0.0", "delta-spark_2.13:4.0.1", "pandas>=2.2,<3", "16"),
    SparkMinor("4.1", "4.1.1", "delta-spark_4.1_2.13:4.4.0", "pandas>=2.2,<3", "16"),
    SparkMinor("4.2", "4.2.0", "delta-spark_4.2_2.13:4.4.0", "pandas>=2.2", "18"),
    SparkMinor("4.3", "4.2.0", None, "pandas>=2.2", "18"),
)


def minor_of(version: str) -> SparkMinor:
    """Returns what belongs to a version of Spark.

    A minor version above the newest supported one is treated as the newest, with a warning and
    without Delta, which is published for each minor version separately.

    Args:
        version: A version of Spark, such as ``"4.2.1"``.

    Raises:
        SparkVersionUnsupported: It is older than the oldest supported version, or no version.
    """
    wanted = _minor(version)
    for known in SUPPORTED:
        if known.version == wanted:
            return known
    newest = SUPPORTED[-1]
    if not re.match(r"\d+\.\d+", version) or _numbers(wanted) < _numbers(newest.version):
        raise SparkVersionUnsupported(version, tuple(known.version for known in SUPPORTED))
    warnings.warn(
        f"Spark {version} is newer than {newest.version}, the newest version that coopconsume is "
        f"tested with: local sessions use the Kafka source of Spark {newest.connector}, without "
        "Delta",
        RuntimeWarning,
        stacklevel=2,
    )
    return SparkMinor(wanted, newest.connector, None, newest.pandas, newest.pyarrow)


def check_connector(connector: str | None, spark: str) -> None:
    """Checks that a Kafka source is the one for a version of Spark: others lack its classes.

    Args:
        connector: The version of the source; None: unknown.
        spark: The version of Spark.

    Raises:
        SessionUnusable: It is the source of another minor version.
    """
    minors = {_minor(spark)}
    minors |= {_minor(one.connector) for one in SUPPORTED if one.version in minors}
    if connector is not None and _minor(connector) not in minors:
        raise SessionUnusable(
            f"Spark's Kafka source has version {connector}, and Spark has version {spark}: give "
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
