"""Errors of coopconsume: each says what was found, what was expected and what to do.

Every error keeps its facts as attributes, survives pickling (all facts are in ``args``) and knows
by ``retriable`` whether the same call may succeed later without anybody changing anything.

The errors of `commits`, of `assignors` and of the fenced writer can be imported from here, too.
"""

from __future__ import annotations

import shlex
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from assignors.errors import *  # noqa: F403
    from commits.errors import *  # noqa: F403
    from coopconsume.fenced.errors import *  # noqa: F403

_ROOMS = ("assignors.errors", "coopconsume.fenced.errors", "commits.errors")


def __getattr__(name: str) -> object:
    # Looked up when asked for: `commits` loads Delta, which a mere broker has no use for.
    for room in () if name.startswith("_") else _ROOMS:
        found = getattr(import_module(room), name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class CoopConsumeError(Exception):
    """Base of every error that coopconsume raises by itself.

    Attributes:
        retriable: Whether the same call, made again unchanged, may succeed.
    """

    retriable: ClassVar[bool] = False


class _ReasonError(CoopConsumeError):
    """What has one fact, and that in words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class _OffsetsError(CoopConsumeError):
    """What is about offsets of one partition, from ``first`` to ``last``, both included."""

    def __init__(self, topic: str, partition: int, first: int, last: int) -> None:
        super().__init__(topic, partition, first, last)
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last

    @property
    def _offsets(self) -> str:
        return f"offsets {self.first} to {self.last} of {self.topic}-{self.partition}"


class JavaNotFound(CoopConsumeError):
    """No Java could be started.

    Attributes:
        searched: Where it was looked for, in words.
        needs: The Java releases that will do, in words.
    """

    def __init__(self, searched: str, needs: str) -> None:
        super().__init__(searched, needs)
        self.searched = searched
        self.needs = needs

    def __str__(self) -> str:
        return (
            f"no Java found ({self.searched}): install Java {self.needs}, or point JAVA_HOME at one"
        )


class JavaVersionUnsupported(CoopConsumeError):
    """A Java was found, but of a release that does not do.

    Attributes:
        path: The program that was asked.
        found: The version it told.
        needs: The Java releases that will do, in words.
        needed_by: What it was to run, in words.
    """

    def __init__(self, path: str, found: str, needs: str, needed_by: str) -> None:
        super().__init__(path, found, needs, needed_by)
        self.path = path
        self.found = found
        self.needs = needs
        self.needed_by = needed_by

    def __str__(self) -> str:
        return (
            f"{self.path} is Java {self.found}, but {self.needed_by} needs Java {self.needs}: "
            "install one, or point JAVA_HOME at one"
        )


class SparkNotFound(CoopConsumeError):
    """PySpark, or a Python package that must accompany it, is not installed.

    Attributes:
        package: The distribution that is missing.
    """

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package

    def __str__(self) -> str:
        return (
            f"the Python package {self.package} is not installed: pip install 'coopconsume[spark]'"
        )


class SparkVersionUnsupported(CoopConsumeError):
    """The installed PySpark has no set of jars that is known to work.

    Attributes:
        found: The version of PySpark that is installed.
        supported: The minor versions that are supported, such as ``("4.0",)``.
    """

    def __init__(self, found: str, supported: tuple[str, ...]) -> None:
        super().__init__(found, supported)
        self.found = found
        self.supported = supported

    def __str__(self) -> str:
        return (
            f"PySpark {self.found} is installed, but local sessions are supported with "
            f"{', '.join(f'{minor}.x' for minor in self.supported)} only: "
            "pip install 'coopconsume[spark]'"
        )


class SparkSessionConflict(CoopConsumeError):
    """A Spark that lacks the jars of a local session already runs in this process.

    Attributes:
        missing: File names of jars that its class path lacks.
    """

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__(missing)
        self.missing = missing

    def __str__(self) -> str:
        return (
            f"a Spark without {', '.join(self.missing)} already runs in this process, and a JVM's "
            "class path cannot grow: call local_session() before any other session is made, or in "
            "a new process"
        )


class JarsUnavailable(CoopConsumeError):
    """A set of jars could not be fetched, or not be kept.

    Attributes:
        coordinates: The Maven coordinates that were asked for.
        reason: What went wrong; for a failed fetch the last lines that Ivy said.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, coordinates: tuple[str, ...], reason: str) -> None:
        super().__init__(coordinates, reason)
        self.coordinates = coordinates
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot get the jars of {', '.join(self.coordinates)}: {self.reason}\n"
            "Check the network; behind a mirror name an Ivy settings file in "
            "COOPCONSUME_IVY_SETTINGS, behind a proxy set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… "
            "-Dhttps.proxyPort=…'; COOPCONSUME_CACHE names the folder they are kept in"
        )


