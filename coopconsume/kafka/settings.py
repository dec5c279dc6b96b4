"""Kafka's client settings, and the one place that says them in kafka-python's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coopconsume.errors import InvalidOption
from coopconsume.kafka.security import sasl, tls
from coopconsume.kafka.security.secrets import Secret, is_secret, keep_out_of_logs

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Consumer settings of Apache Kafka 4.1 that a job may meaningfully give.
KNOWN_KAFKA_SETTINGS = frozenset(
    [
        "bootstrap.servers",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
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
        "metadata.recovery.strategy",
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
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.mechanism",
        "sasl.oauthbearer.header.urlencode",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.plain.password",
        "sasl.plain.username",
        "security.protocol",
        "security.providers",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
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
#: Settings of a group's members; Spark's executors only read, and are no members.
MEMBER_SETTINGS = frozenset(
    ["group.instance.id", "heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms"]
)

_WORDS: dict[str, type] = {
    "client.dns.lookup": str,
    "client.id": str,
    "connections.max.idle.ms": int,
    "metadata.max.age.ms": int,
    "receive.buffer.bytes": int,
    "reconnect.backoff.max.ms": int,
    "reconnect.backoff.ms": int,
    "request.timeout.ms": int,
    "retry.backoff.ms": int,
    "send.buffer.bytes": int,
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_WORDS = {
    name.replace(".", "_"): name for name in ("sasl.plain.username", "sasl.plain.password")
}


def kafka_name(setting: str) -> str:
    """A setting's name in Kafka's manner; kafka-python's words for a login are taken, too."""
    return _LOGIN_WORDS.get(setting, setting)


def is_harmless(setting: str) -> bool:
    """Whether a setting's value may be shown; what a plug-in's setting holds nobody knows."""
    return setting in KNOWN_KAFKA_SETTINGS and not is_secret(setting)


#: Kafka's own default (KIP-144). kafka-python's, 30 s, outlasts the session of a member whose
#: broker was away for a moment.
_RECONNECT_MS = 1_000


def complete(kafka: Mapping[str, str]) -> dict[str, str]:
    """Settings with all that both clients need for security, checked; opens no files.

    Raises:
        InvalidOption: A security setting is wrong, or one of the two clients cannot follow it; or
            a number is none.
    """
    done = sasl.complete(kafka)
    protocol = _protocol(done)
    for name, kind in _WORDS.items():
        _read(done, name, kind)
    if protocol != "PLAINTEXT" and done.get("security.providers"):
        remedy = "Python has no Java providers: leave it out"
        raise InvalidOption("kafka.security.providers", repr(done["security.providers"]), remedy)
    if "SASL" in protocol:
        sasl.check(done)
    if "SSL" in protocol:
        tls.check(done)
    return {name: v if is_harmless(name) else Secret(v) for name, v in done.items()}


def client_config(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Settings for kafka-python's clients from Kafka's own names (without ``kafka.``).

    They serve its admin client and its consumer alike: what concerns only fetching and grouping is
    left out. With them kafka-python's logs stay free of logins.

    Raises:
        InvalidOption: A security setting that kafka-python has no counterpart for, or a PEM file
            that cannot be used.
    """
    kafka = complete(kafka)
    config: dict[str, Any] = {
        name.replace(".", "_"): _read(kafka, name, kind)
        for name, kind in _WORDS.items()
        if name in kafka
    }
    config.setdefault(
        "reconnect_backoff_max_ms", max(_RECONNECT_MS, config.get("reconnect_backoff_ms", 0))
    )
    for name in ("receive_buffer_bytes", "send_buffer_bytes"):
        if config.get(name) == -1:  # Kafka's word for the system's own size
            del config[name]
    servers = kafka.get("bootstrap.servers", "").split(",")
    config["bootstrap_servers"] = [server.strip() for server in servers]
    protocol = config["security_protocol"] = _protocol(kafka)
    if "SASL" in protocol:
        config |= sasl.client_config(kafka)
        keep_out_of_logs()
    if "SSL" in protocol:
        config["ssl_context"] = tls.context(kafka)
    return config


def _protocol(kafka: Mapping[str, str]) -> str:
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        found = repr(kafka["security.protocol"])
        remedy = f"give one of {', '.join(_PROTOCOLS)}"
        raise InvalidOption("kafka.security.protocol", found, remedy)
    return protocol


def _read(kafka: Mapping[str, str], name: str, kind: type) -> Any:
    try:
        return kind(kafka[name]) if name in kafka else None
    except ValueError:
        raise InvalidOption(f"kafka.{name}", repr(kafka[name]), "give a number") from None


def hurry_metadata(client: object, backoff_ms: int = 5) -> None:
    """Let a consumer or producer of kafka-python look up at once a topic it first hears of.

    It would wait for 100 ms, whatever its ``retry_backoff_ms`` is. Without effect on a version of
    kafka-python that keeps this elsewhere.

    Args:
        client: The consumer or producer.
        backoff_ms: Milliseconds between attempts to look something up.
    """
    cluster = getattr(client, "_cluster", None) or getattr(client, "_metadata", None)
    config = getattr(cluster, "config", None)
    if isinstance(config, dict):
        config["retry_backoff_ms"] = backoff_ms
