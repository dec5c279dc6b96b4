"""The values that options accept: how they are parsed and described, and one default."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coopconsume.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable

_UNLIMITED = 2**63 - 1
_COMMIT_INTERVAL = 0.04
#: Where a commit table costs money for each request, and a commit makes two.
_COMMIT_INTERVAL_ELSEWHERE = 0.2
_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0,
    "d": 86_400.0, "day": 86_400.0,
}  # fmt: skip


def parse_seconds(text: float | str) -> float:
    """Seconds from a number or a text such as ``10``, ``"10 seconds"``, ``"500ms"``.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    unit = found.group(2).lower() or "s" if found else ""
    if unit not in _UNITS:
        unit = unit.removesuffix("s")
    if not found or unit not in _UNITS:
        raise ValueError("give seconds, or a text such as '10 seconds' or '500ms'")
    return float(found.group(1)) * _UNITS[unit]


def seconds_of(name: str, text: float | str) -> float:
    """Returns the seconds that an option or an argument has.

    Raises:
        InvalidOption: `parse_seconds` does not take it.
    """
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InvalidOption(name, repr(text), str(error)) from None


def commit_interval_of(table: str | None) -> float:
    """Returns the usual ``commitInterval``: elsewhere than on a local disk each request costs."""
    from commits.places import is_named, local_folder

    is_local = not table or not (is_named(table) or local_folder(table) is None)
    return _COMMIT_INTERVAL if is_local else _COMMIT_INTERVAL_ELSEWHERE


@dataclass(frozen=True)
class Values:
    """The values that an option accepts.

    Attributes:
        text: A description for people.
        parse: Converts what a user gives; raises ValueError with what to give instead.
    """

    text: str
    parse: Callable[[Any], Any]


def _within(low: float, high: float) -> str:
    return f"{low:,} to {high:,}" if high < _UNLIMITED else f"from {low:,}"


def seconds(low: float, high: float = 86_400) -> Values:
    """Returns a time in a range; the parser takes what `parse_seconds` takes."""

    def parse(value: Any) -> float:
        number = parse_seconds(value)
        if not low <= number <= high:
            raise ValueError(f"give {low:g} to {high:g} seconds")
        return number

    return Values(f"seconds, {_within(low, high)}", parse)


def whole(low: int, high: int = _UNLIMITED) -> Values:
    """Returns whole numbers in a range."""

    def parse(value: Any) -> int:
        number = int(str(value))
        if not low <= number <= high:
            raise ValueError(f"give a whole number from {low} to {high}")
        return number

    return Values(f"number, {_within(low, high)}", parse)


def one_of(*names: str) -> Values:
    """Returns some names, which are compared without regard to case."""

    def parse(value: Any) -> str:
        for name in names:
            if str(value).lower() == name.lower():
                return name
        raise ValueError(f"give one of {', '.join(names)}")

    return Values(", ".join(names), parse)


def _rate(value: Any) -> float:
    rate = float(value)
    if not 0 < rate < float("inf"):
        raise ValueError("give a number above 0")
    return rate


def _flag(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("give true or false")
    return text == "true"


def _text(value: Any) -> str:
    if not str(value).strip():
        raise ValueError("give a text that is not empty")
    return str(value)


def _pattern(value: Any) -> str:
    try:
        re.compile(_text(value))
    except re.error as error:
        raise ValueError(f"give a regular expression that Python knows: {error}") from None
    return str(value)


def _place(value: Any) -> str:
    from commits.secrets import SecretUri

    return SecretUri(_text(value))


def _topics(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else list(value)
    topics = tuple(dict.fromkeys(str(name).strip() for name in names))
    if not topics or not all(topics):
        raise ValueError("give topic names separated by commas")
    return topics


def _keys(value: Any) -> tuple[str, ...]:
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("["):
        keys = json.loads(text)
    elif isinstance(value, str):
        keys = [key.strip() for key in value.split(",")]
    else:
        keys = list(value)
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise ValueError("give texts that are not empty, separated by commas or as a JSON list")
    return tuple(dict.fromkeys(keys))


def _headers(value: Any) -> tuple[tuple[str, str], ...]:
    remedy = 'give name=value, separated by commas, or JSON such as {"type": "order"}'
    if isinstance(value, str) and not value.strip().startswith("{"):
        pairs = [part.partition("=") for part in value.split(",")]
        if not all(equals and name.strip() for name, equals, _ in pairs):
            raise ValueError(remedy)
        found = {name.strip(): text.strip() for name, _, text in pairs}
    else:
        found = json.loads(value) if isinstance(value, str) else dict(value)
    if not found or not all(isinstance(v, str) and k for k, v in found.items()):
        raise ValueError(remedy)
    return tuple(found.items())


def _starting(value: Any) -> str | dict[str, dict[int, int]]:
    if str(value).lower() in ("earliest", "latest"):
        return str(value).lower()
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        starting = {str(t): {int(p): int(o) for p, o in ps.items()} for t, ps in parsed.items()}
    except (ValueError, AttributeError, TypeError):
        starting = {}
    if not starting or any(o < -2 for ps in starting.values() for o in ps.values()):  # noqa: PLR2004
        raise ValueError(
            'give earliest, latest or JSON such as {"topic": {"0": 23, "1": -2}} '
            "(-2 earliest, -1 latest)"
        )
    return starting


def _settings(value: Any) -> dict[str, str]:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        found = {str(name): _setting(one) for name, one in parsed.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError('give JSON such as {"retention.ms": "-1"}') from None
    return found


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise TypeError
    return str(value)


TOPICS = Values("names, separated by commas", _topics)
PATTERN = Values("regular expression (Python's)", _pattern)
STARTING = Values("earliest, latest or JSON", _starting)
FLAG = Values("true, false", _flag)
PLACE = Values("path, URI or name", _place)
FOLDER = Values("path or URI", _place)
DESTINATION = Values("path, URI or kafka:TOPIC", _place)
KEYS = Values("keys, separated by commas, or a JSON list", _keys)
FILE = Values("path of a file", _text)
WORDS = Values("words of a command line", _text)
HEADERS = Values("name=value, separated by commas, or JSON", _headers)
EXPRESSION = Values("Spark SQL expression", _text)
RATE = Values("number above 0", _rate)
SETTINGS = Values("JSON of Kafka's topic settings", _settings)
