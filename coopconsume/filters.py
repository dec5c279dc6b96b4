"""Which records reach a handler or a frame: the filter options as one value and as Spark SQL."""

from __future__ import annotations

import binascii
import hashlib
import json
import re
from base64 import b64decode
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assignors import MAX_KEY_HASH, key_hash
from coopconsume.errors.options import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Keys and prefixes that a filter may list. Spark parses them for each batch.
MOST_KEYS = 10_000
MOST_PREFIXES = 100
#: Keys up to this number are compared one by one; more are looked up by their hash.
_COMPARED = 32
#: Keys in a bucket of that table, on average.
_BUCKET = 4
#: Longer lists and expressions are described by their size and digest.
_SHOWN_KEYS = 10
_SHOWN_CHARACTERS = 500

_DECODERS: Mapping[str, Callable[[str], bytes]] = {
    "text": str.encode,
    "hex": bytes.fromhex,
    "base64": lambda text: b64decode(text, validate=True),
}
#: Encodings of keys in the options.
KEY_ENCODINGS = tuple(_DECODERS)


@dataclass(frozen=True)
class KeySet:
    """Keys by value and by prefix.

    Attributes:
        keys: The keys, sorted.
        prefixes: The prefixes, sorted.
    """

    keys: tuple[bytes, ...] = ()
    prefixes: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.keys or self.prefixes)

    def __str__(self) -> str:
        """Returns a text that is the same for equal sets alone."""
        each = [_shown(key) for key in self.keys] + [f"{_shown(one)}*" for one in self.prefixes]
        return (
            _digested(", ".join(each), len(each), "keys")
            if len(each) > _SHOWN_KEYS
            else (", ".join(each))
        )

    def has(self, key: bytes | None) -> bool:
        """Returns whether a key is one of them; false for a record without a key."""
        if key is None:
            return False
        at = bisect_left(self.keys, key)
        is_listed = at < len(self.keys) and self.keys[at] == key
        return is_listed or key.startswith(self.prefixes)

    def sql(self) -> str:
        """Returns whether the column ``key`` is one of them; false for a null key."""
        each = []
        if len(self.keys) > _COMPARED:
            each.append(_looked_up(self.keys))
        elif self.keys:
            each.append(f"key IN ({', '.join(map(_binary, self.keys))})")
        each += [f"startswith(key, {_binary(prefix)})" for prefix in self.prefixes]
        return f"coalesce({' OR '.join(each)}, false)"


@dataclass(frozen=True)
class RecordFilter:
    """Which records pass: those that meet every condition. Without conditions all do.

    Attributes:
        allow: The keys that pass; empty: all keys, and records without a key.
        deny: The keys that do not pass.
        min_bytes: The least size of key and value together.
        max_bytes: The largest size of key and value together; None: no limit.
        headers: Names and values: for each, a header of the record has this name and value.
        where: A Spark SQL expression over the columns of Spark's Kafka source; null means false.
    """

    allow: KeySet = KeySet()
    deny: KeySet = KeySet()
    min_bytes: int = 0
    max_bytes: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    where: str | None = None

    def __bool__(self) -> bool:
        """Whether there are conditions."""
        return self != RecordFilter()

    def __str__(self) -> str:
        """Returns the conditions in the words of the options; the same for equal filters alone."""
        most, where = self.max_bytes, self.where or ""
        headers = json.dumps({name: _shown(value) for name, value in self.headers})
        shown = {
            "allowKeys": str(self.allow) if self.allow else "",
            "denyKeys": str(self.deny) if self.deny else "",
            "minRecordBytes": f"{self.min_bytes}" if self.min_bytes else "",
            "maxRecordBytes": "" if most is None else f"{most}",
            "headerEquals": headers if self.headers else "",
            "where": where
            if len(where) <= _SHOWN_CHARACTERS
            else _digested(where, len(where), "characters"),
        }
        return "; ".join(f"{name}={text}" for name, text in shown.items() if text)

    @property
    def needs_headers(self) -> bool:
        """Whether records have to be read with their headers."""
        return bool(self.headers) or "headers" in map(str.lower, words_of(self.where or ""))

    def passes(
        self, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
    ) -> bool:
        """Returns whether a record passes; ``where`` is for Spark alone, and not looked at."""
        if self.allow and not self.allow.has(key):
            return False
        if self.deny and self.deny.has(key):
            return False
        size = len(key or b"") + len(value or b"")
        if size < self.min_bytes or (self.max_bytes is not None and size > self.max_bytes):
            return False
        return not self.headers or set(self.headers) <= set(headers)

    def to_json(self) -> list[Any]:
        """Returns it as values that JSON has, without ``where``."""
        sets = [
            [[one.hex() for one in each] for each in (of.keys, of.prefixes)]
            for of in (self.allow, self.deny)
        ]
        headers = [[name, value.hex()] for name, value in self.headers]
        return [*sets, self.min_bytes, self.max_bytes, headers]

    @classmethod
    def from_json(cls, values: list[Any]) -> RecordFilter:
        """The inverse of `to_json`."""
        allow, deny, least, most, headers = values
        return cls(
            _key_set_of(allow),
            _key_set_of(deny),
            least,
            most,
            tuple((name, bytes.fromhex(value)) for name, value in headers),
        )

    def sql(self) -> str:
        """Returns the condition over the columns of Spark's Kafka source: true or false."""
        each = []
        if self.allow:
            each.append(self.allow.sql())
        if self.deny:
            each.append(f"NOT {self.deny.sql()}")
        size = "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)"
        if self.min_bytes:
            each.append(f"{size} >= {self.min_bytes}L")
        if self.max_bytes is not None:
            each.append(f"{size} <= {self.max_bytes}L")
        each += [
            f"coalesce(exists(headers, h -> h.key = CAST({_binary(name.encode())} AS STRING) "
            f"AND h.value = {_binary(value)}), false)"
            for name, value in self.headers
        ]
        if self.where is not None:
            # The end of the line ends a comment.
            each.append(f"coalesce(({self.where}\n), false)")
        return " AND ".join(f"({one})" for one in each) or "true"


