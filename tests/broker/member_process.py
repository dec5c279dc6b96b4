"""A member of a group without Spark, as a program: it joins, commits, and prints what happens.

Started with a JSON of its options; each line it prints is an event as JSON, each line it reads is
a command: ``commit N`` (under what it holds), ``commit N EPOCH`` (under what it held then),
``mirror`` (the stable offset to Kafka), ``topics`` (look whether they are still those of the
epoch), ``lease SECONDS`` (work under leases, or with 0 without; asks whether it may), ``leave``.
With ``lease`` it joins as one that works under leases of so many seconds. With
``freezes_as_leader`` it stops itself by SIGSTOP once, after Kafka makes it the leader and
before it opens the epoch; with ``freezes_as_owner`` once it knows its shares and before it
looks where they begin. With ``protocol`` it speaks that version of the group's protocol.
With ``waits`` it joins once it has read a line, and reports before that it is ready to.
Its folder for temporary files is ``temporary``: one folder stands for one host.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaError

from assignors import KeyRange, wire
from commits import CommitStoreError, OffsetRanges
from coopconsume.errors import TopicReplaced
from coopconsume.group.membership import Membership
from coopconsume.options import Options
from tests.event_process import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assignors import Share
    from coopconsume.group.epoch_assignment import EpochAssignment


def as_lists(shares: Sequence[Share]) -> list[list[Any]]:
    """Return shares as lists: topic, partition, first and last hash."""
    return [[s.topic, s.partition, s.key_range.first, s.key_range.last] for s in shares]


def _longest_wait(assignment: EpochAssignment, shares: Iterable[Share]) -> float:
    """For how many seconds an earlier owner may be at work on any of some shares."""
    waits = [assignment.in_doubt.seconds((s.topic, s.partition), [s.key_range]) for s in shares]
    return max(waits, default=0.0)


class ReportingWorker:
    """A worker that only reports what it is given.

    Args:
        keeps: Whether it goes on while the group rebalances.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self.keeps = keeps
        self.assignment: EpochAssignment | None = None
        self.held: dict[int, EpochAssignment] = {}

    def begin(self, assignment: EpochAssignment) -> None:
        """Report the shares, and how long to wait for an earlier owner."""
        self.assignment = self.held[assignment.epoch.number] = assignment
        report(
            "begin", epoch=assignment.epoch.number, member=assignment.member,
            shares=as_lists(assignment.shares), wait=_longest_wait(assignment, assignment.shares),
        )  # fmt: skip

    def continue_work(self, _timeout: float) -> bool:
        """Go on, or not; nothing runs."""
        if self.keeps and self.assignment is not None:
            self.assignment.is_between_epochs = True
        return self.keeps

    def give_up(self, shares: Sequence[Share], _timeout: float) -> Sequence[Share]:
        """Report them; nothing of them runs."""
        assert self.assignment is not None
        self.assignment.give_up(shares)
        report("give_up", shares=as_lists(shares))
        return []

    def extend(self, load: Callable[[], EpochAssignment]) -> EpochAssignment:
        """Report the gained shares."""
        assert self.assignment is not None
        gained = load()
        self.assignment.extend(gained)
        report(
            "extend", epoch=self.assignment.epoch.number, shares=as_lists(gained.shares),
            wait=_longest_wait(self.assignment, gained.shares),
        )  # fmt: skip
        return gained

    def hand_over(self, _timeout: float) -> Sequence[Share]:
        """Report it; nothing runs."""
        report("hand_over")
        return []

    def drop(self) -> None:
        """Report it; what is held is kept, to try to commit under it."""
        report("drop")

    def fail(self, error: BaseException) -> None:
        """Report the error."""
        report("fail", error=type(error).__name__, text=str(error))


class Listener:
    """A rebalance listener that reports its calls."""

    def on_assigned(self, ranges: Any) -> None:
        """Report it."""
        report("on_assigned", partitions=len(ranges))

    def on_revoked(self, ranges: Any) -> None:
        """Report it."""
        report("on_revoked", partitions=len(ranges))

    def on_lost(self, ranges: Any) -> None:
        """Report it."""
        report("on_lost", partitions=len(ranges))


def mirror(worker: ReportingWorker) -> None:
    """Write the stable offset to Kafka, and report whether Kafka took it."""
    assert worker.assignment is not None
    try:
        worker.assignment.primary.write(force=True)
        report("mirrored", taken=True)
    except KafkaError as error:
        report("mirrored", taken=False, text=str(error))


def check_topics(worker: ReportingWorker, membership: Membership) -> None:
    """Look at the topics as a job does, and join again if one was recreated."""
    assert worker.assignment is not None
    try:
        worker.assignment.logs.check_topics()
        report("topics", replaced=False)
    except TopicReplaced as error:
        report("topics", replaced=True)
        membership.rejoin(str(error), [])


def freeze_before(owner: Any, method: str) -> None:
    """Stop this process the first time that a method is called."""
    call = getattr(owner, method)

    def frozen(*args: Any, **more: Any) -> Any:
        setattr(owner, method, call)
        report("freezing", member=getattr(args[0], "member", ""))
        os.kill(os.getpid(), signal.SIGSTOP)
        return call(*args, **more)

    setattr(owner, method, frozen)


def main(config: dict[str, Any]) -> None:
    """Join, and carry out the commands."""
    options = Options.parse(config["options"])
    tempfile.tempdir = config["temporary"]
    wire.VERSION = config.get("protocol", wire.VERSION)
    worker = ReportingWorker(keeps=config.get("keeps", False))
    membership = Membership(options, config.get("slots", 1), worker)
    membership.work_under_leases(config.get("lease"))
    if config.get("freezes_as_leader"):
        freeze_before(membership.store, "open_epoch")
    if config.get("freezes_as_owner"):
        freeze_before(membership.owner, "assigned")
    if config.get("waits"):
        report("ready")
        sys.stdin.readline()
    try:
        if config.get("assign"):
            (topic,) = options.subscribe or ()
            ranges = {(topic, p): [KeyRange(*r)] for p, *r in config["assign"]}
            membership.assign(ranges, takeover=config["takeover"])
        else:
            membership.subscribe(options.subscribe, options.subscribe_pattern, Listener())
    except Exception as error:  # noqa: BLE001 - the test looks at it
        report("refused", error=type(error).__name__, text=str(error))
        membership.leave()
        return
    for line in sys.stdin:
        command, *words = line.split()
        if command == "leave":
            break
        if command == "mirror":
            mirror(worker)
            continue
        if command == "epoch":
            assert worker.assignment is not None
            while worker.assignment.epoch.number < int(words[0]):
                time.sleep(0.02)
            report("epoch", number=worker.assignment.epoch.number)
            continue
        if command == "topics":
            check_topics(worker, membership)
            continue
        if command == "lease":
            assert worker.assignment is not None
            may = membership.may_work_for(worker.assignment, float(words[0]) or None)
            report("lease", may=may)
            continue
        offset, *epoch = map(int, words)
        assignment = worker.held[epoch[0]] if epoch else worker.assignment
        assert assignment is not None
        share = assignment.shares[0]
        tp = (share.topic, share.partition)
        try:
            assignment.commit({tp: OffsetRanges([(offset, offset)])})
            report("committed", offset=offset, epoch=assignment.epoch.number)
        except CommitStoreError as error:
            report("refused", offset=offset, error=type(error).__name__, text=str(error))
            membership.fenced(str(error))
    membership.leave()
    report("left")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
