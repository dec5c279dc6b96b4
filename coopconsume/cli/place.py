"""Options of commands: the Kafka cluster, the commit table and the output format."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from coopconsume.admin.text import write
from coopconsume.cli.catalog import session_for
from coopconsume.cli.command_config import (
    GivenOptions,
    check_given,
    documents,
    full_name,
    option_table,
    used_by_jobs,
    used_by_logs,
)
from coopconsume.cli.exit_codes import OK
from coopconsume.command_place import option_words
from coopconsume.kafka.security.secrets import is_secret
from coopconsume.option_names import COMMAND_CONFIG, client_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from coopconsume.admin.tables import Part

#: Parameters that are short forms of options: how they are written, and the option.
SHORT_FORMS = {
    "bootstrap_servers": ("--bootstrap-servers", "kafka.bootstrap.servers"),
    "commit_table": ("--commit-table", "commitTable"),
    "consumer_group": ("--group", "kafka.group.id"),
    "dead_letter": ("--dead-letter", "deadLetter"),
}


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parses ``key=value`` pairs; the last value of a key counts."""
    found = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r}: write it as key=value", ctx, param)
        found[key] = rest
    return found


CONSUMER_OPTIONS = "An option of the consumer, such as subscribe=flights; can be repeated."
"""The help of ``-o`` where it takes the options of a consumer."""

spark_conf_option = click.option(
    "--spark-conf", multiple=True, callback=pairs, metavar="KEY=VALUE",
    help="A setting of the Spark session that opens a commit table in a catalog; can be repeated.",
)  # fmt: skip
"""Adds the parameter ``spark_conf`` to a command: settings of its Spark session."""

dead_letter_option = click.option(
    "--dead-letter",
    metavar="PATH|kafka:TOPIC",
    help="The table or topic of the dead letters; short for -o deadLetter=…",
)
"""Adds a short form for the destination of dead letters; apply it above `at_a_place`."""


class Shown(NamedTuple):
    """The result of a command.

    Attributes:
        document: Returns the result for JSON; only called for it, as it may be large.
        parts: The result as people read it.
        code: The exit code.
        hint: What to do next, for a person; it goes to standard error, below the result.
    """

    document: Callable[[], Any]
    parts: Iterable[Part]
    code: int = OK
    hint: str = ""


def shown(command: Callable[..., Shown]) -> Callable[..., int]:
    """Writes what a command returns to standard output, with ``--json`` as one JSON document.

    Apply it below all others, so that what the parts need is still open.
    """

    @click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
    @functools.wraps(command)
    def with_output(*args: Any, as_json: bool, **kwargs: Any) -> int:
        found = command(*args, **kwargs)
        if as_json:
            click.echo(json.dumps(found.document(), indent=2))
        else:
            write(found.parts, sys.stdout)
            if found.hint:
                sys.stdout.flush()
                click.echo(found.hint, err=True)
        return found.code

    return with_output


