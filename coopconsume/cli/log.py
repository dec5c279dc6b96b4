"""``coopconsume log``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from coopconsume.admin.tables import Table
from coopconsume.cli.exit_codes import EXIT_CODES, FAILED, OK, example, reported
from coopconsume.cli.place import Shown, at_a_cluster, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coopconsume.fenced.auditing import Audit, Blockage

_OWNERS = ("epoch", "owner", "from offset", "records", "batches")
_OPEN = ("producer", "epoch", "from offset", "last write", "transactional id", "state", "timeout")


@click.group(epilog=EXIT_CODES)
def log() -> None:
    """Inspect the logs of fenced writers."""


def _of_a_log(command: Callable[..., Any]) -> Callable[..., Any]:
    partition = click.option(
        "--partition", type=click.IntRange(0), default=0, show_default=True,
        help="The partition that is the log.",
    )  # fmt: skip
    return click.argument("topic")(partition(at_a_cluster(shown(command))))


@log.command(epilog=example("coopconsume log head ledger --bootstrap-servers localhost:9092"))
@reported
@_of_a_log
def head(*, topic: str, partition: int, options: dict[str, str]) -> Shown:
    """Show the next sequence number, the epoch and the owner of a log."""
    from coopconsume.fenced.reader import head as look

    found = look(options, topic, partition)
    undecided = found.end - found.stable
    lines = [
        f"{topic}-{partition}  {found.visibility or 'nothing written yet'}",
        f"topic id  {found.topic_id}",
        f"offsets   {found.start:,} to {found.end:,}, {undecided:,} not decided",
        f"next      sequence {_known(found.next_seq)}",
        f"epoch     {_known(found.epoch)}, owner {found.owner or 'not known'}",
    ]
    return Shown(lambda: asdict(found), lines)


@log.command(
    epilog=example("coopconsume log audit ledger --partition 3 --bootstrap-servers localhost:9092")
)
@reported
@_of_a_log
def audit(*, topic: str, partition: int, options: dict[str, str]) -> Shown:
    """Check a log by its records: count the accepted and the ignored ones.

    The exit code is 1 if records are missing, or if no record has a stamp.
    """
    from coopconsume.fenced.auditing import audit as look

    log_id, found = look(options, topic, partition)
    is_ok = found.ok and found.is_fenced_log
    facts = {"log": asdict(log_id), "ok": is_ok, "is_fenced_log": found.is_fenced_log}
    lines = _audit_parts(f"{topic}-{partition}", found)
    return Shown(lambda: facts | asdict(found), lines, OK if is_ok else FAILED)


def _audit_parts(name: str, found: Audit) -> Iterator[str | Table]:
    place = f"{name}, offsets {found.first_offset:,} to {found.next_offset:,}"
    if not found.is_fenced_log:
        yield (
            f"{place}: {found.foreign + found.malformed:,} records, none with a stamp. "
            "This is not a fenced log: check topic and partition"
        )
        return
    rows = [(t.epoch, t.owner, t.first_offset, t.records, t.batches) for t in found.terms]
    yield Table(_OWNERS, rows)
    yield ""
    yield f"{place}: {found.records:,} records count"
    passed = (
        (found.rejected, "rejected (not at the offset they expect)"),
        (found.fenced, "of former owners"),
        (found.malformed, "with a malformed stamp"),
        (found.torn, "of incomplete batches"),
        (found.foreign, "foreign (no stamp)"),
        (found.unknown, "before the first record with the state"),
    )
    for count, what in passed:
        if count:
            yield f"ignored: {count:,} {what}"
    for finding in found.findings:
        yield f"  {finding.what} at offset {finding.offset:,}: {finding.problem}"
    yield "no record is missing" if found.ok else "RECORDS ARE MISSING"


@log.command(epilog=example("coopconsume log repair ledger --bootstrap-servers localhost:9092"))
@reported
@click.option("--execute", is_flag=True, help="Apply the change (default: dry run).")
@_of_a_log
def repair(*, topic: str, partition: int, execute: bool, options: dict[str, str]) -> Shown:
    """Accept that records of a log are lost, so that it can be used again (default: dry run).

    The log gets a new owner, whose first record lists the gaps. No record is removed. The batch
    behind a gap counts if its sequence number is above the one expected.
    """
    from coopconsume.fenced.auditing import repair as accept

    gaps = accept(options, topic, partition, apply=execute)
    lines = [f"gap at offset {gap.offset:,}: {gap.problem}" for gap in gaps]
    done = "accepted" if execute else "dry run: add --execute to accept these gaps"
    lines.append(done if gaps else "no record is missing")
    document = {"executed": execute, "gaps": [asdict(gap) for gap in gaps]}
    return Shown(lambda: document, lines)


@log.command(epilog=example("coopconsume log blocked ledger --bootstrap-servers localhost:9092"))
@reported
@_of_a_log
def blocked(*, topic: str, partition: int, options: dict[str, str]) -> Shown:
    """Show the open transactions that block readers of a log, and how to end them."""
    from coopconsume.fenced.auditing import blocked as look

    found = look(options, topic, partition)
    document = asdict(found) | {"blocked": found.stable < found.end}
    for row, transaction in zip(document["transactions"], found.transactions, strict=True):
        row["last_write"] = transaction.last_write.isoformat()
        row["hangs"] = transaction.hangs
    lines = blockage_parts(found, options.get("kafka.bootstrap.servers", "…"))
    return Shown(lambda: document, lines)


def blockage_parts(found: Blockage, servers: str) -> Iterator[str | Table]:
    """Yields the open transactions of a log, and how to end each."""
    log = f"{found.topic}-{found.partition}"
    if found.stable == found.end:
        yield f"{log} is not blocked: everything below {found.end:,} is decided"
        return
    yield f"{log} is blocked from offset {found.stable:,} on; its end is {found.end:,}"
    rows = [
        (
            t.producer_id, t.producer_epoch, t.first_offset, t.last_write,
            t.transactional_id, t.state, None if t.timeout_ms is None else f"{t.timeout_ms:,} ms",
        )
        for t in found.transactions
    ]  # fmt: skip
    yield Table(_OPEN, rows)
    for t in found.transactions:
        yield ""
        if t.hangs:
            yield (
                f"the transaction of producer {t.producer_id} hangs: no coordinator will end it. "
                "Its records may have been reported as committed; they are lost if it is aborted. "
                "To abort it, use Kafka's own tool:"
            )
        else:
            yield (
                f"{t.transactional_id}: its coordinator ends it after its timeout. To end it now, "
                "stop its producer, or start another one with that id, or abort it with Kafka's "
                "own tool:"
            )
        yield (
            f"  kafka-transactions.sh --bootstrap-server {servers} abort --topic {found.topic} "
            f"--partition {found.partition} --start-offset {t.first_offset}"
        )


def _known(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"
