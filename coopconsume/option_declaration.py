"""How an option is declared: its default, what it accepts, and what it means."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any

from coopconsume.errors import InvalidOption

if TYPE_CHECKING:
    from coopconsume.option_values import Values


@dataclass(frozen=True)
class Option:
    """The declaration of an option.

    Attributes:
        attribute: The name of the field of `Options`.
        name: The name that users give.
        default: The value if it is not given.
        values: What it accepts.
        doc: What it means.
        is_listed: Whether the documentation lists it.
    """

    attribute: str
    name: str
    default: Any
    values: Values
    doc: str
    is_listed: bool = True

    def read(self, value: Any) -> Any:
        """Returns the value of a text or number that a user gave; None stands for the default.

        Raises:
            InvalidOption: It is of the wrong type or out of its range.
        """
        if value is None:
            return self.default
        try:
            return self.values.parse(value)
        except (ValueError, TypeError) as error:
            hint = "give a whole number" if "invalid literal" in str(error) else str(error)
            raise InvalidOption(self.name, repr(value), hint) from None


def declare(
    default: Any, values: Values, doc: str, *, name: str | None = None, is_listed: bool = True
) -> Any:
    """Declares an option; its name is the field's in camelCase unless it is given."""
    more = {"values": values, "doc": doc, "name": name, "is_listed": is_listed}
    return field(default=default, metadata=more)


def declared(declaration: Field[Any]) -> Option:
    """Returns the option that a field declares."""
    first, *rest = declaration.name.split("_")
    camel_case = first + "".join(word.capitalize() for word in rest)
    more = dict(declaration.metadata)
    name = more.pop("name") or camel_case
    return Option(declaration.name, name, declaration.default, **more)
