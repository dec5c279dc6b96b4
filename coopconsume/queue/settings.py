"""The checked settings of a queue: its topic, its replicas and the options that apply to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coopconsume.errors import InvalidOption
from coopconsume.options import TABLE, Options
from coopconsume.queue.log_client import ENGINES
from coopconsume.record import usable_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["MOST_REPLICAS", "QueueReplica", "QueueSettings"]

MOST_REPLICAS = 5

_APPLY = frozenset({"startingOffsets", "failOnDataLoss", "deadLetter", "commitTable"})
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SHORTEST, _LONGEST = 1.0, 3600.0


@dataclass(frozen=True)
class QueueReplica:
    """A replica of a queue: a Kafka topic of one partition that is the replica's log.

    Attributes:
        topic: The topic. The first consumer creates it.
        options: ``kafka.*`` options of the cluster of the topic, if it is another one than that of
            the queue.
    """

    topic: str
    options: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class QueueSettings:
    """The settings of a queue.

    Attributes:
        topic: The topic with the records.
        options: The options of its cluster.
        replicas: The topic of each replica and the options of its cluster.
        hold: The duration of a hold in seconds.
        max_deliveries: After so many deliveries a record becomes a dead letter; None: never.
        engine: The client of the replicas' logs, one of `coopconsume.queue.log_client.ENGINES`.
    """

    topic: str
    options: Options
    replicas: tuple[tuple[str, Options], ...]
    hold: float = 30.0
    max_deliveries: int | None = None
    engine: str = "kafka-python"

    @classmethod
    def parse(
        cls,
        options: Mapping[str, Any],
        topic: str,
        replicas: Sequence[str | QueueReplica] | None = None,
        *,
        hold: float = 30.0,
        max_deliveries: int | None = None,
        engine: str = "kafka-python",
    ) -> QueueSettings:
        """Check the settings as a user gives them; nothing is opened.

        Raises:
            UnknownOption: An option does not exist.
            InvalidOption: A value is out of range, an option does not apply to a queue, or there
                are too many replicas or two that are the same.
            MissingOption: ``kafka.bootstrap.servers`` or ``kafka.group.id``.
            EngineNotUsable: The engine is not installed.
        """
        parsed = _parsed(options)
        name = f"{parsed.group_id}/{topic}"
        _check_topic("topic", topic)
        found = tuple(_replicas(options, parsed, _given(replicas, parsed.group_id, topic)))
        if not 1 <= len(found) <= MOST_REPLICAS:
            raise InvalidOption("replicas", str(len(found)), f"give 1 to {MOST_REPLICAS}")
        places = [(at, given.kafka["bootstrap.servers"]) for at, given in found]
        if len(set(places)) < len(places):
            raise InvalidOption("replicas", "twice the same topic", "give each replica a topic")
        if (topic, parsed.kafka["bootstrap.servers"]) in places:
            raise InvalidOption("replicas", repr(topic), f"the records of {name} are in it")
        seconds = usable_seconds(hold)
        if seconds is None or not _SHORTEST <= seconds <= _LONGEST:
            raise InvalidOption("hold", repr(hold), f"give {_SHORTEST:g} to {_LONGEST:g} seconds")
        if max_deliveries is not None:
            if type(max_deliveries) is not int or max_deliveries < 1:
                raise InvalidOption("max_deliveries", repr(max_deliveries), "give 1 or more")
            if parsed.dead_letter is None:
                remedy = "give deadLetter too: it takes the records that are given up"
                raise InvalidOption("max_deliveries", repr(max_deliveries), remedy)
        if engine not in ENGINES:
            raise InvalidOption("engine", repr(engine), f"give {' or '.join(ENGINES)}")
        for at, given in found:
            ENGINES[engine](at, given)
        return cls(topic, parsed, found, seconds, max_deliveries, engine)

    @property
    def name(self) -> str:
        """The group and the topic; rows of a replica's log have it as their key."""
        return f"{self.options.group_id}/{self.topic}"


def _parsed(options: Mapping[str, Any]) -> Options:
    known = {option.name.lower(): option.name for option in TABLE}
    for given in options:
        name = known.get(given.lower())
        if name is not None and name not in _APPLY:
            remedy = "leave it out: it does not apply to a queue"
            raise InvalidOption(name, repr(options[given]), remedy)
    return Options.parse(options, table=False)


def _given(
    replicas: Sequence[str | QueueReplica] | None, group: str, topic: str
) -> Iterable[str | QueueReplica]:
    if replicas is None:
        return [f"__queue.{group}.{topic}"]
    if isinstance(replicas, str):
        raise InvalidOption("replicas", repr(replicas), "give a list of topics")
    return replicas


def _replicas(
    options: Mapping[str, Any], parsed: Options, replicas: Iterable[str | QueueReplica]
) -> Iterable[tuple[str, Options]]:
    group = {name: v for name, v in options.items() if name.lower() == "kafka.group.id"}
    for replica in replicas:
        topic = replica.topic if isinstance(replica, QueueReplica) else replica
        _check_topic("replicas", topic)
        own = replica.options if isinstance(replica, QueueReplica) else None
        yield topic, parsed if not own else _parsed({**group, **own})


def _check_topic(name: str, topic: Any) -> None:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        remedy = "give a name that Kafka accepts: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
        raise InvalidOption(name, repr(topic), remedy)
