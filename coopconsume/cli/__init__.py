"""The command line ``coopconsume``."""

from __future__ import annotations

import io
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from coopconsume.cli.broker import broker
from coopconsume.cli.dead_letters import dead_letters
from coopconsume.cli.demo import demo
from coopconsume.cli.exit_codes import EXIT_CODES
from coopconsume.cli.groups import groups
from coopconsume.cli.log import log
from coopconsume.cli.offsets import lag, offsets
from coopconsume.cli.owners import owners
from coopconsume.cli.queue import queue
from coopconsume.cli.records import records
from coopconsume.cli.run import run
from coopconsume.cli.state import state
from coopconsume.cli.store import store
from coopconsume.cli.topics import topics
from coopconsume.cli.ui import ui

__all__ = ["main"]

try:
    _VERSION = version("coopconsume")
except PackageNotFoundError:  # The package runs from a zip, as with spark-submit --py-files.
    _VERSION = "unknown"


class _Program(click.Group):
    """The program, whose text any terminal shows."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it; what the terminal's encoding lacks, such as an ellipsis, is shown as "?"."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        return super().main(*args, **kwargs)


@click.group(
    cls=_Program, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(_VERSION, message="coopconsume %(version)s")
def main() -> None:
    """Cooperative consumption of Kafka on Spark.

    Many workers share a partition and keep the order of each key. Each record is committed
    individually.
    """


main.add_command(demo)
main.add_command(broker)
main.add_command(run)
main.add_command(topics)
main.add_command(groups)
main.add_command(offsets)
main.add_command(lag)
main.add_command(records)
main.add_command(dead_letters)
main.add_command(ui)
main.add_command(state)
main.add_command(store)
main.add_command(log)
main.add_command(owners)
main.add_command(queue)
