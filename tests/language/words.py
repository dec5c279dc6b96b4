"""Finds banned words in a text: in prose over line ends, in snake_case and in camelCase."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

# Between two words of a phrase: an underscore, spaces, a line's end with the next comment's sign.
_BETWEEN = r"(?:_|[ \t]+|[ \t]*\n[ \t]*(?:#:?|>|[*-])?[ \t]*)"
_NO_LETTERS = re.compile(r"[^a-z]+")


@dataclass(frozen=True)
class Finding:
    """A banned word in a text.

    Attributes:
        line: Its line, from 1.
        found: The words as the text has them.
        instead: What to write instead.
    """

    line: int
    found: str
    instead: str


class Words:
    """The banned words, compiled once.

    Args:
        banned: Words and phrases, of letters in lower case, by what to write instead.
        allowed: Phrases in which they are right.
    """

    def __init__(self, banned: Mapping[str, Iterable[str]], allowed: Iterable[str] = ()) -> None:
        self._instead = {phrase: why for why, phrases in banned.items() for phrase in phrases}
        self._banned = {phrase: re.compile(_pattern(phrase)) for phrase in self._instead}
        phrases = "|".join(map(re.escape, sorted(allowed, key=len, reverse=True)))
        self._allowed = re.compile(phrases or "(?!)", re.IGNORECASE)

    def find(self, text: str) -> Iterator[Finding]:
        """Yield each banned word of a text, in order."""
        text = self._allowed.sub("·", text)  # allowed phrases have no line break
        letters, end = _NO_LETTERS.sub(" ", text.lower()), 0
        # A search for plain text is much faster, and most texts have few of the phrases.
        matches = (
            match
            for phrase, pattern in self._banned.items()
            if phrase in letters
            for match in pattern.finditer(text)
        )
        for match in sorted(matches, key=lambda match: (match.start(), -match.end())):
            if match.start() < end:
                continue  # part of a longer phrase
            end = match.end()
            found = " ".join(re.split(r"[\s_#:>*-]+", match[0]))
            line = text.count("\n", 0, match.start()) + 1
            yield Finding(line, found, self._instead[found.lower()])


def _pattern(phrase: str) -> str:
    """Match a phrase in prose and snake_case, or as words of a camelCase or SHOUTED name."""
    words = [re.escape(word) for word in phrase.split()]
    capital = "".join(word.capitalize() for word in words) if len(words) == 1 else None
    first, *rest = words
    prose = _BETWEEN.join([f"[{first[0]}{first[0].upper()}]{first[1:]}", *rest])
    ways = [rf"(?<![A-Za-z]){prose}(?![a-z])", rf"(?<![A-Za-z]){phrase.upper()}(?![A-Za-z])"]
    if capital:
        ways.append(rf"(?<=[a-z]){capital}(?![a-z])")
    return f"(?:{'|'.join(ways)})"
