"""The check of words: it finds names and prose, and leaves alone what only looks like them."""

from __future__ import annotations

import pytest

from tests.language.__main__ import ROOT, main
from tests.language.words import Words

WORDS = Words({"capacity": ["room"], "returns": ["is told", "told"], "no": ["is none"]}, [".room("])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("There is no room left", ["room"]),
        ("Room", ["Room"]),
        ("self._room = free_room", ["room", "room"]),
        ("class FreeRoom: MAX_ROOM = 1", ["Room", "ROOM"]),
        ("room2 = 1", ["room"]),
        ("# what it is\n    # told", ["is told"]),
        ("#: it is\n#: told", ["is told"]),
        ("def is_told(self)", ["is told"]),
        ("there is none", ["is none"]),
        ("if value is None", []),
        ("broom rooms bedroom", []),
        ("file.room(1)", []),
    ],
)
def test_words_are_found_in_prose_and_names_and_nowhere_else(text: str, found: list[str]) -> None:
    """A phrase is found over line ends and comment signs, in snake_case and in camelCase."""
    assert [each.found for each in WORDS.find(text)] == found


def test_a_finding_has_its_line_and_the_better_word() -> None:
    """The line is the one on which the phrase begins."""
    (finding,) = WORDS.find('"""Good.\n\nIt is\ntold.\n"""')
    assert (finding.line, finding.instead) == (3, "returns")


def test_a_file_with_a_banned_word_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """The list of the words itself cannot be clean."""
    assert main([str(ROOT / "tests/language/rules.py")]) == 1
    assert "'anew': write plainly (again, new)" in capsys.readouterr().out
