"""Snapshots: the conversion of the folded state of all groups to rows of the log and back.

A snapshot is one append of events whose ids are `<snapshot id>/<number>`. The first event contains
the version and the settings, each other event one group with a row for each partition.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import astuple, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from commits.acquisitions import Acquisition, Acquisitions
from commits.fold import GroupState, LogState, PartitionState
from commits.grants import GrantState, ShareOwner
from commits.ids import CommitIds
from commits.model import Doubt, Epoch, share_from_plain, share_to_plain
from commits.offset_and_epoch import OffsetAndEpoch
from commits.offsets import MAX_OFFSET, OffsetRanges
from commits.partition_commits import Answer, CommitResult, PartitionCommits
from commits.partition_rules import KnownPrimary
from commits.rows import Event, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assignors.shares import Share
    from commits.model import Pending, TopicPartition


_RESULT_FIELDS = [one.name for one in fields(CommitResult) if one.name != "not_held"]


def snapshot_events(log: LogState, snapshot_id: str, *, repair: bool = False) -> list[Event]:
    """Convert the state of the log to events that are appended together.

    Args:
        log: The state.
        snapshot_id: The unique id of the snapshot.
        repair: Whether it replaces another state, with a new store id.
    """
    groups = [
        Event(
            kind="snapshot",
            id=f"{snapshot_id}/{number}",
            cluster=cluster,
            group=name,
            detail=_group_to_plain(group),
            parts=tuple(_part(at, state) for at, state in group.partitions.items()),
        )
        for number, ((cluster, name), group) in enumerate(log.groups.items(), start=1)
    ]
    head = {
        "version": log.version,
        "groups": len(groups),
        "settings": [
            [cluster, name, topic, value]
            for (cluster, topic), values in log.settings.items()
            for name, value in values.items()
        ],
        **({"store": log.store} if log.store else {}),
        **({"repair": True} if repair else {}),
    }
    return [Event(kind="snapshot", id=f"{snapshot_id}/0", detail=head), *groups]


def newest_snapshot(events: Iterable[Event]) -> LogState | None:
    """Return the state of the newest complete snapshot among the events; None without one.

    If a repair is among them, snapshots of another store id are ignored, whatever their version:
    the repair has replaced their state. Spark accepts appends while a repair is written.

    Raises:
        KeyError, TypeError, ValueError: If a snapshot cannot be read.
    """
    by_id: dict[str, dict[int, Event]] = {}
    for event in events:
        snapshot_id, _, number = event.id.rpartition("/")
        by_id.setdefault(snapshot_id, {})[int(number)] = event
    complete = []
    for found in by_id.values():
        parts = [found[number] for number in sorted(found)]
        if 0 in found and len(parts) == parts[0].detail["groups"] + 1:
            complete.append(parts)
    repairs = [parts for parts in complete if parts[0].detail.get("repair")]
    if repairs:
        store = max(repairs, key=_version_of)[0].detail["store"]
        complete = [parts for parts in complete if parts[0].detail.get("store") == store]
    if not complete:
        return None
    newest = max(complete, key=_version_of)
    head, *groups = newest
    return LogState(
        version=head.detail["version"],
        groups={(event.cluster, event.group): _group_from_event(event) for event in groups},
        settings=_settings_from_plain(head.detail["settings"]),
        store=head.detail.get("store", ""),
    )


def _settings_from_plain(plain: Iterable[Any]) -> dict[tuple[str, str], dict[str, Any]]:
    settings: dict[tuple[str, str], dict[str, Any]] = {}
    for cluster, name, topic, value in plain:
        settings.setdefault((cluster, topic), {})[name] = value
    return settings


def _version_of(snapshot: list[Event]) -> int:
    version: int = snapshot[0].detail["version"]
    return version


def _part(at: tuple[str, int], state: PartitionState) -> Part:
    stable_offset, ranges = state.commits.stable_offset, state.commits.ranges
    if stable_offset > MAX_OFFSET:  # one more than the column can hold: stored as a range
        stable_offset, ranges = MAX_OFFSET, OffsetRanges([(MAX_OFFSET, MAX_OFFSET)])
    return Part(
        *at,
        topic_id=state.topic_id,
        first=stable_offset,
        offsets=ranges,
        pending=tuple(state.pending.values()),
    )


def _group_to_plain(group: GroupState) -> dict[str, Any]:
    return {
        "highest": group.highest,
        "in_force": _grant_to_plain(group.in_force) if group.in_force else None,
        "claims": [_grant_to_plain(claim) for claim in group.claims.values()],
        "counted": group.counted.to_plain(),
        "answers": [[key, *_answer_to_plain(answer)] for key, answer in group.answers.items()],
        "loose": _doubts_to_plain(group.loose),
        "delays": _of_pending_to_plain(group.partitions, "delay_ms"),
        "since": _of_pending_to_plain(group.partitions, "since_ms"),
        **({"refused": group.refused} if group.refused else {}),
        "initial_partitions": group.initial_partitions,
        "primary": [
            [*at, *astuple(state.primary)]
            for at, state in group.partitions.items()
            if state.primary is not None
        ],
        "reached": [
            [*at, *state.reached]
            for at, state in group.partitions.items()
            if state.reached is not None
        ],
        **_acquisitions_to_plain(group.partitions),
        **({"not_held": _not_held_to_plain(group.not_held)} if group.not_held else {}),
    }


def _group_from_event(event: Event) -> GroupState:
    plain = event.detail
    delays, since = (
        {(topic, number): dict(pairs) for topic, number, pairs in plain.get(name, ())}
        for name in ("delays", "since")
    )
    claims = [_grant_from_plain(claim) for claim in plain["claims"]]
    primary = {
        (topic, partition): KnownPrimary(*rest)
        for topic, partition, *rest in plain.get("primary", ())
    }
    reached = {
        (topic, partition): OffsetAndEpoch(*end)
        for topic, partition, *end in plain.get("reached", ())
    }
    acquisitions = _acquisitions_from_plain(plain.get("acquisitions", ()), plain.get("watched", ()))
    return GroupState(
        highest=plain["highest"],
        in_force=_grant_from_plain(plain["in_force"]) if plain["in_force"] else None,
        claims={claim.epoch.nonce: claim for claim in claims},
        partitions={
            part.topic_partition: PartitionState(
                part.topic_id,
                PartitionCommits(part.first or 0, part.offsets, max_ranges=None),
                _with_times(
                    part.pending,
                    delays.get(part.topic_partition, {}),
                    since.get(part.topic_partition, {}),
                ),
                primary.get(part.topic_partition),
                reached.get(part.topic_partition),
                acquisitions.get(part.topic_partition) or Acquisitions(),
            )
            for part in event.parts
        },
        counted=CommitIds.from_plain(plain["counted"]),
        answers=OrderedDict((key, _answer_from_plain(rest)) for key, *rest in plain["answers"]),
        loose=_doubts_from_plain(plain.get("loose", ())),
        refused={
            commit_id: tuple((topic, partition) for topic, partition in places)
            for commit_id, places in plain.get("refused", {}).items()
        },
        initial_partitions=dict(plain.get("initial_partitions", {})),
        not_held={
            commit_id: {(topic, number): _ranges(pairs) for topic, number, pairs in places}
            for commit_id, places in plain.get("not_held", {}).items()
        },
    )


def _acquisitions_to_plain(partitions: Mapping[TopicPartition, PartitionState]) -> dict[str, Any]:
    listed = [
        [
            *at,
            state.acquisitions.marker,
            [
                [
                    chunk.id, chunk.member, chunk.renewals, chunk.life_ms,
                    chunk.since.timestamp() if chunk.since else None, chunk.offsets.pairs(),
                ]
                for chunk in state.acquisitions.chunks.values()
            ],
        ]
        for at, state in partitions.items()
        if state.acquisitions != Acquisitions()
    ]  # fmt: skip
    watched = [
        [*at, chunk.id, chunk.watched_ms]
        for at, state in partitions.items()
        for chunk in state.acquisitions.chunks.values()
        if chunk.watched_ms
    ]
    plain = {"acquisitions": listed, "watched": watched}
    return {name: found for name, found in plain.items() if found}


def _acquisitions_from_plain(
    plain: Iterable[Any], noted: Iterable[Any]
) -> dict[TopicPartition, Acquisitions]:
    watched = {(topic, partition, chunk_id): ms for topic, partition, chunk_id, ms in noted}
    return {
        (topic, partition): Acquisitions(
            marker,
            {
                chunk_id: Acquisition(
                    chunk_id, member, _ranges(pairs), renewals, life_ms,
                    watched.get((topic, partition, chunk_id), 0),
                    None if since is None else datetime.fromtimestamp(since, UTC),
                )
                for chunk_id, member, renewals, life_ms, since, pairs in chunks
            },
        )
        for topic, partition, marker, chunks in plain
    }  # fmt: skip


def _not_held_to_plain(
    not_held: Mapping[str, Mapping[TopicPartition, OffsetRanges]],
) -> dict[str, Any]:
    return {
        commit_id: [[*at, offsets.pairs()] for at, offsets in places.items()]
        for commit_id, places in not_held.items()
    }


def _ranges(pairs: Iterable[Any]) -> OffsetRanges:
    return OffsetRanges([(first, last) for first, last in pairs])


def _of_pending_to_plain(
    partitions: Mapping[TopicPartition, PartitionState], name: str
) -> list[Any]:
    """Return each time of pending records: a snapshot is written later than they failed."""
    found = []
    for at, state in partitions.items():
        times = [[one.offset, getattr(one, name)] for one in state.pending.values()]
        found.append([*at, [both for both in times if both[1] is not None]])
    return [one for one in found if one[-1]]


def _with_times(
    pending: Iterable[Pending], delays: Mapping[int, int], since: Mapping[int, int]
) -> dict[int, Pending]:
    return {
        p.offset: replace(
            p, delay_ms=delays.get(p.offset, p.delay_ms), since_ms=since.get(p.offset)
        )
        for p in pending
    }


def _grant_to_plain(grant: GrantState) -> dict[str, Any]:
    return {
        "epoch": [grant.epoch.number, grant.epoch.nonce],
        "generation": grant.generation,
        "members": _shares_to_plain(grant.members),
        "topic_ids": grant.topic_ids,
        "fenced": grant.fenced,
        "life_ms": grant.life_ms,
        "doubts": _doubts_to_plain(grant.doubts),
        "heirs": grant.heirs,
        "settled": sorted(grant.settled),
        "session_ms": grant.session_ms,
        **({"unchanged": grant.unchanged} if grant.unchanged else {}),
        **({"handed": _shares_to_plain(grant.handed)} if grant.handed else {}),
        **({"previous": astuple(grant.previous)} if grant.previous else {}),
        **({"filter": grant.record_filter} if grant.record_filter else {}),
        **({"continues": grant.continues} if grant.continues else {}),
        **({"sharing": grant.sharing} if grant.sharing else {}),
        **({"lives": grant.lives} if grant.lives else {}),
    }


def _grant_from_plain(plain: Mapping[str, Any]) -> GrantState:
    return GrantState(
        Epoch(*plain["epoch"]),
        plain["generation"],
        _shares_from_plain(plain["members"]),
        plain["topic_ids"],
        plain["fenced"],
        plain.get("life_ms", 0),
        tuple(_doubts_from_plain(plain.get("doubts", ()))),
        plain.get("heirs", {}),
        set(plain.get("settled", ())),
        plain.get("session_ms", 0),
        unchanged=plain.get("unchanged", {}),
        handed=_shares_from_plain(plain.get("handed", {})),
        previous=Epoch(*plain["previous"]) if "previous" in plain else None,
        record_filter=plain.get("filter", ""),
        continues=plain.get("continues", {}),
        sharing=plain.get("sharing", ""),
        lives=plain.get("lives", {}),
    )


def _shares_to_plain(shares: Mapping[str, Iterable[Share]]) -> dict[str, list[Any]]:
    return {member: list(map(share_to_plain, some)) for member, some in shares.items()}


def _shares_from_plain(plain: Mapping[str, Iterable[Any]]) -> dict[str, tuple[Share, ...]]:
    return {member: tuple(map(share_from_plain, some)) for member, some in plain.items()}


def _doubts_to_plain(doubts: Iterable[Doubt]) -> list[Any]:
    return [(share_to_plain(share), life_ms) for share, life_ms in doubts]


def _doubts_from_plain(plain: Iterable[Any]) -> list[Doubt]:
    return [Doubt(share_from_plain(share), life_ms) for share, life_ms in plain]


def _answer_to_plain(answer: Answer) -> tuple[Any, ...]:
    holder = answer.holder
    return (
        answer.counted,
        answer.reason,
        [[*at, *_result_to_plain(result)] for at, result in answer.results.items()],
        [share_to_plain(holder.share), holder.member, astuple(holder.epoch)] if holder else None,
    )


def _answer_from_plain(plain: Sequence[Any]) -> Answer:
    counted, reason, results, holder = plain
    return Answer(
        counted,
        reason,
        {(topic, partition): _result_from_plain(rest) for topic, partition, *rest in results},
        ShareOwner(share_from_plain(holder[0]), holder[1], Epoch(*holder[2])) if holder else None,
    )


def _result_to_plain(result: CommitResult) -> list[Any]:
    plain = [getattr(result, name) for name in _RESULT_FIELDS]
    return [*plain, result.not_held.pairs()] if result.not_held else plain


def _result_from_plain(plain: Sequence[Any]) -> CommitResult:
    known = len(_RESULT_FIELDS)
    result = CommitResult(*plain[:known])
    return replace(result, not_held=_ranges(plain[known])) if len(plain) > known else result
