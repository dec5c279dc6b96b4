"""Parser of ``sasl.jaas.config`` (one login module and its options) as in Kafka's Java client.

The rules are those of Java's ``StreamTokenizer``, so that both clients read the same values. Error
messages never contain the text, because it contains passwords.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from coopconsume.kafka.security.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TOKEN: Final = re.compile(
    r"""(?P<space>[\x00-\x20]+|//[^\r\n]*|/\*.*?\*/)
      | (?P<sign>[=;])
      | (?P<word>[A-Za-z_$\xa0-\U0010ffff][\w.$\-\xa0-\U0010ffff]*)
      | "(?P<double>(?:[^"\\\r\n]|\\[^\r\n])*)"
      | '(?P<single>(?:[^'\\\r\n]|\\[^\r\n])*)'
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)")
_CONTROL: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_WRITTEN: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


@dataclass(frozen=True)
class Login:
    """A login module and its options.

    Attributes:
        module: Class name of the module.
        options: Its options; they are not shown.
    """

    module: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def simple_name(self) -> str:
        """The module's class name without its package, which differs where jars are shaded."""
        return self.module.rpartition(".")[2]

    def __str__(self) -> str:
        """The text of ``sasl.jaas.config``."""
        options = "".join(f" {_word(name)}={_quoted(v)}" for name, v in self.options.items())
        return f"{self.module} required{options};"


def parse(text: str) -> Login:
    """Read the text of ``sasl.jaas.config``.

    Raises:
        ValueError: It is not one login module, its control flag, options and a semicolon. The
            message states what is wrong and contains no part of the text.
    """
    tokens = _tokens(text)
    module = next(tokens, None)
    if module is None:
        raise ValueError("it is empty")
    if module in _SIGNS:
        raise ValueError("it does not begin with the class name of a login module")
    if str(next(tokens, "")).lower() not in _FLAGS:
        raise ValueError("the word required does not follow the login module")
    options: dict[str, str] = {}
    while (name := next(tokens, None)) is not _SEMICOLON:
        if name is None:
            raise ValueError("there is no semicolon at its end")
        if name is _EQUALS:
            raise ValueError("a name is missing before an equals sign")
        if next(tokens, None) is not _EQUALS:
            raise ValueError("an option has no equals sign; values with spaces need quotes")
        value = next(tokens, None)
        if value is None or value in _SIGNS:
            raise ValueError("an option has no value")
        options[str(name)] = Secret(value)
    if next(tokens, None) is not None:
        raise ValueError("it continues after the semicolon; only one login module is allowed")
    return Login(str(module), options)


class _Sign:
    """A token that is no text."""


_EQUALS, _SEMICOLON = _Sign(), _Sign()
_SIGNS: Final = (_EQUALS, _SEMICOLON)


def _tokens(text: str) -> Iterator[str | _Sign]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            wrong = "an open quote" if text[at] in "\"'" else "a sign that needs quotes"
            raise ValueError(f'there is {wrong} in it: quote values as in name="value"')
        at = found.end()
        kind = found.lastgroup
        if kind == "sign":
            yield _EQUALS if found["sign"] == "=" else _SEMICOLON
        elif kind == "word":
            yield found["word"]
        elif kind != "space":
            yield _ESCAPE.sub(_unescaped, found[kind or ""])


def _unescaped(found: re.Match[str]) -> str:
    sign = found[1]
    if sign[0] in "01234567":
        return chr(int(sign, 8))
    return _CONTROL.get(sign, sign)


def _word(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", text) else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + "".join(_WRITTEN.get(sign, sign) for sign in text) + '"'
