"""Kafka's client settings and their translation to kafka-python."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from coopconsume.errors import InvalidOption, UnknownOption
from coopconsume.kafka.security import sasl, tls
from coopconsume.kafka.security.secrets import Secret, is_secret, keep_out_of_logs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: Consumer settings of Apache Kafka 4.1 that are useful for a job.
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
_LOGIN = "kafka.sasl.jaas.config, or kafka.sasl_plain_username and kafka.sasl_plain_password"
_OAUTH = "clientId and clientSecret in kafka.sasl.jaas.config"
_KERBEROS = "a login by SCRAM, PLAIN or OAUTHBEARER: Kerberos is not supported"
_TRUSTED = "kafka.ssl.truststore.location with kafka.ssl.truststore.type = PEM"
_OWN_KEY = "kafka.ssl.keystore.location, one file, with kafka.ssl.keystore.type = PEM"
_ONE_BY_ONE = "nothing: records are committed one by one, into commitTable"
#: Settings of librdkafka, kafka-python and old clients, which Kafka's client in Java ignores, with
#: what to give instead.
OF_OTHER_CLIENTS = {
    "auto.commit.enable": _ONE_BY_ONE,
    "broker.list": "kafka.bootstrap.servers",
    "brokers": "kafka.bootstrap.servers",
    "enable.auto.offset.store": _ONE_BY_ONE,
    "enable.ssl.certificate.verification": f"the trusted certificates: {_TRUSTED}",
    "fetch.message.max.bytes": "kafka.max.partition.fetch.bytes",
    "fetch.wait.max.ms": "kafka.fetch.max.wait.ms",
    "metadata.broker.list": "kafka.bootstrap.servers",
    "sasl.kerberos.keytab": _KERBEROS,
    "sasl.kerberos.principal": _KERBEROS,
    "sasl.oauthbearer.client.id": _OAUTH,
    "sasl.oauthbearer.client.secret": _OAUTH,
    "sasl.oauthbearer.config": _OAUTH,
    "sasl.password": _LOGIN,
    "sasl.user": _LOGIN,
    "sasl.username": _LOGIN,
    "socket.timeout.ms": "kafka.request.timeout.ms",
    "ssl.ca.location": _TRUSTED,
    "ssl.ca.pem": "kafka.ssl.truststore.certificates with kafka.ssl.truststore.type = PEM",
    "ssl.cafile": _TRUSTED,
    "ssl.certfile": _OWN_KEY,
    "ssl.certificate.location": _OWN_KEY,
    "ssl.certificate.pem": "kafka.ssl.keystore.certificate.chain",
    "ssl.check.hostname": "kafka.ssl.endpoint.identification.algorithm, empty for any host name",
    "ssl.key.location": _OWN_KEY,
    "ssl.key.pem": "kafka.ssl.keystore.key",
    "ssl.keyfile": _OWN_KEY,
    "topic.metadata.refresh.interval.ms": "kafka.metadata.max.age.ms",
    "zookeeper.connect": "kafka.bootstrap.servers",
}
#: Settings of group members. Spark's executors only read and are not members.
MEMBER_SETTINGS = frozenset(
    ["group.instance.id", "heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms"]
)

#: As the Java clients read it, a protocol before it included.
_ADDRESS = re.compile(r"(?:[\w.%-]*://)?\[?[\w.%:-]+\]?:(\d{1,5})", re.ASCII)
_LAST_PORT = 65_535

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
#: How settings of security begin; one kind never stands for the other.
_KIND = re.compile(r"(?:kafka\.)?(sasl|ssl)[._]")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_WORDS = {
    name.replace(".", "_"): name for name in ("sasl.plain.username", "sasl.plain.password")
}


def kafka_name(setting: str) -> str:
    """Return Kafka's name of a setting; kafka-python's names of a login are accepted as well."""
    return _LOGIN_WORDS.get(setting, setting)


def is_harmless(setting: str) -> bool:
    """Return whether the value of a setting may be shown. Unknown settings may be secret."""
    return setting in KNOWN_KAFKA_SETTINGS and not is_secret(setting)


#: Kafka's default (KIP-144). The default of kafka-python, 30 s, is longer than the session timeout
#: of a member whose broker was briefly unavailable.
_RECONNECT_MS = 1_000


def complete(kafka: Mapping[str, str]) -> dict[str, str]:
    """Validate settings and complete the security settings of both clients; opens no files.

    Raises:
        InvalidOption: A security setting is wrong or not supported by both clients, or a number
            is not valid.
    """
    _check_servers(kafka.get("bootstrap.servers", ""))
    done = sasl.complete(kafka)
    protocol = _protocol(done)
    for name, kind in _WORDS.items():
        read_setting(done, name, kind)
    if protocol != "PLAINTEXT" and done.get("security.providers"):
        remedy = "Python has no Java providers: leave it out"
        raise InvalidOption("kafka.security.providers", repr(done["security.providers"]), remedy)
    if "SASL" in protocol:
        sasl.check(done)
    if "SSL" in protocol:
        tls.check(done)
    return {name: v if is_harmless(name) else Secret(v) for name, v in done.items()}


def _check_servers(servers: str) -> None:
    """Refuses addresses that Kafka's clients in Java cannot use."""
    for server in filter(None, map(str.strip, servers.split(","))):
        found = _ADDRESS.fullmatch(server)
        if found is None or not 0 < int(found[1]) <= _LAST_PORT:
            raise InvalidOption(
                "kafka.bootstrap.servers", repr(servers), "give host:port, several with commas"
            )


