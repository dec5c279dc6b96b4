"""A process that fails if the start of a command loads what only its work needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from click.testing import CliRunner

from coopconsume.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

#: Each takes about as long to import as all that a command needs to show its help.
LIBRARIES = frozenset({
    "confluent_kafka", "deltalake", "kafka", "numpy", "obstore", "pandas", "prometheus_client",
    "pyarrow", "pyspark", "rich", "starlette", "uvicorn",
})  # fmt: skip


def call(*words: str, **env: str) -> str:
    """What a command writes, having loaded no library."""
    shown = CliRunner().invoke(main, words, prog_name="coopconsume", env=env)
    assert shown.exit_code == 0, (words, shown.output)
    loaded = {name.partition(".")[0] for name in sys.modules} & LIBRARIES
    assert not loaded, f"{words or env} has loaded {loaded}"
    return shown.output


def complete(line: str) -> str:
    """What Bash gets for a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    return call(_COOPCONSUME_COMPLETE="bash_complete", **words)


def loaded_commands() -> set[str]:
    """The modules of commands that are loaded."""
    names = {name.replace("-", "_") for name in main.commands}
    return {name for name in names if f"coopconsume.cli.{name}" in sys.modules}


def below(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """The words that call a command and those below it."""
    yield path
    for name, one in getattr(command, "commands", {}).items():
        yield from below(one, *path, name)


if __name__ == "__main__":
    assert call("--version").startswith("coopconsume ")
    assert loaded_commands() == set()
    assert complete("coopconsume expo") == "plain,exporter\n"
    assert complete("coopconsume lag --bootst") == "plain,--bootstrap-servers\n"
    call("lag", "--help")
    assert loaded_commands() == {"exporter", "offsets"}, loaded_commands()
    assert "  lag           Show the lag of each partition" in call("--help")
    for words in below(main):
        call(*words, "--help")
