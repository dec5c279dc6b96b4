"""One planted fault: an edit of one source file, and the tests that must fail under it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Tests in these folders need neither a broker nor Spark.
_FAST = ("tests/unit/", "tests/model/")


class StaleMutant(Exception):
    """A mutant does not apply to the sources as they are now."""


@dataclass(frozen=True)
class Mutant:
    """A planted fault.

    Attributes:
        name: Unique, in words joined by hyphens.
        rule: The rule that it breaks, as one sentence.
        file: The source file, from the repository's root.
        old: Text that the file contains exactly once.
        new: What replaces it.
        tests: Node ids of the tests that must fail, each by an assertion.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def is_fast(self) -> bool:
        """Whether none of its tests needs a broker or Spark."""
        return all(test.startswith(_FAST) for test in self.tests)

    def mutated(self, source: str) -> str:
        """Return the source file's text with the fault in it.

        Raises:
            StaleMutant: The old text is not there exactly once, or the result is not Python.
        """
        found = source.count(self.old)
        if found != 1:
            raise StaleMutant(
                f"mutant {self.name!r} needs an update: {self.file} contains its old text {found} "
                f"times, expected once: {self.old!r}"
            )
        text = source.replace(self.old, self.new)
        try:
            compile(text, self.file, "exec")
        except SyntaxError as error:
            raise StaleMutant(
                f"mutant {self.name!r} needs an update: {self.file} is no Python with it: {error}"
            ) from error
        return text

    def check(self, root: Path = ROOT) -> None:
        """Check that it applies and that the files of its tests define them.

        Raises:
            StaleMutant: It does not, or they do not.
        """
        self.mutated((root / self.file).read_text())
        for test in self.tests:
            path, _, name = test.partition("::")
            name = name.partition("::")[0].partition("[")[0]
            file = root / path
            text = file.read_text() if file.is_file() else ""
            if f"def {name}(" not in text and f"{name} = " not in text:
                raise StaleMutant(f"mutant {self.name!r} needs an update: there is no test {test}")
