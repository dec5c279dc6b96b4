"""Files of options in the syntax of Java's ``Properties``, in UTF-8."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from coopconsume.errors import OptionsFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
#: A key, its separator and the blanks around it.
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
#: What Kafka's clients cut off a value: Java's `String.trim`.
_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))


class Property(NamedTuple):
    """A name with its value in a file.

    Attributes:
        line: The number of the line where it begins, from 1.
        name: The name.
        value: The value, without blanks and control characters at its ends.
    """

    line: int
    name: str
    value: str


def read_properties(file: str) -> list[Property]:
    """Returns what a file contains, in its order.

    Raises:
        OptionsFileError: The file cannot be read, is not UTF-8, or has an escape that is not valid.
    """
    try:
        text = Path(file).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise OptionsFileError(file, (f"it cannot be read: {error.strerror}",)) from error
    except UnicodeDecodeError as error:
        before: bytes = error.object[: error.start]
        line = len(_LINE_END.split(before.decode("utf-8-sig")))
        problem = f"line {line}: it is not UTF-8: save the file as UTF-8, or write \\uXXXX"
        raise OptionsFileError(file, (problem,)) from None
    found = []
    for line, content in _logical_lines(text):
        try:
            found.append(_property(line, content))
        except ValueError as error:
            raise OptionsFileError(file, (f"line {line}: {error}",)) from None
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines that are neither blank nor comments, with their continuations."""
    lines = enumerate(_LINE_END.split(text), 1)
    for number, line in lines:
        content = line.lstrip(_BLANKS)
        if content == "\\" or content.startswith(("#", "!")):
            continue  # A logical line begins with the first line that has a character of it.
        while _is_continued(content):
            _, following = next(lines, (0, ""))
            content = content[:-1] + following.lstrip(_BLANKS)
        if content:
            yield number, content


def _is_continued(line: str) -> bool:
    """Whether a line ends with a backslash that is not escaped itself."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _property(line: int, content: str) -> Property:
    key = _KEY.match(content)
    assert key is not None  # It matches everything.
    name, value = _unescaped(key[1]), _unescaped(content[key.end() :])
    return Property(line, name, value.strip(_TRIMMED))


def _unescaped(text: str) -> str:
    units = _ESCAPE.sub(_character, text)
    try:
        # Characters beyond U+FFFF are escaped as two units of UTF-16.
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ValueError("an escape \\uD8XX to \\uDFXX lacks its other half: give both") from None


def _character(escape: re.Match[str]) -> str:
    found = escape[1]
    if len(found) > 1:
        return chr(int(found[1:], 16))
    if found == "u":
        raise ValueError("an escape \\u has no four hexadecimal digits: write \\uXXXX, or \\\\u")
    return _LETTERS.get(found, found)
