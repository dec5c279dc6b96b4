"""Rows and history entries of the registry as JSON. All stores use this format."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from commits.secrets import message_of
from coopconsume.errors.fenced import OwnershipFormat, OwnershipUnavailable
from coopconsume.fenced.log import json_object
from coopconsume.fenced.ownership.model import AccessMode, Holder, Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


T = TypeVar("T")
FORMAT: Final = 1
"""Version of the format; a reader does not accept other versions."""
#: Later changes add to a number, which must stay below 2**63.
_LARGEST: Final = 2**62

plain: Final = asdict
"""Returns a row or an entry as a JSON object."""


@contextmanager
def reporting(place: str, operation: str, *errors: type[Exception]) -> Iterator[None]:
    """Raises errors of a store's client as `OwnershipUnavailable`."""
    try:
        yield
    except errors as error:
        problem = message_of(error) or type(error).__name__
        raise OwnershipUnavailable(place, operation, problem) from error


def dumps(document: Any) -> bytes:
    """Returns compact JSON."""
    return json.dumps(document, separators=(",", ":")).encode()


def loads(place: str, text: bytes | str | None) -> dict[str, Any]:
    """Parses a JSON object of this format.

    Raises:
        OwnershipFormat: It is something else.
    """
    expected = "what an ownership store writes"
    try:
        found = json_object(text)
    except ValueError:
        raise OwnershipFormat(place, "no JSON object", expected) from None
    if found.get("format") != FORMAT:
        named = f"format {found['format']}" if "format" in found else "other JSON"
        raise OwnershipFormat(place, named, f"format {FORMAT}: {expected}")
    return found


def is_newer(text: bytes | str | None) -> bool:
    """Whether a newer version of this library wrote a change or a snapshot."""
    try:
        found = json_object(text)
    except ValueError:
        return False
    version = found.get("format")
    return found.get("kind") in ("change", "snapshot") and type(version) is int and version > FORMAT


def parsed(kind: type[T], place: str, found: Mapping[str, Any]) -> T:
    """Parses a `Row` or an `Entry`.

    Raises:
        OwnershipFormat: It is something else.
    """
    try:
        return _parsed(kind, found)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{kind.__name__} with {type(error).__name__} {error}"
        raise OwnershipFormat(place, problem, f"{kind.__name__} of the registry") from None


def _parsed(kind: type[T], found: Mapping[str, Any]) -> T:
    """Parses a dataclass; each value must have the type of its field.

    Raises:
        KeyError, TypeError, ValueError: A field is missing, unknown or has another type.
    """
    types = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _value(name, types[name], value) for name, value in found.items()})


def _value(name: str, kind: str, value: Any) -> Any:
    if value is None and kind.endswith(" | None"):
        return None
    kind = kind.removesuffix(" | None")
    if kind == "tuple[Holder, ...]":
        return tuple(_value(name, "Holder", each) for each in value)
    if kind in ("Holder", "Session"):
        return _parsed(Holder if kind == "Holder" else Session, value)
    if kind == "AccessMode":
        return AccessMode(value)
    if kind == "int":
        return number(name, value)
    if type(value) is not str:
        raise TypeError(f"{name} {value!r}")
    return value


def number(name: str, value: Any) -> int:
    """Returns a number of the format.

    Raises:
        TypeError: It is not an integer from 0 to 2**62.
    """
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise TypeError(f"{name} {value!r}")
    return value
