"""``coopconsume queue``."""

from __future__ import annotations

import dataclasses
import functools
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from coopconsume.admin.tables import Table, text_of
from coopconsume.cli.command_config import used_by_queues
from coopconsume.cli.exit_codes import EXIT_CODES, FAILED, OK, example, reported
from coopconsume.cli.place import Shown, at_a_cluster, shown
from coopconsume.queue import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.queue import QueueReplica
    from coopconsume.queue.inspection import QueueStatus


@click.group(epilog=EXIT_CODES)
def queue() -> None:
    """Use a topic as a work queue without order, and inspect it."""


def _replica(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[Any]:
    found: list[str | QueueReplica] = []
    for value in values:
        if "/" in value:
            found.append(value)
            continue
        topic, at, servers = value.partition("@")
        if not topic or (at and not servers):
            raise click.BadParameter(
                f"{value!r}: write it as TOPIC, TOPIC@SERVERS or PATH", ctx, param
            )
        found.append(_on_another_cluster(topic, servers) if at else topic)
    return found


def _on_another_cluster(topic: str, servers: str) -> QueueReplica:
    from coopconsume.queue import QueueReplica

    return QueueReplica(topic, {"kafka.bootstrap.servers": servers})


def _at_a_queue(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``topic``, ``replicas`` and ``options`` to a command."""

    @click.argument("topic")
    @click.option("--group", "consumer_group", help="Short for -o kafka.group.id=…")
    @click.option(
        "--replica", "replicas", multiple=True, callback=_replica, metavar="TOPIC[@SERVERS]|PATH",
        help="A replica of the queue: a topic, or the path or URI of a Delta table; repeat it in "
        "the order that all consumers use.",
    )  # fmt: skip
    @functools.wraps(command)
    def with_replicas(*args: Any, replicas: list[Any], **kwargs: Any) -> Any:
        return command(*args, replicas=replicas or None, **kwargs)

    return at_a_cluster(with_replicas, uses=used_by_queues)


@queue.command(
    epilog=example("coopconsume queue put orders one two --bootstrap-servers localhost:9092")
)
@click.argument("topic")
@click.argument("values", metavar="[VALUE...]", nargs=-1)
@reported
@functools.partial(at_a_cluster, uses=used_by_queues)
def put(*, topic: str, values: tuple[str, ...], options: dict[str, str]) -> None:
    """Write records to a topic: each VALUE, or without values each line of standard input."""
    from coopconsume.kafka.cluster import Cluster
    from coopconsume.kafka.producer import Message, Producer
    from coopconsume.options import Options

    parsed = Options.parse(options, group=False, table=False)
    with closing(Cluster(parsed)) as cluster:
        cluster.check_topics([topic])  # A producer would wait for a minute for it.
    lines = values or (line.rstrip("\n") for line in sys.stdin)
    with closing(Producer(parsed, "records")) as producer:
        messages = [Message(topic, None, line.encode()) for line in lines]
        producer.write(messages)
    click.echo(f"{len(messages)} records written to {topic}")


@queue.command(
    epilog=example(
        "coopconsume queue take orders --group workers --max 10",
        "--bootstrap-servers localhost:9092",
    )
)
@click.option("--max", "most", type=click.IntRange(1), default=1, show_default=True,
              help="The largest number of records.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0), default=5.0, show_default=True,
              help="Seconds to wait for records.")  # fmt: skip
@click.option(
    "--acknowledge", "kind", default="accept", show_default=True,
    type=click.Choice([kind.value for kind in AcknowledgeType if kind.value != "renew"]),
    help="What becomes of the records.",
)  # fmt: skip
@reported
@_at_a_queue
@shown
def take(
    *,
    topic: str,
    replicas: list[Any] | None,
    options: dict[str, str],
    most: int,
    timeout: float,
    kind: str,
) -> Shown:
    """Take records from a queue, show them and acknowledge them."""
    from coopconsume.queue import QueueConsumer

    with QueueConsumer(options, topic, replicas) as consumer:
        records = consumer.poll(most, timeout)
        for record in records:
            consumer.acknowledge(record, kind)
        consumer.commit()
    rows = [(r.partition, r.offset, r.attempt, text_of(r.key), text_of(r.value)) for r in records]
    head = ("partition", "offset", "attempt", "key", "value")
    return _table(head, rows)


@queue.command(name="list", epilog=EXIT_CODES)
@reported
@_at_a_queue
@shown
def list_(*, topic: str, replicas: list[Any] | None, options: dict[str, str]) -> Shown:
    """Show what is done, held and free in each partition of a queue."""
    from coopconsume.queue import queue_status

    found = queue_status(options, topic, replicas)
    rows = [dataclasses.astuple(partition) for partition in found.partitions]
    head = ("partition", "stable offset", "done above", "held", "delayed", "free", "log")
    return _table(head, rows)


@queue.command(epilog=EXIT_CODES)
@reported
@_at_a_queue
@shown
def holds(*, topic: str, replicas: list[Any] | None, options: dict[str, str]) -> Shown:
    """Show who holds which records on each replica."""
    from coopconsume.queue import queue_status

    found = queue_status(options, topic, replicas)
    rows = [
        (
            hold.replica, hold.holder or "(delay)", hold.partition,
            ",".join(f"{first}-{last}" for first, last in hold.offsets), hold.seconds,
        )
        for hold in found.holds
    ]  # fmt: skip
    return _table(("replica", "holder", "partition", "offsets", "seconds"), rows)


@queue.command(epilog=EXIT_CODES)
@reported
@_at_a_queue
@shown
def audit(*, topic: str, replicas: list[Any] | None, options: dict[str, str]) -> Shown:
    """Compare the replicas of a queue with each other and with the topic.

    Exit code 1 if they differ, if one cannot be read, or if the topic was created again and no
    consumer has noticed it yet.
    """
    from coopconsume.queue import queue_status

    found: QueueStatus = queue_status(options, topic, replicas)
    rows = [
        (
            r.replica,
            "yes" if r.is_readable else "no",
            r.rows,
            r.passed_over,
            r.lacking,
            r.log,
            r.replaced,
            r.problem,
        )
        for r in found.replicas
    ]
    head = ("replica", "readable", "rows", "passed over", "lacking", "log", "replaced", "problem")
    return _table(head, rows)._replace(code=OK if found.is_sound else FAILED)


def _table(titles: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Shown:
    names = [title.replace(" ", "_") for title in titles]
    table = Table(titles, rows)
    return Shown(lambda: [dict(zip(names, row, strict=True)) for row in rows], [table])
