"""The clients of confluent-kafka, and Kafka's settings and errors in its words."""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from coopconsume.errors import InvalidOption
from coopconsume.kafka.security import sasl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafka.errors import KafkaError

    from coopconsume.kafka.security.oauth import TokenProvider

#: Settings that librdkafka knows by Kafka's names; those of TLS and SASL have names of its own.
_PLAIN: Final = (
    "bootstrap.servers", "client.id", "client.rack", "security.protocol", "sasl.mechanism",
    "connections.max.idle.ms", "metadata.max.age.ms", "reconnect.backoff.ms",
    "reconnect.backoff.max.ms", "retry.backoff.ms",
)  # fmt: skip
_RENAMED: Final = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.key.password": "ssl.key.password",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
}
_FETCH_SETTINGS: Final = {
    "fetch.min.bytes": "fetch.min.bytes",
    "fetch.max.bytes": "fetch.max.bytes",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "isolation.level": "isolation.level",
    "group.id": "group.id",
}
#: librdkafka waits for so many milliseconds after an answer before it asks again while records of
#: it are left. Its own second is too long for a reader that takes them as they come.
_PAUSE: Final = 5
#: The least and the largest value of settings for which other clients take more values.
_LIMITS: Final = {
    "retry.backoff.ms": (1, 300_000),
    "metadata.max.age.ms": (1, 86_400_000),
    "connections.max.idle.ms": (0, 2**31 - 1),
    "reconnect.backoff.ms": (0, 3_600_000),
    "reconnect.backoff.max.ms": (0, 3_600_000),
    "fetch.min.bytes": (1, 100_000_000),
    "fetch.max.bytes": (1_000_000, 2**31 - 1 - 512),
    "max.partition.fetch.bytes": (1, 1_000_000_000),
    "fetch.wait.max.ms": (0, 300_000),
}
#: The two times between connections, if nobody says.
_RECONNECT: Final = (100, 10_000)
#: The name of a setting in what librdkafka says of it.
_SETTING: Final = re.compile('property "([^"]+)"')


