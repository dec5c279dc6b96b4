"""What a member does when the commit log takes no more ranges, and what it says of repeats."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import ACCEPT_RANGE_FETCH, MAX_NUM_RANGES, OffsetRanges, PartitionCommits, Pending
from coopconsume.group.membership import Membership
from coopconsume.options import Options
from coopconsume.record import RetryPolicy
from coopconsume.runtime.commit.committer import NextCommit
from coopconsume.runtime.commit.log_calls import commit_within_limit
from coopconsume.runtime.commit.outbox import fitting, write
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
    return commit_within_limit(assignment, {tp: OffsetRanges(pairs)}, {}, pending or {}, commit_id)


def test_what_fits_is_committed_and_the_rest_is_held(
    two: tuple[EpochAssignment, EpochAssignment],
) -> None:
    """The topic's own limit counts; filling a gap frees a range."""
    assignment, _ = two
    (tp,) = assignment.owned
    assert assignment.owned[tp].max_ranges == 2
    answer = committed(assignment, (1, 1), (3, 3), (5, 5), (7, 7), commit_id="a-1")
    assert answer.over_limit == {tp}
    assert answer.offsets == {tp: (OffsetRanges([(1, 1), (3, 3)]), 0)}
    answer = committed(assignment, (0, 0), (5, 5), (7, 7), commit_id="a-2")
    assert answer.over_limit == {tp}
    assert answer.offsets == {tp: (OffsetRanges([(0, 0), (5, 5)]), 2)}
    answer = committed(assignment, (2, 2), (7, 7), commit_id="a-3")
    assert not answer.over_limit
    assert assignment.store.state(assignment.options.group_id)[tp] == PartitionCommits(
        4, [(5, 5), (7, 7)]
    )


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


def test_rows_wait_with_the_offsets_they_belong_to(
    two: tuple[EpochAssignment, EpochAssignment],
) -> None:
    """A row stands under the commit that counts its offset, also where others were quicker."""
    first, second = two
    (tp,) = first.owned
    sink = Sink()
    job_spec = replace(WORK, outputs=sink)

    def commit_rows(parcel: Parcel, commit_id: str) -> tuple[CommitAnswered, Parcel]:
        fit, left = fitting(first, parcel)
        write(job_spec, first, fit, commit_id)
        return commit_within_limit(first, {}, {}, {}, commit_id, Written(fit, commit_id, 0.0)), left

    def parcel_of(*offsets: int) -> Parcel:
        return Parcel({tp: OffsetRanges.from_offsets(offsets)}, rows=[rows(tp, *offsets)])

    answer, left = commit_rows(parcel_of(1, 3, 5), "a-1")
    assert sink.written == {"a-1": [1, 3]}
    assert answer.offsets == {tp: (OffsetRanges([(1, 1), (3, 3)]), 0)}
    assert left.places() == {tp: OffsetRanges([(5, 5)])}
    left.add(parcel_of(0, 2))
    answer, left = commit_rows(left, "a-2")
    assert not left
    assert sorted(sink.written["a-2"]) == [0, 2, 5]
    committed(second, (8, 8), commit_id="b-1")
    assert first.owned[tp].range_count == 1, "the member has not heard of that"
    answer, left = commit_rows(parcel_of(10), "a-3")
    assert sink.written["a-3"] == [10]
    assert not left
    assert not answer.over_limit, "its row is written: it is one range over the limit"


def test_a_refusal_because_others_were_quicker_keeps_everything(
    two: tuple[EpochAssignment, EpochAssignment],
) -> None:
    """Nothing of the partition was written: offsets and failed records come with the next one."""
    first, second = two
    (tp,) = first.owned
    committed(second, (2, 2), (4, 4), commit_id="b-1")
    first.store.state(first.options.group_id)
    assert first.owned[tp].range_count == 0, "the store has heard of that, the member has not"
    failed = Pending(6, attempts=1)
    answer = committed(first, (8, 8), commit_id="a-1", pending={tp: [failed]})
    assert answer.over_limit == {tp}
    assert not answer.offsets
    assert answer.later == {tp: [failed]}
    assert first.owned[tp].range_count == 2, "now it has"
    coming = NextCommit()
    coming.put_back(answer.later)
    answer = committed(first, (0, 1), (8, 8), commit_id="a-2", pending=coming.pending)
    assert answer.offsets == {tp: (OffsetRanges([(0, 1), (8, 8)]), 3)}
    assert first.store.pending(first.options.group_id) == {tp: {6: failed}}


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
