"""``coopconsume demo``."""

from __future__ import annotations

import json
import sys

import click

from coopconsume.cli.outcome import EXIT_CODES, reported
from coopconsume.demo.director import LEAST, Demo
from coopconsume.demo.errors import BooksDoNotBalance
from coopconsume.demo.flights import FLIGHTS
from coopconsume.monitoring.screen import Screen


@click.command(epilog=EXIT_CODES)
@click.option(
    "--records",
    type=click.IntRange(LEAST, FLIGHTS),
    default=FLIGHTS,
    show_default=True,
    help="How many of the year's flights.",
)
@click.option("--bootstrap-servers", help="Use this Kafka cluster instead of an embedded broker.")
@click.option("--json", "as_json", is_flag=True, help="End with the figures as one line of JSON.")
@click.option("--keep", is_flag=True, help="Keep the tables, the histories and the logs.")
@reported
def demo(*, records: int, bootstrap_servers: str | None, as_json: bool, keep: bool) -> None:
    """Show what this is, on a year of flights and a real Kafka.

    Four acts: all flights through 8 slots; the same on a bad day, with poison records and a slow
    aircraft; the whole job killed and started again; and the books of it all. The figures are
    those of the run that was killed. With --json all other text goes to standard error.

    On another cluster the flights go into a new topic, which is deleted at the end.
    """
    with Screen(sys.stderr if as_json else sys.stdout) as screen:
        outcome = Demo(screen, records=records, servers=bootstrap_servers, keep=keep).play()
    if as_json:
        click.echo(json.dumps(outcome.figures()))
    if outcome.complaints:
        raise BooksDoNotBalance(outcome.complaints)
