"""The checked settings of a queue: its topic, its replicas and the options that apply to it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commits.places import is_named, local_path
from coopconsume.errors import InvalidOption
from coopconsume.options import TABLE, Options
from coopconsume.queue.log_client import KafkaLog
from coopconsume.queue.table_log import TableLog
from coopconsume.record import usable_seconds
from coopconsume.table_places import TablePlace, refuse_nested

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from coopconsume.queue.log_client import LogClient


MOST_REPLICAS = 5

OPTIONS_OF_QUEUES = frozenset({"startingOffsets", "failOnDataLoss", "deadLetter", "commitTable"})
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")
_SHOWN = 200  # characters of a group and a topic in a name with a digest
_SHORTEST, _LONGEST = 1.0, 3600.0


@dataclass(frozen=True)
class QueueReplica:
    """A replica of a queue: a log in a Kafka topic of one partition, or in a Delta table.

    Attributes:
        topic: The topic. The first consumer creates it.
        options: With a topic, ``kafka.*`` options of its cluster, if it is another one than that
            of the queue. With a table, the options of its object store, as for
            `deltalake.DeltaTable`; by default they come from the environment.
        table: In place of a topic, the path or URI of the table. The first consumer creates it.
    """

    topic: str = ""
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    table: str = ""

    @classmethod
    def parse(cls, given: Any) -> QueueReplica:
        """Return the replica that a user gives by itself or by its topic or path.

        Raises:
            InvalidOption: It is neither a topic nor a table, or both.
        """
        if isinstance(given, str) and "/" not in given:
            given = cls(given)
        elif isinstance(given, (str, Path)):
            given = cls(table=given if isinstance(given, str) else str(given.absolute()))
        if not isinstance(given, cls):
            remedy = "give the name of a topic, the path of a table, or a QueueReplica"
            raise InvalidOption("replicas", repr(given), remedy)
        table = str(given.table)
        if table and given.topic:
            remedy = "give a topic or a table: a replica has one log"
            raise InvalidOption("replicas", repr(given.topic), remedy)
        if not table:
            _check_topic("replicas", given.topic)
            return given
        for name, value in (given.options or {}).items():
            if name.lower().startswith("kafka.") or not isinstance(value, str):
                remedy = "with a table, give options of its object store, as text"
                raise InvalidOption(name, repr(value), remedy)
        return cls(options=given.options, table=_uri_of(table))


@dataclass(frozen=True)
class QueueSettings:
    """The settings of a queue.

    Attributes:
        topic: The topic with the records.
        options: The options of its cluster.
        replicas: The replicas.
        hold: The duration of a hold in seconds.
        max_deliveries: After so many deliveries a record becomes a dead letter; None: never.
    """

    topic: str
    options: Options
    replicas: tuple[QueueReplica, ...]
    hold: float = 30.0
    max_deliveries: int | None = None

    @classmethod
    def parse(
        cls,
        options: Mapping[str, Any],
        topic: str,
        replicas: Sequence[str | QueueReplica] | None = None,
        *,
        hold: float = 30.0,
        max_deliveries: int | None = None,
    ) -> QueueSettings:
        """Check the settings as a user gives them; nothing is opened.

        Raises:
            UnknownOption: An option does not exist.
            InvalidOption: A value is out of range, an option does not apply to a queue, or there
                are too many replicas or two that are the same.
            MissingOption: ``kafka.bootstrap.servers`` or ``kafka.group.id``.
        """
        parsed = _parsed(options)
        _check_topic("topic", topic)
        found = tuple(map(QueueReplica.parse, _given(replicas, parsed.group_id, topic)))
        if not 1 <= len(found) <= MOST_REPLICAS:
            raise InvalidOption("replicas", str(len(found)), f"give 1 to {MOST_REPLICAS}")
        seconds = usable_seconds(hold)
        if seconds is None or not _SHORTEST <= seconds <= _LONGEST:
            raise InvalidOption("hold", repr(hold), f"give {_SHORTEST:g} to {_LONGEST:g} seconds")
        if max_deliveries is not None:
            if type(max_deliveries) is not int or max_deliveries < 1:
                raise InvalidOption("max_deliveries", repr(max_deliveries), "give 1 or more")
            if parsed.dead_letter is None:
                remedy = "give deadLetter too: it takes the records that are given up"
                raise InvalidOption("max_deliveries", repr(max_deliveries), remedy)
        settings = cls(topic, parsed, found, seconds, max_deliveries)
        places = [client.place for client in settings.clients()]
        # The same bucket may exist in several stores.
        stores = [
            sorted(replica.options.items()) if replica.options and "://" in replica.table else None
            for replica in found
        ]
        logs = list(zip(places, stores, strict=True))
        if any(log in logs[:n] for n, log in enumerate(logs)):
            remedy = "give each replica a topic or a table of its own"
            raise InvalidOption("replicas", "twice the same log", remedy)
        refuse_nested(list(settings._tables()))
        if KafkaLog(settings.name, topic, parsed).place in places:
            remedy = f"the records of {settings.name} are in it"
            raise InvalidOption("replicas", repr(topic), remedy)
        return settings

    def _tables(self) -> Iterator[TablePlace]:
        from coopconsume.sinks.letters import letter_tables

        table = self.options.commit_table
        if table and not is_named(table):
            yield TablePlace("commitTable", table)
        for path in letter_tables(self.options.dead_letter):
            yield TablePlace("deadLetter", path)
        for replica in self.replicas:
            if replica.table:
                yield TablePlace("replicas", replica.table, replica.options)

    def clients(self) -> list[LogClient]:
        """Return a new client for the log of each replica; nothing is opened.

        Raises:
            UnknownOption, InvalidOption: The options of a replica are not valid.
        """
        return [self._client(replica) for replica in self.replicas]

    def _client(self, replica: QueueReplica) -> LogClient:
        if replica.table:
            return TableLog(self.name, replica.table, replica.options)
        options = self.options
        if replica.options:
            options = _parsed({"kafka.group.id": options.group_id, **replica.options})
        return KafkaLog(self.name, replica.topic, options)

    @property
    def name(self) -> str:
        """The group and the topic; rows of a replica's log have it as their key."""
        return f"{self.options.group_id}/{self.topic}"


