"""The jars of the embedded broker and of Spark's Kafka source and Delta, fetched once and kept.

They are fetched by the Ivy that PySpark carries, so that nothing but PySpark and Java is needed,
and kept in the user's cache: ``$COOPCONSUME_CACHE``, else ``$XDG_CACHE_HOME/coopconsume``, else
``~/.cache/coopconsume``. Where Ivy looks is its own affair: the public Maven repository, or what
the Ivy settings file named by ``COOPCONSUME_IVY_SETTINGS`` says; proxies are given to Java by
``JAVA_TOOL_OPTIONS``.

``python -m coopconsume.testing.local.jars`` fetches all of them ahead of time.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coopconsume.errors import CoopConsumeError, JarsUnavailable, SparkNotFound
from coopconsume.spark_versions import minor_of
from coopconsume.testing.local.ivy import Dependency, retrieve
from coopconsume.testing.local.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The version of the embedded broker.
KAFKA_VERSION: Final = "4.3.1"

# The logging binding of Kafka's distribution is no dependency of the broker.
_LOG4J2: Final = Dependency(
    "org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3", transitive=False
)
_RELOAD4J: Final = Dependency("org.slf4j", "slf4j-reload4j", "1.7.36")

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together.

    Attributes:
        name: Name of its folder in the cache, without the fingerprint.
        title: What people call it.
        dependencies: What is asked of Ivy.
        megabytes: About how much is fetched, for the line that says so.
        provided: Names of artifacts, without version, that are there anyway and are left out.
    """

    name: str
    title: str
    dependencies: tuple[Dependency, ...]
    megabytes: int
    provided: frozenset[str] = frozenset()

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Maven coordinates of what is asked for, as ``group:artifact:version``."""
        return tuple(dependency.coordinates for dependency in self.dependencies)

    @property
    def folder(self) -> Path:
        """The folder of the cache that holds exactly this set."""
        asked = [list(map(repr, self.dependencies)), sorted(self.provided)]
        fingerprint = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
        return cache_dir() / "jars" / f"{self.name}-{fingerprint}"


def cache_dir() -> Path:
    """Return the folder that everything fetched is kept in; it need not exist yet."""
    own = os.environ.get("COOPCONSUME_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    # The XDG base directory specification has relative paths ignored.
    if shared and Path(shared).is_absolute():
        return Path(shared, "coopconsume")
    return Path.home() / ".cache" / "coopconsume"


def pyspark_version() -> str:
    """Return the version of the installed PySpark without importing it.

    Raises:
        SparkNotFound: PySpark is not installed.
    """
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise SparkNotFound("pyspark") from None


def pyspark_home() -> Path:
    """Return the folder of the installed PySpark, which is a whole Spark, without importing it.

    Raises:
        SparkNotFound: PySpark is not installed, or carries no jars.
    """
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if Path(location, "jars").is_dir():
            return Path(location)
    raise SparkNotFound("pyspark")


def broker_set(version: str = KAFKA_VERSION) -> JarSet:
    """Return the set that runs the embedded broker and Kafka's own command-line tools."""
    # Kafka's tools would bring in Connect and a web server.
    dependencies = (
        Dependency("org.apache.kafka", "kafka_2.13", version),
        Dependency("org.apache.kafka", "kafka-tools", version, transitive=False),
        _RELOAD4J if logs_by_log4j1(version) else _LOG4J2,
    )
    return JarSet(f"kafka-{version}", f"Kafka {version} broker", dependencies, 46)


def logs_by_log4j1(kafka_version: str) -> bool:
    """Whether brokers of this version log by Log4j 1: those before 4.0."""
    return kafka_version.startswith(("2.", "3."))


def spark_set(version: str | None = None) -> JarSet:
    """Return the set that adds Spark's Kafka source, and Delta if there is one, to a PySpark.

    Args:
        version: PySpark's version; that of the installed one if None.

    Raises:
        SparkNotFound: PySpark is not installed.
        SparkVersionUnsupported: This version is too old.
    """
    version = pyspark_version() if version is None else version
    minor = minor_of(version)
    named = [each.split(":") for each in minor.coordinates]
    dependencies = tuple(Dependency(group, artifact, version) for group, artifact, version in named)
    shipped = (_artifact(jar.name) for jar in (pyspark_home() / "jars").glob("*.jar"))
    title = f"Spark {version} Kafka" + (" and Delta" if minor.delta else "")
    return JarSet(f"spark-{version}", title, dependencies, 18, frozenset(shipped))


