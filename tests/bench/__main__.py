"""``python -m tests.bench [name …] [--quick] [--markdown] [--turns N] [--update FILE]``."""

from __future__ import annotations

import datetime as dt
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tests.bench.appends import appends
from tests.bench.assignors import assignors
from tests.bench.channel import channel
from tests.bench.commit import commit
from tests.bench.commit_groups import commit_groups
from tests.bench.cooperative import chunks, cooperative
from tests.bench.cycle import cycle
from tests.bench.empty import empty
from tests.bench.fenced import fenced
from tests.bench.figures import WARM_UPS
from tests.bench.group import group
from tests.bench.growth import growth
from tests.bench.harness import prepared, surroundings
from tests.bench.hot_key import hot_key
from tests.bench.owners import owners
from tests.bench.processing import processing
from tests.bench.queue import queue
from tests.bench.realtime import latency, realtime
from tests.bench.rebalances import rebalances
from tests.bench.relief import relief
from tests.bench.sleep import sleep
from tests.bench.slots import slots
from tests.bench.state import state
from tests.bench.store import store
from tests.bench.throughput import throughput
from tests.bench.typed import typed
from tests.bench.wide import wide

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.figures import Report
    from tests.bench.harness import Harness

_BENCHMARKS: dict[str, Callable[[Harness, Callable[[str], None]], list[Report]]] = {
    "throughput": throughput,
    "sleep": sleep,
    "cycle": cycle,
    "appends": appends,
    "commit": commit,
    "commit-groups": commit_groups,
    "assignors": assignors,
    "group": group,
    "channel": channel,
    "rebalances": rebalances,
    "relief": relief,
    "store": store,
    "growth": growth,
    "fenced": fenced,
    "owners": owners,
    "slots": slots,
    "typed": typed,
    "empty": empty,
    "processing": processing,
    "hot-key": hot_key,
    "realtime": realtime,
    "latency": latency,
    "state": state,
    "chunks": chunks,
    "cooperative": cooperative,
    "queue": queue,
    "wide": wide,
}
_PLACE = r"(<!-- bench:{0} -->\n).*?(<!-- end of bench:{0} -->)"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(_BENCHMARKS)))
@click.option("--quick", is_flag=True, help="Small sizes and two turns: to see that all works.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--turns", type=click.IntRange(1), help="Turns that count [5].")
@click.option(
    "--update",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also put the Markdown of each between its marks in this file.",
)
def main(
    names: tuple[str, ...], turns: int | None, update: Path | None, *, quick: bool, markdown: bool
) -> None:
    """Measure against plain Spark, both sides in turn in one run; all benchmarks by default."""
    chosen = list(dict.fromkeys(names or _BENCHMARKS))
    text = "" if update is None else update.read_text()
    for name in chosen if update is not None else ():
        if not re.search(_PLACE.format(name), text, re.DOTALL):
            raise click.UsageError(f"{update} has no line <!-- bench:{name} --> with an end to it")
    turns = turns or (2 if quick else 5)
    with prepared(turns, quick=quick) as harness:
        for name in chosen:
            click.echo(f"{name} …", err=True)
            reports = _BENCHMARKS[name](harness, _say)
            command = f"python -m tests.bench {name}{' --quick' if quick else ''}"
            warm = f"medians of {turns} turns after {WARM_UPS} for warmth"
            # Growth compares sizes of one thing, each measured several times by itself; latencies
            # leave out the first seconds of each turn.
            how = {
                "growth": "medians of several times",
                "latency": f"medians of {turns} turns, all sides in turn",
                "hot-key": f"medians of {turns} turns, each of a Spark of its own",
                "commit-groups": f"medians of {turns} turns after 1 for warmth",
            }.get(name, f"{warm}, all sides in turn; a ratio is the median of all turns'")
            head = f"`{command}`, {dt.datetime.now(dt.UTC):%Y-%m-%d}: {how}. {surroundings()}."
            click.echo(_text(head, reports, markdown=markdown))
            if update is not None:
                body = _text(head, reports, markdown=True)
                _put(update, name, body)


def _text(head: str, reports: list[Report], *, markdown: bool) -> str:
    return "\n\n".join([head, *(report.render(markdown=markdown) for report in reports)]) + "\n"


def _put(file: Path, name: str, body: str) -> None:
    place = re.compile(_PLACE.format(name), re.DOTALL)
    file.write_text(place.sub(lambda found: f"{found[1]}{body}\n{found[2]}", file.read_text()))


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    sys.exit(main())