def client_config(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Translates Kafka's setting names (without ``kafka.``) to those of librdkafka.

    Raises:
        InvalidOption: A setting of security that librdkafka does not take.
    """
    config: dict[str, Any] = {name: str(kafka[name]) for name in _PLAIN if name in kafka}
    config |= _within_limits(kafka)
    config["allow.auto.create.topics"] = False
    config |= {new: str(kafka[old]) for old, new in _RENAMED.items() if kafka.get(old)}
    if kafka.get("ssl.keystore.location"):
        # One PEM file with the key and its certificates.
        config["ssl.key.location"] = config["ssl.certificate.location"] = str(
            kafka["ssl.keystore.location"]
        )
    if "ssl.endpoint.identification.algorithm" in kafka and not config.get(
        "ssl.endpoint.identification.algorithm"
    ):
        config["ssl.endpoint.identification.algorithm"] = "none"
    if "SASL" in kafka.get("security.protocol", "").upper():
        login = sasl.client_config(kafka)
        tokens: TokenProvider | None = login.get("sasl_oauth_token_provider")
        if tokens is not None:
            return config | {"oauth_cb": partial(_token, tokens)}
        config["sasl.username"] = str(login["sasl_plain_username"])
        config["sasl.password"] = str(login["sasl_plain_password"])
    return config


def _token(tokens: TokenProvider, _: str) -> tuple[str, float, str, dict[str, str]]:
    """What librdkafka asks for, in a thread of its own: a token, its end, and its extensions.

    The principal is for the broker to find in the token.
    """
    token = str(tokens.token())
    return token, tokens.expires_at, "", tokens.extensions()


def consumer_config(
    kafka: Mapping[str, str], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the settings of a consumer without a group, which commits nothing.

    Args:
        kafka: Settings by Kafka's names.
        more: Settings by librdkafka's names; they count.

    Raises:
        InvalidOption: A setting of security that librdkafka does not take.
    """
    config = client_config(kafka) | {
        # A consumer has to have one; nothing is committed under it.
        "group.id": "none",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.queue.backoff.ms": _PAUSE,
        # What matters comes as errors; its own log would go to standard error.
        "log_level": 0,
    }
    config |= {new: str(kafka[old]) for old, new in _FETCH_SETTINGS.items() if kafka.get(old)}
    return config | _within_limits(config) | dict(more or {})


def _within_limits(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns numbers that librdkafka refuses and other clients take, as the nearest it takes.

    An idle connection that others never close (-1) is never closed with 0.
    """
    numbers = {
        name: int(given[name]) for name in _LIMITS if str(given.get(name, "")).lstrip("-").isdigit()
    }
    found = {name: min(max(n, _LIMITS[name][0]), _LIMITS[name][1]) for name, n in numbers.items()}
    pause = found.get("reconnect.backoff.ms", _RECONNECT[0])
    longest = found.get("reconnect.backoff.max.ms", _RECONNECT[1])
    if pause > longest:
        # The one that was given counts.
        both = longest if "reconnect.backoff.max.ms" in found else pause
        found |= dict.fromkeys(("reconnect.backoff.ms", "reconnect.backoff.max.ms"), both)
    return {name: n for name, n in found.items() if n != numbers.get(name)}


def record_consumer(kafka: Mapping[str, str], more: Mapping[str, Any] | None = None) -> Any:
    """Returns a consumer with the settings of `consumer_config`.

    Raises:
        InvalidOption: A setting that librdkafka does not take.
    """
    kind, made = _consumers()
    consumer = _client(kind, consumer_config(kafka, more))
    made.add(consumer)
    return consumer


def _client(kind: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:
    from confluent_kafka import KafkaException

    try:
        return kind(config)
    except KafkaException as error:
        text = error.args[0].str()
        named = _SETTING.search(text)
        setting = named[1] if named else "*"
        value = config.get(setting, "")
        raise InvalidOption(f"kafka.{setting}", repr(value), f"librdkafka says: {text}") from None


@cache
def _consumers() -> tuple[Any, WeakSet[Any]]:
    """Returns the class of consumers, and those that this process has.

    A child of this process has none of their threads, and librdkafka aborts a process that frees
    such a consumer. So a child never frees them.
    """
    from confluent_kafka import Consumer

    class RecordConsumer(Consumer):  # type: ignore[misc]
        """A consumer that can be referred to weakly."""

    made: WeakSet[Any] = WeakSet()

    def keep() -> None:
        for one in list(made):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))

    os.register_at_fork(after_in_child=keep)
    return RecordConsumer, made


def record_producer(kafka: Mapping[str, str], more: Mapping[str, Any]) -> Any:
    """Returns a producer that waits for all replicas in sync, and chooses partitions as Java does.

    Args:
        kafka: Settings by Kafka's names.
        more: Settings by librdkafka's names; they count.

    Raises:
        InvalidOption: A setting that librdkafka does not take.
    """
    own = {"acks": "all", "partitioner": "murmur2_random", "log_level": 0}
    return _client(_producer(), client_config(kafka) | own | dict(more))


@cache
def _producer() -> Any:
    from confluent_kafka import Producer

    class RecordProducer(Producer):  # type: ignore[misc]
        """A producer whose ``flush`` raises a fatal error as what it is.

        confluent-kafka calls back for each record that has failed while the fatal error is set,
        raises a ``SystemError`` of the last call, and never frees it. With its traceback, that
        error would keep the producer, and so its threads.
        """

        def flush(self, *timeout: float) -> int:
            try:
                return int(super().flush(*timeout))
            except SystemError as error:
                first: BaseException = error.with_traceback(None)
                while first.__cause__ is not None:
                    first = first.__cause__
                fatal = type(first)(*first.args)
            finally:
                del self  # for the traceback of what is raised
            raise fatal

    return RecordProducer


def kafka_error(error: Any) -> KafkaError:
    """Returns the error of kafka-python that means the same as one of confluent-kafka."""
    from confluent_kafka import KafkaError as Code
    from kafka import errors

    code, text = error.code(), error.str()
    if code > 0:
        found: KafkaError = errors.for_code(code)(text)
        return found
    kinds = {
        Code._AUTHENTICATION: errors.SaslAuthenticationFailedError,  # noqa: SLF001 - their names
        Code._AUTO_OFFSET_RESET: errors.OffsetOutOfRangeError,  # noqa: SLF001
        Code._TIMED_OUT: errors.KafkaTimeoutError,  # noqa: SLF001
        Code._MSG_TIMED_OUT: errors.KafkaTimeoutError,  # noqa: SLF001
        Code._UNKNOWN_TOPIC: errors.UnknownTopicOrPartitionError,  # noqa: SLF001
        Code._UNKNOWN_PARTITION: errors.UnknownTopicOrPartitionError,  # noqa: SLF001
    }
    return kinds.get(code, errors.KafkaConnectionError)(text)
