"""What users answer for polled records: `commit`, `retry` and `reject`."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from commits import MaxIndividualCommitsReached, OffsetRanges, Pending
from coopconsume.errors import InvalidOption, NotPolled
from coopconsume.option_values import seconds_of
from coopconsume.record import (
    MAX_WAIT,
    ordering_key_of,
    shown_key,
    usable_seconds,
    with_added,
)
from coopconsume.runtime.commit.outbox import due_ms
from coopconsume.runtime.decisions import apply_decisions, open_decisions
from coopconsume.values.shown import clean
from coopconsume.worker.handler_answers import reason_of
from coopconsume.worker.report import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from commits import CommitResult
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.record import Headers
    from coopconsume.runtime.decisions import Decision
    from coopconsume.runtime.poll.retry_buffer import RetryBuffer
    from coopconsume.runtime.poll.session import PollSession
    from coopconsume.runtime.read.poll_frames import PolledRows

    #: By partition and offset the reason that was given.
    Reasons = dict[TopicPartition, dict[int, str]]
    #: By partition the records that come again, as the commit log has them.
    PendingRecords = dict[TopicPartition, list[Pending]]


def commit_named(
    session: PollSession,
    assignment: EpochAssignment,
    named: Mapping[TopicPartition, OffsetRanges],
    filtered: Mapping[TopicPartition, OffsetRanges],
) -> tuple[dict[TopicPartition, CommitResult], dict[TopicPartition, OffsetRanges]]:
    """Commits what the filter dropped, and of what a user names what the limit on ranges lets in.

    Args:
        session: What was handed out.
        assignment: The key ranges of the consumer.
        named: What the user names.
        filtered: What the filter dropped.

    Returns:
        The answer of each partition, and the offsets of each that are not committed.

    Raises:
        commits.FencedMember: The epoch or the membership is not in force.
        commits.CommitLogUnavailable: The log did not answer; whether this counts is not known.
    """
    done, nothing = assignment.affordable(named, filtered), OffsetRanges()
    for tp, some in filtered.items():
        done[tp] = done.get(tp, nothing) | some
    left = {tp: rest for tp, of in named.items() if (rest := of - done.get(tp, nothing))}
    done = {tp: some for tp, some in done.items() if some}
    counts = {tp: len(some) for tp, some in filtered.items()}
    results = assignment.commit(done, filtered=counts) if done else {}
    session.committed(assignment, done)
    return results, left


def over_limit(
    assignment: EpochAssignment,
    results: Mapping[TopicPartition, CommitResult],
    left: Mapping[TopicPartition, OffsetRanges],
) -> MaxIndividualCommitsReached:
    """Returns the error that says which offsets the limit on ranges left out.

    Args:
        assignment: The key ranges of the consumer.
        results: The answer of each partition.
        left: The offsets of each partition that are not committed.
    """
    first = min(left)
    owned = assignment.owned[first]
    # Each range that does not fit stands alone: otherwise it would not raise the number.
    count = owned.range_count + left[first].range_count
    return MaxIndividualCommitsReached(count, owned.max_ranges, dict(results), dict(left))


def wait_seconds(name: str, wait: float | str) -> float:
    """Returns seconds to wait, from a number or a text.

    Args:
        name: Name of the parameter.
        wait: Its value.

    Raises:
        InvalidOption: It is neither, or not from 0 to 365 days.
    """
    seconds = seconds_of(name, wait)
    if usable_seconds(seconds) is None:
        raise InvalidOption(name, repr(wait), f"give 0 to {MAX_WAIT:.0f} seconds (365 days)")
    return seconds


def reasons_of(frame: DataFrame, reason: object, call: str) -> Reasons:
    """Returns the records that a frame names, each with its reason.

    Args:
        frame: The records.
        reason: A column of the frame, or as for `Reject`.
        call: The caller, for the error.

    Raises:
        ValueError: The frame lacks a column.
    """
    from pyspark.sql import functions as F  # noqa: N812

    names = ("topic", "partition", "offset")
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise ValueError(f"{call} needs the column {missing[0]!r}; the frame has {frame.columns}")
    # Spark Connect has another class of columns.
    why = reason if hasattr(reason, "cast") else F.lit(reason_of(reason))
    rows = frame.select(*names, why.cast("string").alias("reason")).toArrow().to_pydict()
    reasons: Reasons = {}
    for topic, partition, offset, text in zip(*rows.values(), strict=True):
        reasons.setdefault((topic, partition), {})[offset] = clean(text or "")
    return reasons


def pending_records(
    session: PollSession,
    assignment: EpochAssignment,
    reasons: Reasons,
    dealt: Mapping[TopicPartition, PolledRows],
    more: Headers,
    delay: float,
) -> PendingRecords:
    """Returns records that are to come again, as the commit log is to have them.

    Args:
        session: What was handed out.
        assignment: The key ranges of the consumer.
        reasons: The records.
        dealt: By partition the records that were read, with the keys that they are dealt by.
        more: Headers to add to the records.
        delay: Seconds until they come again.

    Raises:
        NotPolled: At an offset there is no record of ours.
        ValueError: A record would have too many bytes of added headers.
    """
    found: PendingRecords = {}
    for tp, records in reasons.items():
        rows = dealt[tp]
        offsets = rows.offsets.tolist()
        check_found(tp, records, offsets)
        hashes = dict(zip(offsets, rows.hashes.tolist(), strict=True))
        retries = session.retries(assignment, tp)
        added = {offset: retries.added(offset, more) for offset in offsets}
        assert rows.keys is not None
        keys = dict(zip(offsets, rows.keys.tolist(), strict=True))
        found[tp] = [
            Pending(
                offset, hashes[offset], retries.attempt(offset), due_ms(delay), text,
                headers=added[offset], key=shown_key(keys[offset]),
            )
            for offset, text in records.items()
        ]  # fmt: skip
    return found


def check_found(tp: TopicPartition, named: Iterable[int], found: Iterable[int]) -> None:
    """Makes sure that all named records of a partition were found in Kafka.

    Raises:
        NotPolled: One was not.
    """
    absent = set(named).difference(found)
    if absent:
        raise NotPolled(*tp, min(absent), min(absent))


def letters_of(
    rows: Iterable[Any],
    reasons: Reasons,
    retries: Callable[[TopicPartition], RetryBuffer],
    *,
    has_ordering_keys: bool = False,
) -> list[DeadLetter]:
    """Returns dead letters of records, in the order of their partitions.

    Args:
        rows: The records as they are in Kafka, with the hashes that they are dealt by.
        reasons: The records that were named.
        retries: The records of a partition that wait for a retry.
        has_ordering_keys: Whether the rows have their ordering keys as headers.

    Raises:
        NotPolled: A record that was named is not among the rows.
    """
    letters = []
    for row in rows:
        tp, offset = (row["topic"], row["partition"]), row["offset"]
        own = tuple((h["key"], _bytes(h["value"])) for h in row["headers"] or ())
        more = retries(tp).added(offset)
        key = _bytes(row["key"])
        letters.append(
            DeadLetter(
                *tp, offset, key, _bytes(row["value"]), row["millis"],
                with_added(own, more), retries(tp).attempt(offset), reasons[tp][offset], "", more,
                row["key_hash"], ordering_key_of(own) if has_ordering_keys else key,
            )
        )  # fmt: skip
    for tp, records in reasons.items():
        check_found(tp, records, {x.offset for x in letters if (x.topic, x.partition) == tp})
    return sorted(letters, key=lambda x: (x.topic, x.partition, x.offset))


def hold_back(
    session: PollSession,
    assignment: EpochAssignment,
    pending: PendingRecords,
    delay: float,
    commit_id: str,
) -> None:
    """Writes that records come again after some seconds, and holds their keys back.

    Args:
        session: What was handed out.
        assignment: The key ranges of the consumer.
        pending: The records.
        delay: Seconds; infinity parks them.
        commit_id: Of this commit.

    Raises:
        commits.FencedMember: The epoch or the membership is not in force.
    """
    due = time.monotonic() + delay
    assignment.commit({}, pending=pending, commit_id=commit_id)
    session.hold_back(assignment, pending, due)


def take_decisions(
    session: PollSession, assignment: EpochAssignment, commit_ids: Iterator[str]
) -> bool:
    """Takes what operators decided on records that wait; none of them is in the user's hands.

    A failed record that is skipped or parked has no dead letter: nobody reads it.

    Returns:
        Whether a decision has no outcome yet.
    """
    with assignment.store.one_look():
        _take_on_parked(session, assignment, commit_ids)
        on_failed = open_decisions(assignment)
    for decision in on_failed:
        _take_on_failed(session, assignment, decision, commit_ids)
    return bool(on_failed)


def _take_on_failed(
    session: PollSession,
    assignment: EpochAssignment,
    decision: Decision,
    commit_ids: Iterator[str],
) -> None:
    tp, offset = (decision.topic, decision.partition), decision.offset
    with session.lock:
        waiting = session.retries(assignment, tp).waiting(offset)
    if waiting is None or waiting.is_parked:
        return
    if decision.action == "retry":
        if not decision.is_retried(waiting.attempts, waiting.due_ms):
            waiting.due = min(waiting.due, time.monotonic())
    elif decision.action == "skip":
        done = {tp: OffsetRanges([(offset, offset)])}
        assignment.commit(done, commit_id=next(commit_ids))
        session.committed(assignment, done)
    else:
        record = Pending(
            offset, waiting.key_hash, waiting.attempts, due_ms(math.inf),
            f"parked by {decision.by}", headers=waiting.headers, key=waiting.key,
        )  # fmt: skip
        assignment.commit({}, pending={tp: [record]}, commit_id=next(commit_ids))
        waiting.due = math.inf


def _take_on_parked(
    session: PollSession, assignment: EpochAssignment, commit_ids: Iterator[str]
) -> None:
    parked = [
        (tp, record)
        for tp, place in session.places_of(assignment).items()
        for record in place.retries.parked
    ]
    now = time.monotonic()
    for decision in apply_decisions(assignment, parked, commit_ids):
        tp, offset = (decision.topic, decision.partition), decision.offset
        if decision.action == "replay":
            with session.lock:
                session.retries(assignment, tp).replay(offset, now)
        else:
            session.committed(assignment, {tp: OffsetRanges([(offset, offset)])})


def give_up(
    session: PollSession,
    assignment: EpochAssignment,
    letters: Sequence[DeadLetter],
    *,
    park: bool,
    commit_id: str,
) -> None:
    """Commits that records are given up, once their letters are written.

    Args:
        session: What was handed out.
        assignment: The key ranges of the consumer.
        letters: The letters.
        park: Whether the records wait for a decision; if not, they are done.
        commit_id: The commit that the letters stand or fall with.

    Raises:
        NotPolled: A record was answered for since, or belongs to others.
        commits.FencedMember: The epoch or the membership is not in force.
    """
    named: dict[TopicPartition, list[int]] = {}
    for letter in letters:
        named.setdefault((letter.topic, letter.partition), []).append(letter.offset)
    done = session.check_open(assignment, named)
    if not park:
        assignment.commit(done, commit_id=commit_id)
        session.committed(assignment, done)
        return
    records: PendingRecords = {}
    for letter in letters:
        tp, offset = (letter.topic, letter.partition), letter.offset
        attempt = session.retries(assignment, tp).attempt(offset)
        records.setdefault(tp, []).append(Pending(
            offset, letter.key_hash, attempt, due_ms(math.inf), letter.reason,
            headers=letter.added, key=shown_key(letter.dealt_by),
        ))  # fmt: skip
    hold_back(session, assignment, records, math.inf, commit_id)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