def _key_set_of(values: list[list[str]]) -> KeySet:
    keys, prefixes = (tuple(bytes.fromhex(one) for one in each) for each in values)
    return KeySet(keys, prefixes)


def parse_filter(values: Mapping[str, Any]) -> RecordFilter:
    """Returns the filter that the options describe.

    Args:
        values: The values of the filter options by the names of the fields of `Options`. Files are
            read here, once.

    Raises:
        InvalidOption: A key cannot be decoded, a file cannot be read or has no keys, there are too
            many keys, sizes contradict each other, or the expression depends on more than the
            record.
    """
    least, most = values["min_record_bytes"] or 0, values["max_record_bytes"]
    if most is not None and least > most:
        raise InvalidOption("minRecordBytes", f"{least}", f"give at most maxRecordBytes ({most})")
    encoding = values["key_encoding"]
    return RecordFilter(
        _key_set("allow", values, encoding),
        _key_set("deny", values, encoding),
        min_bytes=least,
        max_bytes=most,
        headers=tuple(sorted((name, value.encode()) for name, value in values["header_equals"])),
        where=checked_expression("where", values["where"], "passes again"),
    )


def _key_set(kind: str, values: Mapping[str, Any], encoding: str) -> KeySet:
    keys = _decoded(f"{kind}Keys", values[f"{kind}_keys"] or (), encoding)
    place = values[f"{kind}_keys_file"]
    if place is not None:
        keys += _decoded(f"{kind}KeysFile", _lines(f"{kind}KeysFile", place), encoding)
    prefixes = _decoded(f"{kind}KeyPrefixes", values[f"{kind}_key_prefixes"] or (), encoding)
    found = KeySet(tuple(sorted(set(keys))), tuple(sorted(set(prefixes))))
    name = f"{kind}KeysFile" if place else f"{kind}Keys"
    for option, count, most in (
        (name, len(found.keys), MOST_KEYS),
        (f"{kind}KeyPrefixes", len(found.prefixes), MOST_PREFIXES),
    ):
        if count > most:
            remedy = f"give at most {most:,}, or a condition in where"
            raise InvalidOption(option, f"{count:,} of them", remedy)
    return found


def _lines(name: str, place: str) -> list[str]:
    try:
        text = Path(place).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        remedy = f"give a UTF-8 file with one key a line; it cannot be read: {why}"
        raise InvalidOption(name, repr(str(place)), remedy) from None
    # Only a line feed ends a line: a key may have other separators.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if not any(lines):
        raise InvalidOption(name, repr(str(place)), "give a file that has keys, one a line")
    return [line for line in lines if line]


def _decoded(name: str, texts: Iterable[str], encoding: str) -> list[bytes]:
    found = []
    for text in texts:
        try:
            found.append(_DECODERS[encoding](text))
        except (ValueError, binascii.Error) as error:
            remedy = f"give keys as {encoding} (keyEncoding): {error}"
            raise InvalidOption(name, repr(text), remedy) from None
    return found


# -- the expression