def _parsed(options: Mapping[str, Any]) -> Options:
    known = {option.name.lower(): option.name for option in TABLE}
    for given in options:
        name = known.get(given.lower())
        if name is not None and name not in OPTIONS_OF_QUEUES:
            remedy = "leave it out: it does not apply to a queue"
            raise InvalidOption(name, repr(options[given]), remedy)
    return Options.parse(options, table=False)


def _given(replicas: Any, group: str, topic: str) -> Iterable[Any]:
    if replicas is None:
        return [QueueReplica(_default_topic(group, topic))]
    if isinstance(replicas, str):
        raise InvalidOption("replicas", repr(replicas), "give a list of topics or tables")
    found: Iterable[Any] = replicas
    return found


def _default_topic(group: str, topic: str) -> str:
    """Returns the topic of the default replica; a group may have names that no topic may have."""
    name = f"__queue.{group}.{topic}"
    if _TOPIC.fullmatch(name):
        return name
    path = Path(name).absolute()
    if "/" in group and _exists(path):
        # Earlier versions have taken the name for a path.
        remedy = f"the log of this queue is a table there: give replicas=[{str(path)!r}]"
        raise InvalidOption("replicas", repr(name), remedy)
    digest = hashlib.sha256(f"{group}\0{topic}".encode()).hexdigest()[:16]
    shown = re.sub(r"[^a-zA-Z0-9._-]", "_", f"{group}.{topic}")
    return f"__queue.{shown[:_SHOWN]}.{digest}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the name is too long for a path
        return False


def _uri_of(table: str) -> str:
    """Returns the one spelling of a path or URI, so that two replicas in one log are seen."""
    remedy = ""
    if "/" not in table and is_named(table):
        remedy = "give the path or URI of the table: a queue opens no catalog"
    elif "\0" in table:
        remedy = "give a path without a zero byte"
    elif _ONE_SLASH.match(table):
        remedy = "write two slashes after the colon: s3://…, or file:///…"
    if remedy:
        raise InvalidOption("replicas", repr(table), remedy)
    is_local = "://" not in table or table.startswith("file:///")
    return str(Path(local_path(table)).resolve()) if is_local else table.rstrip("/")


def _check_topic(name: str, topic: Any) -> None:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        remedy = "give a name that Kafka accepts: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
        raise InvalidOption(name, repr(topic), remedy)
