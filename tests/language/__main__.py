"""Print each banned word in the files that are checked: `python -m tests.language`.

With paths as arguments, these files are checked instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.language.rules import ALLOWED, BANNED, CLEAN, EXEMPT
from tests.language.words import Words

ROOT = Path(__file__).parents[2]


def checked_files() -> Iterator[Path]:
    """Yield the Python and Markdown files that `CLEAN` names and `EXEMPT` does not."""
    for pattern in CLEAN:
        found = sorted(path for path in ROOT.glob(pattern) if path.suffix in {".py", ".md"})
        if not found:
            raise SystemExit(f"tests/language/rules.py: no file matches {pattern!r}")
        yield from (path for path in found if str(path.relative_to(ROOT)) not in EXEMPT)


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if there are any."""
    words = Words(BANNED, ALLOWED)
    failed = 0
    for path in [Path(each).absolute() for each in arguments] or checked_files():
        for finding in words.find(path.read_text()):
            failed = 1
            place = f"{path.relative_to(ROOT)}:{finding.line}"
            sys.stdout.write(f"{place}: {finding.found!r}: write plainly ({finding.instead})\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
