"""``coopconsume owners``."""

from __future__ import annotations

import functools
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from coopconsume.admin.tables import Table
from coopconsume.cli.exit_codes import EXIT_CODES, FAILED, OK, example, reported
from coopconsume.cli.place import Shown, at_a_cluster, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coopconsume.cli.command_config import GivenOptions
    from coopconsume.fenced.ownership import (
        KafkaStore,
        OwnershipEvent,
        OwnershipRegistry,
        OwnershipStore,
        Row,
    )

_TITLES = ("group", "resource", "owner", "access", "generation", "epoch", "shared by", "waiting")
_HOLDERS = ("", "owner", "session", "access", "ticket", "heartbeats", "lease")
_EVENTS = ("epoch", "generation", "when", "what", "who", "session")
_SHOWN = 8


_topic_option = click.option(
    "--topic", metavar="NAME", help="The topic of the registry [default: __fw_ownership]."
)


def _kafka_store(options: dict[str, str], topic: str | None) -> KafkaStore:
    from coopconsume.fenced.ownership.kafka_store import TOPIC, KafkaStore

    return KafkaStore(options, topic or TOPIC, create=False)


def at_a_registry(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``registry`` to a command; what it grants stays in force after the command.

    Apply it below `reported`, so that errors of opening the store are reported.
    """

    @click.option("--table", metavar="PATH", help="The Delta table of the registry.")
    @_topic_option
    @at_a_cluster
    @functools.wraps(command)
    def with_registry(
        *args: Any,
        table: str | None,
        topic: str | None,
        options: GivenOptions,
        **kwargs: Any,
    ) -> Any:
        # A file may have the options of a cluster also if the registry is a table.
        if options.on_command_line if table is not None else not options:
            raise click.UsageError("give --bootstrap-servers or --table, one of both")
        if table is not None and topic is not None:
            raise click.UsageError("--topic goes with --bootstrap-servers, not with --table")
        if table is None:
            store: OwnershipStore = _kafka_store(options, topic)
        else:
            from coopconsume.fenced.ownership import DeltaStore

            store = DeltaStore(table, create=False)
        from coopconsume.fenced.ownership import OwnershipRegistry

        with closing(store):
            registry = OwnershipRegistry(store, owner=kwargs.get("owner"), lease=0)
            return command(*args, registry=registry, **kwargs)

    return with_registry


@click.group(epilog=EXIT_CODES)
def owners() -> None:
    """Inspect, take and release the ownership of logs and other resources."""


@owners.command("list", epilog=EXIT_CODES)
@click.option("--group", help="Only resources of this group.")
@reported
@at_a_registry
@shown
def list_(*, group: str | None, registry: OwnershipRegistry) -> Shown:
    """List all resources that were ever claimed, and their owners."""
    rows = registry.list(group)
    table = Table(_TITLES, [_cells(row) for row in rows])
    return Shown(lambda: [asdict(row) for row in rows], [table])


@owners.command(epilog=example("coopconsume owners show log orders-0 --bootstrap-servers …"))
@click.argument("group")
@click.argument("resource")
@click.option(
    "--history", type=click.IntRange(0), default=10, show_default=True,
    help="Number of the last events to show; JSON has all.",
)  # fmt: skip
@reported
@at_a_registry
@shown
def show(*, group: str, resource: str, history: int, registry: OwnershipRegistry) -> Shown:
    """Show a resource: its owner, the waiting claimants, and its history."""
    _check_known(registry, group, [resource])
    row, events = registry.show(group, resource), registry.history(group, resource)
    document = asdict(row) | {"history": [asdict(entry) for entry in events]}
    return Shown(lambda: document, _resource_parts(row, events[-history:] if history else []))


@owners.command(epilog=example("coopconsume owners take log orders-0 --bootstrap-servers …"))
@click.argument("group")
@click.argument("resources", nargs=-1, required=True)
@click.option(
    "--generation",
    type=click.IntRange(0),
    help="The generation to claim; 0 always claims and restarts at 1 [default: the current one].",
)
@click.option("--owner", default="operator", show_default=True, help="The name of the new owner.")
@click.option("--create", is_flag=True, help="Also take resources that were never claimed.")
@reported
@at_a_registry
@shown
def take(
    *,
    group: str,
    resources: tuple[str, ...],
    generation: int | None,
    owner: str,
    create: bool,
    registry: OwnershipRegistry,
) -> Shown:
    """Take resources from their owners, all or none, until `owners release`.

    The former owner of a log is fenced at its next append. No other claimant gets the resource
    before it is released.
    """
    if not create:
        _check_known(registry, group, resources)
    now = {row.key: row.generation for row in registry.list(group)}
    grants = registry.own(
        group,
        {r: now.get((group, r), 0) if generation is None else generation for r in resources},
    )
    lines = [
        f"{grant.resource}: owned by {owner}, generation {grant.generation}, "
        f"epoch {grant.fence_epoch}"
        for grant in grants.values()
    ]
    return Shown(lambda: [asdict(grant) for grant in grants.values()], lines)


@owners.command(epilog=EXIT_CODES)
@click.argument("group")
@click.argument("resources", nargs=-1, required=True)
@reported
@at_a_registry
def release(*, group: str, resources: tuple[str, ...], registry: OwnershipRegistry) -> None:
    """Release resources of any owner; the claimant that has waited longest gets them."""
    _check_known(registry, group, resources)
    for resource in resources:
        row = registry.evict(group, resource)
        now = "free" if row.owner is None else f"owned by {row.owner.session.owner}"
        click.echo(f"{resource}: {now}")


def _check_known(registry: OwnershipRegistry, group: str, resources: Sequence[str]) -> None:
    """Refuses resources that were never claimed, as their names may be misspelt."""
    known = {row.key for row in registry.list()}
    for resource in resources:
        if (group, resource) in known:
            continue
        close = get_close_matches(f"{group} {resource}", [" ".join(key) for key in known], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ": see `coopconsume owners list`"
        raise click.ClickException(f"{resource!r} of group {group!r} was never claimed{hint}")


@owners.command(epilog=example("coopconsume owners check --bootstrap-servers localhost:9092"))
@_topic_option
@click.option("--repair", is_flag=True, help="Continue without the missing start of the log.")
@reported
@at_a_cluster
@shown
def check(*, topic: str | None, repair: bool, options: dict[str, str]) -> Shown:
    """Check the topic of a registry: list the records that are ignored.

    The exit code is 1 if the start of the log is missing, so that nothing can be claimed. --repair
    then uses the last change of each resource. Other resources are free and begin with fence epoch
    1; fenced logs store their epochs themselves.
    """
    with closing(_kafka_store(options, topic)) as store:
        found = store.repair() if repair else store.check()
    rows, ignored = len(found.rows), found.passed_over
    document = {
        "is_whole": found.is_whole,
        "rows": rows,
        "passed_over": ignored,
        "findings": found.findings,
    }
    lines = [f"{store.place}: {rows:,} resources, {ignored:,} records ignored"]
    lines += [f"  offset {offset:,}: {problem}" for offset, problem in found.findings]
    if not found.is_whole:
        lines.append("THE START OF THE LOG IS MISSING: --repair continues without it")
    return Shown(lambda: document, lines, OK if found.is_whole else FAILED)


def _cells(row: Row) -> tuple[object, ...]:
    owner = row.owner
    return (
        row.group, row.resource, None if owner is None else owner.session.owner,
        None if owner is None else owner.mode or "by generation", row.generation or None,
        row.fence_epoch, len(row.shared) or None, len(row.waiters) or None,
    )  # fmt: skip


def _resource_parts(row: Row, events: Sequence[OwnershipEvent]) -> Iterator[str | Table]:
    who = "free"
    if row.owner is not None:
        who = f"owned by {row.owner.session.owner}, generation {row.generation}"
    elif row.shared:
        who = f"shared by {len(row.shared)}"
    yield f"{row.resource} of group {row.group}: {who}, epoch {row.fence_epoch}"
    if row.topic_id:
        yield f"topic id {row.topic_id}"
    if row.holders:
        yield ""
        yield Table(
            _HOLDERS,
            [
                (
                    "waits" if held in row.waiters else "has it", held.session.owner,
                    held.session.id[:_SHOWN], held.mode or "by generation", held.ticket or None,
                    held.heartbeat, f"{held.lease_ms / 1000:g} s" if held.lease_ms else "none",
                )
                for held in row.holders
            ],
        )  # fmt: skip
    if events:
        yield ""
        yield Table(
            _EVENTS,
            [
                (
                    entry.fence_epoch, entry.generation or None,
                    datetime.fromtimestamp(entry.at_ms / 1000, UTC),
                    entry.event, entry.owner, entry.session[:_SHOWN],
                )
                for entry in reversed(events)
            ],
        )  # fmt: skip
