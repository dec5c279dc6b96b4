"""Checks a recorded run for lost records, order breaks and unexplained repeats.

The input is a history (every handler call: record, start, end, attempt, outcome, on one clock), the
produced records, three sets of records (done, pending, dead-lettered) and the kills. The checker
uses nothing else of the system and trusts no set: an entry counts only if the calls confirm it.

Terms
    A call *ends* at its recorded end. A call without one ends at the first kill after its start
    that took its process, or when its process was seen to be gone; else it never ends.
    A call *settles* its record if its outcome is ``done``, or if it failed permanently: its outcome
    is ``reject``, or ``retry`` on attempt ``max_attempts`` or above. Without ``max_attempts``, the
    last call of a dead-lettered record failed permanently.
    A *kill* is an instant between the end of the killed processes and the start of new ones, with
    the offsets that the log counted as committed, dead letters among them, as found there. It lies
    between two instants if it is at or after the first and before the second. A kill of the whole
    job divides the history into *lives*. A kill of some workers (``pids``) does not: it only ends
    their calls and explains repeats of theirs.
    A *disturbance* of some processes is a time in which what they did may not have been committed:
    they were stopped, or killed, or cut off from the group.
    A record is *deleted before it was handled* if retention deleted it, no call of it succeeded, it
    is not dead-lettered, and the log was not seen to count it as committed before the deletion.
    The *scope* of a record is what it keeps order with: the records of its partition that have its
    key (``ordering="key"``; a record without key is alone), all of its partition
    (``"partition"``), or itself alone (``"none"``).

Rules
    lost
        Every record produced is in a set. A record done has a call with outcome ``done``; a
        record dead-lettered has a call. A record that was deleted before it was handled may be in
        no set, or done without such a call.
    misplaced
        No record is pending and in another set. Pending and dead-lettered records were produced.
        Every call's record was produced with the key that the handler saw. (An offset counted as
        done and never produced is no fault: logs have holes, and holes are committed.)
    order breaks
        A call starts only when every lower produced offset of its scope *stands as settled*: a call
        that settled it ended at or before the start, in the same life, or in an earlier one with
        the record committed at each kill since. So a successor may start neither while its
        predecessor runs, nor while it waits for its next attempt, nor before it was ever called,
        nor, after a kill, before what the kill undid is settled again. That a lower offset is
        called once more after a higher one was is no break by itself: if it stood as settled the
        call is a repeat.
    overlaps
        No two calls of one scope run at the same time. Ends are before starts of the same instant.
    repeated
        A call that starts after a call that settled the same record. It is *in flight* if a kill
        lies between both at which the record was not committed (a kill of workers: if it took the
        worker of the earlier call); or if the process of the earlier call was disturbed before the
        later one started, and the earlier one had started before the disturbance was over. Any
        other repeat is a fault, above all that of a record that had been committed before.
    attempts back
        A call after one that did not settle the record gets a higher attempt, after a ``postponed``
        one no lower attempt, unless a kill or a disturbance of the earlier call's process lies
        between both.
    state breaks
        Only of calls that recorded what they saw of their key's state, without times to live. Each
        of them saw what a done call of the next lower record of its key had left, which ended at
        or before its start; nothing if there is no such record. A record that was also rejected
        may be passed over. With the final states: the final state of a key was left by a call of
        the highest done record, what that call saw by one of the next lower, and so on to a call
        that saw nothing. So each done record has changed the state once, in order.

What the rules cannot see: a handler that ran and whose first event never reached the file, records
of different partitions (there is no order between them), and the disk after a loss of power.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from coopconsume.testing.history.records import Records, RecordSets
from coopconsume.testing.history.rules import Case, Seen
from coopconsume.testing.history.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.testing.history.calls import History
    from coopconsume.testing.history.records import Offsets
    from coopconsume.testing.history.rules import Kill

Ordering = Literal["key", "partition", "none"]


def check(
    history: History,
    produced: Mapping[tuple[str, int], Mapping[int, bytes | None]],
    done: Mapping[tuple[str, int], Offsets],
    pending: Mapping[tuple[str, int], Offsets],
    dead_lettered: Mapping[tuple[str, int], Offsets],
    *,
    kills: Sequence[Kill] = (),
    seen: Seen | None = None,
    ordering: Ordering = "key",
    max_attempts: int | None = None,
    states: Mapping[tuple[str, int], Mapping[bytes, Any]] | None = None,
    witnesses: int = 5,
) -> Verdict:
    """Checks a run by the rules above.

    Offsets are given as (first, last) pairs, both included, or as a flat integer array.

    Args:
        history: The calls.
        produced: The key by offset of every produced record, by (topic, partition).
        done: The committed offsets. They may include dead letters, which count as dead letters
            only.
        pending: The offsets that were read and are not done.
        dead_lettered: The offsets of dead letters.
        kills: All kills.
        seen: Observations besides the calls: disturbances, the end of processes, the committed
            offsets at many instants, and deletions of records.
        ordering: The ordering of the run.
        max_attempts: The limit of the retry policy, if it had one.
        states: The state by key at the end, by (topic, partition); None: not checked.
        witnesses: The maximum number of cases to quote for each finding.

    Raises:
        ValueError: A parameter is out of its range.
    """
    if ordering not in ("key", "partition", "none"):
        raise ValueError(f"ordering={ordering!r}: give 'key', 'partition' or 'none'")
    if witnesses < 1:
        raise ValueError(f"witnesses={witnesses}: give at least 1")
    records = Records(produced)
    dead = records.mask(dead_lettered)
    sets = RecordSets(records.mask(done) & ~dead, records.mask(pending), dead)
    case = Case(
        history=history,
        records=records,
        sets=sets,
        kills=sorted(kills, key=lambda kill: kill.at_ns),
        seen=seen or Seen(),
        max_attempts=max_attempts,
        witnesses=witnesses,
    )
    elsewhere = records.not_produced(pending) + records.not_produced(dead_lettered)
    return _verdict(case, ordering, elsewhere, states)


def _verdict(
    case: Case,
    ordering: Ordering,
    not_produced: list[tuple[tuple[str, int], int]],
    states: Mapping[tuple[str, int], Mapping[bytes, Any]] | None,
) -> Verdict:
    """Has each rule judge."""
    records, sets = case.records, case.sets
    scope = records.scope(ordering)
    repeated, outside = case.repeats()
    return Verdict(
        produced=len(records),
        done=int(sets.done.sum()),
        pending=int(sets.pending.sum()),
        dead_lettered=int(sets.dead.sum()),
        deleted=case.deleted(),
        calls=len(case.history),
        in_flight_at_kill=case.in_flight(),
        lost=case.lost(),
        misplaced=case.misplaced(not_produced),
        order_breaks=case.order_breaks(scope),
        overlaps=case.overlaps(scope),
        repeated=repeated,
        repeated_outside_flight=outside,
        attempts_back=case.attempts_back(),
        state_breaks=case.state_breaks(scope, states),
    )
