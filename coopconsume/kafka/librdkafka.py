"""Kafka's settings in the words of librdkafka, the client of confluent-kafka."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors.fenced import EngineNotUsable
from coopconsume.kafka.security import sasl

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def package() -> Any:
    """Returns the package ``confluent_kafka``; raises `EngineNotUsable` if it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise EngineNotUsable("confluent-kafka", "install coopconsume[confluent]") from None
    return confluent_kafka


def client_config(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Translates Kafka's setting names (without ``kafka.``) to those of librdkafka.

    Raises:
        InvalidOption: A setting of security that librdkafka does not take.
    """
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
