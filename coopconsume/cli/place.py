"""Options of commands: the Kafka cluster, the commit table and the output format."""

from __future__ import annotations

import functools
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coopconsume.admin.client import Admin
from coopconsume.admin.text import write
from coopconsume.cli.catalog import session_for
from coopconsume.cli.exit_codes import OK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from coopconsume.admin.tables import Table

_SHORT = {
    "bootstrap_servers": "kafka.bootstrap.servers",
    "commit_table": "commitTable",
    "dead_letter": "deadLetter",
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


consumer_options = click.option(
    "-o", "--option", "options", multiple=True, callback=pairs, metavar="KEY=VALUE",
    help="An option of the consumer, such as subscribe=flights; can be repeated.",
)  # fmt: skip
"""Adds the parameter ``options`` to a command: the options of a consumer."""

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
    """

    document: Callable[[], Any]
    parts: Iterable[str | Table]
    code: int = OK


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
        return found.code

    return with_output


def at_a_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``options`` to a command, with short forms for the Kafka cluster and the commit table.

    It also adds ``spark``: the session if the commit table or the table that it writes ``into`` is
    in a catalog, else None. Apply it below `reported`, so that errors of the session are reported.
    """

    @consumer_options
    @click.option("--bootstrap-servers", help="Short for -o kafka.bootstrap.servers=…")
    @click.option("--commit-table", metavar="PATH|NAME", help="Short for -o commitTable=…")
    @spark_conf_option
    @functools.wraps(command)
    def with_place(
        *args: Any, options: dict[str, str], spark_conf: dict[str, str], **kwargs: Any
    ) -> Any:
        _take_short_forms(options, kwargs)
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
        return command(*args, admin=Admin(options, spark=spark), **kwargs)

    return with_admin


def at_a_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``options`` of a Kafka cluster to a command, with a short form for its address."""

    @click.option(
        "-o", "--option", "options", multiple=True, callback=pairs, metavar="KEY=VALUE",
        help="A setting of the client, such as kafka.security.protocol=SSL; can be repeated.",
    )  # fmt: skip
    @click.option("--bootstrap-servers", help="Short for -o kafka.bootstrap.servers=…")
    @functools.wraps(command)
    def with_cluster(*args: Any, options: dict[str, str], **kwargs: Any) -> Any:
        _take_short_forms(options, kwargs)
        return command(*args, options=options, **kwargs)

    return with_cluster


def _take_short_forms(options: dict[str, str], given: dict[str, Any]) -> None:
    """Moves the values of short forms to the options."""
    names = {name.lower() for name in options}
    for word, name in _SHORT.items():
        value = given.pop(word, None)
        if value is None:
            continue
        if name.lower() in names:
            raise click.UsageError(f"--{word.replace('_', '-')} and -o {name}: give one of both")
        options[name] = value
