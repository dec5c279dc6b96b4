"""The command line ``coopconsume``."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

import click

from coopconsume import __version__
from coopconsume.cli.exit_codes import EXIT_CODES

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

__all__ = ["main"]

#: The sections of --help, and the commands of each in this order, each with its module.
_SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Jobs": {"run": "run", "doctor": "doctor", "demo": "demo", "broker": "broker"},
    "Groups of jobs": {
        "groups": "groups",
        "lag": "offsets",
        "offsets": "offsets",
        "records": "records",
        "dead-letters": "dead_letters",
        "ui": "ui",
        "exporter": "exporter",
        "topics": "topics",
        "state": "state",
        "store": "store",
    },
    "Fenced logs and work queues, without Spark": {
        "log": "log",
        "owners": "owners",
        "queue": "queue",
    },
}


class _Commands(Mapping[str, click.Command]):
    """The commands by their names; each is imported when it is asked for."""

    def __init__(self) -> None:
        self._modules = {
            name: module for section in _SECTIONS.values() for name, module in section.items()
        }

    def __getitem__(self, name: str) -> click.Command:
        module = import_module(f"{__name__}.{self._modules[name]}")
        command: click.Command = getattr(module, name.replace("-", "_"))
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class _Program(click.Group):
    """The program, whose text any terminal shows, and whose commands are in sections."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands of each section."""
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        for title, section in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(width)) for name in section]
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; an option of the consumer that is written as a flag is named with -o."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            from coopconsume.kafka.settings import spelling
            from coopconsume.options import TABLE

            takes = error.ctx.command.params if error.ctx else []
            names = {spelling(option.name): option.name for option in TABLE if option.is_listed}
            name = names.get(spelling(error.option_name))
            if name is not None and any("-o" in parameter.opts for parameter in takes):
                found = f"No such option {error.option_name!r}: write it as -o {name}=…"
                raise click.NoSuchOption(error.option_name, found, ctx=error.ctx) from None
            raise

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it; what the terminal's encoding lacks, such as an ellipsis, is shown as "?"."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        return super().main(*args, **kwargs)


@click.group(
    cls=_Program,
    # Click asks it for names and commands, and adds none.
    commands=cast("MutableMapping[str, click.Command]", _Commands()),
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="coopconsume %(version)s")
def main() -> None:
    """Cooperative consumption of Kafka on Spark.

    Many workers share a partition and keep the order of each key. Each record is committed
    individually.
    """