class BrokerStartFailed(CoopConsumeError):
    """The embedded broker did not become ready.

    Attributes:
        reason: What happened, in a few words.
        log_path: The broker's log file, or None where it does not exist (any more).
        log_tail: The last lines of that log.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, reason: str, log_path: str | None = None, log_tail: str = "") -> None:
        super().__init__(reason, log_path, log_tail)
        self.reason = reason
        self.log_path = log_path
        self.log_tail = log_tail

    def __str__(self) -> str:
        head = f"the embedded Kafka broker did not start: {self.reason}"
        if not self.log_tail:
            return head
        return f"{head}\nLast lines of {self.log_path or 'its log'}:\n{self.log_tail}"


class BrokerStopped(CoopConsumeError):
    """Something was asked of an embedded broker that is not running.

    Attributes:
        action: What was asked.
    """

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action

    def __str__(self) -> str:
        return f"{self.action} needs a running broker, but this one is stopped: call start() first"


class OptionError(CoopConsumeError, ValueError):
    """An option is unknown, missing or not what it must be."""


class UnknownOption(OptionError):
    """No option of that name.

    Attributes:
        name: The option as given.
        closest: The known name nearest to it, if any is near.
    """

    def __init__(self, name: str, closest: str | None = None) -> None:
        super().__init__(name, closest)
        self.name = name
        self.closest = closest

    def __str__(self) -> str:
        hint = f"did you mean {self.closest!r}?" if self.closest else "see coopconsume run --help"
        return f"unknown option {self.name!r}: {hint}"


class InvalidOption(OptionError):
    """An option's value is of the wrong type or out of its range.

    Attributes:
        name: The option.
        found: What was given, in words.
        remedy: What to give instead.
    """

    def __init__(self, name: str, found: str, remedy: str) -> None:
        super().__init__(name, found, remedy)
        self.name = name
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        return f"option {self.name} = {self.found}: {self.remedy}"


class MissingOption(OptionError):
    """An option that must be given is not there.

    Attributes:
        name: The option.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"option {self.name!r} is missing and has no default: give it"


class BrokerUnreachable(CoopConsumeError):
    """No broker of the cluster answers.

    Attributes:
        servers: The addresses tried.
        cause: What the client said.
    """

    retriable = True

    def __init__(self, servers: str, cause: str) -> None:
        super().__init__(servers, cause)
        self.servers = servers
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"no Kafka broker answers at {self.servers} ({self.cause}): "
            "check kafka.bootstrap.servers, that the broker is up, and that "
            "kafka.security.protocol is what it expects there"
        )


class TopicNotFound(CoopConsumeError):
    """A topic does not exist, or may not be seen by this user.

    Attributes:
        topic: The topic, or the pattern that matched none.
        servers: The cluster asked.
    """

    def __init__(self, topic: str, servers: str) -> None:
        super().__init__(topic, servers)
        self.topic = topic
        self.servers = servers

    def __str__(self) -> str:
        return f"no topic {self.topic!r} on {self.servers}: check its name, or create it"


class TopicReplaced(CoopConsumeError):
    """A topic was deleted and made again under the same name while it was consumed.

    Attributes:
        topic: The topic.
        known_id: Kafka's id of the topic that was consumed.
        found_id: That of the topic there is now.
    """

    def __init__(self, topic: str, known_id: str, found_id: str) -> None:
        super().__init__(topic, known_id, found_id)
        self.topic = topic
        self.known_id = known_id
        self.found_id = found_id

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and made again (id {self.known_id}, now "
            f"{self.found_id}): start again, which begins with the new topic's first record, or "
            "set failOnDataLoss=false to go on with it"
        )


