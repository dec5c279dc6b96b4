"""Texts without the secrets that URIs carry, for errors, logs and representations."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["SecretUri", "hidden", "hidden_in"]

_HIDDEN: Final = "***"
#: User and password before a host; a password may hold a slash, as keys of S3 do.
_USER: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)"
    r"(?:(?P<user>[^\s/@:?#'\"]*):(?:[^\s/?#'\"]*|[^\s@?#'\"]*)|(?P<alone>[^\s/@:?#'\"]+))@"
)
#: Schemes in whose URIs the container stands before the account: abfss://container@account.
_CONTAINERS: Final = ("abfs://", "abfss://", "wasb://", "wasbs://")
_PARAMETER: Final = re.compile(
    r"([?&;](?:[^=&;\s]*(?:sig|sas|token|key|secret|pass|pwd|credential|auth)[^=&;\s]*)=)"
    r"[^&;\s'\"]*",
    re.IGNORECASE,
)


def hidden(text: str) -> str:
    """Returns a text in which passwords, keys and signatures of URIs are replaced by ``***``."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\1{_HIDDEN}", _USER.sub(_without_password, text))


def hidden_in(value: Any) -> Any:
    """Returns a value as it may be shown: a text by `hidden`, anything else as it is."""
    return hidden(value) if isinstance(value, str) else value


def _without_password(found: re.Match[str]) -> str:
    scheme, user, alone = found["scheme"], found["user"], found["alone"]
    if alone is None:
        return f"{scheme}{user}:{_HIDDEN}@"
    return f"{scheme}{alone if scheme.lower() in _CONTAINERS else _HIDDEN}@"


class SecretUri(str):
    """A path or URI whose representation hides its secrets; anything else gets the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(hidden(str(self)))
