"""Where an operator's command finds a cluster and a commit table (pure)."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from commits.secrets import hidden_in
from coopconsume.kafka.settings import is_harmless

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.options import Options

#: How the settings begin without which a client cannot connect.
_OF_CONNECTIONS: Final = ("security.", "sasl.", "ssl.")


def command_place(options: Options, table: str) -> str:
    """Returns the options of the next commands on a group, for a shell.

    Those of a command that got them from a file name the file; see `option_words` for others.

    Args:
        options: The options of this command, or of a consumer.
        table: The commit table.
    """
    return options.command_place or option_words(options.kafka, table)


def option_words(kafka: Mapping[str, str], table: str | None) -> str:
    """Returns the options of a command that name a cluster and a commit table, for a shell.

    Secrets are left out, and texts of several lines, such as certificates: they are read from the
    file of options, if there is one.

    Args:
        kafka: Settings of Kafka's clients.
        table: The commit table; None: it is not named.
    """
    words = []
    if "bootstrap.servers" in kafka:
        words += ["--bootstrap-servers", kafka["bootstrap.servers"]]
    if table is not None:
        words += ["--commit-table", hidden_in(table)]
    for name, value in sorted(kafka.items()):
        if name.startswith(_OF_CONNECTIONS) and is_harmless(name) and "\n" not in value:
            words += ["-o", f"kafka.{name}={value}"]
    return shlex.join(words)
