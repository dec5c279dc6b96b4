"""What a job commits of a log with as many ranges as it may have, and what it says of repeats."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import (
    ACCEPT_RANGE_FETCH,
    MAX_NUM_RANGES,
    MaxIndividualCommitsReached,
    OffsetRanges,
    PartitionCommits,
    Pending,
)
from coopconsume.group.membership import Membership
from coopconsume.options import Options
from coopconsume.record import RetryPolicy
from coopconsume.runtime.commit.log_calls import commit_outcomes
from coopconsume.runtime.commit.next_commit import CommitRequest
from coopconsume.runtime.commit.outbox import write
from coopconsume.runtime.commit.parcels import Parcel, Written
from coopconsume.runtime.job_spec import JobSpec
from tests.broker.member_process import ReportingWorker
from tests.lost_answers import lose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.runtime.events import CommitAnswered
    from coopconsume.sinks.base import Outputs
    from tests.broker.group_harness import GroupHarness

pytestmark = pytest.mark.broker
WORK = JobSpec(
    None, 1, "key", RetryPolicy(), None, park=False, outputs=None, interval=0.0,
    available_now=False,
)  # fmt: skip


@pytest.fixture
def two(harness: GroupHarness) -> Iterator[tuple[EpochAssignment, EpochAssignment]]:
    """Two members that have claimed half of the keys each, of a log that takes two ranges."""
    harness.store.set_setting(ACCEPT_RANGE_FETCH, value=True, topic=harness.topic)
    harness.store.set_setting(MAX_NUM_RANGES, 2, topic=harness.topic)
    members = []
    for half in KeyRange().split(2):
        options = {name: value for name, value in harness.options.items() if name != "subscribe"}
        member = Membership(Options.parse(options), 1, ReportingWorker())
        lose(member.store, "answer")  # of the claim: it is made once, and asked for again
        member.assign({(harness.topic, 0): [half]}, takeover=False)
        members.append(member)
    first, second = (member.assignment for member in members)
    assert first is not None
    assert second is not None
    assert len(harness.store.claims(harness.group)) == 2
    yield first, second
    for member in members:
        member.leave()


def committed(
    assignment: EpochAssignment, *pairs: tuple[int, int], commit_id: str, pending: Any = None
) -> CommitAnswered:
    """Commit what is done of the partition, as the loop does."""
    (tp,) = assignment.owned
    return commit_outcomes(
        assignment, CommitRequest(commit_id, {tp: OffsetRanges(pairs)}, pending=pending or {})
    )


def test_all_that_was_handled_is_committed_above_the_limit(
    two: tuple[EpochAssignment, EpochAssignment],
) -> None:
    """The limit bounds what is read. Members that count the ranges of the log see all of them."""
    first, second = two
    (tp,) = first.owned
    group, failed = first.options.group_id, Pending(9, attempts=1)
    assert first.owned[tp].max_ranges == 2
    answer = committed(
        first, (1, 1), (3, 3), (5, 5), (7, 7), commit_id="a-1", pending={tp: [failed]}
    )
    done = OffsetRanges([(1, 1), (3, 3), (5, 5), (7, 7)])
    assert answer.offsets == {tp: (done, 0)}
    assert first.store.state(group)[tp] == PartitionCommits(0, list(done))
    assert first.store.pending(group) == {tp: {9: failed}}
    second.refresh()
    assert second.owned[tp].range_count == 4
    answer = committed(second, (0, 0), (11, 11), commit_id="b-1")
    assert answer.offsets == {tp: (OffsetRanges([(0, 0), (11, 11)]), 2)}


def test_commits_that_users_name_are_refused_above_the_limit(
    two: tuple[EpochAssignment, EpochAssignment],
) -> None:
    """So are those of `consumer.commit` in a member beside a job; gaps may be filled."""
    first, second = two
    (tp,) = first.owned
    committed(first, (1, 1), (3, 3), (5, 5), commit_id="a-1")
    second.refresh()
    group, grant = second.options.group_id, second._grant
    with pytest.raises(MaxIndividualCommitsReached) as error:
        second.store.commit(group, grant.epoch, grant.member, {tp: [(7, 7)]})
    assert (error.value.range_count, error.value.max_ranges) == (4, 2)
    named = OffsetRanges([(0, 0), (7, 7), (9, 9)])
    assert second.affordable({tp: named}, {}) == {tp: OffsetRanges([(0, 0)])}
    second.commit({tp: OffsetRanges([(0, 0)])})
    state = first.store.state(first.options.group_id)
    assert state[tp] == PartitionCommits(2, [(3, 3), (5, 5)])


class Sink:
    """Remembers the offsets of the rows that it was given, by commit."""

    schema = pa.schema([("n", pa.int64())])
    hears_all = False

    def __init__(self) -> None:
        self.written: dict[str, list[int]] = {}

    def write(self, outputs: Outputs) -> None:
        self.written[outputs.commit_id] = outputs.table(self.schema)["_offset"].to_pylist()

    def close(self) -> None:
        pass


def rows(tp: tuple[str, int], *offsets: int) -> Any:
    """A row for each offset, as a slot reports them."""
    columns = {"n": offsets, "_part": [0] * len(offsets), "_offset": offsets}
    schema = pa.schema([("n", pa.int64()), ("_part", pa.int32()), ("_offset", pa.int64())])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_table(pa.table(columns, schema))
    return (tp,), out.getvalue().to_pybytes()


def test_rows_above_the_limit_are_written_and_committed_with_their_offsets(
    two: tuple[EpochAssignment, EpochAssignment],
) -> None:
    """A row stands under the commit that counts its offset, however many ranges there are."""
    first, _ = two
    (tp,) = first.owned
    sink = Sink()
    parcel = Parcel({tp: OffsetRanges.from_offsets([1, 3, 5])}, rows=[rows(tp, 1, 3, 5)])
    write(replace(WORK, outputs=sink), first, parcel, "a-1")
    answer = commit_outcomes(
        first,
        CommitRequest("a-1", {tp: OffsetRanges([(7, 7)])}, written=Written(parcel, "a-1", 0.0)),
    )
    assert sink.written == {"a-1": [1, 3, 5]}
    assert answer.offsets == {tp: (OffsetRanges.from_offsets([1, 3, 5, 7]), 0)}
    assert first.owned[tp].range_count == 4


def test_repeats_are_one_warning_a_commit_with_counts(
    two: tuple[EpochAssignment, EpochAssignment], caplog: pytest.LogCaptureFixture
) -> None:
    """However many offsets were committed before; without repeats there is no warning."""
    assignment, _ = two
    (tp,) = assignment.owned
    caplog.set_level(logging.WARNING, "coopconsume")

    def messages() -> list[str]:
        # The clients of other tests may still look for their brokers.
        ours = [one for one in caplog.records if one.name.startswith(("coopconsume", "commits"))]
        return [record.getMessage() for record in ours]

    committed(assignment, (0, 5), commit_id="a-1")
    assert not messages()
    committed(assignment, (3, 7), commit_id="a-2")
    committed(assignment, (0, 1), commit_id="a-3")
    assert messages() == [
        f"3 offsets were committed before, and count once ({tp[0]}-0: 3)",
        f"2 offsets were committed before, and count once ({tp[0]}-0: 2)",
    ]
