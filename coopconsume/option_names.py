"""Names that users know from Kafka and Spark: what is refused, what has no effect, and why.

An option of this library has one name: camelCase as an option, snake_case as an argument of a call,
and with hyphens on a command line.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from commits.secrets import hidden_in
from coopconsume.errors import InvalidOption, UnknownOption
from coopconsume.kafka.settings import (
    KNOWN_KAFKA_SETTINGS,
    check_foreign,
    closest,
    is_harmless,
    kafka_name,
    spelling,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

log = logging.getLogger(__name__)

COMMAND_CONFIG: Final = "COOPCONSUME_COMMAND_CONFIG"
"""The environment variable that names the file of options of all commands."""

#: Settings of Kafka's clients that the library sets itself, with why a user's value is refused.
REFUSED_SETTINGS: Final = {
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "values are bytes",
    "partition.assignment.strategy": "use assignor",
}
#: Settings of Kafka's clients that change nothing here, with what does.
WITHOUT_EFFECT: Final = {
    "acks": "records are written with acks=all",
    "auto.commit.interval.ms": "commitInterval is the time between commits",
    "batch.size": "the library sizes its own requests",
    "compression.type": "records are written without compression",
    "enable.auto.commit": "records are committed one by one, into commitTable",
    "enable.idempotence": "producers are always idempotent",
    "group.protocol": "groups use the classic protocol, with assignor",
    "group.remote.assignor": "use assignor",
    "linger.ms": "the library sizes its own requests",
    "max.poll.records": "maxOffsetsPerTrigger limits a batch",
    "retries": "a write is tried until it is done or its time is over",
}
#: All settings of Kafka's clients that may be given by a name that is known.
CLIENT_SETTINGS: Final = KNOWN_KAFKA_SETTINGS | WITHOUT_EFFECT.keys()

_BY_TRIGGER = "the trigger, such as --processing-time, sets the time between batches"
_BY_END = "trigger(availableNow=True), --available-now, ends with the records that are there"
_BY_TIME = (
    "coopconsume offsets reset --create --to-datetime TIME gives a group its first offsets, and "
    "startingOffsets takes offsets"
)
_BY_ITSELF = "a job waits for brokers that do not answer"
#: Options of Spark's Kafka source and of its streams that mean nothing here, with what does.
OPTIONS_OF_SPARK: Final = {
    "assign": "use subscribe, or call assign",
    "checkpointLocation": "commitTable has what is done",
    "endingOffsets": _BY_END,
    "endingOffsetsByTimestamp": _BY_END,
    "endingTimestamp": _BY_END,
    "fetchOffset.numRetries": _BY_ITSELF,
    "fetchOffset.retryIntervalMs": _BY_ITSELF,
    "groupIdPrefix": "kafka.group.id is the whole name",
    "kafkaConsumer.pollTimeoutMs": _BY_ITSELF,
    "maxRecordsPerPartition": "maxOffsetsPerTrigger limits a batch, minPartitions cuts it",
    "maxTriggerDelay": _BY_TRIGGER,
    "minOffsetsPerTrigger": _BY_TRIGGER,
    "queryName": "call queryName, or use --name",
    "startingOffsetsByTimestamp": _BY_TIME,
    "startingOffsetsByTimestampStrategy": _BY_TIME,
    "startingTimestamp": _BY_TIME,
}
_REMEDIES: Final = {spelling(name): remedy for name, remedy in OPTIONS_OF_SPARK.items()}
#: Words of other libraries for options of this one.
_SYNONYMS: Final = {"topic": "subscribe", "topics": "subscribe"}
#: Settings without effect that a warning has named.
_WARNED: Final[set[str]] = set()


def client_setting(name: str) -> str | None:
    """Returns Kafka's name of a client setting, without ``kafka.``; None: it is no such name."""
    is_kafka = name.lower().startswith("kafka.")
    return kafka_name(name[len("kafka.") :]) if is_kafka else None


def shown_value(name: str, value: Any) -> Any:
    """Returns the value of an option for logs and people, secrets hidden."""
    setting = client_setting(name)
    is_shown = setting is None or setting in WITHOUT_EFFECT or is_harmless(setting)
    return hidden_in(value) if is_shown else "***"


def check_names(options: Mapping[str, Any], own: Collection[str], listed: Collection[str]) -> None:
    """Checks names of options; of those with ``kafka.`` only whether they are options of ours.

    Args:
        options: Names and values as users give them.
        own: The options of this library, in small letters.
        listed: The names from which the closest one is chosen.

    Raises:
        InvalidOption: One is an option of Spark that has no meaning here, a setting of Kafka's
            clients that is refused or has no effect, or one that only other clients have.
        UnknownOption: No such option; names all that are unknown, and the closest ones.
    """
    strange: dict[str, str | None] = {}
    for name, value in options.items():
        setting = client_setting(name)
        if setting is not None and setting.lower() in own:
            strange[name] = closest(setting, listed)
        elif setting is None and name.lower() not in own:
            _refuse(name, value)
            strange[name] = _SYNONYMS.get(name.lower()) or closest(name, listed)
    if strange:
        (first, similar), *more = strange.items()
        raise UnknownOption(first, similar, *more)


def _refuse(name: str, value: Any) -> None:
    """Refuses a name that says what its user wants, with what stands for it."""
    remedy, setting = _REMEDIES.get(spelling(name)), kafka_name(name)
    if remedy is not None:
        why = f"this option of Spark has no meaning here; {remedy}"
        raise InvalidOption(name, repr(value), why)
    if name.lower().startswith("spark."):
        why = "it is a setting of Spark: give it to the session, or by --spark-conf"
    elif setting in REFUSED_SETTINGS:
        why = f"leave it out: {REFUSED_SETTINGS[setting]}"
    elif setting in WITHOUT_EFFECT:
        why = f"leave it out, it has no effect: {WITHOUT_EFFECT[setting]}"
    else:
        check_foreign(name)
        return
    raise InvalidOption(name, "…", why)  # Its value may be a secret.


def warn_without_effect(settings: Iterable[str]) -> None:
    """Logs a warning for each setting without effect, once in a process.

    Args:
        settings: Those without effect that a user has given.
    """
    for name in settings:
        if name not in _WARNED:
            _WARNED.add(name)
            log.warning("kafka.%s has no effect: %s", name, WITHOUT_EFFECT[name])
