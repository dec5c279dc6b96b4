"""Options that are unknown, missing or wrong."""

from __future__ import annotations

from coopconsume.errors.base import CoopConsumeError


class OptionError(CoopConsumeError, ValueError):
    """An option is unknown, missing or not what it must be."""


class UnknownOption(OptionError):
    """No option of that name.

    Attributes:
        name: The option as given.
        closest: The known name nearest to it, if any is near.
    """

    def __init__(self, name: str, closest: str | None = None) -> None:
        super().__init__(name, closest)
        self.name = name
        self.closest = closest

    def __str__(self) -> str:
        hint = f"did you mean {self.closest!r}?" if self.closest else "see coopconsume run --help"
        return f"unknown option {self.name!r}: {hint}"


class InvalidOption(OptionError):
    """An option's value is of the wrong type or out of its range.

    Attributes:
        name: The option.
        found: What was given, in words.
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
    """An option that must be given is not there.

    Attributes:
        name: The option.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"option {self.name!r} is missing and has no default: give it"
