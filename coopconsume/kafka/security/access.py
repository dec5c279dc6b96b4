"""Detection of refused logins and missing permissions, with the same errors for both clients."""

from __future__ import annotations

import re
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import AuthenticationFailed, BrokerUnreachable, NotAuthorized
from coopconsume.kafka.security import sasl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coopconsume.errors import CoopConsumeError

_TIMEOUT: Final = 6.0
#: The permission that is missing if a kind of resource is refused; READ implies DESCRIBE.
_RIGHTS: Final = {
    "Topic": "READ",
    "Group": "READ",
    "Cluster": "DESCRIBE",
    "TransactionalId": "WRITE",
}
_JAVA_RIGHT: Final = re.compile(
    rf"\.({'|'.join(_RIGHTS)})AuthorizationException: (?:[^\n:]*: *\[?([^\]\n]*))?"
)
_JAVA_LOGIN: Final = re.compile(r"\.(Sasl|Ssl)AuthenticationException: ([^\n]*)")


def look(config: Mapping[str, Any], kafka: Mapping[str, str]) -> None:
    """Log in to the first broker that answers, to get the reason if the login fails.

    kafka-python retries until its timeout and then reports the timeout only. Unreachable brokers
    are skipped; kafka-python reports them.

    Args:
        config: Settings by kafka-python's names.
        kafka: The same settings by Kafka's names.

    Raises:
        AuthenticationFailed: The TLS connection, the token request or the login is refused.
        BrokerUnreachable: A token endpoint returns neither a token nor a refusal.
    """
    from kafka.errors import KafkaConnectionError, KafkaError, SaslAuthenticationFailedError

    if config["security_protocol"] == "PLAINTEXT":
        return
    try:
        if "sasl_oauth_token_provider" in config:
            config["sasl_oauth_token_provider"].token()
        _look_at_first(config)
    except SaslAuthenticationFailedError as error:
        raise _no_login(error, kafka) from None
    except KafkaConnectionError as error:
        raise BrokerUnreachable(_servers(kafka), str(error)) from None
    except KafkaError:  # as of a broker that expects TLS
        raise _no_login("it does not answer as Kafka does", kafka) from None


def _look_at_first(config: Mapping[str, Any]) -> None:
    from kafka.cluster import collect_hosts

    for host, port, _ in collect_hosts(config["bootstrap_servers"]):
        try:
            with socket.create_connection((host, port), _TIMEOUT) as bare:
                _talk(bare, host, config)
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason or "no reason given"
            raise AuthenticationFailed(f"{host}:{port}", "TLS", None, str(reason)) from None
        except OSError:
            continue
        return


def _talk(bare: socket.socket, host: str, config: Mapping[str, Any]) -> None:
    context: ssl.SSLContext | None = config.get("ssl_context")
    if context is None:
        _log_in(_Line(bare), host, config)
        return
    from kafka.protocol.metadata import ApiVersionsRequest

    with context.wrap_socket(bare, server_hostname=host.rstrip(".")) as wrapped:
        line = _Line(wrapped)
        # With TLS 1.3 a refused client certificate shows only at the first request.
        line.ask(ApiVersionsRequest(version=0))
        if "sasl_mechanism" in config:
            _log_in(line, host, config)


class _Line:
    """A connection that sends one request at a time."""

    def __init__(self, connection: socket.socket) -> None:
        from kafka.protocol.parser import KafkaProtocol

        self._connection = connection
        self._protocol = KafkaProtocol(client_id="coopconsume")

    def ask(self, request: Any) -> Any:
        """Send a request of kafka-python and return the response.

        Raises:
            OSError: The connection fails or is closed.
        """
        self._protocol.send_request(request)
        self._connection.sendall(self._protocol.send_bytes())
        while data := self._connection.recv(1 << 16):
            for _, answer in self._protocol.receive_bytes(data):
                return answer
        raise ConnectionError("the broker has closed the connection")


def _log_in(line: _Line, host: str, config: Mapping[str, Any]) -> None:
    from kafka.errors import SaslAuthenticationFailedError, for_code
    from kafka.net.sasl import get_sasl_mechanism
    from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

    name = config["sasl_mechanism"]
    answer = line.ask(SaslHandshakeRequest(mechanism=name, version=1))
    if answer.error_code:
        takes = f"; the broker takes {', '.join(answer.mechanisms)}" if answer.mechanisms else ""
        raise SaslAuthenticationFailedError(f"{for_code(answer.error_code).message}{takes}")
    mechanism = get_sasl_mechanism(name)(host=host, **config)
    while not mechanism.is_done():
        answer = line.ask(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes(), version=1))
        if answer.error_code:
            raise SaslAuthenticationFailedError(answer.error_message)
        try:
            mechanism.receive(answer.auth_bytes)
        except ValueError as error:  # such as a signature that is not the broker's
            raise SaslAuthenticationFailedError(str(error)) from None


def refused(
    error: BaseException,
    kafka: Mapping[str, str],
    topics: Iterable[str] = (),
    topic_right: str = "READ",
) -> CoopConsumeError | None:
    """Translate an error of kafka-python about a refused login or a missing permission.

    Args:
        error: The error.
        kafka: Settings by Kafka's names.
        topics: The topics of the call.
        topic_right: The permission that the call needs on them.

    Returns:
        The error to raise instead; None for errors of other kinds.
    """
    from kafka.errors import SaslAuthenticationFailedError

    if isinstance(error, SaslAuthenticationFailedError):
        return _no_login(error, kafka)
    name = type(error).__name__
    kind = name.removesuffix("AuthorizationFailedError")
    if kind == name or kind not in _RIGHTS:
        return None
    return _no_right(kind, ",".join(topics), kafka, topic_right)


def refused_by_spark(error: BaseException, kafka: Mapping[str, str]) -> CoopConsumeError | None:
    """Translate an error of Spark in the same way, by the text of its Kafka client's error."""
    text = str(error)
    if found := _JAVA_RIGHT.search(text):
        return _no_right(found[1], re.sub(r",\s+", ",", found[2] or "").strip(), kafka)
    if found := _JAVA_LOGIN.search(text):
        if found[1] == "Ssl":
            return AuthenticationFailed(_servers(kafka), "TLS", None, found[2].strip())
        return _no_login(found[2].strip(), kafka)
    return None


def _no_login(cause: object, kafka: Mapping[str, str]) -> AuthenticationFailed:
    text = re.sub(r"^(?:(?:\[Error \d+\] )?\w+Error: )+", "", str(cause))
    mechanism = kafka.get("sasl.mechanism", "SASL")
    return AuthenticationFailed(_servers(kafka), mechanism, sasl.user(kafka), text)


def _no_right(
    kind: str, topics: str, kafka: Mapping[str, str], topic_right: str = "READ"
) -> NotAuthorized:
    names = {"Topic": topics, "Group": kafka.get("group.id", ""), "Cluster": "kafka-cluster"}
    written = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).upper()
    right = topic_right if kind == "Topic" else _RIGHTS[kind]
    return NotAuthorized(right, written, names.get(kind, ""), sasl.user(kafka))


def _servers(kafka: Mapping[str, str]) -> str:
    return kafka.get("bootstrap.servers", "")
