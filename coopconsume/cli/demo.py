"""``coopconsume demo``."""

from __future__ import annotations

import json
import sys

import click

from coopconsume.cli.exit_codes import EXIT_CODES, reported
from coopconsume.demo.flights import FLIGHTS, LEAST, SHOWN
from coopconsume.monitoring.screen import Screen


@click.command(epilog=EXIT_CODES)
@click.option(
    "--records",
    type=click.IntRange(LEAST, FLIGHTS),
    default=SHOWN,
    show_default=True,
    help="Number of flights, the first of the year 2013.",
)
@click.option("--bootstrap-servers", help="Use this Kafka cluster instead of an embedded broker.")
@click.option("--json", "as_json", is_flag=True, help="Write the figures as one line of JSON.")
@click.option("--keep", is_flag=True, help="Keep the tables, the histories and the logs.")
@reported
def demo(*, records: int, bootstrap_servers: str | None, as_json: bool, keep: bool) -> None:
    """Run demo jobs on flights of 2013 and a real Kafka broker.

    It has four steps: process all flights with 4 slots; process them again with poison records and
    a slow aircraft; kill the whole job and start it again; check the results. The jobs are
    processes of `coopconsume run`. The figures are those of the killed run. With --json all other
    text goes to standard error.

    With --bootstrap-servers the flights go into a new topic, which is deleted at the end.
    """
    from coopconsume.demo.runner import Demo, DemoCheckFailed

    with Screen(sys.stderr if as_json else sys.stdout) as screen:
        outcome = Demo(screen, records=records, servers=bootstrap_servers, keep=keep).run()
    if as_json:
        click.echo(json.dumps(outcome.figures()))
    if outcome.problems:
        raise DemoCheckFailed(outcome.problems)
