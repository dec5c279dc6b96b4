"""Errors of decoders: which are the record's fault, and their field and reason in one line."""

from __future__ import annotations

import re
from typing import Any

from commits.secrets import hidden
from coopconsume.errors import NotDecodable
from coopconsume.record import Reject, Retry
from coopconsume.values.shown import clean, safely

#: Packages whose errors say that a schema registry does not answer.
_CLIENTS = ("httpx", "httpx2", "httpcore")
#: What a registry says of a subject, a version or a schema that it does not have; 40400 is that of
#: the client's own mock. A proxy, or another server at its address, answers by 404 alone.
_NOT_FOUND = (40400, 40401, 40402, 40403)
#: The module of a registry's client, without the folder that some versions have it in.
_CLIENT = ("confluent_kafka.schema_registry", "schema_registry_client")
_CAUSES = 10
#: The end of an error of msgspec, such as "Expected `int`, got `str` - at `$.amount`".
_PATH = re.compile(r"(?P<reason>.*) - at `(?P<path>.*)`", re.DOTALL)


def refusal(name: str, error: Exception) -> Exception:
    """Returns the error of a record whose decoder has failed.

    It is `NotDecodable`, or the decoder's own error if that is not the record's fault: a schema
    registry does not answer, or a decoder of the user's asks for `Retry` or `Reject`.

    Args:
        name: ``key`` or ``value``.
        error: The decoder's error.
    """
    if isinstance(error, Retry | Reject | NotDecodable | MemoryError) or _is_outside(error):
        return error
    path, reason = _described(error)
    field = f"{name}.{path}" if path else name
    return NotDecodable(" ".join(field.split()), " ".join(reason.split()))


def _is_outside(error: BaseException) -> bool:
    """Whether an error, or a cause of it, is that of a connection or a service."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if cause is None:
            break
        kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(cause).__mro__}
        if isinstance(cause, OSError) or any(package in _CLIENTS for package, _ in kinds):
            return True
        if ("confluent_kafka", "OAuthTokenError") in kinds:
            return True
        if ("confluent_kafka", "SchemaRegistryError") in kinds:
            return getattr(cause, "error_code", 0) not in _NOT_FOUND
        if _is_of_answer(cause):
            return True
        cause = cause.__cause__
    return False


def _is_of_answer(error: BaseException) -> bool:
    """Whether the client of a registry cannot read an answer, such as the page of a proxy."""
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module.startswith(_CLIENT[0]) and module.endswith(_CLIENT[1]):
            return True
        trace = trace.tb_next
    return False


def _described(error: Any) -> tuple[str, str]:
    """Returns the path of the field that is wrong, if it is known, and the reason."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if "pydantic_core" in packages and hasattr(error, "errors"):
        # Without the input, which may be anything, and is in the dead letter.
        first, *more = error.errors(include_url=False, include_context=False, include_input=False)
        reason = first["msg"] + (f" (and {len(more)} more)" if more else "")
        return clean(".".join(map(str, first["loc"]))), clean(reason)
    text = hidden(clean(safely(lambda: str(error))))
    if "msgspec" in packages:
        found = _PATH.fullmatch(text)
        if found is None:
            return "", text
        return found["path"].replace("`", "").removeprefix("$").removeprefix("."), found["reason"]
    return "", f"{type(error).__name__}: {text}" if text else type(error).__name__