class HandlerNotUsable(CoopConsumeError, ValueError):
    """A handler cannot be found, called or sent to Spark's workers.

    Attributes:
        handler: The handler, in words.
        cause: Why not.
    """

    def __init__(self, handler: str, cause: str) -> None:
        super().__init__(handler, cause)
        self.handler = handler
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"handler {self.handler} cannot be used: {self.cause}; give a function or callable "
            "object that pickles (open files and connections inside it), or module:function"
        )


class HandlerFailed(_ReasonError):
    """A handler answered in a way that the job cannot go on from.

    Attributes:
        reason: What happened, with the record and the remedy.
    """


class SessionUnusable(_ReasonError):
    """The Spark session cannot run cooperative batches.

    Attributes:
        reason: What is wrong, and what to do.
    """


class NotPolled(_OffsetsError, ValueError):
    """A commit names offsets that this consumer has not handed out.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: First such offset.
        last: Last such offset.
    """

    def __str__(self) -> str:
        return (
            f"{self._offsets} were not polled by this consumer: commit only what poll() returned "
            "since the last assignment"
        )


class DataLoss(_OffsetsError):
    """Records were deleted from the topic before they were done, or cut off its end.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: First lost offset.
        last: Last lost offset.
    """

    def __str__(self) -> str:
        return (
            f"{self._offsets} were deleted by the broker before they were done, or lost by an "
            "unclean election: raise the topic's retention or min.insync.replicas, or set "
            "failOnDataLoss=false to report the loss and go on"
        )


class ExternalReset(CoopConsumeError):
    """Somebody else moved the group's offset in Kafka.

    Attributes:
        topic: The topic.
        partition: The partition.
        primary: The offset Kafka holds for the group.
        stable: The stable offset of the commit table.
    """

    def __init__(self, topic: str, partition: int, primary: int, stable: int) -> None:
        super().__init__(topic, partition, primary, stable)
        self.topic = topic
        self.partition = partition
        self.primary = primary
        self.stable = stable

    def __str__(self) -> str:
        return (
            f"Kafka holds offset {self.primary} for {self.topic}-{self.partition}, which this "
            f"group did not write; the commit table says {self.stable}: set onExternalReset=honour "
            "to go on from Kafka's offset, or put it back by 'coopconsume offsets reset --to-log'"
        )


class GroupNotFound(CoopConsumeError):
    """A group of which neither the commit table nor Kafka knows.

    Attributes:
        group: The group.
        table: The commit table.
        servers: The cluster asked.
        hint: What may be the matter, and what to do.
    """

    def __init__(self, group: str, table: str, servers: str, hint: str) -> None:
        super().__init__(group, table, servers, hint)
        self.group = group
        self.table = table
        self.servers = servers
        self.hint = hint

    def __str__(self) -> str:
        where = f"in commit table {self.table} or on {self.servers}"
        return f"no group {self.group!r} {where}: {self.hint}"


class GroupActive(CoopConsumeError):
    """A group's offsets were to be moved while somebody is at work in it.

    Attributes:
        group: The group.
        holders: Who, in words.
        remedy: What to do.
    """

    retriable = True

    def __init__(self, group: str, holders: str, remedy: str) -> None:
        super().__init__(group, holders, remedy)
        self.group = group
        self.holders = holders
        self.remedy = remedy

    def __str__(self) -> str:
        return (
            f"group {self.group!r} is at work ({self.holders}), so its offsets are not moved: "
            f"{self.remedy}; nothing was changed"
        )


class GroupRefused(CoopConsumeError):
    """A member cannot be in its group.

    Attributes:
        group: The group.
        reason: Why not, and what to do.
    """

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(group, reason)
        self.group = group
        self.reason = reason

    def __str__(self) -> str:
        return f"group {self.group!r} does not take this member: {self.reason}"