def broker_jars(version: str = KAFKA_VERSION) -> list[Path]:
    """Return the broker's jars, fetching them the first time.

    Args:
        version: The version of Kafka.

    Raises:
        JarsUnavailable: They are not cached and cannot be fetched, or not be written.
        SparkNotFound: They are not cached, and PySpark, whose Ivy fetches them, is not installed.
        JavaNotFound: They are not cached and there is no Java.
        JavaVersionUnsupported: They are not cached and Java is too old.
    """
    return ensure(broker_set(version))


def spark_jars() -> list[Path]:
    """Return the jars to add to the installed PySpark, fetching them the first time.

    Raises:
        SparkVersionUnsupported: The installed PySpark is too old.
        JarsUnavailable: They are not cached and cannot be fetched, or not be written.
        SparkNotFound: PySpark is not installed.
        JavaNotFound: They are not cached and there is no Java.
        JavaVersionUnsupported: They are not cached and Java is too old.
    """
    return ensure(spark_set())


def ensure(jars: JarSet) -> list[Path]:
    """Return the jars of a set, fetching them first unless the cache holds all of them.

    A set appears in the cache by one rename, together with a manifest of its files and sizes, so
    that neither a crash nor a full disk leaves half a set that looks whole. Processes that want
    the same cache at once wait for each other.

    Raises:
        JarsUnavailable: They cannot be fetched, or not be written.
        SparkNotFound: PySpark, whose Ivy fetches them, is not installed.
        JavaNotFound: There is no Java to run Ivy.
        JavaVersionUnsupported: Java is too old.
    """
    found = _read(jars.folder)
    if found is not None:
        return found
    home = pyspark_home()
    java = find_java(needed_by="fetching jars")
    try:
        with _locked(cache_dir()):
            found = _read(jars.folder)  # another process may have fetched it meanwhile
            return found if found is not None else _fetch(jars, home, java.path)
    except OSError as error:
        raise JarsUnavailable(jars.coordinates, f"{cache_dir()}: {error}") from error


def _fetch(jars: JarSet, home: Path, java: str) -> list[Path]:
    _say(f"fetching {jars.title} jars ({jars.megabytes} MB, once)…")
    started = time.monotonic()
    folder = jars.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Ivy's own cache is kept after a failure, so that the next attempt goes on from there.
    ivy_cache = cache_dir() / "ivy"
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as scratch:
        fetched = Path(scratch, "jars")
        retrieve(jars.dependencies, jars.provided, fetched, home=home, java=java, cache=ivy_cache)
        sizes = {jar.name: jar.stat().st_size for jar in sorted(fetched.glob("*.jar"))}
        manifest = {"coordinates": jars.coordinates, "files": sizes}
        (fetched / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if folder.exists():  # a set that somebody damaged
            shutil.rmtree(folder)
        fetched.rename(folder)
    shutil.rmtree(ivy_cache, ignore_errors=True)
    megabytes = sum(sizes.values()) / 1e6
    seconds = time.monotonic() - started
    _say(f"fetched {len(sizes)} jars, {megabytes:.0f} MB in {seconds:.0f} s, kept in {folder}")
    return [folder / name for name in sizes]


def _read(folder: Path) -> list[Path] | None:
    """Return the jars of a folder of the cache; None unless every one of them is whole."""
    try:
        sizes = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        jars = [folder / name for name in sizes]
        whole = all(jar.stat().st_size == sizes[jar.name] for jar in jars)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return jars if whole else None


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Holds the cache's lock; the system releases it even if this process is killed."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another process that is fetching jars…")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _artifact(file_name: str) -> str:
    """Return ``spark-core_2.13`` for ``spark-core_2.13-4.0.2.jar``."""
    return re.sub(r"-\d+\..*$", "", file_name.removesuffix(".jar"))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> int:
    """Fetch all sets, say on standard error what was done, and return the exit code."""
    try:
        for jars in (broker_set(), spark_set()):
            cached = _read(jars.folder)
            if cached is None:
                ensure(jars)
            else:
                _say(f"{jars.title} jars: {len(cached)} already in {jars.folder}")
    except CoopConsumeError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
