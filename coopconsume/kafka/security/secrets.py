"""Hides secrets in representations and in the logs of kafka-python and py4j."""

from __future__ import annotations

import logging
import re
from typing import Final

_SECRET: Final = re.compile(
    r"password|passphrase|jaas|secret|token|keystore\.key|credential", re.IGNORECASE
)
_SASL_AUTHENTICATE: Final = (36).to_bytes(2)
_KAFKA_LOGGERS: Final = ("kafka.net.connection", "kafka.protocol.parser")
_PY4J_LOGGERS: Final = ("py4j.java_gateway", "py4j.clientserver")
_PY4J_SECRET: Final = re.compile(rf"^skafka\..*(?:{_SECRET.pattern})", re.IGNORECASE | re.MULTILINE)


class Secret(str):
    """A string whose ``repr()`` hides it; all other uses get the text.

    It stays hidden in logged dicts and data classes and in tracebacks with variables. Clients
    encode it and concatenate it like any other string.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def is_secret(name: str) -> bool:
    """Return whether the value of a setting must never be shown."""
    return bool(_SECRET.search(name))


def keep_out_of_logs() -> None:
    """Remove logins from the DEBUG logs of kafka-python and py4j. One call is enough.

    kafka-python logs every request and its bytes, including those with a password or token. py4j
    logs every call with its arguments, including calls that pass settings to Spark.
    """
    for name in _KAFKA_LOGGERS:
        logging.getLogger(name).addFilter(_without_logins)
    for name in _PY4J_LOGGERS:
        logging.getLogger(name).addFilter(_without_secret_options)


def _without_logins(record: logging.LogRecord) -> bool:
    if record.levelno <= logging.DEBUG and isinstance(record.args, tuple):
        record.args = tuple("(a login)" if _is_login(arg) else arg for arg in record.args)
    return True


def _is_login(arg: object) -> bool:
    if isinstance(arg, bytes | bytearray | memoryview):
        # A frame has four bytes of length and two bytes of the request's API key.
        return bytes(arg[4:6]) == _SASL_AUTHENTICATE
    return type(arg).__name__.startswith(("SaslAuthenticate", "SaslBytes"))


def _without_secret_options(record: logging.LogRecord) -> bool:
    if record.levelno <= logging.DEBUG and _PY4J_SECRET.search(str(record.msg)):
        record.msg = "Command to send: (a secret option)"
    return True
