"""Options of a command: those of its command line, then those of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coopconsume.admin.tables import Table
from coopconsume.cli.properties import read_properties
from coopconsume.errors import OptionError, OptionsFileError
from coopconsume.fenced.config import REFUSED_SETTINGS as REFUSED_BY_LOGS
from coopconsume.kafka.settings import check_setting, kafka_name
from coopconsume.option_names import (
    CLIENT_SETTINGS,
    REFUSED_SETTINGS,
    WITHOUT_EFFECT,
    check_names,
    client_setting,
    shown_value,
)
from coopconsume.options import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BY_NAME: Final = {option.name.lower(): option for option in TABLE}
#: The names that a file may have, with and without ``kafka.``.
_LISTED: Final = [
    *(option.name for option in TABLE if option.is_listed),
    *sorted(CLIENT_SETTINGS),
    *(f"kafka.{setting}" for setting in sorted(CLIENT_SETTINGS)),
]


class GivenOption(NamedTuple):
    """An option, its value and where it was given."""

    name: str
    value: Any
    origin: str


class GivenOptions(dict[str, str]):
    """The options of a command, by the names that users gave.

    Attributes:
        on_command_line: Those of the command line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_command_line: dict[str, str] = {}
        #: By their full names in small letters.
        self._given: dict[str, GivenOption] = {}

    def give(self, name: str, value: str, origin: str) -> None:
        """Adds an option of the command line."""
        self.on_command_line[name] = value
        self._add(name, value, origin)

    def add_file(self, file: str, uses: Callable[[str], bool]) -> None:
        """Adds the options of a file that are not on the command line.

        Args:
            file: Its path.
            uses: Whether the command uses an option of this full name; it ignores the others.

        Raises:
            OptionsFileError: The file cannot be used; it names all lines whose options are unknown
                or not valid.
        """
        found: dict[str, GivenOption] = {}
        problems = []
        for line, name, value in read_properties(file):
            try:
                check_option(name, value)
            except OptionError as error:
                problems.append(f"line {line}: {error}")
            option = GivenOption(full_name(name), value, f"{file}:{line}")
            found[_key(option.name)] = option  # The last one counts, as in Java.
        if problems:
            raise OptionsFileError(file, tuple(problems))
        for key, option in found.items():
            if key not in self._given and uses(option.name):
                self._add(*option)

    def table(self, *, defaults: bool) -> list[GivenOption]:
        """Returns all options with where they were given, secrets starred.

        Args:
            defaults: Whether the defaults of the other options are included.
        """
        rows = list(self._given.values())
        if defaults:
            rows += [
                GivenOption(option.name, option.default, "default")
                for option in TABLE
                if option.is_listed
                and option.default not in (None, ())
                and _key(option.name) not in self._given
            ]
        return [
            option._replace(name=_declared_name(option.name), value=_text(option))
            for option in rows
        ]

    def _add(self, name: str, value: str, origin: str) -> None:
        earlier = self._given.get(_key(name))
        if earlier is not None:
            self.pop(earlier.name, None)
        self[name] = value
        self._given[_key(name)] = GivenOption(name, value, origin)


def option_table(rows: list[GivenOption]) -> Table:
    """Returns options as people read them."""
    return Table(("option", "value", "from"), rows)


def full_name(name: str) -> str:
    """Returns the name of an option in a file, where settings of clients may lack ``kafka.``."""
    setting = kafka_name(name)
    is_setting = setting in CLIENT_SETTINGS or setting in REFUSED_SETTINGS
    return f"kafka.{setting}" if is_setting else _declared_name(name)


def check_option(name: str, value: str) -> None:
    """Checks the name of an option in a file, and the value of an option of this library.

    Raises:
        UnknownOption: No such option; names the closest one.
        InvalidOption: It is refused, or its value is.
    """
    full = full_name(name)
    check_names({full: value}, _BY_NAME, _LISTED)
    setting = client_setting(full)
    if setting is not None:
        check_setting(setting, REFUSED_SETTINGS, CLIENT_SETTINGS)
        return
    _BY_NAME[full.lower()].read(value)


def check_given(options: Mapping[str, str]) -> None:
    """Checks the names of options as a consumer does.

    Raises:
        UnknownOption, InvalidOption: A name is unknown or refused.
    """
    listed = [name for name in _LISTED if name not in CLIENT_SETTINGS]
    check_names(options, _BY_NAME, listed)
    for setting in filter(None, map(client_setting, options)):
        check_setting(setting, REFUSED_SETTINGS, CLIENT_SETTINGS)


def used_by_jobs(_: str) -> bool:
    """Whether a job or an operator's command uses an option: all of them."""
    return True


def used_by_queues(name: str) -> bool:
    """Whether the commands of work queues use an option."""
    from coopconsume.queue.settings import OPTIONS_OF_QUEUES

    return client_setting(name) is not None or name in OPTIONS_OF_QUEUES


def used_by_logs(name: str) -> bool:
    """Whether the commands of fenced logs and owners use an option."""
    setting = client_setting(name)
    return setting is not None and setting not in WITHOUT_EFFECT.keys() | REFUSED_BY_LOGS.keys()


def used_by_state(name: str) -> bool:
    """Whether the commands that read state use an option."""
    return name == "commitTable"


def _key(name: str) -> str:
    """Returns what two names of one option have in common."""
    return _declared_name(name).lower()


def _declared_name(name: str) -> str:
    """Returns the name of an option as it is declared; unknown names are unchanged."""
    own, setting = _BY_NAME.get(name.lower()), client_setting(name)
    if own is not None:
        return own.name
    return name if setting is None else f"kafka.{setting}"


def _text(option: GivenOption) -> str:
    value = option.value
    if isinstance(value, bool):
        return str(value).lower()
    return str(shown_value(option.name, f"{value:g}" if isinstance(value, float) else value))


def documents(rows: list[GivenOption]) -> list[dict[str, str]]:
    """Returns options as JSON has them."""
    return [{"option": one.name, "value": one.value, "from": one.origin} for one in rows]
