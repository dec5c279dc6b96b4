"""Several members of one partition: different speeds, a range limit, restarts and retention."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from assignors import KeyRange
from commits import OffsetRanges, PartitionCommits
from coopconsume import RetryPolicy
from tests.examples import examples
from tests.model.loop_world import keys
from tests.model.test_limits_model import AtLimit


class Member(AtLimit):
    """One of several members: it has a part of the hash space, and shares the log and the store.

    Args:
        group: What the members share.
        ranges: Its key ranges.
    """

    def __init__(self, group, ranges, **kwargs):
        self.group, self.ranges = group, ranges
        super().__init__({0: group.log}, group.failures, **kwargs)

    def start(self):
        """Start again from the store that all members share."""
        group = self.group
        self.committed, self.pending = group.committed, group.pending
        self.succeeded, self.failures = group.succeeded, group.failures
        self.calls, self.breaks = group.calls, group.breaks
        super().start()

    def launch(self, window, *, batch_time, relief=None):
        """A batch that reads below the log's start fails, and its member looks where that is."""
        (p,) = self.partitions
        free = set(range(self.slots)) - set(self.busy)
        launched = super().launch(window, batch_time=batch_time, relief=relief)
        planned = [slot for slot in free if slot in self.busy]
        lowest = min(
            (p.cursors[slot].dispatched.first for slot in planned), default=p.ledger.stable
        )
        assert lowest >= p.ledger.stable
        if lowest < self.group.log_start:
            for slot in planned:
                self.deliver(slot, lost=True)
            if self.group.log_start > p.ledger.stable:
                p.log_start(self.group.log_start)
        return launched

    def commit(self):
        """Commit, and prove holes where the partition's first hash is ours."""
        (p,) = self.partitions
        first = p.ledger.first_open()
        if (
            self.ranges[0].first == 0
            and first < p.supply.position
            and p.supply.unclaimed(first, first)
        ):
            here = OffsetRanges([(first, p.supply.position - 1)])
            p.slots.amend(here - OffsetRanges.from_offsets(list(self.logs[0])))
        super().commit()
        p.ledger.log_ranges = self.committed[0].ranges.range_count

    def refresh(self):
        """Read the store, as a member does where nothing of its own waits for a commit."""
        (p,) = self.partitions
        self.see_ends()
        ranges = self.committed[0].ranges
        p.commit_answered(OffsetRanges(), self.committed[0].stable_offset, OffsetRanges())
        p.ledger.log_ranges, p.ledger.log_last = (
            ranges.range_count,
            -1 if ranges.last is None else ranges.last,
        )


class Group:
    """A partition, its committed state, and the members that share it."""

    def __init__(self, log, failures, pieces, **kwargs):
        self.log, self.failures = log, failures
        self.committed, self.pending = {0: PartitionCommits()}, {0: {}}
        self.calls, self.succeeded = Counter(), Counter()
        self.breaks = []
        self.log_start = 0
        self.members = [
            Member(self, (piece,), policy=RetryPolicy(backoff=1.0, jitter=0), **kwargs)
            for piece in KeyRange().split(pieces)
        ]

    def delete_below(self, offset, noticed_by):
        """Retention deletes records; one member notices and informs the store."""
        for gone in [o for o in self.log if o < offset]:
            del self.log[gone]
        self.log_start = max(self.log_start, offset)
        self.committed[0].log_start(offset)
        stable = self.committed[0].stable_offset
        self.pending[0] = {o: p for o, p in self.pending[0].items() if o >= stable}
        for member in self.members:
            member.pending = self.pending
        if offset > noticed_by.partitions[0].ledger.stable:
            noticed_by.partitions[0].log_start(offset)


@st.composite
def groups(draw, orderings=("key", "none")):
    """Two or three members of a partition with failures, at a small limit."""
    offsets = draw(st.lists(st.integers(0, 60), max_size=50, unique=True))
    failing = draw(st.lists(st.sampled_from(offsets), max_size=12)) if offsets else []
    return Group(
        {offset: draw(keys) for offset in sorted(offsets)},
        {(0, offset): draw(st.integers(1, 3)) for offset in failing},
        draw(st.integers(2, 3)),
        slots=draw(st.integers(1, 2)), ordering=draw(st.sampled_from(orderings)), concurrency=1,
        limit=draw(st.integers(1, 6)), outputs=draw(st.one_of(st.none(), st.integers(1, 6))),
        most_pending=draw(st.sampled_from([10_000, 1, 3])),
    )  # fmt: skip


@given(groups(), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_shared_partition_at_its_limit_comes_to_its_end(group, data):
    """However far one member is ahead: the one that has the stable offset goes on."""
    ahead = data.draw(st.sampled_from(group.members))
    for _ in range(data.draw(st.integers(0, 4))):
        for what in "ldc":
            ahead.step(what, data, rough=False)
    troubled = data.draw(st.integers(0, 40))
    for step in range(400):
        rough = step < troubled
        if rough:
            member = data.draw(st.sampled_from(group.members))
            what = data.draw(st.sampled_from("lldddcrwmmlldddcmx"))
        else:
            member, what = group.members[step // 5 % len(group.members)], "ldcmw"[step % 5]
        if what == "m":
            member.refresh()
        elif what == "x":
            start = data.draw(st.integers(0, 60))
            group.delete_below(start, data.draw(st.sampled_from(group.members)))
        elif what != "r" or member.crashes < 2:
            member.step(what, data, rough=rough, most=30, hasty=True)
        if group.committed[0].stable_offset >= member.ends[0]:
            break
    else:
        raise AssertionError("the partition stands still")
    assert not group.breaks
    for offset in group.log:
        assert group.succeeded[0, offset], f"{offset} is lost"
