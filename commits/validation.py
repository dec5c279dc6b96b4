"""Validation of calls of the store, and the conversion of answers to results and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commits.errors import CommitRefused, IndividualCommitTooOld, MaxIndividualCommitsReached
from commits.fold import PartitionState
from commits.model import MAX_SHORT_KEY
from commits.offsets import MAX_OFFSET, OffsetRanges, exact_integer
from commits.rows import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commits.fold import GroupState
    from commits.model import AcquireRequest, Pending, TopicPartition
    from commits.offsets import Pairs
    from commits.partition_commits import CommitResult
    from commits.rows import Event


_MAX_ATTEMPTS = 2**31 - 1


def parts_of(
    offsets: Mapping[TopicPartition, Pairs | OffsetRanges],
    pending: Mapping[TopicPartition, Iterable[Pending]],
    holes: Mapping[TopicPartition, Pairs | OffsetRanges],
) -> tuple[Part, ...]:
    """Group the arguments of a commit by partition.

    Raises:
        ValueError: If a partition, an offset or a pending record is not valid.
    """
    return tuple(
        Part(
            *checked_place(at),
            offsets=OffsetRanges.of(offsets.get(at, ())),
            holes=OffsetRanges.of(holes.get(at, ())),
            pending=tuple(_checked_pending(at, one) for one in pending.get(at, ())),
        )
        for at in dict.fromkeys([*offsets, *pending, *holes])
    )


def chunk_id(request_id: str) -> str:
    """Return the id of the event that acquires for a request; its chunks have the same one."""
    # Events of one append count in the order of their ids: `/expire` and `/renew` come before.
    return request_id if request_id.endswith("/request") else f"{request_id}/request"


def request_events(base: Event, request: AcquireRequest) -> list[Event]:
    """Return the events of a request.

    Args:
        base: An event with the group, epoch and member.
        request: The request.

    Raises:
        ValueError: If the request is not valid.
    """
    if not request.id:
        raise ValueError("the id of a request must not be empty")
    events = []
    for kind, chunks in (("expire", request.expire), ("renew", request.renew)):
        # Earlier versions ignore what was watched, and expire these chunks later.
        watched = request.watched if kind == "expire" else {}
        if chunks or watched:
            places = {one[:2] for one in (*chunks, *watched)}
            detail: dict[str, Any] = {"chunks": chunks}
            if watched:
                detail["watched"] = [(*chunk, lasted) for chunk, lasted in watched.items()]
            events.append(
                replace(
                    base, kind=kind, id=f"{request.id}/{kind}",
                    parts=tuple(Part(*checked_place(at)) for at in sorted(places)), detail=detail,
                )
            )  # fmt: skip
    if request.wanted:
        for at, wanted in request.wanted.items():
            if wanted.count < 1 or not -1 <= wanted.last <= MAX_OFFSET:
                raise ValueError(f"{wanted} of {at}: its count must be from 1, its last from -1")
        parts = tuple(
            Part(*checked_place(at), last=wanted.last, offsets=wanted.due)
            for at, wanted in request.wanted.items()
        )
        counts = [wanted.count for wanted in request.wanted.values()]
        events.append(
            replace(
                base, kind="acquire", id=chunk_id(request.id), parts=parts,
                detail={"counts": counts},
            )
        )  # fmt: skip
    return events


def checked_place(at: TopicPartition) -> TopicPartition:
    """Return a topic and partition; raises ValueError if it is not valid."""
    match at:
        case (str(topic), int(partition)) if topic and partition >= 0:
            return topic, partition
        case _:
            raise ValueError(f"{at!r} is no (topic, partition)")


def _checked_pending(at: TopicPartition, pending: Pending) -> Pending:
    numbers = (pending.offset, pending.key_hash or 0, pending.due_ms)
    if not (
        all(0 <= number <= MAX_OFFSET for number in numbers)
        and 0 <= pending.attempts <= _MAX_ATTEMPTS
    ):
        raise ValueError(
            f"{pending} of {at[0]}-{at[1]}: its numbers must be from 0 to 2**63 - 1, and attempts "
            "to 2**31 - 1"
        )
    if pending.key is not None and len(pending.key) > MAX_SHORT_KEY:
        raise ValueError(
            f"the key of {at[0]}-{at[1]}@{pending.offset} has {len(pending.key):,} characters: "
            f"shorten it to {MAX_SHORT_KEY}"
        )
    # The column is UTF-8. A character that UTF-8 cannot encode must not fail the commit.
    error = pending.error.encode("utf-8", "backslashreplace").decode()
    return pending if error == pending.error else replace(pending, error=error)


def exact_offset(at: TopicPartition, offset: int) -> int:
    """Return an offset of a partition; raises ValueError if it is not valid."""
    exact = exact_integer(f"offset of {at[0]}-{at[1]}", offset)
    if not 0 <= exact <= MAX_OFFSET:
        raise ValueError(f"offset {exact} of {at[0]}-{at[1]} is not from 0 to 2**63 - 1")
    return exact


def with_topic_ids(event: Event, state: GroupState, topic_ids: Mapping[str, str] | None) -> Event:
    """Set the topic ids in the parts of an event: the given ids, or those of its epoch."""
    grant = state.grant(event.epoch)
    ids = {**(grant.topic_ids if grant else {}), **(topic_ids or {})}
    if not ids and not any(part.topic_id for part in event.parts):
        return event
    parts = tuple(replace(part, topic_id=ids.get(part.topic, "")) for part in event.parts)
    return replace(event, parts=parts)


def unwritten(
    state: GroupState, part: Part, fence: str, over: MaxIndividualCommitsReached | None
) -> CommitResult:
    """Return the result of a partition that the log has no answer for."""
    at = state.partitions.get(part.topic_partition) or PartitionState()
    if over is not None:
        return at.result("refused", f"{over.range_count} ranges, at most {over.max_ranges}")
    if fence:
        return at.result("refused", fence)
    if part.is_empty:
        return at.result()
    return at.result("refused", "the first commit with this id did not have it")


def raise_once(
    event: Event,
    results: Mapping[TopicPartition, CommitResult],
    over: list[MaxIndividualCommitsReached],
    *,
    report_too_old: bool,
) -> None:
    """Raise the error of an event, if its results contain one.

    Args:
        event: The event.
        results: The result of every partition.
        over: The errors of partitions that exceed the limit.
        report_too_old: Whether a commit that is too old is not an error.

    Raises:
        CommitRefused: If a partition was refused for another reason than the limit.
        MaxIndividualCommitsReached: If a partition exceeds the limit.
        IndividualCommitTooOld: If a commit is entirely below the stable offset.
    """
    refused = [at for at, result in results.items() if result.status == "refused"]
    if len(refused) > len(over):
        raise CommitRefused(event.group, event.member, results)
    if over:
        left = {p.topic_partition: p.offsets for p in event.parts if p.topic_partition in refused}
        raise MaxIndividualCommitsReached(over[0].range_count, over[0].max_ranges, results, left)
    for part in event.parts:
        result = results[part.topic_partition]
        if result.status == "too_old" and not report_too_old:
            raise IndividualCommitTooOld(result.stable_offset, part.offsets.last or 0, results)