def client_config(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Translate Kafka's setting names (without ``kafka.``) to those of kafka-python.

    The result is valid for its admin client, consumer and producer; settings of fetches and groups
    are omitted. As a side effect kafka-python stops logging logins.

    Raises:
        InvalidOption: kafka-python does not support a security setting, or a PEM file cannot be
            used.
    """
    kafka = complete(kafka)
    config: dict[str, Any] = {
        name.replace(".", "_"): read_setting(kafka, name, kind)
        for name, kind in _WORDS.items()
        if name in kafka
    }
    config.setdefault(
        "reconnect_backoff_max_ms", max(_RECONNECT_MS, config.get("reconnect_backoff_ms", 0))
    )
    for name in ("receive_buffer_bytes", "send_buffer_bytes"):
        if config.get(name) == -1:  # the default of the operating system
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


def closest(name: str, known: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Return the known name that is most similar to a misspelt one; None if none is similar.

    A name in another spelling, such as snake_case, or without ``kafka.`` is the same name. One that
    begins with ``sasl.`` is similar to no other kind of name; nor is one that begins with ``ssl.``.
    """
    known = list(known)
    spelled = {spelling(k): k for k in reversed(known)}
    for same in (spelling(name), f"kafka{spelling(name)}"):
        if same in spelled:
            return spelled[same]
    kind = _KIND.match(name.lower())
    by_lower = {k.lower(): k for k in known}
    if kind is not None:
        by_lower = {k: v for k, v in by_lower.items() if f"{kind[1]}." in k}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def spelling(name: str) -> str:
    """Return what all spellings of a name have in common: its letters and figures."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def check_foreign(name: str) -> None:
    """Refuse a setting, with or without ``kafka.``, that only other clients of Kafka have.

    Raises:
        InvalidOption: It names the settings to give instead.
    """
    setting = name.lower().removeprefix("kafka.").replace("_", ".")
    if setting in OF_OTHER_CLIENTS:
        remedy = f"a setting of another client of Kafka; give {OF_OTHER_CLIENTS[setting]}"
        raise InvalidOption(name, "…", remedy)


def check_setting(setting: str, ours: Mapping[str, str], known: Collection[str]) -> None:
    """Check the name of a setting, without ``kafka.``, that a user gives.

    Args:
        setting: The name.
        ours: Settings that the library sets itself, with why a user's own value is refused.
        known: All other settings.

    Raises:
        InvalidOption: The library sets it itself, or only other clients have it.
        UnknownOption: It is not known, but very similar to a known one.
    """
    if setting in ours:
        raise InvalidOption(f"kafka.{setting}", "…", f"leave it out: {ours[setting]}")
    check_foreign(f"kafka.{setting}")
    # Plug-ins bring settings of their own; only what looks like a slip of the pen is refused.
    similar = None if setting in known else closest(setting, sorted(known), cutoff=0.85)
    if similar:
        raise UnknownOption(f"kafka.{setting}", f"kafka.{similar}")


def read_setting(kafka: Mapping[str, str], name: str, kind: type) -> Any:
    """Return the value of a setting as a type; None if it is not set.

    Raises:
        InvalidOption: It is not a number.
    """
    try:
        return kind(kafka[name]) if name in kafka else None
    except ValueError:
        raise InvalidOption(f"kafka.{name}", repr(kafka[name]), "give a number") from None


def hurry_metadata(client: object, backoff_ms: int = 5) -> None:
    """Shorten the wait of a kafka-python client before it looks up metadata of a new topic.

    The client would wait for 100 ms whatever its ``retry_backoff_ms`` is. This has no effect on
    versions of kafka-python that keep the setting elsewhere.

    Args:
        client: The consumer or producer.
        backoff_ms: Time between metadata requests, in milliseconds.
    """
    cluster = getattr(client, "_cluster", None) or getattr(client, "_metadata", None)
    config = getattr(cluster, "config", None)
    if isinstance(config, dict):
        config["retry_backoff_ms"] = backoff_ms
