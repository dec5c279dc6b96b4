"""A small maxNumRanges: it bounds what the loop reads, and no commit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assignors import KeyRange
from commits import MaxIndividualCommitsReached, OffsetRanges, PartitionCommits
from commits.affordable import affordable
from coopconsume import RetryPolicy
from coopconsume.runtime.plan import Limits, Partition
from coopconsume.runtime.plan.range_limit import (
    ASK_EVERY,
    SAY_EVERY,
    LimitWatch,
    limit_warning,
    read_limit,
)
from coopconsume.worker.report import Failure, PartitionReport, pack_offsets
from tests.examples import examples
from tests.model.loop_world import World, keys
from tests.partitions import make_partition

sets = st.sets(st.integers(0, 40), max_size=30)


@given(st.integers(0, 12), sets, sets, st.integers(0, 8))
def test_what_is_affordable_is_never_refused_and_no_more_would_fit(stable, known, offered, limit):
    """The log takes it; and of what is left out not one offset would fit besides."""
    commits = PartitionCommits(stable, OffsetRanges.from_offsets(known), max_ranges=limit)
    wanted = OffsetRanges.from_offsets(offered)
    fit = affordable(commits, wanted, limit)
    assert not fit - wanted
    before, after = commits.ranges.range_count, commits.copy(max_ranges=limit)
    if fit and fit.last >= commits.stable_offset:
        after.commit(fit)
    assert after.ranges.range_count <= max(before, limit)
    for offset in (wanted - fit).offsets().tolist():
        whole = next((f, last) for f, last in wanted if f <= offset <= last)
        with pytest.raises(MaxIndividualCommitsReached):
            after.copy(max_ranges=limit).commit([whole])


class AtLimit(World):
    """A world with a small ``maxNumRanges``, that checks what is planned and committed.

    There may also be limits on the records whose outputs wait for the stable offset, and on those
    that have failed and wait.
    """

    def __init__(self, *args, limit, outputs=None, most_pending=10_000, **kwargs):
        self.limit, self.most_pending = limit, most_pending
        self.outputs = outputs
        super().__init__(*args, **kwargs)

    def start(self):
        """Start again, from what the log keeps."""
        super().start()
        for p in self.partitions:
            p.ledger.max_ranges = self.limit
            p.ledger.max_outputs_waiting = self.outputs
            p.ledger.log_ranges = p.ledger.done.range_count
        #: How many ranges each partition may have: as many as now, and what is read.
        self.most = [p.ledger.ranges + self.read(p) for p in self.partitions]

    @staticmethod
    def top(p):
        """Returns the offset below which all is done, passed or read."""
        positions = [
            s.position if s.dispatched is None else s.next_position for s in p.cursors.values()
        ]
        return max(
            p.ledger.done.last + 1 if p.ledger.done else 0, p.ledger.log_last + 1, *positions
        )

    def read(self, p):
        """Returns how many offsets are read or passed, and not done."""
        return (
            len(p.ledger.done.complement(p.ledger.stable, self.top(p) - 1))
            if self.top(p) > p.ledger.stable
            else 0
        )

    def launch(self, window, *, batch_time, relief=None):
        """While a partition is at its limit, nothing above what is done or passed is read."""
        tops = {p.index: self.top(p) for p in self.partitions if p.ledger.is_at_limit}
        launched = super().launch(window, batch_time=batch_time, relief=relief)
        for p in self.partitions:
            if p.index not in tops:
                self.most[p.index] = read_limit(self.limit) + self.read(p)
                continue
            for share in p.cursors.values():
                assert share.dispatched is None or share.next_position <= tops[p.index]
        return launched

    def commit(self):
        """Commit all that is done: above the limit only what was read below it."""
        super().commit()
        for p in self.partitions:
            assert not p.ledger.to_commit
            # Others read, too, and each hears late of what they have committed.
            assert not p.ledger.is_whole or p.ledger.ranges <= self.most[p.index]
            assert (
                not p.ledger.is_whole
                or self.committed[p.index].ranges.range_count == p.ledger.ranges
            )


@st.composite
def worlds_at_limit(draw):
    """Worlds that are full of failures, so that ranges pile up."""
    logs = {}
    for part in range(draw(st.integers(1, 2))):
        offsets = draw(st.lists(st.integers(0, 60), max_size=50, unique=True))
        logs[part] = {offset: draw(keys) for offset in sorted(offsets)}
    every = [(p, o) for p, log in logs.items() for o in log]
    failing = draw(st.lists(st.sampled_from(every), max_size=25)) if every else []
    return AtLimit(
        logs,
        {at: draw(st.integers(1, 4)) for at in failing},
        slots=draw(st.integers(1, 4)),
        ordering=draw(st.sampled_from(["key", "none", "partition"])),
        concurrency=1,
        policy=RetryPolicy(backoff=1.0, jitter=0),
        limit=draw(st.integers(1, 6)),
        outputs=draw(st.one_of(st.none(), st.integers(1, 12))),
        most_pending=draw(st.sampled_from([10_000, 1, 3])),
    )


@given(worlds_at_limit(), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_partition_at_its_limit_comes_to_its_end(world, data):
    """However few ranges there may be: nothing is lost, and all is done in the end."""
    world.run(data, 500, most=30)
    assert not world.breaks
    for part, log in world.logs.items():
        assert world.committed[part].stable_offset >= world.ends[part]
        assert all(world.succeeded[part, offset] for offset in log)


def partition_at_limit(*, whole: bool = True) -> Partition:
    """A partition of a hundred records with five ranges, of ten that it may have."""
    p = make_partition(
        0, "t", 0, stable=10, committed=OffsetRanges([(o, o) for o in range(12, 27, 2)]),
        slots=[(s, (r,)) for s, r in enumerate(KeyRange().split(2))], ordering="key", whole=whole,
        max_ranges=10,
    )  # fmt: skip
    p.ledger.end = 100
    return p


def test_a_share_that_fell_behind_goes_on_in_a_partition_at_its_limit() -> None:
    """What others have passed is a gap; beyond it nothing is read."""
    p = partition_at_limit()
    assert p.ledger.is_at_limit
    assert [share.position for share in p.cursors.values()] == [27, 27]
    p.cursors[1].position = 15
    planned = p.slots.plan([0, 1], 0.0, Limits(1000, 1000))
    assert planned[0].last == 25
    assert planned[1].last == 25
    assert p.cursors[1].next_position == 27


def test_a_limit_does_not_stop_the_member_that_has_the_stable_offset() -> None:
    """Others are far ahead: it reads up to what they have committed, and nothing beyond."""
    p = make_partition(
        0, "t", 0, stable=10, committed=OffsetRanges(), slots=[(0, KeyRange().split(2)[:1])],
        ordering="key", whole=False, max_ranges=10,
    )  # fmt: skip
    p.ledger.end = 100
    p.ledger.log_ranges, p.ledger.log_last = 10, 59
    assert p.ledger.is_at_limit
    assert p.slots.plan([0], 0.0, Limits(1000, 1000)) == {0: OffsetRanges([(10, 59)])}


def test_where_others_share_it_the_logs_ranges_count() -> None:
    """Our records lie between theirs: only the log knows."""
    p = partition_at_limit(whole=False)
    assert p.ledger.is_at_limit
    p.ledger.log_ranges = 1
    assert not p.ledger.is_at_limit


def test_waiting_outputs_stop_new_reads_and_are_reported() -> None:
    """As many as there may be: gaps alone are read, until the stable offset passes them."""
    p = partition_at_limit()
    p.ledger.max_ranges, p.ledger.max_outputs_waiting = 1000, 9
    assert p.ledger.outputs_waiting == 8
    assert not p.ledger.is_at_limit
    p.ledger.done |= OffsetRanges([(28, 28)])
    assert p.ledger.is_at_limit
    assert limit_warning(p, 7.0).startswith(
        "t-0 has the outputs of 9 records waiting above its stable offset, maxOutputsWaiting is 9: "
        "nothing new is read until gaps are done. It is blocked by offset 10, "
    )
    planned = p.slots.plan([0, 1], 0.0, Limits(1000, 1000))
    assert max(offsets.last for offsets in planned.values()) < 28
    p.ledger.done |= OffsetRanges([(10, 11)])
    assert p.ledger.outputs_waiting == 8, "what is done in one piece waits for its commit alone"
    assert not p.ledger.is_at_limit
    p.commit_answered(OffsetRanges(), 17, OffsetRanges())
    assert p.ledger.outputs_waiting == 6


def test_outputs_that_their_topic_does_not_take_keep_news_away() -> None:
    """They are records below the stable offset; gaps are read all the same."""
    p = partition_at_limit()
    p.ledger.max_ranges, p.ledger.max_outputs_waiting = 1000, 12
    p.ledger.unpublished = 7, "the topic is away"
    assert p.ledger.outputs_waiting == 8 + 3
    assert not p.ledger.is_at_limit
    p.ledger.unpublished = 6, "the topic is away"
    assert p.ledger.is_at_limit
    assert limit_warning(p, 7.0) == (
        "t-0 has the outputs of 12 records waiting, maxOutputsWaiting is 12: nothing new is read "
        "until they are published. The last attempt failed: the topic is away"
    )
    planned = p.slots.plan([0, 1], 0.0, Limits(1000, 1000))
    assert max(offsets.last for offsets in planned.values()) < 28
    p.ledger.unpublished = None
    assert not p.ledger.is_at_limit


def test_the_warning_names_offset_and_key_and_comes_once_in_a_while() -> None:
    """And it describes the blocker, whatever its state is."""
    p = partition_at_limit()
    p.slots.plan([0, 1], 5.0, Limits(1000, 1000))
    watch = LimitWatch(10.0)
    (words,) = watch.look([p], 5.0)
    assert words == (
        "t-0 has 8 committed ranges above its stable offset, maxNumRanges is 10: nothing new is "
        "read until gaps are done. It is blocked by offset 10, which slot 0 processes"
    )
    failure = Failure(10, 5, b"bad", 3, 1.0, "no")
    p.slots.reported(0, PartitionReport(failed=[failure]), 5.0)
    p.slots.reported(1, PartitionReport(), 5.0)
    assert not watch.look([p], 5.0)
    (words,) = watch.look([p], 5.0 + SAY_EVERY)
    assert words.endswith(
        "blocked by offset 10, which waits for its next attempt (key 'bad', hash 5), and failed 3 "
        "times: no"
    )
    p.slots.plan([0], 7.0, Limits(1000, 1000))
    assert limit_warning(p, 7.0).endswith(
        "offset 10, which slot 0 processes (key 'bad', hash 5), and failed 3 times: no"
    )
    p = partition_at_limit()
    p.cursors[0].todo = p.cursors[1].todo = OffsetRanges()
    assert limit_warning(p, 7.0).endswith(
        "offset 10, which belongs to another member, or is not in the log"
    )
    p.cursors[0].todo = OffsetRanges([(10, 10)])
    assert limit_warning(p, 7.0).endswith("offset 10, which has not started")
    p.slots.amend(OffsetRanges([(10, 99)]))
    assert p.blocker(0.0) is None
    assert not watch.look([p], 5.0 + 2 * SAY_EVERY)


def test_a_rebalance_is_asked_for_once_in_a_while_and_only_if_nothing_moves() -> None:
    """The stable offset has stood for the patience, at the limit."""
    p = partition_at_limit()
    watch = LimitWatch(10.0)
    assert watch.ask([p], 80.0) is None
    assert watch.ask([p], 99.0) is None, "it has 8 of 10 ranges"
    p.ledger.max_ranges = 8
    assert watch.ask([p], 100.0) is None
    p.ledger.stable = 12
    assert watch.ask([p], 109.0) is None
    assert watch.ask([p], 118.0) is None
    assert watch.ask([p], 119.0) == (
        "t-0 has as many ranges as maxNumRanges allows, and its stable offset 12 does not move"
    )
    assert watch.ask([p], 130.0) is None
    p.ledger.max_ranges = 9
    assert watch.ask([p], 119.0 + ASK_EVERY) is None
    p.ledger.max_ranges = 8
    assert watch.ask([p], 119.0 + ASK_EVERY) is None
    assert watch.ask([p], 129.0 + ASK_EVERY) is not None


def test_the_limit_is_never_below_one() -> None:
    """A limit of one range still lets a partition begin."""
    assert [read_limit(n) for n in (0, 1, 2, 10)] == [1, 1, 1, 8]


def test_all_that_was_read_is_committed_and_a_partition_reads_on_once_it_has_fewer_ranges() -> None:
    """Ten ranges are its limit, and it gets more; a record that fails is tried again meanwhile."""
    p = partition_at_limit()
    limits = Limits(1000, 1000)
    planned = p.slots.plan([0, 1], 0.0, limits)
    assert OffsetRanges.union(planned.values()) == OffsetRanges.from_offsets(
        [10, *range(11, 26, 2)]
    )
    done = pack_offsets(_arrow(OffsetRanges([(13, 13), (17, 17)])))
    failed = [Failure(o, 5, b"bad", 1, 1.0, "no") for o in (11, 15, 19)]
    reports = PartitionReport(done, failed=failed)
    p.slots.reported(0, reports, 0.0)
    p.slots.reported(1, PartitionReport(), 0.0)
    assert p.ledger.to_commit == OffsetRanges([(13, 13), (17, 17)])
    p.ledger.max_ranges = 4
    assert p.ledger.is_at_limit
    p.commit_answered(p.ledger.to_commit, 10, OffsetRanges())
    assert not p.ledger.to_commit
    assert p.ledger.committed.range_count == 6
    planned = p.slots.plan([0, 1], 2.0, limits)
    assert 11 in OffsetRanges.union(planned.values()), "it is tried again at the limit, too"
    p.slots.amend(OffsetRanges([(10, 23)]))
    assert not p.ledger.is_at_limit
    p.slots.unknown(0)
    assert OffsetRanges.union(p.slots.plan([0, 1], 3.0, limits).values()).last == 99


def _arrow(offsets: OffsetRanges):
    import pyarrow as pa

    return pa.array(offsets.offsets(), pa.int64())
