"""librdkafka's settings and errors, as the writer's engine on confluent-kafka needs them."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import NotAuthorized
from coopconsume.errors.fenced import AppendRefused
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.kafka.security import sasl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.errors import CoopConsumeError
    from coopconsume.fenced.settings import Settings
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


def config_of(settings: Settings) -> dict[str, Any]:
    """The settings in librdkafka's words.

    Raises:
        InvalidOption: A setting of security that this engine does not take.
    """
    kafka = settings.kafka
    config: dict[str, Any] = {name: str(kafka[name]) for name in _PLAIN if name in kafka}
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
    if "SASL" in kafka.get("security.protocol", ""):
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


@contextmanager
def as_doubts(settings: Settings, topic: str) -> Iterator[None]:
    """Raises errors of the client as `EngineDoubt`."""
    try:
        yield
    except Exception as error:
        from confluent_kafka import KafkaException

        known = (KafkaException, BufferError, SystemError, FutureTimeoutError, OSError)
        if not isinstance(error, known):
            raise
        refusal = _refusal(error, settings, topic)
        raise EngineDoubt(str(error), refusal, is_out_of_range=_is_gone(error)) from error


def _is_gone(error: BaseException) -> bool:
    """Whether the brokers do not have an offset that was to be read."""
    from confluent_kafka import KafkaError

    kind = error.args[0] if error.args else None
    gone = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001
    return isinstance(kind, KafkaError) and kind.code() in gone


def _refusal(error: BaseException, settings: Settings, topic: str) -> CoopConsumeError | None:
    from confluent_kafka import KafkaError

    kind = error.args[0] if error.args else None
    if not isinstance(kind, KafkaError):
        return None
    user = sasl.user(settings.kafka)
    if kind.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return NotAuthorized("WRITE", "TOPIC", topic, user)
    if kind.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return NotAuthorized("WRITE", "TRANSACTIONAL_ID", "", user)
    if kind.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
        return AppendRefused(f"{topic} does not take the records: {kind.str()}")
    return None
