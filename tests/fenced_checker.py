"""An independent judge of fenced logs: what I1 to I8 demand, recomputed from the bare records.

It knows nothing of the library's own fold: it reads the headers by hand, all of them, and compares
what is in the log with what the writers were told.

I1 the batches that count have numbers without gaps    I5 what was refused is not in the log
I2 each is at the offset that it expected              I6 what was unknown is there or not, as told
I3 epochs only grow, each of one owner                 I7 no batch is there in part
I4 what was acknowledged is in the log, where told     I8 a batch is there once
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Told:
    """What the writers were told of their appends, by batch id.

    Attributes:
        acked: First offset, first sequence number and count of batches that were acknowledged.
        refused: Batches that are not in the log, by an error's word.
        unknown: Batches of which nothing is known, as with an owner that was killed.
    """

    acked: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)


@dataclass
class Found:
    """A batch in the log."""

    first: int
    seq: int
    rows: list[dict[str, str]]
    offsets: list[int]


def problems(records: Iterable[Any], told: Told) -> list[str]:
    """What is wrong with a log.

    Args:
        records: The committed records in order, with ``offset``, ``value`` and ``headers``.
        told: What its writers were told.
    """
    wrong: list[str] = []
    found = _batches(records, wrong)
    for batch_id, (first, seq, count) in told.acked.items():
        batch = found.get(batch_id)
        if batch is None:
            wrong.append(f"I4: {batch_id} was acknowledged and is not there")
        elif (batch.first, batch.seq, len(batch.rows)) != (first, seq, count):
            wrong.append(
                f"I4: {batch_id} is at {batch.first}/{batch.seq}, told was {first}/{seq}/{count}"
            )
    there = told.refused & found.keys()
    wrong += [f"I5: {batch_id} was refused and is there" for batch_id in there]
    strays = found.keys() - told.acked.keys() - told.unknown
    wrong += [f"I6: {batch_id} is there, and nobody was told so" for batch_id in strays]
    return wrong


def _batches(records: Iterable[Any], wrong: list[str]) -> dict[str, Found]:
    """The batches of data that count, by id; what is wrong in their places is told."""
    found: dict[str, Found] = {}
    epoch, owner, seq = 0, None, 0
    for record in records:
        stamp = {k: v.decode() for k, v in record.headers if k.startswith("fw-")}
        if not stamp:
            continue
        at, i, expected = record.offset, int(stamp["fw-i"]), int(stamp["fw-expected"])
        its, in_place = int(stamp["fw-epoch"]), expected == at - i
        if stamp["fw-v"] == "1f" and not in_place:
            continue
        if not in_place:
            wrong.append(f"I2: offset {at}, record {i} of a batch that expected {expected}")
        if its < epoch:
            wrong.append(f"I3: offset {at} has epoch {its} after {epoch}")
        if stamp["fw-kind"] == "open":
            session = json.loads(record.value)["session"]
            if its == epoch and owner not in (None, session):
                wrong.append(f"I3: offset {at} opens epoch {its} for a second owner")
            owner = session
        elif its > epoch:
            wrong.append(f"I3: offset {at} has epoch {its}, which nobody opened")
        epoch = max(its, epoch)
        if stamp["fw-kind"] != "data":
            continue
        if int(stamp["fw-seq"]) != seq:
            wrong.append(f"I1: offset {at} has number {stamp['fw-seq']}, expected {seq}")
        batch = found.setdefault(stamp["fw-batch"], Found(at, seq, [], []))
        batch.rows.append(stamp)
        batch.offsets.append(at)
        seq += 1
    for batch_id, batch in found.items():
        _check_whole(batch_id, batch, wrong)
    return found


def _check_whole(batch_id: str, batch: Found, wrong: list[str]) -> None:
    count = int(batch.rows[0]["fw-n"])
    numbers: Sequence[int] = [int(row["fw-i"]) for row in batch.rows]
    times = len(numbers) // count
    if times > 1 and sorted(numbers) == sorted(list(range(count)) * times):
        wrong.append(f"I8: {batch_id} is there {times} times")
    elif list(numbers) != list(range(count)):
        wrong.append(f"I7: {batch_id} has records {numbers} of {count}")
    elif batch.offsets != list(range(batch.first, batch.first + count)):
        wrong.append(f"I7: {batch_id} is at offsets {batch.offsets}")
