"""Errors of local programs: Java, PySpark, jars, brokers for tests, live page and exporter."""

from __future__ import annotations

from typing import ClassVar

from coopconsume.errors.base import DeclaredError


class JavaNotFound(DeclaredError):
    """No Java could be started.

    Attributes:
        searched: A description of the places that were searched.
        needs: The supported Java releases, as text.
    """

    message = "no Java found ({searched}): install Java {needs}, or point JAVA_HOME at one"

    searched: str
    needs: str


class JavaVersionUnsupported(DeclaredError):
    """The release of the Java that was found is not supported.

    Attributes:
        path: Path of the Java program.
        found: Its version.
        needs: The supported Java releases, as text.
        needed_by: The program that needs Java.
    """

    message = (
        "{path} is Java {found}, but {needed_by} needs Java {needs}: install one, or point "
        "JAVA_HOME at one"
    )

    path: str
    found: str
    needs: str
    needed_by: str


class SparkNotFound(DeclaredError):
    """PySpark, or a Python package that it needs, is not installed.

    Attributes:
        package: The missing distribution.
    """

    message = "the Python package {package} is not installed: pip install 'coopconsume[spark]'"

    package: str


class SparkVersionUnsupported(DeclaredError):
    """The installed PySpark is older than the oldest supported version.

    Attributes:
        found: The installed version of PySpark.
        supported: The minor versions that are supported, such as ``("4.0",)``.
    """

    found: str
    supported: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"PySpark {self.found} is installed, but coopconsume supports Spark "
            f"{self.supported[0]} to {self.supported[-1]}: pip install 'coopconsume[spark]'"
        )


class SparkSessionConflict(DeclaredError):
    """A Spark session without the jars of a local session already runs in this process.

    Attributes:
        missing: File names of the jars that are not in its class path.
    """

    missing: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"a Spark without {', '.join(self.missing)} already runs in this process, and a JVM's "
            "class path cannot be extended: call local_session() before any other session is "
            "created, or in a new process"
        )


class JarsUnavailable(DeclaredError):
    """A set of jars could not be downloaded or stored.

    Attributes:
        coordinates: The requested Maven coordinates.
        reason: The cause; for a failed download the last lines of Ivy's output.
    """

    retriable: ClassVar[bool] = True

    coordinates: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return (
            f"cannot get the jars of {', '.join(self.coordinates)}: {self.reason}\n"
            "Check the network. With a mirror, set COOPCONSUME_IVY_SETTINGS to an Ivy settings "
            "file; with a proxy, set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… "
            "-Dhttps.proxyPort=…'. COOPCONSUME_CACHE is the folder that stores the jars"
        )


class BrokerStartFailed(DeclaredError):
    """The embedded broker did not become ready.

    Attributes:
        reason: The cause, in a few words.
        log_path: The broker's log file, or None if it does not exist.
        log_tail: The last lines of that log.
    """

    retriable: ClassVar[bool] = True

    reason: str
    log_path: str | None = None
    log_tail: str = ""

    def __str__(self) -> str:
        head = f"the embedded Kafka broker did not start: {self.reason}"
        if not self.log_tail:
            return head
        return f"{head}\nLast lines of {self.log_path or 'its log'}:\n{self.log_tail}"


class BrokerStopped(DeclaredError):
    """A call needs an embedded broker that is not running.

    Attributes:
        action: The call.
    """

    message = "{action} needs a running broker, but this one is stopped: call start() first"

    action: str


class ExporterUnavailable(DeclaredError):
    """The exporter of metrics cannot be started.

    Attributes:
        reason: Why, and what to do.
    """

    message: ClassVar[str] = "the exporter cannot be started: {reason}"

    reason: str


class PageUnavailable(DeclaredError):
    """The live page cannot be started.

    Attributes:
        reason: Why, and what to do.
    """

    message: ClassVar[str] = "the live page cannot be started: {reason}"

    reason: str
