"""Texts for errors, logs and representations, without the secrets of URIs."""

from __future__ import annotations

import re
from typing import Any, Final

_HIDDEN: Final = "***"
#: User and password before a host. A password may contain a slash, as keys of S3 do. A URI with one
#: slash is refused, and the error shows it.
_USER: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+:/{1,2})"
    r"(?:(?P<user>[^\s/@:?#'\"]*):(?:[^\s/?#'\"]*|[^\s@?#'\"]*)|(?P<alone>[^\s/@:?#'\"]+))@"
)
#: Schemes whose URIs have a container before the account: abfss://container@account.
_CONTAINERS: Final = ("abfs://", "abfss://", "wasb://", "wasbs://")
_PARAMETER: Final = re.compile(
    r"([?&;](?:[^=&;\s]*(?:sig|sas|token|key|secret|pass|pwd|credential|auth)[^=&;\s]*)=)"
    r"[^&;\s'\"]*",
    re.IGNORECASE,
)

#: What RUST_BACKTRACE adds to an error of deltalake.
_BACKTRACE: Final = re.compile(r"\n\s*0: ")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")


def message_of(error: Exception) -> str:
    """Return the message of an error in one line: no colours, no backtrace of Rust, no secrets."""
    text = _BACKTRACE.split(str(error), maxsplit=1)[0]
    return hidden(" ".join(_COLOURS.sub(" ", text).split()))


def hidden(text: str) -> str:
    """Return a text with ``***`` in place of passwords, keys and signatures of URIs."""
    if ":/" not in text:
        return text
    return _PARAMETER.sub(rf"\1{_HIDDEN}", _USER.sub(_without_password, text))


def hidden_in(value: Any) -> Any:
    """Return `hidden` of a text, and any other value unchanged."""
    return hidden(value) if isinstance(value, str) else value


def _without_password(found: re.Match[str]) -> str:
    scheme, user, alone = found["scheme"], found["user"], found["alone"]
    if alone is None:
        return f"{scheme}{user}:{_HIDDEN}@"
    return f"{scheme}{alone if scheme.lower() in _CONTAINERS else _HIDDEN}@"


class SecretUri(str):
    """A path or URI whose ``repr()`` hides its secrets; all other uses get the text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(hidden(str(self)))
