"""Kafka's client settings, and the one place that says them in kafka-python's words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from coopconsume.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Consumer settings of Apache Kafka 4.1 that a job may meaningfully give.
KNOWN_KAFKA_SETTINGS = frozenset(
    [
        "bootstrap.servers",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "interceptor.classes",
        "isolation.level",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.client.callback.handler.class",
        "sasl.jaas.config",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.service.name",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.mechanism",
        "sasl.oauthbearer.token.endpoint.url",
        "security.protocol",
        "security.providers",
        "send.buffer.bytes",
        "session.timeout.ms",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.engine.factory.class",
        "ssl.key.password",
        "ssl.keymanager.algorithm",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    ]
)

_SECRET = re.compile(r"password|jaas|secret|token|keystore\.key|credential", re.IGNORECASE)
_WORDS: dict[str, tuple[str, type]] = {
    "bootstrap.servers": ("bootstrap_servers", str),
    "client.id": ("client_id", str),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "request.timeout.ms": ("request_timeout_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "security.protocol": ("security_protocol", str),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
}
_LOGIN = re.compile(r'\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|([^\s;]+))')


def is_secret(name: str) -> bool:
    """Whether a setting's value must never be shown."""
    return bool(_SECRET.search(name))


def client_config(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Settings for kafka-python's clients from Kafka's own names (without ``kafka.``).

    Settings that concern only fetching and grouping are left to Spark's source. TLS wants PEM
    files, as Python reads no Java key stores.

    Raises:
        InvalidOption: A security setting that kafka-python has no counterpart for.
    """
    config: dict[str, Any] = {}
    for name, (word, kind) in _WORDS.items():
        if name in kafka:
            try:
                config[word] = kind(kafka[name])
            except ValueError:
                raise InvalidOption(f"kafka.{name}", repr(kafka[name]), "give a number") from None
    config["bootstrap_servers"] = [
        s.strip() for s in config.get("bootstrap_servers", "").split(",")
    ]
    protocol = config.get("security_protocol", "PLAINTEXT").upper()
    config["security_protocol"] = protocol
    if "SASL" in protocol:
        config |= _sasl(kafka)
    if "SSL" in protocol:
        config |= _tls(kafka)
    return config


def _sasl(kafka: Mapping[str, str]) -> dict[str, Any]:
    mechanism = kafka.get("sasl.mechanism", "GSSAPI")
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"):
        raise InvalidOption(
            "kafka.sasl.mechanism",
            repr(mechanism),
            "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or GSSAPI",
        )
    config: dict[str, Any] = {"sasl_mechanism": mechanism}
    if mechanism == "GSSAPI":
        return config
    login = {
        name: re.sub(r"\\(.)", r"\1", quoted) if quoted else single or bare
        for name, quoted, single, bare in _LOGIN.findall(kafka.get("sasl.jaas.config", ""))
    }
    if set(login) != {"username", "password"}:
        found = "no username and password in it" if "sasl.jaas.config" in kafka else "missing"
        remedy = 'write … LoginModule required username="…" password="…";'
        raise InvalidOption("kafka.sasl.jaas.config", found, remedy)
    config |= {"sasl_plain_username": login["username"], "sasl_plain_password": login["password"]}
    return config


def _tls(kafka: Mapping[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for side, word in (("truststore", "ssl_cafile"), ("keystore", "ssl_certfile")):
        location = kafka.get(f"ssl.{side}.location")
        if location is None:
            continue
        kind = kafka.get(f"ssl.{side}.type", "JKS")
        if kind != "PEM":
            raise InvalidOption(
                f"kafka.ssl.{side}.type", repr(kind),
                f"Python reads no Java key stores: give PEM, and a PEM file in ssl.{side}.location",
            )  # fmt: skip
        config[word] = location
    if "ssl_certfile" in config:
        config["ssl_keyfile"] = config["ssl_certfile"]
    if "ssl.key.password" in kafka:
        config["ssl_password"] = kafka["ssl.key.password"]
    if kafka.get("ssl.endpoint.identification.algorithm") == "":
        config["ssl_check_hostname"] = False
    return config
