"""Long lists of records into a log, each record once: KIP-27's bulk load, by one or by several.

Record i of a list is the same for all publishers. A batch's id says at which record it begins,
so the last one in the log says where the list goes on; and an append names the sequence number
that was next then, so that of several publishers one is right and the others look again.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from coopconsume.errors import InvalidOption
from coopconsume.errors.fenced import OffsetMismatch
from coopconsume.fenced.config import CHECK, check_name
from coopconsume.fenced.exclusive import ExclusiveProducer
from coopconsume.fenced.log import Entry, Records, entries, size_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coopconsume.fenced.writer import FencedWriter


@dataclass(frozen=True)
class Loaded:
    """A list that is in a log, whole.

    Attributes:
        count: Records of the list that are in the log.
        found: How many of them were there when the call began.
    """

    count: int
    found: int


def bulk_load(
    to: FencedWriter | ExclusiveProducer,
    records: Records,
    name: str,
    *,
    batch_records: int = 1000,
    since: int = 0,
) -> Loaded:
    """Append a list of any length, each record once and in order, however often it begins (KIP-27).

    Called again after whatever ended it, in this process or another one, it passes over what is in
    the log and goes on. Several publishers may write the same list at once, as replicas of a
    process do that compute the same output, if they share the log (`FencedWriter` with
    ``shared=True``); the log has each record once. Others may write between.

    Args:
        to: An acquired writer, or producer.
        records: The list: the same records in the same order each time. It is read once, and no
            further ahead than a batch.
        name: Name of the list, its own in the log: 1 to 40 letters, digits or ``._-``.
        batch_records: Records of an append at most, above 0; it is at most one request, too.
        since: Offset below which nothing of the list is looked for.

    Raises:
        InvalidOption: The name makes no sense, or is another batch's, or checks are switched off.
        FencedLogError: As for their ``append``; call it again to go on, if need be with a new
            writer.
    """
    writer = to.writer if isinstance(to, ExclusiveProducer) else to
    check_name("name", name)
    if batch_records < 1:
        raise InvalidOption("batch_records", repr(batch_records), "give a number above 0")
    if not writer.checks:
        raise InvalidOption(CHECK, "false for this topic", "a bulk load rests on checks: switch on")
    writer.refresh()
    ahead: deque[Entry] = deque()  # read from the list, from its record `first` on
    rest, first, found = iter(records), 0, None
    while True:
        done = _loaded(writer, name, since)
        found = done if found is None else found
        while ahead and first < done:
            ahead.popleft()
            first += 1
        first += sum(1 for _ in islice(rest, done - first))
        more = [*islice(rest, batch_records - len(ahead))]
        ahead.extend(entries(more) if more else ())
        batch = _fitting(ahead, writer.max_request_size)
        if not batch:
            return Loaded(done, found)
        with suppress(OffsetMismatch):  # another publisher was faster
            to.append(batch, expected_seq=writer.next_seq, batch_id=f"{name}:{done}", is_new=True)


def _loaded(writer: FencedWriter, name: str, since: int) -> int:
    """How many records of a list are in the log, as far as it was read."""
    last = writer.last_batch(f"{name}:", since=since)
    if last is None:
        return 0
    first = last.batch_id.rpartition(":")[2]
    if not first.isdecimal():
        raise InvalidOption("name", repr(name), f"batch {last.batch_id!r} is of no list: rename it")
    return int(first) + last.count


def _fitting(ahead: Iterable[Entry], size: int) -> list[Entry]:
    """The first records, as many as fit into an append of a size; at least one."""
    found: list[Entry] = []
    for entry in ahead:
        size -= size_of([entry])
        if found and size < 0:
            break
        found.append(entry)
    return found