_TOKENS = re.compile(
    r"""(?P<text>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")"""
    r"""|(?P<quoted>`(?:[^`]|``)*`)|(?P<comment>--[^\n]*|/\*.*?\*/|\s+)"""
    r"""|(?P<word>[A-Za-z_]\w*)|(?P<other>.)""",
    re.DOTALL,
)
#: Functions whose result is not given by their arguments alone.
_VARYING = frozenset(
    {
        "curdate", "getdate", "input_file_block_length", "input_file_block_start",
        "input_file_name", "java_method", "monotonically_increasing_id", "now", "rand", "randn",
        "random", "randstr", "reflect", "shuffle", "spark_partition_id", "try_reflect", "uniform",
        "uuid",
    }
)  # fmt: skip
#: The same, written without parentheses, too.
_VARYING_WORDS = frozenset(
    {
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "localtimestamp",
        "session_user",
        "user",
    }
)
#: The current time, if they have no arguments.
_NOW = frozenset({"to_unix_timestamp", "unix_timestamp"})
_QUERIES = frozenset({"select", "table", "values"})
#: Texts that Spark takes from the clock, with a time zone or without, wherever they become a date
#: or a timestamp. That may be without a cast: ``timestamp > 'today'``.
_SPECIAL = re.compile(r"(now|today|tomorrow|yesterday)(\s.*|[+-]\d.*)?", re.DOTALL)


def words_of(expression: str) -> list[str]:
    """Returns names and quoted names of an expression, without the quotes; texts are left out."""
    return [
        text.strip("`")
        for found in _TOKENS.finditer(expression)
        if found.lastgroup in ("word", "quoted") and (text := found.group())
    ]


def varying_part(expression: str) -> str | None:
    """Returns a part of an expression whose value may change between two reads of a record.

    Functions of the session's own are looked for by Spark (see `check_filter`).

    Returns:
        The name, or the text of a literal; None if there is no such part.
    """
    tokens = [
        (found.lastgroup, found.group())
        for found in _TOKENS.finditer(expression)
        if found.lastgroup != "comment"
    ]
    plain = [text.lower() for _, text in tokens]
    for i, (kind, text) in enumerate(tokens):
        is_call = plain[i + 1 : i + 2] == ["("]
        name = plain[i].strip("`") if kind in ("word", "quoted") else ""
        is_varying = is_call and name in _VARYING
        is_now = name in _NOW and plain[i + 1 : i + 3] == ["(", ")"]
        is_word = kind == "word" and name in _VARYING_WORDS | _QUERIES
        if is_varying or is_now or is_word or (kind == "text" and _is_special(plain[i])):
            return text
    # Spark replaces it by a setting of the session, in texts as well.
    variable = re.search(r"\$\{\S+?\}", expression)
    return variable.group() if variable else None


def _is_special(literal: str) -> bool:
    """Whether Spark may take a literal, in lower case, from the clock, such as ``'today'``."""
    return _SPECIAL.fullmatch(literal.removeprefix("r")[1:-1].strip()) is not None


def checked_expression(name: str, expression: str | None, then: str) -> str | None:
    """Returns an expression that depends on the record alone, without surrounding spaces.

    Args:
        name: The option.
        expression: Its value.
        then: What holds of a record that is read again, for the error.

    Raises:
        InvalidOption: Its value may change between two reads of a record.
    """
    if expression is None:
        return None
    found = varying_part(expression)
    if found is not None:
        remedy = (
            f"it contains {found}: give an expression over the columns of the record alone, so "
            f"that a record that is read again {then}"
        )
        if found[-1] in "'\"":
            remedy += "; write a time as DATE'2025-01-31', and such a text as 'to' || 'day'"
        raise InvalidOption(name, repr(expression), remedy)
    return expression.strip()


def _looked_up(keys: tuple[bytes, ...]) -> str:
    """Returns whether the column ``key`` is one of many: one literal that Spark folds once.

    Spark takes seconds to parse ten thousand literals.
    """
    count = -(-len(keys) // _BUCKET)
    buckets: list[list[str]] = [[] for _ in range(count)]
    for key in keys:
        buckets[(key_hash(key) or 0) % count].append(f"{key.hex().upper()},")
    table = "|".join(f",{''.join(bucket)}" for bucket in buckets)
    number = f"CAST((xxhash64(key) & {MAX_KEY_HASH}L) % {count} AS INT) + 1"
    bucket = f"element_at(split('{table}', '[|]'), {number})"
    return f"contains({bucket}, concat(',', hex(key), ','))"


def _binary(data: bytes) -> str:
    return f"X'{data.hex()}'"


def _shown(data: bytes) -> str:
    """Returns bytes as text if they are a text without special characters; else as hex."""
    text = data.decode("utf-8", "replace")
    is_plain = text.isprintable() and not set(text) & set("\ufffd,;*")
    return text if text and is_plain and not text.startswith("0x") else f"0x{data.hex()}"


def _digested(text: str, count: int, what: str) -> str:
    return f"{count:,} {what} (sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"
