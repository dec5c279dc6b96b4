"""What a user of frames says of polled records that are not done: `retry` and `reject`."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from assignors import key_hash
from assignors.ranges import offset_hash
from commits import OffsetRanges, Pending
from coopconsume.dead_letters.decisions import apply_decisions
from coopconsume.errors import InvalidOption, NotPolled
from coopconsume.job.saving import due_ms
from coopconsume.options import parse_seconds
from coopconsume.plan import covering, reach_of
from coopconsume.reading.source import Span, read_spans
from coopconsume.record import MAX_WAIT, usable_seconds
from coopconsume.task.answers import clean
from coopconsume.task.report import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from coopconsume.group.holding import Holding
    from coopconsume.group.owned import TopicPartition
    from coopconsume.options import Options
    from coopconsume.polling.places import Handout
    from coopconsume.sinks import DeadLetterSink

    Told = dict[TopicPartition, dict[int, str]]


def delay_of(delay: float | str) -> float:
    """Seconds to wait, from a number or a text.

    Raises:
        InvalidOption: It is neither, or not from 0 to 365 days.
    """
    try:
        seconds = parse_seconds(delay)
    except ValueError as error:
        raise InvalidOption("delay", repr(delay), str(error)) from None
    if usable_seconds(seconds) is None:
        raise InvalidOption("delay", repr(delay), f"give 0 to {MAX_WAIT:.0f} seconds (365 days)")
    return seconds


def told_of(frame: DataFrame, reason: str | Column) -> Told:
    """The records that a frame names, by partition, each with its reason.

    Raises:
        ValueError: The frame lacks a column.
    """
    from pyspark.sql import functions as F  # noqa: N812

    names = ("topic", "partition", "offset")
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise ValueError(f"the column {missing[0]!r} is needed; the frame has {frame.columns}")
    why = F.lit(clean(reason)) if isinstance(reason, str) else reason
    rows = frame.select(*names, why.cast("string").alias("reason")).toArrow().to_pydict()
    told: Told = {}
    for topic, partition, offset, text in zip(*rows.values(), strict=True):
        told.setdefault((topic, partition), {})[offset] = clean(text or "")
    return told


def check_polled(handout: Handout, holding: Holding | None, told: Told) -> None:
    """Refuse records that were not handed out, or are done.

    Raises:
        NotPolled: There is one.
    """
    for tp, records in told.items():
        place = handout.places.get(tp) if holding else None
        named = OffsetRanges.from_offsets(list(records))
        strange = named - place.polled if place else named
        if strange:
            first, last = next(iter(strange))
            raise NotPolled(*tp, first, last)


def originals(
    spark: SparkSession, options: Options, told: Mapping[TopicPartition, Iterable[int]], slices: int
) -> Iterator[Any]:
    """The records at some offsets as Kafka has them now, headers included."""
    from pyspark.sql import functions as F  # noqa: N812

    spans, wanted = [], {}
    for tp, offsets in told.items():
        wanted[tp] = set(offsets)
        asked = OffsetRanges.from_offsets(list(wanted[tp]))
        reads = covering(asked, reach_of(asked))
        spans += [Span(*tp, first, last) for first, last in reads]
    frame = read_spans(spark, options, spans, slices, headers=True)
    rows = frame.withColumn("millis", F.unix_millis("timestamp")).drop("timestamp")
    for row in rows.toLocalIterator():
        if row["offset"] in wanted[row["topic"], row["partition"]]:
            yield row


def letters_of(rows: Iterable[Any], handout: Handout, told: Told) -> list[DeadLetter]:
    """Dead letters of records, in the order of their partitions."""
    letters = [
        DeadLetter(
            row["topic"], row["partition"], row["offset"], _bytes(row["key"]),
            _bytes(row["value"]), row["millis"],
            tuple((h["key"], _bytes(h["value"])) for h in row["headers"] or ()),
            handout.places[row["topic"], row["partition"]].held.attempt(row["offset"]),
            told[row["topic"], row["partition"]][row["offset"]], "",
        )
        for row in rows
    ]  # fmt: skip
    return sorted(letters, key=lambda x: (x.topic, x.partition, x.offset))


def hold(
    handout: Handout,
    holding: Holding,
    told: Told,
    hashes: Mapping[TopicPartition, Mapping[int, int]],
    delay: float,
    commit_id: str,
) -> None:
    """Write that records are to come again after so many seconds, and hold their keys back.

    Args:
        handout: What was handed out; its lock is held.
        holding: What is owned.
        told: The records.
        hashes: The hash that each record is dealt by.
        delay: Seconds; infinity parks them.
        commit_id: Of this commit.

    Raises:
        commits.FencedMember: Another member holds the group.
    """
    due = time.monotonic() + delay
    pending = {
        tp: [
            Pending(offset, hashes[tp][offset], handout.places[tp].held.attempt(offset),
                    due_ms(delay), text)
            for offset, text in records.items()
        ]
        for tp, records in told.items()
    }  # fmt: skip
    holding.commit({}, pending=pending, commit_id=commit_id)
    for tp, records in told.items():
        place = handout.places[tp]
        for offset, text in records.items():
            place.held.hold(offset, hashes[tp][offset], due, text)
        place.polled -= OffsetRanges.from_offsets(list(records))


def hashes_of(frame: DataFrame, told: Told) -> dict[TopicPartition, dict[int, int]]:
    """The hash that each record is dealt by: its key's, or without a key its offset's.

    Raises:
        ValueError: The frame has neither ``key_hash`` nor ``key``.
    """
    column = next((name for name in ("key_hash", "key") if name in frame.columns), None)
    if column is None:
        raise ValueError(f"retry needs the column key_hash or key; the frame has {frame.columns}")
    names = ("topic", "partition", "offset", column)
    found: dict[TopicPartition, dict[int, int]] = {tp: {} for tp in told}
    rows = frame.select(*names).toArrow().to_pydict()
    for topic, partition, offset, key in zip(*rows.values(), strict=True):
        hashed = key_hash(key) if column == "key" else key
        dealt = offset_hash(offset) if hashed is None else hashed
        found[topic, partition][offset] = dealt
    return found


def take_decisions(handout: Handout, holding: Holding, commit_ids: Iterator[str]) -> None:
    """Take what an operator decided on parked records; the handout's lock is held."""
    parked = [(tp, r) for tp, place in handout.places.items() for r in place.held.parked]
    now = time.monotonic()
    for decision in apply_decisions(holding, parked, commit_ids):
        place = handout.places[decision.topic, decision.partition]
        if decision.action == "replay":
            place.held.replay(decision.offset, now)
        else:
            place.settle(OffsetRanges([(decision.offset, decision.offset)]))


def reject(
    handout: Handout,
    holding: Holding,
    sink: DeadLetterSink,
    letters: Sequence[DeadLetter],
    hashes: Mapping[TopicPartition, Mapping[int, int]] | None,
    commit_id: str,
) -> None:
    """Write dead letters, then the commit that they stand or fall with.

    Args:
        handout: What was handed out; its lock is held.
        holding: What is owned.
        sink: Where dead letters go.
        letters: The letters.
        hashes: To park the records, the hash that each is dealt by; None: they are done.
        commit_id: Of this commit.

    Raises:
        OutputNotWritten: The letters could not be written.
        commits.FencedMember: Another member holds the group.
    """
    sink.append(letters, holding.topic_ids, commit_id)
    told: Told = {}
    for letter in letters:
        told.setdefault((letter.topic, letter.partition), {})[letter.offset] = letter.reason
    if hashes is not None:
        hold(handout, holding, told, hashes, math.inf, commit_id)
        return
    done = {tp: OffsetRanges.from_offsets(list(records)) for tp, records in told.items()}
    holding.commit(done, commit_id=commit_id)
    for tp, offsets in done.items():
        handout.settle(tp, offsets)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
