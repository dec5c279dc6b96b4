"""Decisions of operators on failed and parked records, and how members apply them.

A decision is a setting in the commit log: it needs no epoch, so it can be made with and without a
running job. It has an effect by commits alone, which count under the epoch in force.

A decision on a *parked* record is applied by the owner of the record's key: it commits that the
record is retried or done, removes the decision, and continues with the key. A crash in between
repeats nothing: decisions apply only to records that the log has as parked, and the next member
removes others.

A decision on a record that has *failed* and waits for its next attempt makes the record due. The
slot that gets it calls its handler, or gives it up without a call, and the outcome is committed as
that of any attempt (see `coopconsume.runtime.plan.decided_records`). The decision stays open until
the commit log shows an outcome (`outcome_of`), so a crash at any moment neither loses it nor
applies it to what comes after. Its setting has a name of its own, so that the outcome of one
decision never overwrites a later one. Members of earlier versions ignore these settings.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from commits import OffsetRanges, Pending
from coopconsume.kafka.identity import is_other_topic
from coopconsume.runtime.decided_by import DecidedBy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from commits import CommitStore, PartitionCommits
    from commits.model import TopicPartition
    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.group.owned import Failed

log = logging.getLogger(__name__)

#: A decision on a parked record, or on a dead letter.
Action = Literal["replay", "discard"]
#: A decision on a failed record.
RecordAction = Literal["retry", "park", "skip"]
DecisionStatus = Literal["open", "retried", "parked", "done", "replaced", "dropped"]

#: Of each group and topic, the newest decisions with an outcome are kept for people.
KEPT: Final = 100
_PARKED = "deadLetter"
_FAILED = "decision"


@dataclass(frozen=True)
class Decision:
    """What is to become of a failed or parked record.

    Attributes:
        topic, partition, offset: Which record.
        action: Of a parked record, ``replay``: it is tried again, from its first attempt on;
            ``discard``: it is done. Of a failed record, ``retry``: it is tried again now; ``park``:
            its key waits for a further decision; ``skip``: it is done.
        topic_id: The id of its topic; empty if it is not known.
        by: Who decided, when and why.
        attempts: The failed attempts of the record when it was decided.
        due_ms: When the record was to be tried again, as the commit log had it then; None: an
            earlier version has decided, which did not note it.
        status: ``open``: it has no outcome yet. ``retried``, ``parked`` or ``done``: the outcome of
            the record in the commit log since then. ``replaced``: another one on the record came
            after it. ``dropped``: the topic was deleted, or an operator has set the offsets.
        settled_ms: When a member found the outcome, in milliseconds since 1970 by its clock.
        id: Distinguishes decisions on a record; empty for an open one on a parked record.
    """

    topic: str
    partition: int
    offset: int
    action: Action | RecordAction
    topic_id: str = ""
    by: DecidedBy = field(default_factory=DecidedBy)
    attempts: int = 0
    status: DecisionStatus = "open"
    settled_ms: int = 0
    id: str = ""
    due_ms: int | None = None

    def setting(self, group: str) -> str:
        """Returns the name under which the commit log keeps it."""
        kind, more = (_FAILED, f"/{self.id}") if self.id else (_PARKED, "")
        return f"{kind}/{group}/{self.partition}/{self.offset}{more}"

    @property
    def place(self) -> tuple[str, int, int]:
        """The topic, partition and offset of its record."""
        return self.topic, self.partition, self.offset

    def is_retried(self, attempts: int, due_ms: int | None) -> bool:
        """Returns whether its record was tried since it was decided, and has failed again.

        Args:
            attempts: The failed attempts of the record.
            due_ms: When the record is due, as the commit log has it; None: that is not known. A
                call that does not count changes this time only.
        """
        is_same = self.due_ms is None or due_ms is None or due_ms == self.due_ms
        return attempts != self.attempts or not is_same

    def to_setting(self) -> dict[str, Any]:
        """Returns the value of the setting."""
        found = {
            "action": self.action,
            "topic_id": self.topic_id,
            "at_ms": self.by.at_ms,
            "by": self.by.name,
            "reason": self.by.reason,
            "attempts": self.attempts,
        }
        if self.due_ms is not None:
            found["due_ms"] = self.due_ms
        if not self.settled_ms:
            return found
        return found | {"status": self.status, "settled_ms": self.settled_ms}


def decide(store: CommitStore, group: str, decisions: Iterable[Decision]) -> None:
    """Writes decisions, all in one append; the last one on a record counts, until it is taken.

    Raises:
        commits.CommitStoreError: The log cannot be written.
    """
    made = [
        one if one.action in ("replay", "discard") else replace(one, id=uuid.uuid4().hex[:12])
        for one in decisions
    ]
    places = {one.place for one in made}
    topics = {one.topic for one in made}
    with store.one_look():
        known = [*decided(store, group, topics), *record_decisions(store, group, topics)]
    replaced = [one for one in known if one.status == "open" and one.place in places]
    store.set_settings(
        [
            *((one.topic, one.setting(group), None) for one in replaced),
            *((one.topic, one.setting(group), one.to_setting()) for one in made),
        ]
    )


def decided(store: CommitStore, group: str, topics: Iterable[str]) -> list[Decision]:
    """Returns the decisions on parked records of some topics that no member has applied yet."""
    return [one for one in _read(store, group, topics, _PARKED) if not one.id]


def record_decisions(store: CommitStore, group: str, topics: Iterable[str]) -> list[Decision]:
    """Returns the decisions on failed records of some topics.

    Also those on parked records that were applied. Of those with an outcome the newest are kept. Of
    several on a record, as two operators made at once, the last one counts.
    """
    found = [one for one in _read(store, group, topics, _FAILED) if one.id]
    found.sort(key=lambda one: (one.by.at_ms, one.id))
    last = {one.place: one for one in found if one.status == "open"}
    return [
        replace(one, status="replaced")
        if one.status == "open" and last[one.place] is not one
        else one
        for one in found
    ]


def _read(store: CommitStore, group: str, topics: Iterable[str], kind: str) -> list[Decision]:
    start = f"{kind}/{group}/"
    found = []
    for topic in sorted(set(topics)):
        for name, value in store.settings(topic).items():
            place = name.removeprefix(start).split("/") if name.startswith(start) else ()
            if len(place) in (2, 3) and all(number.isdigit() for number in place[:2]):
                partition, offset = map(int, place[:2])
                found.append(_decision(topic, partition, offset, value, *place[2:]))
    return found


def _decision(
    topic: str, partition: int, offset: int, value: Mapping[str, Any], decision_id: str = ""
) -> Decision:
    by = DecidedBy(value.get("by", ""), value.get("reason", ""), value.get("at_ms", 0))
    return Decision(
        topic,
        partition,
        offset=offset,
        action=value["action"],
        topic_id=value.get("topic_id", ""),
        by=by,
        attempts=value.get("attempts", 0),
        status=value.get("status", "open"),
        settled_ms=value.get("settled_ms", 0),
        id=decision_id,
        due_ms=value.get("due_ms"),
    )


def outcome_of(
    decision: Decision, commits: PartitionCommits | None, pending: Mapping[int, Pending]
) -> DecisionStatus:
    """Returns the outcome of an open decision, by the state of the commit log.

    An attempt that was in flight when it was decided counts as the retry. A record that was parked
    meanwhile can still be skipped.

    Args:
        decision: A decision on a failed record.
        commits: The committed offsets of its partition; None: the log does not know it.
        pending: The failed records of its partition.
    """
    offset = decision.offset
    if commits is not None and (offset < commits.stable_offset or offset in commits.ranges):
        return "done"
    record = pending.get(offset)
    if record is None:
        return "dropped"
    if decision.action == "park" and record.is_parked:
        return "parked"
    if decision.action == "retry" and decision.is_retried(record.attempts, record.due_ms):
        return "retried"
    if decision.action == "retry" and record.is_parked:
        return "parked"
    return "open"


def open_decisions(assignment: EpochAssignment) -> list[Decision]:
    """Returns the decisions on failed records that are to be applied.

    The outcomes of the others are noted in the commit log.

    Args:
        assignment: What is owned.

    Raises:
        commits.CommitStoreError: The log cannot be read or written.
    """
    group, store = assignment.options.group_id, assignment.store
    found = [
        one
        for one in record_decisions(store, group, (topic for topic, _ in assignment.owned))
        if not one.settled_ms and (one.topic, one.partition) in assignment.owned
    ]
    if not found:
        return []
    state, pending = store.state(group), store.pending(group)
    still_open, settled = [], []
    for one in found:
        tp = one.topic, one.partition
        status = one.status
        if is_other_topic(one.topic_id, assignment.topic_ids.get(one.topic, "")):
            status = "dropped"
        elif status == "open":
            status = outcome_of(one, state.get(tp), pending.get(tp, {}))
        if status == "open":
            still_open.append(one)
        elif not assignment.owned[tp].uses_chunks or assignment.owned[tp].leads:
            settled.append(replace(one, status=status))
            log.info("%s of %s-%d@%d by %s: %s", one.action, *tp, one.offset, one.by, status)
    store.set_settings(_notes(store, group, settled))
    return still_open


def _notes(
    store: CommitStore, group: str, settled: Sequence[Decision]
) -> list[tuple[str, str, Any]]:
    """Returns the settings that note the outcomes of decisions; the oldest notes are removed."""
    now = int(time.time() * 1000)
    new = [replace(one, settled_ms=now) for one in settled]
    found: list[tuple[str, str, Any]] = []
    for topic in sorted({one.topic for one in new}):
        known = [one for one in record_decisions(store, group, [topic]) if one.status != "open"]
        known.sort(key=lambda one: one.settled_ms)
        excess = len(known) + sum(one.topic == topic for one in new) - KEPT
        found += [(topic, one.setting(group), None) for one in known[: max(0, excess)]]
    return [*found, *((one.topic, one.setting(group), one.to_setting()) for one in new)]


def apply_decisions(
    assignment: EpochAssignment,
    parked: Sequence[tuple[TopicPartition, Failed]],
    commit_ids: Iterator[str],
) -> list[Decision]:
    """Writes the decisions on parked records into the commit log, in one commit.

    Decisions on records that are not parked any more, or of a topic that was deleted since, are
    taken away. To skip a record that was parked meanwhile is to discard it.

    Args:
        assignment: What is owned.
        parked: The parked records of it.
        commit_ids: Ids for commits.

    Returns:
        The decisions that hold from now on.

    Raises:
        commits.FencedMember: The epoch or the membership is not in force.
        commits.CommitStoreError: The log cannot be read or written.
    """
    group = assignment.options.group_id
    waiting = {(*tp, record.offset): record for tp, record in parked}
    found = decided(assignment.store, group, (topic for topic, _ in assignment.owned))
    taken, stale = _applicable(assignment, [*found, *_skips(assignment, waiting)], waiting)
    if taken:
        _commit(assignment, taken, waiting, next(commit_ids))
    notes = [
        replace(
            one,
            status="retried" if one.action == "replay" else "done",
            id=one.id or uuid.uuid4().hex[:12],
        )
        for one in taken
    ]
    assignment.store.set_settings(
        [
            *((one.topic, one.setting(group), None) for one in [*stale, *taken]),
            *_notes(assignment.store, group, notes),
        ]
    )
    return taken


def _applicable(
    assignment: EpochAssignment,
    decisions: Sequence[Decision],
    waiting: Mapping[tuple[str, int, int], Failed],
) -> tuple[list[Decision], list[Decision]]:
    """Returns the decisions that are to be applied, and those that are to be taken away.

    Args:
        assignment: What is owned.
        decisions: Decisions on parked records.
        waiting: The parked records of it.
    """
    in_log = assignment.store.pending(assignment.options.group_id) if decisions else {}
    taken, stale = [], []
    for one in decisions:
        logged = in_log.get((one.topic, one.partition), {}).get(one.offset)
        is_parked = logged is not None and logged.is_parked
        if one.place not in waiting:
            if not is_parked:  # Else it is another member's.
                stale.append(one)
        elif is_other_topic(one.topic_id, assignment.topic_ids.get(one.topic, "")):
            log.warning(
                "the %s of %s-%d@%d is dropped: its topic was deleted since",
                one.action,
                one.topic,
                one.partition,
                one.offset,
            )
            stale.append(one)
        elif is_parked or one.action != "skip":  # The commit that parks it may be on its way.
            taken.append(one)
    return taken, stale


def _commit(
    assignment: EpochAssignment,
    decisions: Sequence[Decision],
    waiting: Mapping[tuple[str, int, int], Failed],
    commit_id: str,
) -> None:
    """Commits that parked records are to be retried, or are done."""
    offsets: dict[TopicPartition, OffsetRanges] = {}
    pending: dict[TopicPartition, list[Pending]] = {}
    for one in decisions:
        tp, record = (one.topic, one.partition), waiting[one.place]
        if one.action == "replay":
            again = Pending(
                one.offset, record.key_hash, 0, 0, record.error,
                headers=record.headers, key=record.key,
            )  # fmt: skip
            pending.setdefault(tp, []).append(again)
        else:
            offsets[tp] = offsets.get(tp, OffsetRanges()) | OffsetRanges([(one.offset, one.offset)])
    assignment.commit(offsets, pending=pending, commit_id=commit_id)
    for one in decisions:
        log.info(
            "%s of %s-%d@%d by %s",
            one.action,
            one.topic,
            one.partition,
            one.offset,
            one.by or "an operator",
        )


def _skips(
    assignment: EpochAssignment, parked: Mapping[tuple[str, int, int], Failed]
) -> list[Decision]:
    """Returns the open decisions to skip records that were parked meanwhile."""
    topics = {topic for topic, _, _ in parked}
    return [
        one
        for one in record_decisions(assignment.store, assignment.options.group_id, topics)
        if one.status == "open" and one.action == "skip"
        if one.place in parked
    ]