def with_options(
    help_text: str | None,
    *,
    uses: Callable[[str], bool] = used_by_jobs,
    defaults: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds ``options`` to a command, a `GivenOptions`.

    They come from the command line and from a file. Apply it below `reported`, above what uses
    ``options``, and below the short forms.

    Args:
        help_text: The help of ``-o``; None leaves it out.
        uses: Whether the command uses an option of a file, by its full name.
        defaults: Whether ``--print-options`` includes defaults.
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @command_config_options
        @functools.wraps(command)
        def with_given(
            *args: Any, command_config: str | None, print_options: bool, **kwargs: Any
        ) -> Any:
            options = _given(kwargs)
            if command_config is not None:
                options.add_file(command_config, uses)
                _name_file(command_config, options)
            if print_options:
                if uses is used_by_jobs:
                    check_given(options)
                    _give_group(options)
                _print(options, defaults=defaults, as_json=kwargs.get("as_json", False))
                return OK
            return command(*args, options=options, **kwargs)

        if help_text is None:
            return with_given
        option = click.option(
            "-o", "--option", "options", multiple=True, callback=pairs, metavar="KEY=VALUE",
            help=help_text,
        )  # fmt: skip
        return option(with_given)

    return decorated


def command_config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the file of options and ``--print-options`` to a command."""
    file = click.option(
        "--command-config", envvar=COMMAND_CONFIG, show_envvar=True, metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="A file of options, as of Kafka's tools (.properties); the command line counts first.",
    )  # fmt: skip
    printing = click.option(
        "--print-options", is_flag=True,
        help="Print the options that count and where they were given, secrets starred; then end.",
    )  # fmt: skip
    return file(printing(command))


def at_a_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``options`` to a command, with short forms for the Kafka cluster and the commit table.

    It also adds ``spark``: the session if the commit table or the table that it writes ``into`` is
    in a catalog, else None. Apply it below `reported`, so that errors of the session are reported.
    """

    @with_options(CONSUMER_OPTIONS)
    @click.option("--bootstrap-servers", help="Short for -o kafka.bootstrap.servers=…")
    @click.option("--commit-table", metavar="PATH|NAME", help="Short for -o commitTable=…")
    @spark_conf_option
    @functools.wraps(command)
    def with_place(
        *args: Any, options: GivenOptions, spark_conf: dict[str, str], **kwargs: Any
    ) -> Any:
        _name_session(spark_conf, options)
        with session_for(options, spark_conf, kwargs.get("into")) as spark:
            return command(*args, options=options, spark=spark, **kwargs)

    return with_place


def with_admin(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``admin``, an `Admin`, to a command, with the options of `at_a_place`."""

    @at_a_place
    @functools.wraps(command)
    def with_admin(
        *args: Any, options: dict[str, str], spark: SparkSession | None, **kwargs: Any
    ) -> Any:
        from coopconsume.admin.client import Admin

        return command(*args, admin=Admin(options, spark=spark), **kwargs)

    return with_admin


def at_a_cluster(
    command: Callable[..., Any], *, uses: Callable[[str], bool] = used_by_logs
) -> Callable[..., Any]:
    """Adds ``options`` of a Kafka cluster to a command, with a short form for its address."""
    text = "A setting of the client, such as kafka.security.protocol=SSL; can be repeated."
    short = click.option("--bootstrap-servers", help="Short for -o kafka.bootstrap.servers=…")
    return with_options(text, uses=uses)(short(command))


def _name_file(file: str, options: GivenOptions) -> None:
    """Has next commands name the file of the command line, and what is given beside it.

    A pipe, as of a program that knows the secrets, can be read once only.
    """
    source = click.get_current_context().get_parameter_source("command_config")
    if source is ParameterSource.COMMANDLINE and Path(file).is_file():
        words = shlex.join(["--command-config", file])
        options["commandPlace"] = f"{words} {_words(options.on_command_line)}".rstrip()


def _name_session(settings: dict[str, str], options: GivenOptions) -> None:
    """Has next commands name the settings of the session that a table in a catalog needs."""
    given = (f"{name}={value}" for name, value in settings.items() if not is_secret(name))
    words = [word for one in given for word in ("--spark-conf", one)]
    if words:
        place = options.get("commandPlace") or _words(options)
        options["commandPlace"] = f"{place} {shlex.join(words)}".lstrip()


def _words(given: Mapping[str, str]) -> str:
    """Returns what options say of a place, without secrets."""
    named = {full_name(name): value for name, value in given.items()}
    kafka = {client_setting(name) or "": value for name, value in named.items()}
    return option_words(kafka, named.get("commitTable"))


def _given(parameters: dict[str, Any]) -> GivenOptions:
    """Returns the options of a command line; removes them and short forms from the parameters."""
    options = GivenOptions()
    for name, value in parameters.pop("options", {}).items():
        options.give(name, value, "-o")
    names = {name.lower() for name in options}
    for word, (flag, name) in SHORT_FORMS.items():
        value = parameters.pop(word, None)
        if value is None:
            continue
        if name.lower() in names:
            raise click.UsageError(f"{flag} and -o {name}: give one of both")
        options.give(name, value, flag)
    return options


def _give_group(options: GivenOptions) -> None:
    """Adds the group that an operator's command is about, which counts before all options."""
    context = click.get_current_context()
    for parameter in context.command.params:
        group = context.params.get("group")
        if parameter.name == "group" and group is not None:
            is_option = isinstance(parameter, click.Option)
            origin = parameter.opts[0] if is_option else parameter.human_readable_name
            options.give("kafka.group.id", group, origin)


def _print(options: GivenOptions, *, defaults: bool, as_json: bool) -> None:
    rows = options.table(defaults=defaults)
    if as_json:
        click.echo(json.dumps(documents(rows), indent=2))
    else:
        write([option_table(rows)], sys.stdout)
