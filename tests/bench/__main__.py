"""``python -m tests.bench [name …] [--quick] [--markdown] [--turns N] [--update FILE]``."""

from __future__ import annotations

import datetime as dt
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tests.bench.commit import commit
from tests.bench.cycle import cycle
from tests.bench.fenced import fenced
from tests.bench.figures import WARM_UPS
from tests.bench.ground import prepared, surroundings
from tests.bench.group import group
from tests.bench.owners import owners
from tests.bench.processing import processing
from tests.bench.sleep import sleep
from tests.bench.slots import slots
from tests.bench.store import store
from tests.bench.throughput import throughput

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.figures import WARM_UPS, Report
from tests.bench.ground import Ground

_BENCHMARKS: dict[str, Callable[[Ground, Callable[[str], None]], list[Report]]] = {
    "throughput": throughput,
    "sleep": sleep,
    "cycle": cycle,
    "commit": commit,
    "group": group,
    "store": store,
    "fenced": fenced,
    "owners": owners,
    "slots": slots,
    "processing": processing,
}
_PLACE = re.compile(r"(<!-- bench:begin -->\n).*?(<!-- bench:end -->)", re.DOTALL)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(_BENCHMARKS)))
@click.option("--quick", is_flag=True, help="Small sizes and two turns: to see that all works.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--turns", type=click.IntRange(1), help="Turns that count [5].")
@click.option(
    "--update",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also put the Markdown between the bench marks of this file.",
)
def main(
    names: tuple[str, ...], turns: int | None, update: Path | None, *, quick: bool, markdown: bool
) -> None:
    """Measure against plain Spark, both sides in turn in one run; all benchmarks by default."""
    if update is not None and not _PLACE.search(update.read_text()):
        raise click.UsageError(f"{update} has no line <!-- bench:begin --> with an end after it")
    turns = turns or (2 if quick else 5)
    reports: list[Report] = []
    with prepared(turns, quick=quick) as ground:
        for name in dict.fromkeys(names or _BENCHMARKS):
            click.echo(f"{name} …", err=True)
            reports += _BENCHMARKS[name](ground, _say)
    command = " ".join(["python -m tests.bench", *names, *(["--quick"] if quick else [])])
    head = (
        f"`{command}`, {dt.datetime.now(dt.UTC):%Y-%m-%d}: medians of {turns} turns after "
        f"{WARM_UPS} for warmth, all sides in turn. {surroundings()}."
    )
    click.echo("\n\n".join([head, *(report.render(markdown=markdown) for report in reports)]))
    if update is not None:
        body = "\n\n".join([head, *(report.render(markdown=True) for report in reports)])
        update.write_text(
            _PLACE.sub(lambda found: f"{found[1]}{body}\n{found[2]}", update.read_text())
        )


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    sys.exit(main())
