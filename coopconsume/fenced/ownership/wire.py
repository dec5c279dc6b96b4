"""Rows and history entries of the registry as JSON. All stores use this format."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors.fenced import OwnershipFormat
from coopconsume.fenced.access import AccessMode
from coopconsume.fenced.log import json_object
from coopconsume.fenced.ownership.model import Entry, Holder, Row, Session

if TYPE_CHECKING:
    from collections.abc import Mapping


FORMAT: Final = 1
"""Version of the format; a reader does not accept other versions."""
#: Later changes add to a number, which must stay below 2**63.
_LARGEST: Final = 2**62

plain = asdict
"""Returns a row or an entry as a JSON object."""


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


def row_of(place: str, found: Mapping[str, Any]) -> Row:
    """Parses a row.

    Raises:
        OwnershipFormat: It is not a row.
    """
    try:
        return _parsed(Row, found)  # type: ignore[no-any-return]
    except (KeyError, TypeError, ValueError) as error:
        problem = f"a row with {type(error).__name__} {error}"
        raise OwnershipFormat(place, problem, "a row of the registry") from None


def entry_of(place: str, found: Mapping[str, Any]) -> Entry:
    """Parses a history entry.

    Raises:
        OwnershipFormat: It is not an entry.
    """
    try:
        return _parsed(Entry, found)  # type: ignore[no-any-return]
    except (KeyError, TypeError, ValueError) as error:
        raise OwnershipFormat(place, f"an entry: {error}", "a history entry") from None


def _parsed(kind: type, found: Mapping[str, Any]) -> Any:
    """Parses a dataclass; each value must have the type of its field.

    Raises:
        KeyError, TypeError, ValueError: A field is missing, unknown or has another type.
    """
    types = {field.name: str(field.type) for field in fields(kind)}
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
