"""Errors of options that are unknown, missing or invalid."""

from __future__ import annotations

from commits.declared import Declared
from coopconsume.errors.base import CoopConsumeError


class OptionError(CoopConsumeError, ValueError):
    """An option is unknown, missing or invalid."""


class UnknownOption(OptionError):
    """No option has this name.

    Attributes:
        name: The option as given; of several unknown options the first one.
        closest: The most similar known name; None if no name is similar.
        more: The other unknown options, each with the most similar known name.
    """

    def __init__(
        self, name: str, closest: str | None = None, *more: tuple[str, str | None]
    ) -> None:
        super().__init__(name, closest, *more)
        self.name = name
        self.closest = closest
        self.more = more

    def __str__(self) -> str:
        options = ((self.name, self.closest), *self.more)
        return "; ".join(
            f"unknown option {name!r}: "
            + (f"did you mean {closest!r}?" if closest else "see coopconsume run --help")
            for name, closest in options
        )


class InvalidOption(Declared, OptionError):
    """The value of an option has the wrong type or is out of range.

    Attributes:
        name: The option.
        found: The given value, as text.
        remedy: What to give instead.
    """

    message = "option {name} = {found}: {remedy}"

    name: str
    found: str
    remedy: str


class MissingOption(OptionError):
    """Required options are missing.

    Attributes:
        name: The first one.
        names: All of them.
    """

    def __init__(self, name: str, *more: str) -> None:
        super().__init__(name, *more)
        self.name = name
        self.names = (name, *more)

    def __str__(self) -> str:
        if len(self.names) == 1:
            return f"option {self.name!r} is missing and has no default: give it"
        names = ", ".join(map(repr, self.names))
        return f"options {names} are missing and have no default: give them"


class OptionsFileError(Declared, OptionError):
    """A file of options cannot be used: a name is unknown, a value or the syntax is not valid.

    Attributes:
        file: The file.
        problems: Each with its line, what was found and what to do.
    """

    file: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {'; '.join(self.problems)}"
