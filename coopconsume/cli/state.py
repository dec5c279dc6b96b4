"""``coopconsume state``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from coopconsume.cli.catalog import session_for
from coopconsume.cli.outcome import EXIT_CODES, FAILED, example, reported
from coopconsume.cli.place import as_json, echo_json, spark_conf_option
from coopconsume.cli.text import table
from coopconsume.state.reading import CommittedState

if TYPE_CHECKING:
    from collections.abc import Callable

_COLUMNS = ("TOPIC", "PARTITION", "KEY", "OFFSET", "VALUE")


@click.group(epilog=EXIT_CODES)
def state() -> None:
    """Show the state per key of a group, as its committed records left it."""


def _of_a_group(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a `CommittedState` to a command."""

    @click.argument("group")
    @click.option("--state", "path", metavar="PATH", required=True, help="The state of the job.")
    @click.option(
        "--commit-table", metavar="PATH|NAME", required=True, help="The commit table of the job."
    )
    @spark_conf_option
    @functools.wraps(command)
    def with_state(
        group: str, path: str, commit_table: str, spark_conf: dict[str, str], **kwargs: Any
    ) -> Any:
        with session_for({"commitTable": commit_table}, spark_conf, None) as spark:
            return command(CommittedState(path, commit_table, group, spark=spark), **kwargs)

    return with_state


@state.command(
    epilog=example(
        "coopconsume state get billing --state /data/totals --commit-table /data/commits "
        "--topic payments --key customer-7"
    )
)
@reported
@_of_a_group
@click.option("--topic", required=True, help="The topic of the key.")
@click.option("--key", required=True, help="The key, as text.")
@as_json
def get(committed: CommittedState, *, topic: str, key: str, as_json: bool) -> int | None:
    """Show the value of one key; exit code 1 if it has none."""
    value = committed.get(topic, key.encode())
    if as_json:
        echo_json(_plain(value))
    elif value is not None:
        click.echo(_plain(value))
    return None if value is not None else FAILED


@state.command(epilog=EXIT_CODES)
@reported
@_of_a_group
@click.option("--topic", help="Only the keys of this topic.")
@as_json
def dump(committed: CommittedState, *, topic: str | None, as_json: bool) -> None:
    """Show the values of all keys."""
    rows = committed.rows(topic).to_pylist()
    if as_json:
        echo_json([row | {"key": shown_key(row["key"]), "value": _plain(row["value"]),
                          "expires_at": _plain(row["expires_at"])} for row in rows])  # fmt: skip
        return
    cells = [
        (row["topic"], str(row["partition"]), shown_key(row["key"]), str(row["offset"]),
         str(_plain(row["value"]))) for row in rows
    ]  # fmt: skip
    for line in table(_COLUMNS, cells):
        click.echo(line)


def shown_key(key: bytes) -> str:
    """Returns a key or another value of bytes as text."""
    return key.decode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return shown_key(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)
