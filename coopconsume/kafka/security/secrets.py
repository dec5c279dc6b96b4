"""Secrets that do not show: neither in representations nor in the logs of what we call."""

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
    """A text whose representation hides it; anything else gets the text itself.

    So it stays hidden in dicts and data classes that are logged and in tracebacks with variables,
    and clients that encode it or join it with others work as with any text.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def is_secret(name: str) -> bool:
    """Whether the value of a setting of this name must never be shown."""
    return bool(_SECRET.search(name))


def keep_out_of_logs() -> None:
    """Have kafka-python and py4j leave logins out of what they log at DEBUG; once is enough.

    kafka-python logs every request, also those that carry a password or token, and their bytes;
    py4j every call with its arguments, also those that hand settings to Spark.
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
        # A frame: four bytes of length, two of the request's kind.
        return bytes(arg[4:6]) == _SASL_AUTHENTICATE
    return type(arg).__name__.startswith(("SaslAuthenticate", "SaslBytes"))


def _without_secret_options(record: logging.LogRecord) -> bool:
    if record.levelno <= logging.DEBUG and _PY4J_SECRET.search(str(record.msg)):
        record.msg = "Command to send: (a secret option)"
    return True