class TopicRangeFetchNotAllowed(CoopConsumeError):
    """A part of a partition was asked for, and the topic is not open to sharing (KIP-X).

    Attributes:
        topic: The topic.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} is not open to sharing: ask for whole partitions, or open it "
            f"by coopconsume topics alter {self.topic} --accept-range-fetch"
        )


class ConsumerRangeFetchNotAccepted(CoopConsumeError):
    """A consumer with allowKeyShare=false was given, or asked for, part of a partition (KIP-X).

    Attributes:
        topic: The topic.
        partition: The partition.
        key_range: The part, in words.
    """

    def __init__(self, topic: str, partition: int, key_range: str) -> None:
        super().__init__(topic, partition, key_range)
        self.topic = topic
        self.partition = partition
        self.key_range = key_range

    def __str__(self) -> str:
        return (
            f"this consumer has allowKeyShare=false, but {self.topic}-{self.partition} is only its "
            f"for the key hashes {self.key_range}: set allowKeyShare=true, or take whole partitions"
        )


class AlreadyClosed(CoopConsumeError):
    """The consumer or query has been closed.

    Attributes:
        what: Which.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is closed: make a new one"


class TableUnusable(CoopConsumeError, ValueError):
    """A Delta table for outputs or dead letters cannot be written.

    Args:
        what: Which kind of table.
        path: Where.
        cause: Why not.
    """

    def __init__(self, what: str, path: str, cause: str) -> None:
        super().__init__(what, path, cause)
        self.what = what
        self.path = path
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.what} at {self.path}: {self.cause}; give another path, or move the old table"


class OutputNotWritten(CoopConsumeError):
    """Outputs or dead letters could not be written, so their records are not committed.

    Attributes:
        what: What was to be written.
        where: The table or topic.
        cause: Why it could not.
    """

    retriable = True

    def __init__(self, what: str, where: str, cause: str) -> None:
        super().__init__(what, where, cause)
        self.what = what
        self.where = where
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"{self.what} could not be written to {self.where} ({self.cause}): their records are "
            "not committed and will be done again; see to it and start the job anew"
        )


class AuthenticationFailed(CoopConsumeError):
    """A cluster does not let this user in, or no TLS connection comes about.

    Attributes:
        servers: The addresses tried.
        mechanism: How it was tried: a SASL mechanism, or ``TLS``.
        user: Who tried, where the settings say so.
        cause: What the other side, or the client, said.
    """

    def __init__(self, servers: str, mechanism: str, user: str | None, cause: str) -> None:
        super().__init__(servers, mechanism, user, cause)
        self.servers = servers
        self.mechanism = mechanism
        self.user = user
        self.cause = cause

    @property
    def settings(self) -> tuple[str, ...]:
        """The options to look at."""
        if self.mechanism == "TLS":
            return (
                "kafka.security.protocol", "kafka.ssl.truststore.*", "kafka.ssl.keystore.*",
                "kafka.ssl.endpoint.identification.algorithm",
            )  # fmt: skip
        return ("kafka.sasl.jaas.config", "kafka.sasl.mechanism", "kafka.security.protocol")

    def __str__(self) -> str:
        who = "this client" if self.user is None else f"user {self.user!r}"
        what = (
            f"no TLS connection with {self.servers}"
            if self.mechanism == "TLS"
            else f"{self.servers} refused {who} by {self.mechanism}"
        )
        return f"{what} ({self.cause}): check {', '.join(self.settings)}"


class NotAuthorized(CoopConsumeError):
    """The user lacks a right in the cluster (an ACL).

    Attributes:
        operation: The operation that is not allowed, as ACLs name it, such as ``READ``.
        resource_type: ``TOPIC``, ``GROUP``, ``CLUSTER`` or ``TRANSACTIONAL_ID``.
        resource: Name of the resource; of several, with commas between them.
        user: Who lacks it, where the settings say so.
    """

    def __init__(
        self, operation: str, resource_type: str, resource: str, user: str | None = None
    ) -> None:
        super().__init__(operation, resource_type, resource, user)
        self.operation = operation
        self.resource_type = resource_type
        self.resource = resource
        self.user = user

    def __str__(self) -> str:
        who = "this client" if self.user is None else f"user {self.user!r}"
        kind = self.resource_type.lower().replace("_", "-")
        names = [] if self.resource_type == "CLUSTER" else self.resource.split(",")
        options = [f"--{kind} {shlex.quote(name)}" for name in names] or [f"--{kind}"]
        principal = shlex.quote(f"User:{self.user or '…'}")
        return (
            f"{who} may not {self.operation} {kind} {self.resource!r}: give it that right, as by "
            f"kafka-acls --add --allow-principal {principal} "
            f"--operation {self.operation.title()} {' '.join(options)}"
        )
