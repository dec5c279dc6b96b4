"""What commands have in common that serve something until they are interrupted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import click

from coopconsume.cli.exit_codes import FAILED, OK

if TYPE_CHECKING:
    from collections.abc import Callable


class _Server(Protocol):
    @property
    def is_open(self) -> bool: ...


def with_address(port: int, interval: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds ``host``, ``port`` and ``interval`` to a command.

    Args:
        port: The port by default.
        interval: Seconds between two readings of a group by default.
    """
    options = (
        click.option(
            "--host", default="127.0.0.1", show_default=True, help="The address to listen at."
        ),
        click.option(
            "--port", type=click.IntRange(0, 65_535), default=port, show_default=True,
            help="The port; 0 for any free one.",
        ),
        click.option(
            "--interval", type=click.FloatRange(0.1, 3600), default=interval, show_default=True,
            metavar="SECONDS", help="Time between two readings of a group.",
        ),
    )  # fmt: skip

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def serve(server: _Server, address: str) -> int:
    """Says where a server is, and waits until it ends or Ctrl-C comes; returns the exit code."""
    try:
        # Who has read the address may end it at once.
        click.echo(address)
        click.echo("Ctrl-C ends it.", err=True)
        while server.is_open:
            time.sleep(0.2)
    except KeyboardInterrupt:
        return OK
    return FAILED
