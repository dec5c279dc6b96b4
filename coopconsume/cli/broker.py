"""``coopconsume broker``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click

from coopconsume.cli.exit_codes import EXIT_CODES, FAILED, OK, reported

if TYPE_CHECKING:
    from pathlib import Path

_LOOK_EVERY = 0.2


def _topics(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Parses ``name:partitions``, or ``name`` for one partition."""
    topics = {}
    for value in values:
        name, _, partitions = value.partition(":")
        count = int(partitions) if partitions.isdecimal() else 0 if partitions else 1
        if not name or count < 1:
            text = f"{value!r}: write it as name:partitions, such as flights:3"
            raise click.BadParameter(text, ctx, param)
        topics[name] = count
    return topics


@click.command(epilog=EXIT_CODES)
@click.option("--port", type=click.IntRange(1, 65535), help="Port [default: a free port].")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Data folder, kept at the end [default: a temporary folder, deleted at the end].",
)
@click.option(
    "--topic", "topics", multiple=True, callback=_topics, metavar="NAME[:PARTITIONS]",
    help="Create this topic if it does not exist; may be repeated.",
)  # fmt: skip
@reported
def broker(*, port: int | None, data_dir: Path | None, topics: dict[str, int]) -> int:
    """Run a Kafka broker on this machine until Ctrl-C.

    The first line on standard output is its address. The broker does not create topics
    automatically.
    """
    from kafka.errors import TopicAlreadyExistsError

    from coopconsume.testing.local.broker import LocalKafka

    kafka = LocalKafka(data_dir, port=port)
    try:
        kafka.start()
        for name, partitions in topics.items():
            try:
                kafka.create_topic(name, partitions)
            except TopicAlreadyExistsError:
                click.echo(f"topic {name} already exists", err=True)
        click.echo(kafka.bootstrap_servers)
        click.echo("Press Ctrl-C to stop the broker.", err=True)
        nothing = threading.Event()
        while kafka.is_running:
            nothing.wait(_LOOK_EVERY)
    except KeyboardInterrupt:
        click.echo("stopping the broker", err=True)
        return OK
    else:
        click.echo(f"the broker ended unexpectedly:\n{kafka.log_tail()}", err=True)
        return FAILED
    finally:
        kafka.close()
