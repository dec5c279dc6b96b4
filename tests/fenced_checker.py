"""An independent judge of fenced logs: what I1 to I8 demand, recomputed from the bare records.

It knows nothing of the library's own fold: it reads the headers by hand, all of them, and compares
what is in the log with the outcomes that the writers got.

I1 the batches that count have numbers without gaps    I5 what was refused is not in the log
I2 each is at the offset that it expected              I6 a batch in the log was acked or is unknown
I3 epochs only grow, each of one owner                 I7 no batch is there in part
I4 what was acknowledged is in the log, as answered    I8 a batch is there once
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

DATA, OPEN = 0, 1


@dataclass
class Outcomes:
    """The outcomes of appends that the writers got, by batch id.

    Attributes:
        acked: First offset, first sequence number and count of batches that were acknowledged.
        refused: Batches that are not in the log, by an error's word.
        unknown: Batches without an outcome, as with an owner that was killed.
    """

    acked: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)


@dataclass
class Found:
    """A batch in the log."""

    first: int
    seq: int
    rows: list[dict[str, Any]]
    offsets: list[int]


def problems(records: Iterable[Any], outcomes: Outcomes) -> list[str]:
    """What is wrong with a log.

    Args:
        records: The committed records in order, with ``offset``, ``value`` and ``headers``.
        outcomes: The outcomes that its writers got.
    """
    wrong: list[str] = []
    found = batches(records, wrong)
    for batch_id, (first, seq, count) in outcomes.acked.items():
        batch = found.get(batch_id)
        if batch is None:
            wrong.append(f"I4: {batch_id} was acknowledged and is not there")
        elif (batch.first, batch.seq, len(batch.rows)) != (first, seq, count):
            wrong.append(
                f"I4: {batch_id} is at {batch.first}/{batch.seq}, answered {first}/{seq}/{count}"
            )
    there = outcomes.refused & found.keys()
    wrong += [f"I5: {batch_id} was refused and is there" for batch_id in there]
    strays = found.keys() - outcomes.acked.keys() - outcomes.unknown
    wrong += [f"I6: {batch_id} is there, and no writer knows" for batch_id in strays]
    return wrong


def batches(records: Iterable[Any], wrong: list[str]) -> dict[str, Found]:
    """The batches of data that count, by id; adds what is wrong in their places to `wrong`."""
    found: dict[str, Found] = {}
    epoch, owner, tag, seq = 0, None, None, 0
    rows = list(records)
    stamps = [read_stamp(row) for row in rows]
    for at, (record, stamp) in enumerate(zip(rows, stamps, strict=True)):
        if stamp is None:
            continue
        offset, n, i = record.offset, stamp["n"], stamp["i"]
        if stamp["expected"] + i != offset:
            if not stamp["filter"]:
                wrong.append(f"I2: offset {offset}, record {i} of a batch not in its place")
            continue
        siblings = stamps[at - i : at - i + n] if at >= i else []
        offsets = [row.offset for row in rows[at - i : at - i + n]] if at >= i else []
        whole = [s and (s["batch"], s["i"]) for s in siblings] == [
            (stamp["batch"], number) for number in range(n)
        ] and offsets == list(range(offset - i, offset - i + n))
        if not whole and stamp["filter"]:
            continue  # the part of a batch whose other part never came
        its = stamp["epoch"]
        if stamp["kind"] == OPEN:
            value = json.loads(record.value)
            session = value["session"], value["incarnation"]
            if its < epoch or (its == epoch and owner is not None and session < owner):
                continue
            if its == epoch and owner is not None and session[0] != owner[0]:
                continue
            owner, epoch, tag = session, its, stamp["tag"]
        elif its != epoch or (tag is not None and stamp["tag"] != tag):
            wrong.append(f"I3: offset {offset} has epoch {its}, in force is {epoch}")
            continue
        if stamp["kind"] != DATA:
            continue
        if stamp["first_seq"] + i != seq:
            wrong.append(f"I1: offset {offset} has number {stamp['first_seq'] + i}, not {seq}")
        batch = found.setdefault(stamp["batch"], Found(offset, seq, [], []))
        batch.rows.append(stamp)
        batch.offsets.append(offset)
        seq += 1
    for batch_id, batch in found.items():
        _check_whole(batch_id, batch, wrong)
    return found


def read_stamp(record: Any) -> dict[str, Any] | None:
    """The fields of a record's stamp, read by hand; None if it has none."""
    headers = list(record.headers)
    if not headers or headers[0][0] != "fw" or headers[0][1][:1] != b"\x02":
        return None
    value = headers[0][1]
    _, kind, epoch, first_seq, expected = struct.unpack(">BBQQQ", value[:26])
    n, i = struct.unpack(">I", value[34:38])[0], struct.unpack(">I", value[-4:])[0]
    return {
        "kind": kind % 16, "filter": kind >= 16, "epoch": epoch, "first_seq": first_seq,
        "expected": expected, "tag": value[26:34], "n": n, "i": i,
        "batch": value[38:-4].decode(),
    }  # fmt: skip


def _check_whole(batch_id: str, batch: Found, wrong: list[str]) -> None:
    count = batch.rows[0]["n"]
    numbers: Sequence[int] = [row["i"] for row in batch.rows]
    times = len(numbers) // count
    if times > 1 and sorted(numbers) == sorted(list(range(count)) * times):
        wrong.append(f"I8: {batch_id} is there {times} times")
    elif list(numbers) != list(range(count)):
        wrong.append(f"I7: {batch_id} has records {numbers} of {count}")
    elif batch.offsets != list(range(batch.first, batch.first + count)):
        wrong.append(f"I7: {batch_id} is at offsets {batch.offsets}")
