"""Errors of options that are unknown, missing or invalid."""

from __future__ import annotations

from coopconsume.errors.base import CoopConsumeError


class OptionError(CoopConsumeError, ValueError):
    """An option is unknown, missing or invalid."""


class UnknownOption(OptionError):
    """No option has this name.

    Attributes:
        name: The option as given.
        closest: The most similar known name; None if no name is similar.
    """

    def __init__(self, name: str, closest: str | None = None) -> None:
        super().__init__(name, closest)
        self.name = name
        self.closest = closest

    def __str__(self) -> str:
        hint = f"did you mean {self.closest!r}?" if self.closest else "see coopconsume run --help"
        return f"unknown option {self.name!r}: {hint}"


class InvalidOption(OptionError):
    """The value of an option has the wrong type or is out of range.

    Attributes:
        name: The option.
        found: The given value, as text.
        remedy: What to give instead.
    """

    def __init__(self, name: str, found: str, remedy: str) -> None:
        super().__init__(name, found, remedy)
        self.name = name
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        return f"option {self.name} = {self.found}: {self.remedy}"


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
